"""What LLaVA makes of a picture and a caption, by its config.json; without torch."""

from collections.abc import Mapping
from typing import Any, cast

from arachne.core.errors import ConfigError
from arachne.models.config_sizes import config_size

LLAVA = "llava"
"""Its `model_type`."""

ASSISTANT_TOKENS = 4
"""Tokens after a caption that begin the answer; `HunyuanVideoImageToVideoPipeline` leaves their
states out."""

EVERY_IF_SHOWN, EVERY_IF_KEPT = 2, 4
"""Of a picture's states that pipeline takes every second where channels show the first frame
(`latent_concat`), every fourth where it is kept (`token_replace`)."""

_LLAMA_SIZE = 4096
_VISION_SIDE, _VISION_PATCH = 336, 14
"""What transformers takes where config.json leaves it out."""


def llava_text_size(config: Mapping[str, Any]) -> int:
    """Width of a token state.

    Raises:
        ConfigError: config.json says none; so do the others here.
    """
    return _size(config, "text_config", "hidden_size", _LLAMA_SIZE)


def picture_side(config: Mapping[str, Any]) -> int:
    """Pixels on each side of what it sees of a picture."""
    return _size(config, "vision_config", "image_size", _VISION_SIDE)


def num_picture_states(config: Mapping[str, Any]) -> int:
    """States of a picture."""
    patch = _size(config, "vision_config", "patch_size", _VISION_PATCH)
    strategy = config.get("vision_feature_select_strategy", "default")
    if strategy not in ("default", "full"):
        raise ConfigError(
            f"LLaVA's config.json has vision_feature_select_strategy = {strategy!r}; needed is "
            "'default' or 'full'"
        )
    return (picture_side(config) // patch) ** 2 + (strategy == "full")


def llava_rows(config: Mapping[str, Any], num_tokens: int, every: int) -> int:
    """States of a clip's text: every so many-th of its picture's, and the caption's.

    `num_tokens` are those of the caption and of all that follows it.
    """
    return -(-num_picture_states(config) // every) + num_tokens - ASSISTANT_TOKENS


def _size(config: Mapping[str, Any], part: str, key: str, default: int) -> int:
    options: Any = config.get(part) or {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"LLaVA's config.json has {part} = {options!r}; needed is a table")
    value = cast(Mapping[str, Any], options).get(key, default)
    return config_size(value, f"{part}.{key}", what="LLaVA's config.json")
