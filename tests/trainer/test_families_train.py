"""Whole runs of every family, with an autoencoder of its own compression."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.data.inspect import inspect_dataset
from arachne.data.manifest import write_manifest
from arachne.models.codec import DctCodec
from arachne.models.diffusers_module import import_transformer
from arachne.models.families import TRANSFORMERS
from arachne.models.hashed_text import HashedTextEncoder
from arachne.reporting.run_files import MANIFEST
from arachne.runtime.launcher import run_ranks
from arachne.trainer.built_model import training_model
from arachne.trainer.checkpoint_reader import newest
from arachne.trainer.config import RunConfig
from arachne.trainer.generate import generate
from arachne.trainer.loop import train
from arachne.trainer.sample_request import SampleRequest
from tests.models.tiny_autoencoders import CLASS_OF_FAMILY, save_tiny_autoencoder
from tests.trainer.tiny_runs import changed, tiny_config, tiny_session

pytestmark = pytest.mark.filterwarnings("ignore:In CPU autocast")  # Mochi asks for float32

TOLERANCE = {"mochi": 1e-5}
"""Mochi casts modulations and rotary angles to float32 itself."""


def losses_of(world, config: RunConfig) -> list[float]:
    with tiny_session(world, config) as (session, heard):
        train(session, heard.listener, resume=False)
    return heard.losses


def config_of(family: str, clips: Path, run_dir: Path, video_encoder: str = "dct") -> RunConfig:
    """Two steps of the family, tiny, on clips that its autoencoder can take."""
    described = family_named(family)
    model = {"family": family, "preset": next(iter(described.presets)), "head_size": 16}
    if described.fixed_ffn_size is not None:
        model["ffn_size"] = described.fixed_ffn_size(2 * 16)
    config = tiny_config(clips, run_dir, steps=2, batch=3)
    step = described.geometry.frame_step
    side = max(described.geometry.side_multiple)
    data = replace(config.data, frame_buckets=(1, 1 + step), resolution=max(56, side))
    model |= {"video_encoder": video_encoder}
    config = replace(config, data=data, model=replace(config.model, **model))
    config = changed(config, "planner", name="static_sp")  # all ranks on every clip
    ledger = inspect_dataset(
        clips, config.data.shape_rules, described.geometry, "error", num_workers=1
    )
    write_manifest(ledger, run_dir / MANIFEST)
    return config


QUICK = ("cogvideox", "ltx")
"""One of each objective and of each way to pack latents; the others take as long again, each."""


@pytest.mark.distributed
@pytest.mark.parametrize(
    "family",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in TRANSFORMERS
        if name != "wan"
    ],
)
def test_two_ranks_have_the_loss_curve_of_one(clips, tmp_path: Path, family: str):
    import_transformer(family)  # once, before ranks are forked
    folder = str(save_tiny_autoencoder(CLASS_OF_FAMILY[family], tmp_path / "pipeline"))
    curves = {
        size: run_ranks(size, losses_of, (config_of(family, clips, tmp_path / str(size), folder),))[
            0
        ]
        for size in (1, 2)
    }
    assert len(curves[1]) == 2
    assert np.isfinite(curves[1]).all()
    assert curves[2] == pytest.approx(curves[1], rel=TOLERANCE.get(family, 1e-9))


@pytest.mark.distributed
def test_levels_by_shape_and_by_stratum_do_not_depend_on_the_number_of_ranks(clips, tmp_path: Path):
    import_transformer("wan")
    objective = {
        "timestep_sampling": "mode",
        "stratified": True,
        "shift": "auto",
        "shift_tokens": (2, 40),
        "timestep_range": (0.1, 0.9),
        "loss_weighting": "cosmap",
    }
    curves = {}
    for size in (1, 2):
        config = config_of("wan", clips, tmp_path / str(size))
        config = changed(changed(config, "objective", **objective), "planner", name="arachne")
        curves[size] = run_ranks(size, losses_of, (config,))[0]
    assert len(curves[1]) == 2
    assert curves[2] == pytest.approx(curves[1], rel=1e-9)


@pytest.mark.distributed
def test_a_ddpm_run_can_be_sampled_from_its_checkpoint(clips, tmp_path: Path):
    import_transformer("cogvideox")
    config = config_of("cogvideox", clips, tmp_path / "run")
    run_ranks(1, losses_of, (config,))
    checkpoint = newest(Path(config.run.dir), on_skip=print)
    frames = [
        generate(
            config,
            checkpoint,
            SampleRequest(
                prompt="a cat",
                bucket=Bucket(width=32, height=16, frames=5),
                steps=3,
                guidance=2.0,
                seed=seed,
            ),
        )
        for seed in (0, 0, 1)
    ]
    assert frames[0].shape == (5, 16, 32, 3)
    assert np.array_equal(frames[0], frames[1])
    assert not np.array_equal(frames[0], frames[2])


def test_what_a_family_never_trains_stays_frozen(tmp_path: Path):
    config = tiny_config(tmp_path, tmp_path)
    data = replace(config.data, frame_buckets=(1, 9), resolution=64)
    sizes = {"num_heads": 2, "head_size": 16, "ffn_size": 4 * 32}
    config = replace(config, data=data, model=replace(config.model, family="ltx2", **sizes))
    encoders = DctCodec(), HashedTextEncoder(num_tokens=4)
    lora = {"rank": 2, "targets": "all-linear"}
    for section, settings, fewest in (("model", {}, 31), ("lora", lora, 20)):
        model = training_model(changed(config, section, **settings), *encoders)
        trained = [n for n, p in model.module.named_parameters() if p.requires_grad]
        assert len(trained) >= fewest
        assert not any("audio" in name or "av_cross" in name for name in trained)
    with pytest.raises(ConfigError, match="leave no parameter to train"):
        training_model(changed(config, "model", train_only=("*audio_attn1*",)), *encoders)
