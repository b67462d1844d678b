"""What a folder of an image encoder says of itself is checked before anything is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from arachne.core.errors import ConfigError
from arachne.models.pretrained_image import open_image_encoder

CONFIG: dict[str, Any] = {
    "model_type": "clip_vision_model",
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 16,
}


def written(folder: Path, config: dict[str, Any], processor: dict[str, Any] | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


@pytest.mark.parametrize(
    ("model_type", "tokens"), [("clip_vision_model", 17), ("siglip_vision_model", 16)]
)
def test_sizes_are_those_of_the_file(tmp_path: Path, model_type: str, tokens: int) -> None:
    found = open_image_encoder(written(tmp_path, CONFIG | {"model_type": model_type}))
    assert (found.side, found.num_tokens, found.image_size) == (32, tokens, 16)


@pytest.mark.parametrize("key", ["image_size", "patch_size", "hidden_size"])
@pytest.mark.parametrize("value", [None, "x", 0, -3, 1e12, 1.5, True, [32, 16]])
def test_sizes_that_are_none_are_one_line(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"has {key} = .*; needed is a whole number from 1"):
        open_image_encoder(written(tmp_path, CONFIG | {key: value}))


def test_a_missing_size_and_a_patch_larger_than_pictures_are_one_line(tmp_path: Path) -> None:
    config = {name: value for name, value in CONFIG.items() if name != "patch_size"}
    with pytest.raises(ConfigError, match="has patch_size = None"):
        open_image_encoder(written(tmp_path, config))
    with pytest.raises(ConfigError, match="patches of 64 pixels in pictures of 32"):
        open_image_encoder(written(tmp_path, CONFIG | {"patch_size": 64}))


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        ({"do_center_crop": False}, "has do_center_crop = False; only True is built"),
        ({"image_mean": [float("nan")] * 3}, "needed are three numbers each"),
        ({"image_std": [float("inf")] * 3}, "needed are three numbers each"),
    ],
)
def test_pictures_that_are_treated_otherwise_are_refused(
    tmp_path: Path, processor: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        open_image_encoder(written(tmp_path, CONFIG, processor))
    whole = CONFIG | {"model_type": "siglip_vision_model"}
    squeezed = open_image_encoder(written(tmp_path, whole, {"do_center_crop": False}))
    assert squeezed.side == 32
