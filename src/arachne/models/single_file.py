"""A transformer from one safetensors file with its authors' names, by diffusers' own renaming.

It is for families other than Wan, whose files `published_file` reads alone: these files hold no
configuration, and the sizes are those of the preset that a run names. diffusers' renaming of
HunyuanVideo's and Mochi's names knows their published sizes alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from arachne.core.errors import ConfigError
from arachne.models.diffusers_family import DiffusersFamily
from arachne.models.tensor_headers import COMFYUI_PREFIX

_SETTING = "model.pretrained"


def single_file_tensors(
    family: DiffusersFamily, file: Path, needed: Mapping[str, torch.Size]
) -> Mapping[str, Tensor]:
    """The tensors of a file by diffusers' names: all that a module of the family's class holds,
    whose shapes are `needed`. Their values lie in the file until they are used.

    Raises:
        ConfigError: diffusers cannot rename the family's tensors; or the file is no safetensors
            file, or has other tensors than the module, or others than floats of 16 bits or more.
    """
    tensors = renamed(family, mapped_tensors(file), file)
    for name in sorted(tensors.keys() ^ needed.keys()):
        what = "has" if name in tensors else "lacks"
        raise ConfigError(
            f"{_SETTING} {str(file)!r} {what} {name!r} (diffusers' name), which does not fit the "
            f"preset of family {family.name!r}; name another model.preset"
        )
    for name, values in tensors.items():
        check_values(values, needed[name], name, file=file)
    return tensors


def mapped_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file by its own names; their values are read when they are used.

    Raises:
        ConfigError: It is no safetensors file.
    """
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{_SETTING}: cannot read {str(file)!r}: {error}") from error


def check_values(values: Tensor, needed: torch.Size, name: str, *, file: Path) -> None:
    """Refuse values that are no weights of a shape.

    Raises:
        ConfigError: Names them.
    """
    is_wide = values.is_floating_point() and values.element_size() > 1
    if not is_wide or values.shape != needed:
        raise ConfigError(
            f"{_SETTING} {str(file)!r} has {name!r} as {values.dtype} of shape "
            f"{tuple(values.shape)}; needed are floats of 16 bits or more, and {tuple(needed)}"
        )


def renamed(family: DiffusersFamily, tensors: dict[str, Tensor], file: Path) -> dict[str, Tensor]:
    """The tensors of a file by diffusers' names; those of an autoencoder beside are left out.

    Raises:
        ConfigError: As `single_file_tensors`.
    """
    if any(name.startswith(COMFYUI_PREFIX) for name in tensors):
        tensors = {
            name.removeprefix(COMFYUI_PREFIX): values
            for name, values in tensors.items()
            if name.startswith(COMFYUI_PREFIX)
        }
    try:
        return _renaming(family, file)(checkpoint=tensors)
    except (KeyError, IndexError, RuntimeError) as error:
        raise ConfigError(
            f"{_SETTING} {str(file)!r} is no {family.name} with its authors' names: {error}"
        ) from error


def _renaming(family: DiffusersFamily, file: Path) -> Any:
    from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES

    if family.class_name not in SINGLE_FILE_LOADABLE_CLASSES:
        raise ConfigError(
            f"{_SETTING} {str(file)!r} is one file, and diffusers reads no single files of family "
            f"{family.name!r}; name a folder in diffusers' layout"
        )
    return SINGLE_FILE_LOADABLE_CLASSES[family.class_name]["checkpoint_mapping_fn"]
