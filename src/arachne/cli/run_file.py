"""What every verb that takes a run file has in common."""

import argparse
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from arachne.cli.run_dir import has_checkpoints
from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.strict_toml import load_toml
from arachne.data.remote_path import dataset_path
from arachne.planner.registry import planner_named
from arachne.trainer.config import RunConfig
from arachne.trainer.ignored_settings import ignored_settings
from arachne.trainer.planning_shape import planning_shape
from arachne.trainer.settings.model import ModelSettings

_KINDS = {
    "model.pretrained": "folder or safetensors file",
    "lora.init_from": "safetensors file, or a folder that holds one",
    "validation.images": "picture or video",
    "data.path": "folder or file",
    "data.others.path": "folder or file",
}
"""What a setting may name that is not only a folder."""

_HUB_ID = re.compile(r"(?!models/|weights/|checkpoints/|runs/)[A-Za-z0-9][\w.-]*/[\w.-]+")
"""What a model at the Hugging Face Hub is called; so may be a folder that is not there."""

_IN_PRESET = {"model.pretrained": "", "model.video_encoder": "dct", "model.text_encoder": "hashed"}
"""Settings whose folders planning does not need where there is a preset, and what names none."""


def add_run_file(parser: argparse.ArgumentParser) -> None:
    """Add RUN.toml and `--set` to a verb."""
    parser.add_argument("run_file", type=Path, metavar="RUN.toml", help="the run file")
    add_overrides(parser, "change one setting; may be given several times")


def add_overrides(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--set` to a verb."""
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help=what,
    )


def loaded_config(
    arguments: argparse.Namespace, *, needs_data: bool = True, needs_model: bool = True
) -> RunConfig:
    """The run file with its overrides, checked as far as that goes without torch.

    Says which settings do nothing.

    Args:
        arguments: With those of `add_run_file`.
        needs_data: The dataset has to exist.
        needs_model: The model has to be one that can be built, and not only planned for: without
            it, a preset stands for its folders, where they are missing.

    Raises:
        ConfigError: A setting is unknown, mistyped, or cannot work, or the pretrained weights are
            none of the run's model, as far as that is seen without torch.
    """
    config = load_toml(arguments.run_file, RunConfig, overrides=arguments.overrides)
    check_config(config, needs_data=needs_data, needs_model=needs_model)
    if needs_model and config.model.pretrained:
        planning_shape(config.model)  # refuses weights that the run cannot use
    if _is_first_process():
        for line in ignored_settings(config):
            print(f"arachne: {line}", file=sys.stderr)
    return config


def check_config(config: RunConfig, *, needs_data: bool, needs_model: bool) -> None:
    """Refuse a run that cannot work here, as far as that is seen without torch.

    Raises:
        ConfigError: A folder or a package is missing, or a setting cannot work.
    """
    planner_named(config.planner.name)
    if not config.model.pretrained:
        config.model.shape(latent_channels=1, text_size=1)
    goes_on = has_checkpoints(Path(config.run.dir))  # they hold what it began with
    excused = () if needs_model else missing_folders(config.model)
    for setting, name, built_in in (
        ("model.pretrained", config.model.pretrained, ""),
        ("model.video_encoder", config.model.video_encoder, "dct"),
        ("model.text_encoder", config.model.text_encoder, "hashed"),
        ("model.image_encoder", config.model.image_encoder, ""),
        ("model.other_expert", config.model.other_expert, ""),
        ("lora.init_from", "" if goes_on else config.lora.init_from, ""),
        *(("validation.images", image, "") for image in config.validation.images),
        ("data.path", config.data.path, None if needs_data else config.data.path),
        *(
            ("data.others.path", other.path, None if needs_data else other.path)
            for other in config.data.others
        ),
    ):
        path = dataset_path(name) if setting.startswith("data.") else Path(name)
        if setting not in excused and name != built_in and not path.exists():
            known = f"{built_in!r} or " if built_in else ""
            kind = _KINDS.get(setting, "folder")
            instead = ", or a model.preset, which has its sizes" if setting in _IN_PRESET else ""
            if setting == "data.path":
                instead = ", or plan for made-up clips: --clips panda70m"
            is_model = setting in (*_IN_PRESET, "model.other_expert", "model.image_encoder")
            at_the_hub = name if _HUB_ID.fullmatch(name) else "ORG/NAME"
            fetch = f"; nothing is fetched in a run: hf download {at_the_hub} --local-dir {name}"
            raise ConfigError(
                f"{setting} {name!r} does not exist; name {known}an existing {kind}"
                + ("" if needs_model else instead)
                + (fetch if is_model and needs_model and "/" in name else "")
            )
    if needs_model and config.lora.is_on and find_spec("peft") is None:
        raise ConfigError(
            "[lora] needs the package peft, which is not installed; pip install 'arachne[lora]'"
        )
    if needs_model and config.memory.needs_bitsandbytes and find_spec("bitsandbytes") is None:
        raise ConfigError(
            f"memory.base {config.memory.base!r} needs the package bitsandbytes, which is not "
            "installed; pip install 'arachne[eight-bit]', or take 'fp8', which needs none"
        )
    if needs_model and config.optimizer.needs_bitsandbytes and find_spec("bitsandbytes") is None:
        raise ConfigError(
            "optimizer.name 'adamw8bit' needs the package bitsandbytes, which is not installed; "
            "pip install 'arachne[eight-bit]', or choose 'adamw'"
        )


def _is_first_process() -> bool:
    """Whether this is the only process, or torchrun's first, which looks and speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def missing_folders(model: ModelSettings) -> tuple[str, ...]:
    """Settings whose folders are not here, where a preset has the sizes that planning needs."""
    if model.preset not in family_named(model.family).presets:
        return ()
    folders = {setting: getattr(model, setting.removeprefix("model.")) for setting in _IN_PRESET}
    return tuple(
        setting
        for setting, folder in folders.items()
        if folder != _IN_PRESET[setting] and not Path(folder).exists()
    )


def check_data(config: RunConfig, *, is_listed: bool, is_cached: bool = True) -> None:
    """Look, before models are loaded, whether there are clips and a cache that can be written.

    Args:
        config: The run.
        is_listed: Whether the datasets are to be read again; not those of a run that is resumed.
        is_cached: Whether arrays are to be stored.

    Raises:
        DataError: They hold no clip, cannot be read, or nothing can be written to `data.cache`.
    """
    if not _is_first_process():
        return
    from arachne.data.cache import check_cache
    from arachne.trainer.sources import listed_clips

    if is_cached:
        check_cache(Path(config.data.cache))
    if is_listed:
        listed_clips(config.data)
