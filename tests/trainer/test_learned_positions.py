"""Weights that learned the positions of one shape of clips train and draw that shape alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError
from arachne.data.manifest import read_manifest
from arachne.models.codec import DctCodec
from arachne.models.diffusers_module import build_transformer
from arachne.models.hashed_text import HASHED_TEXT_SIZE
from arachne.reporting.run_files import MANIFEST
from arachne.runtime.launcher import run_ranks
from arachne.trainer.checkpoint_reader import newest
from arachne.trainer.export import ExportOptions, export
from arachne.trainer.planning_shape import planning_shape
from tests.models.tiny_transformers import tiny_shape
from tests.trainer.test_image_to_video import drawn_from, losses_of
from tests.trainer.tiny_runs import changed, tiny_config

ONLY = Bucket(width=64, height=48, frames=9)
TABLE = "patch_embed.pos_embedding"


def save_weights(folder: Path) -> torch.Tensor:
    """An image-to-video CogVideoX of one shape; the table of its positions."""
    channels = DctCodec().latent_channels
    shape = replace(
        tiny_shape("cogvideox"),
        latent_channels=channels,
        condition_channels=channels,
        text_size=HASHED_TEXT_SIZE,
        only_bucket=ONLY,
    )
    model = build_transformer(shape, dtype=torch.float64, seed=0)
    table = model.module.get_submodule("patch_embed").pos_embedding
    table.copy_(torch.randn(table.shape, generator=torch.Generator().manual_seed(3)))
    model.module.save_pretrained(folder / "transformer")
    return table


@pytest.mark.distributed
def test_a_run_trains_clips_of_that_shape_and_keeps_the_table(clips, tmp_path):
    table = save_weights(tmp_path / "weights")
    config = tiny_config(clips, tmp_path / "run")
    config = changed(
        config,
        "model",
        family="cogvideox",
        pretrained=str(tmp_path / "weights"),
        image_to_video=True,
        text_tokens=5,
        num_layers=0,
        num_heads=0,
        head_size=0,
        ffn_size=0,
    )
    config = changed(config, "data", cache=str(tmp_path / "cache"))
    assert np.isfinite(run_ranks(1, losses_of, (config,))[0]).all()

    rows = read_manifest(Path(config.run.dir) / MANIFEST).rows
    assert [row.clip.name for row in rows if row.bucket] == ["a.mp4"]
    others = [row.reason for row in rows if row.bucket is None]
    assert len(others) == 5
    assert all(f"this model learned the positions of {ONLY} alone" in why for why in others)

    checkpoint = newest(Path(config.run.dir), on_skip=print)
    assert drawn_from(config, checkpoint, tmp_path, 255, ONLY).shape == (9, 48, 64, 3)
    longer = replace(ONLY, frames=13)
    with pytest.raises(ConfigError, match="learned the positions of 64x48x9 alone; use that"):
        drawn_from(config, checkpoint, tmp_path, 255, longer)
    sampling = {"sample_every": 1, "prompts": ("a",), "images": ("255.png",)}
    sampled = changed(config, "validation", sample_shape=str(longer), **sampling)
    with pytest.raises(ConfigError, match="learned the positions of 64x48x9 alone; use that"):
        run_ranks(1, losses_of, (sampled,))

    export(config, checkpoint, tmp_path / "out", ExportOptions(to="diffusers", dtype="float64"))
    (written,) = (tmp_path / "out" / "transformer").glob("*.safetensors")
    assert torch.equal(load_file(written)[TABLE], table)
    exported = replace(config.model, pretrained=str(tmp_path / "out"))
    assert planning_shape(exported).only_bucket == ONLY
