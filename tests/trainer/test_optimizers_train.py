"""Whole tiny runs with other optimizers, schedules, gradient buffers and a moving average."""

import shutil
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch

from arachne.core.errors import CheckpointError
from arachne.models.encoders import text_encoder_named, video_encoder_named
from arachne.runtime.launcher import run_ranks
from arachne.trainer.checkpoint_reader import CheckpointReader, newest
from arachne.trainer.config import RunConfig
from arachne.trainer.generate import trained_model
from tests.trainer.test_loop import trained_with
from tests.trainer.tiny_runs import changed, tiny_config, with_manifest

STEPS = 4
SETTINGS = {
    "muon": {
        "name": "muon",
        "schedule": "cosine",
        "warmup_steps": 1,
        "ema_decay": 0.5,
        "decay_1d": False,
    },
    "nadam": {"name": "torch.optim.NAdam", "gradients": "host", "options": {"weight_decay": 0.1}},
}
KINDS = {
    "muon": {"master", "ema", "momentum_buffer", "exp_avg", "exp_avg_sq"},
    "nadam": {"master", "exp_avg", "exp_avg_sq"},
}


def config_of(clips: Path, run_dir: Path, chosen: str) -> RunConfig:
    config = tiny_config(clips, run_dir, steps=STEPS)
    config = changed(config, "checkpoint", every=2)
    return with_manifest(changed(config, "optimizer", **SETTINGS[chosen]))


def arrays_of(path: Path) -> dict[tuple[str, str], np.ndarray]:
    reader = CheckpointReader(path)
    return {
        (name, kind): reader.read(name, kind, 0, prod(shape))
        for name, shape in reader.parameters.items()
        for kind in set().union(*KINDS.values())
        if reader.holds(name, kind)
    }


@pytest.mark.distributed
@pytest.mark.parametrize("chosen", SETTINGS)
def test_a_resumed_run_ends_with_the_same_bytes(clips, tmp_path, chosen):
    config = config_of(clips, tmp_path / "run", chosen)
    (whole, _) = run_ranks(2, trained_with, (config, {}), timeout_s=60.0)
    path = newest(tmp_path / "run", on_skip=print)
    expected, state = arrays_of(path), CheckpointReader(path).state
    assert path.name == "step-000004"
    assert {kind for _, kind in expected} == KINDS[chosen]
    shutil.rmtree(path)
    (resumed, _) = run_ranks(2, trained_with, (config, {"resume": True}), timeout_s=60.0)
    assert resumed.losses == whole.losses[2:]
    again = arrays_of(path)
    assert set(again) == set(expected)
    assert all(np.array_equal(again[key], values) for key, values in expected.items())
    assert CheckpointReader(path).state.numbers == state.numbers
    assert len(set(whole.losses)) == STEPS


def test_averages_are_loaded_on_request_and_refused_where_there_are_none(clips, tmp_path):
    encoders = video_encoder_named("dct", family="wan"), text_encoder_named("hashed", 4)
    for chosen in SETTINGS:
        config = config_of(clips, tmp_path / chosen, chosen)
        run_ranks(1, trained_with, (config, {}), timeout_s=60.0)
        path = newest(tmp_path / chosen, on_skip=print)
        arrays = arrays_of(path)
        if chosen == "nadam":
            with pytest.raises(CheckpointError, match="has no moving average of the weights"):
                trained_model(config, path, *encoders, "ema")
            continue
        for weights, kind in (("raw", "master"), ("ema", "ema")):
            model = trained_model(config, path, *encoders, weights)
            for name, parameter in model.module.named_parameters():
                found = parameter.detach().reshape(-1)
                assert torch.equal(found, torch.from_numpy(arrays[name, kind])), (weights, name)
        assert any(
            not np.array_equal(v, arrays[n, "ema"]) for (n, k), v in arrays.items() if k == "master"
        )


@pytest.mark.distributed
def test_another_optimizer_cannot_go_on_from_a_checkpoint(clips, tmp_path):
    config = config_of(clips, tmp_path / "run", "nadam")
    run_ranks(1, trained_with, (config, {}), timeout_s=60.0)
    other = changed(changed(config, "run", steps=6), "optimizer", name="muon", options={})
    with pytest.raises(CheckpointError, match="written with another optimizer"):
        run_ranks(1, trained_with, (other, {"resume": True}), timeout_s=60.0)


@pytest.mark.distributed
def test_a_run_that_drops_its_moving_average_says_so(clips, tmp_path):
    config = with_manifest(tiny_config(clips, tmp_path / "run", steps=1))
    averaging = changed(config, "optimizer", ema_decay=0.5)
    run_ranks(1, trained_with, (averaging, {}), timeout_s=60.0)
    longer = changed(config, "run", steps=2)

    (kept,) = run_ranks(
        1, trained_with, (changed(longer, "optimizer", ema_decay=0.5), {"resume": True})
    )
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000002")
    (dropped,) = run_ranks(1, trained_with, (longer, {"resume": True}))

    said = "the moving average of the weights in step-000001 is left behind"
    assert any(said in line for line in dropped.said)
    assert not any(said in line for line in kept.said)
