"""Image encoders of transformers (CLIP) behind our interface; the weights load when first used.

Shape suffixes:
  H height   W width   T states   I width of a state
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from arachne.core.errors import ConfigError
from arachne.models.pretrained_folder import content_digest, read_config

_SETTING = "model.image_encoder"
_NEEDED = "a pipeline's folder, or one with a CLIPVisionModel"

_PROCESSOR: Mapping[str, Any] = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
"""What transformers' `CLIPImageProcessor` takes where preprocessor_config.json leaves it out."""


@dataclass(frozen=True, kw_only=True)
class PretrainedImageEncoder:
    """CLIP's vision model; `open_image_encoder` checks a folder and makes one.

    Its states are those before the last layer, as `WanImageToVideoPipeline` takes them.

    Attributes:
        folder: Where config.json and the weights lie.
        num_tokens: States of a picture: its patches, and one of the whole.
        image_size: Width of a state.
        side: Pixels on each side of what it looks at.
        mean, std: Of a pixel's three colours, from 0 to 1.
        device: Where it runs.
    """

    folder: Path
    num_tokens: int
    image_size: int
    side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    device: str = "cpu"

    @property
    def fingerprint(self) -> str:
        """Digest of config and weights, and of what is done to pictures."""
        return f"image-{self._digest}-{self.side}-{_short(self.mean)}-{_short(self.std)}"

    @cached_property
    def _digest(self) -> str:
        return content_digest(self.folder)

    @torch.no_grad()
    def encode(self, frame: np.ndarray) -> np.ndarray:
        """States float32 [T, I] of a picture uint8 [H, W, 3]."""
        square_HW3 = _centre(frame, self.side).astype(np.float32) / 255.0
        scaled_HW3 = (square_HW3 - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        pixels_B3HW = torch.from_numpy(scaled_HW3).permute(2, 0, 1)[None].to(self.device)
        found = self._model(pixel_values=pixels_B3HW, output_hidden_states=True)
        return found.hidden_states[-2][0].float().cpu().numpy()

    @cached_property
    def _model(self) -> Any:
        from transformers import CLIPVisionModel

        try:
            model: Any = CLIPVisionModel.from_pretrained(
                str(self.folder), torch_dtype=torch.float32, local_files_only=True
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{_SETTING} {str(self.folder)!r}: weights cannot be loaded: {error}"
            ) from error
        return model.to(self.device).eval().requires_grad_(False)


def _centre(frame: np.ndarray, side: int) -> np.ndarray:
    """The middle square of a picture, its shorter side brought to `side` pixels (bicubic)."""
    picture = Image.fromarray(frame)
    short = min(picture.size)
    width, height = (length * side // short for length in picture.size)
    left, top = (width - side) // 2, (height - side) // 2
    resized = picture.resize((width, height), resample=Image.Resampling.BICUBIC)
    return np.asarray(resized.crop((left, top, left + side, top + side)))


def _short(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:.4g}" for value in values)


def open_image_encoder(folder: Path, *, device: str = "cpu") -> PretrainedImageEncoder:
    """The image encoder in a pipeline's folder (`image_encoder` in it), or in the folder itself.

    Reads only configuration files; weights are loaded when the first clip is encoded.

    Raises:
        ConfigError: The folder holds no such encoder, or transformers is not installed.
    """
    if find_spec("transformers") is None:
        raise ConfigError(
            f"{_SETTING} needs the package transformers, which is not installed; "
            "pip install transformers"
        )
    found = folder / "image_encoder" if (folder / "image_encoder").is_dir() else folder
    config = read_config(found, setting=_SETTING, needed=_NEEDED)
    if config.get("model_type") != "clip_vision_model":
        raise ConfigError(
            f"{_SETTING} {str(found)!r} holds a {config.get('model_type')!r}; name {_NEEDED}"
        )
    processor = _processor(folder)
    side = int(config["image_size"])
    return PretrainedImageEncoder(
        folder=found,
        num_tokens=(side // int(config["patch_size"])) ** 2 + 1,
        image_size=int(config["hidden_size"]),
        side=side,
        mean=tuple(processor["image_mean"]),
        std=tuple(processor["image_std"]),
        device=device,
    )


def _processor(folder: Path) -> Mapping[str, Any]:
    """What is done to pictures, by the preprocessor_config.json that lies beside, if one does."""
    for place in (folder / "image_processor", folder):
        if (place / "preprocessor_config.json").is_file():
            path = place / "preprocessor_config.json"
            try:
                return {**_PROCESSOR, **json.loads(path.read_text(encoding="utf-8"))}
            except (OSError, ValueError, TypeError) as error:
                raise ConfigError(f"{_SETTING}: cannot read {str(path)!r}: {error}") from error
    return _PROCESSOR
