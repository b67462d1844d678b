"""Image encoders of transformers (CLIP, SigLIP) behind our interface; weights load when first used.

Shape suffixes:
  H height   W width   T states   I width of a state
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image

from arachne.core.errors import ConfigError
from arachne.models.config_sizes import config_size
from arachne.models.image_tokens import num_image_tokens
from arachne.models.pretrained_folder import content_digest, loaded_part, read_config

_SETTING = "model.image_encoder"
_NEEDED = "a pipeline's folder, or one with a CLIPVisionModel or SiglipVisionModel"

CLIP = "clip_vision_model"
_SIGLIP = "siglip_vision_model"

_CLASS_OF_TYPE: Mapping[str, str] = {CLIP: "CLIPVisionModel", _SIGLIP: "SiglipVisionModel"}

_FACTOR_SLACK = 1e-6
"""What a decimal of 1/255 with six places may be off by; 1/127.5, also in use, is far from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """What is taken from and divides a pixel's three colours, from 0 to 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


_PROCESSORS: Mapping[str, Mapping[str, Any]] = {
    CLIP: {
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    },
    _SIGLIP: {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]},
}
"""What transformers' processors of pictures take where preprocessor_config.json leaves it out."""


@dataclass(frozen=True, kw_only=True)
class PretrainedImageEncoder:
    """A vision model of `_CLASS_OF_TYPE`; `open_image_encoder` checks a folder and makes one.

    CLIP sees the middle square of a picture; its states are those before the last layer, as
    `WanImageToVideoPipeline` takes them. SigLIP sees the picture squeezed to a square; its states
    are the last ones, as `HunyuanVideo15ImageToVideoPipeline` takes them.

    Attributes:
        folder: Where config.json and the weights lie.
        model_type: As config.json names it.
        num_tokens: States of a picture: its patches, and with CLIP one of the whole.
        image_size: Width of a state.
        side: Pixels on each side of what it looks at.
        mean, std: Of a pixel's three colours, from 0 to 1.
        device: Where it runs.
    """

    folder: Path
    model_type: str
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
        is_clip = self.model_type == CLIP
        square = centre(frame, self.side) if is_clip else _squeezed(frame, self.side)
        pixels_B3HW = normalized(square, self.mean, self.std).to(self.device)
        found = self._model(pixel_values=pixels_B3HW, output_hidden_states=True)
        states_BTI = found.hidden_states[-2] if is_clip else found.last_hidden_state
        return states_BTI[0].float().cpu().numpy()

    @cached_property
    def _model(self) -> Any:
        import transformers

        loader = getattr(transformers, _CLASS_OF_TYPE[self.model_type])
        model = loaded_part(loader, self.folder, setting=_SETTING, torch_dtype=torch.float32)
        return model.to(self.device).eval().requires_grad_(False)


def normalized(square: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
    """A picture uint8 [H, W, 3] as a vision model takes it: [1, 3, H, W]."""
    square_HW3 = square.astype(np.float32) / 255.0
    scaled_HW3 = (square_HW3 - np.array(mean, np.float32)) / np.array(std, np.float32)
    return torch.from_numpy(scaled_HW3).permute(2, 0, 1)[None]


def centre(frame: np.ndarray, side: int) -> np.ndarray:
    """The middle square of a picture, its shorter side brought to `side` pixels (bicubic)."""
    picture = Image.fromarray(frame)
    short = min(picture.size)
    width, height = (length * side // short for length in picture.size)
    left, top = (width - side) // 2, (height - side) // 2
    resized = picture.resize((width, height), resample=Image.Resampling.BICUBIC)
    return np.asarray(resized.crop((left, top, left + side, top + side)))


def _squeezed(frame: np.ndarray, side: int) -> np.ndarray:
    """A whole picture, both sides brought to `side` pixels (bicubic)."""
    picture = Image.fromarray(frame)
    return np.asarray(picture.resize((side, side), resample=Image.Resampling.BICUBIC))


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
    model_type = str(config.get("model_type"))
    if model_type not in _CLASS_OF_TYPE:
        raise ConfigError(f"{_SETTING} {str(found)!r} holds a {model_type!r}; name {_NEEDED}")
    what = f"{_SETTING}: the config.json of {str(found)!r}"
    side = config_size(config.get("image_size"), "image_size", what=what)
    processor = processor_of(folder, model_type, setting=_SETTING, side=side)
    return PretrainedImageEncoder(
        folder=found,
        model_type=model_type,
        num_tokens=num_image_tokens(config, what),
        image_size=config_size(config.get("hidden_size"), "hidden_size", what=what),
        side=side,
        mean=processor.mean,
        std=processor.std,
        device=device,
    )


def processor_of(folder: Path, model_type: str, *, setting: str, side: int) -> Processor:
    """What is done to pictures, by the preprocessor_config.json that lies beside, if one does.

    Args:
        folder: Of a pipeline, or of the encoder.
        model_type: As config.json names it.
        setting: Named in messages.
        side: Pixels on each side of what the encoder looks at.

    Raises:
        ConfigError: It cannot be read, or says that pictures are treated otherwise than here.
    """
    for place in (folder / "image_processor", folder / "feature_extractor", folder):
        path = place / "preprocessor_config.json"
        if path.is_file():
            try:
                found = {**_PROCESSORS[model_type], **json.loads(path.read_text(encoding="utf-8"))}
            except (OSError, ValueError, TypeError) as error:
                raise ConfigError(f"{setting}: cannot read {str(path)!r}: {error}") from error
            _check_usual(found, side, f"{setting}: {str(path)!r}", is_clip=model_type == CLIP)
            break
    else:
        path, found = folder, _PROCESSORS[model_type]
    try:
        mean, std = (
            tuple(float(value) for value in found[key]) for key in ("image_mean", "image_std")
        )
    except (TypeError, ValueError):
        mean, std = (), ()
    if not len(mean) == len(std) == 3 or not all(map(isfinite, mean + std)) or min(std) <= 0.0:
        raise ConfigError(
            f"{setting}: {str(path)!r} has image_mean = {found['image_mean']!r} and image_std = "
            f"{found['image_std']!r}; needed are three numbers each, of image_std above 0"
        )
    return Processor(mean=mean, std=std)


def _check_usual(found: Mapping[str, Any], side: int, what: str, *, is_clip: bool) -> None:
    """Refuse a treatment of pictures that published encoders do not have, and this one neither."""
    usual: Mapping[str, Any] = {
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_center_crop": is_clip,
        "rescale_factor": 1 / 255,
        "resample": int(Image.Resampling.BICUBIC),
    }
    for key, needed in usual.items():
        value = found.get(key, needed)
        is_same = isinstance(value, (int, float)) and abs(value - needed) < _FACTOR_SLACK
        if value is not None and not is_same:
            raise ConfigError(f"{what} has {key} = {value!r}; only {needed!r} is built")
    for key in ("size", "crop_size"):
        sizes: Any = found.get(key) or {}
        sides = list(cast(dict[str, Any], sizes).values()) if isinstance(sizes, dict) else [sizes]
        if any(each not in (side, None) for each in sides):
            raise ConfigError(
                f"{what} has {key} = {sizes!r}, and the encoder looks at {side}x{side} pixels; "
                "only that is built"
            )
