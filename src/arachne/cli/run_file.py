"""What every verb that takes a run file has in common."""

import argparse
from pathlib import Path

from arachne.core.errors import ConfigError
from arachne.core.strict_toml import load_toml
from arachne.planner.registry import planner_named
from arachne.trainer.config import RunConfig


def add_run_file(parser: argparse.ArgumentParser) -> None:
    """Add RUN.toml and `--set` to a verb."""
    parser.add_argument("run_file", type=Path, metavar="RUN.toml", help="the run file")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="change one setting; may be given several times",
    )


def loaded_config(arguments: argparse.Namespace) -> RunConfig:
    """The run file with its overrides, checked as far as that goes without torch.

    Raises:
        ConfigError: A setting is unknown, mistyped, or cannot work.
    """
    config = load_toml(arguments.run_file, RunConfig, overrides=arguments.overrides)
    planner_named(config.planner.name)
    if not config.model.pretrained:
        config.model.shape(latent_channels=1, text_size=1)
    for setting, name, built_in in (
        ("model.video_encoder", config.model.video_encoder, "dct"),
        ("model.text_encoder", config.model.text_encoder, "hashed"),
        ("model.pretrained", config.model.pretrained, ""),
        ("data.path", config.data.path, None),
    ):
        if name != built_in and not Path(name).exists():
            known = f"{built_in!r} or " if built_in else ""
            raise ConfigError(f"{setting} {name!r} does not exist; name {known}an existing folder")
    return config
