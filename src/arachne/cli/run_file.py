"""What every verb that takes a run file has in common."""

import argparse
from pathlib import Path

from arachne.core.errors import ConfigError
from arachne.core.strict_toml import load_toml
from arachne.planner.registry import planner_named
from arachne.trainer.config import TRAINED_FAMILIES, RunConfig


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


def loaded_config(
    arguments: argparse.Namespace, *, needs_data: bool = True, needs_model: bool = True
) -> RunConfig:
    """The run file with its overrides, checked as far as that goes without torch.

    Args:
        arguments: With those of `add_run_file`.
        needs_data: The dataset has to exist.
        needs_model: The model has to be one that can be built, and not only planned for.

    Raises:
        ConfigError: A setting is unknown, mistyped, or cannot work.
    """
    config = load_toml(arguments.run_file, RunConfig, overrides=arguments.overrides)
    planner_named(config.planner.name)
    if needs_model:
        _refuse_what_only_plans(config)
    if not config.model.pretrained:
        config.model.shape(latent_channels=1, text_size=1)
    for setting, name, built_in in (
        ("model.video_encoder", config.model.video_encoder, "dct"),
        ("model.text_encoder", config.model.text_encoder, "hashed"),
        ("model.pretrained", config.model.pretrained, ""),
        ("data.path", config.data.path, None if needs_data else config.data.path),
    ):
        if name != built_in and not Path(name).exists():
            known = f"{built_in!r} or " if built_in else ""
            raise ConfigError(f"{setting} {name!r} does not exist; name {known}an existing folder")
    return config


def _refuse_what_only_plans(config: RunConfig) -> None:
    if config.model.family not in TRAINED_FAMILIES:
        raise ConfigError(
            f"model.family {config.model.family!r} can be planned for (`arachne plan`, `arachne "
            f"compare`) but not trained yet; families that train: {', '.join(TRAINED_FAMILIES)}"
        )
    if config.optimizer.gradients != "float32":
        raise ConfigError(
            f"optimizer.gradients {config.optimizer.gradients!r} can be planned for (`arachne "
            "plan`, `arachne compare`) but not trained with yet; set it to 'float32'"
        )
