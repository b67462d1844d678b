"""How many states an image encoder makes of a picture, by its config.json; without torch."""

from collections.abc import Mapping
from typing import Any


def num_image_tokens(config: Mapping[str, Any]) -> int:
    """A state for each patch; CLIP has one of the whole picture besides, and SigLIP has not."""
    patches = (int(config["image_size"]) // int(config["patch_size"])) ** 2
    return patches + (config.get("model_type") != "siglip_vision_model")
