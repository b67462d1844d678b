"""What a safetensors file says of its tensors, without reading them; without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from arachne.core.errors import ConfigError

COMFYUI_PREFIX = "model.diffusion_model."
"""Before a transformer's names in files that hold an autoencoder too, and in ComfyUI's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHeader:
    """A tensor as its file describes it; `key` is its name there."""

    key: str
    shape: tuple[int, ...]


def tensor_headers(file: Path) -> Mapping[str, TensorHeader]:
    """The tensors of a file, by their names without ComfyUI's prefix.

    Raises:
        ConfigError: It is no safetensors file.
    """
    try:
        with safe_open(file, framework="numpy") as opened:
            return {
                key.removeprefix(COMFYUI_PREFIX): TensorHeader(
                    key=key, shape=tuple(opened.get_slice(key).get_shape())
                )
                for key in opened.keys()  # noqa: SIM118  (it is no dictionary)
            }
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"model.pretrained: cannot read {str(file)!r}: {error}") from error


def sides_of(
    headers: Mapping[str, TensorHeader], name: str, num_sides: int, *, file: Path
) -> tuple[int, ...]:
    """The shape of a tensor that has so many sides.

    Raises:
        ConfigError: It is not there, or has others.
    """
    if name not in headers:
        raise ConfigError(f"model.pretrained {str(file)!r} lacks {name!r}; it is not whole")
    found = headers[name].shape
    if len(found) != num_sides or 0 in found:
        raise ConfigError(
            f"model.pretrained {str(file)!r} has {name!r} of shape {found}; needed are "
            f"{num_sides} sides; name a file that is whole"
        )
    return found
