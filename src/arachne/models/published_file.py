"""One safetensors file with the published names of a Wan transformer; without torch.

It is what Wan's authors publish and ComfyUI loads. It holds no configuration, but its tensors have
shapes; only the size of an attention head does not show in them.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.core.families.wan import WAN_IMAGE_TOKENS
from arachne.core.model_shape import ModelShape
from arachne.models.tensor_headers import TensorHeader, sides_of, tensor_headers

HEAD_SIZE = 128
"""Of every Wan that was published: 12 heads for 1536 channels, 40 for 5120 (its config.json)."""

_QUERY = "blocks.0.self_attn.q.weight"


def is_published_file(path: str) -> bool:
    """Whether `model.pretrained` names one file, and no folder."""
    return Path(path).is_file()


def published_headers(file: Path) -> Mapping[str, TensorHeader]:
    """The file's tensors, by the names that were published.

    Raises:
        ConfigError: It is no safetensors file, or holds no Wan.
    """
    headers = tensor_headers(file)
    if _QUERY not in headers:
        raise ConfigError(
            f"model.pretrained {str(file)!r} has no {_QUERY!r}, so it is no Wan with its published "
            "names; name a diffusers folder, or a file as Wan's authors publish it"
        )
    return headers


def published_shape(file: Path, *, family: str, text_tokens: int, head_size: int = 0) -> ModelShape:
    """The sizes of the model in a file, from the shapes of its tensors.

    Args:
        file: The file.
        family: A family with Wan's layers.
        text_tokens: Text tokens of a clip; no weight depends on it.
        head_size: Width of a head; 0 is that of published models.

    Raises:
        ConfigError: It holds no Wan, or one with another head size.
    """
    headers = published_headers(file)

    def sides(name: str, num_sides: int) -> tuple[int, ...]:
        return sides_of(headers, name, num_sides, file=file)

    width = sides(_QUERY, 2)[0]
    head_size = head_size or HEAD_SIZE
    if width % head_size:
        raise ConfigError(
            f"model.pretrained {str(file)!r} is {width} wide, which heads of {head_size} do not "
            "fill; set model.head_size to that of the model"
        )
    patch_volume = prod(family_named(family).geometry.patch)
    latent_channels = sides("head.head.weight", 2)[0] // patch_volume
    has_image = "img_emb.proj.0.weight" in headers
    image_size = sides("img_emb.proj.0.weight", 1)[0] if has_image else 0
    blocks = {name.split(".")[1] for name in headers if name.startswith("blocks.")}
    return ModelShape(
        family=family,
        num_layers=len(blocks),
        num_heads=width // head_size,
        head_size=head_size,
        ffn_size=sides("blocks.0.ffn.0.weight", 2)[0],
        latent_channels=latent_channels,
        condition_channels=max(0, sides("patch_embedding.weight", 5)[1] - latent_channels),
        image_size=image_size,
        image_tokens=WAN_IMAGE_TOKENS if image_size else 0,
        text_size=sides("text_embedding.0.weight", 2)[1],
        text_tokens=text_tokens,
        freq_size=sides("time_embedding.0.weight", 2)[1],
    )
