"""How many states an image encoder makes of a picture, by its config.json; without torch."""

from collections.abc import Mapping
from typing import Any

from arachne.core.errors import ConfigError
from arachne.models.config_sizes import config_size


def num_image_tokens(config: Mapping[str, Any], what: str) -> int:
    """A state for each patch; CLIP has one of the whole picture besides, and SigLIP has not.

    Raises:
        ConfigError: config.json says other sizes than an encoder has; `what` begins the line.
    """
    side, patch = (
        config_size(config.get(key), key, what=what) for key in ("image_size", "patch_size")
    )
    if patch > side:
        raise ConfigError(f"{what} has patches of {patch} pixels in pictures of {side}")
    return (side // patch) ** 2 + (config.get("model_type") != "siglip_vision_model")
