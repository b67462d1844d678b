"""A transformer from one safetensors file with its authors' names, by diffusers' own renaming.

It is for families other than Wan, whose files `published_file` reads alone: these files hold no
configuration, and the sizes are those of the preset that a run names. diffusers' renaming of
HunyuanVideo's and Mochi's names knows their published sizes alone.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from arachne.core.errors import ConfigError
from arachne.models.diffusers_family import DiffusersFamily

_PREFIX = "model.diffusion_model."
"""Before the transformer's names in files that hold an autoencoder too, and in ComfyUI's."""

_SETTING = "model.pretrained"


def load_single_file(family: DiffusersFamily, file: Path, module: nn.Module) -> None:
    """Fill a module of the family's class, in float32 or float64, from a file.

    Raises:
        ConfigError: diffusers cannot rename the family's tensors; or the file is no safetensors
            file, or has other tensors than the module, or 8-bit ones.
    """
    tensors = _renamed(family, file)
    needed = module.state_dict()
    for name in sorted(tensors.keys() ^ needed.keys()):
        what = "has" if name in tensors else "lacks"
        raise ConfigError(
            f"{_SETTING} {str(file)!r} {what} {name!r} (diffusers' name), which does not fit the "
            f"preset of family {family.name!r}; name another model.preset"
        )
    for name, values in tensors.items():
        if values.element_size() < 2 or values.shape != needed[name].shape:
            raise ConfigError(
                f"{_SETTING} {str(file)!r} has {name!r} as {values.dtype} of shape "
                f"{tuple(values.shape)}; needed are 16 bits or more, and "
                f"{tuple(needed[name].shape)}"
            )
    module.load_state_dict(tensors)


def check_renaming(family: DiffusersFamily, file: Path) -> None:
    """Refuse a family whose files diffusers cannot read.

    Raises:
        ConfigError: It cannot.
    """
    _renaming(family, file)


def renamed(family: DiffusersFamily, tensors: dict[str, Tensor], file: Path) -> dict[str, Tensor]:
    """The tensors of a file by diffusers' names; those of an autoencoder beside are left out.

    Raises:
        ConfigError: As `load_single_file`.
    """
    if any(name.startswith(_PREFIX) for name in tensors):
        tensors = {
            name.removeprefix(_PREFIX): values
            for name, values in tensors.items()
            if name.startswith(_PREFIX)
        }
    try:
        return _renaming(family, file)(checkpoint=tensors)
    except (KeyError, RuntimeError) as error:
        raise ConfigError(
            f"{_SETTING} {str(file)!r} is no {family.name} with its authors' names: {error}"
        ) from error


def _renamed(family: DiffusersFamily, file: Path) -> dict[str, Tensor]:
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{_SETTING}: cannot read {str(file)!r}: {error}") from error
    found = renamed(family, tensors, file)
    return {
        name: values.to(torch.promote_types(values.dtype, torch.float32))
        if values.element_size() > 1
        else values
        for name, values in found.items()
    }


def _renaming(family: DiffusersFamily, file: Path) -> Any:
    from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES

    if family.class_name not in SINGLE_FILE_LOADABLE_CLASSES:
        raise ConfigError(
            f"{_SETTING} {str(file)!r} is one file, and diffusers reads no single files of family "
            f"{family.name!r}; name a folder in diffusers' layout"
        )
    return SINGLE_FILE_LOADABLE_CLASSES[family.class_name]["checkpoint_mapping_fn"]
