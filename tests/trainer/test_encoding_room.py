"""Out of memory around an encoder: the line says what helps there, and nothing that is set."""

from typing import Any

import pytest
import torch

from arachne.core.errors import RankMemoryError
from arachne.runtime.handoff import Handoffs
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer.config import RunConfig
from arachne.trainer.encoding_room import encoding_before, room_to_encode, room_to_hand_over
from arachne.trainer.loop import train
from arachne.trainer.online_encoders import OnlineEncoders
from tests.trainer.tiny_runs import changed, tiny_config, tiny_session, with_manifest

CULPRIT = 1
BEFORE = "encode before training with data.encode = 'before'"


@pytest.fixture
def config(clips, tmp_path) -> RunConfig:
    config = tiny_config(clips, tmp_path / "run", steps=1, dtype="float32")
    return changed(config, "data", encode="online", cache=str(tmp_path / "cache"))


def test_what_helps_is_named_as_long_as_it_is_not_set(config, tmp_path):
    tiled, host = "set model.video_tiling = true", "set memory.encoders_on_host = true"
    assert room_to_encode(config, "vae", on_gpus=False) == f"{BEFORE}, or take smaller clips"
    assert room_to_encode(config, "text", on_gpus=False) == BEFORE
    vae = changed(config, "model", video_encoder=str(tmp_path))
    assert room_to_encode(vae, "vae", on_gpus=True).startswith(f"{tiled}, {host}, {BEFORE}, or")
    assert room_to_encode(vae, "text", on_gpus=True) == f"{host}, or {BEFORE}"
    vae = changed(changed(vae, "model", video_tiling=True), "memory", encoders_on_host=True)
    assert room_to_encode(vae, "vae", on_gpus=True) == f"{BEFORE}, or take smaller clips"
    assert room_to_hand_over(config) == f"set planner.fill = false, or {BEFORE}"
    assert room_to_hand_over(changed(config, "planner", fill=False)) == BEFORE


@pytest.mark.parametrize(
    ("device", "words"), [("cuda", "--set run.device=cpu"), ("cpu", "--workers")]
)
def test_before_training_it_is_told_as_what_it_is(device, words):
    needed = f"take smaller clips, .* or encode .* {words}$"
    with pytest.raises(RankMemoryError, match=needed), encoding_before(device):
        raise torch.OutOfMemoryError("planted")
    with pytest.raises(KeyError), encoding_before(device):
        raise KeyError("something else")


def run_until_full(world: World, config: RunConfig, where: str) -> None:
    """Memory of rank 1 is full in the rest of a cascade, or where its result is handed over."""

    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("planted")

    if world.rank == CULPRIT:
        holder = Handoffs if where in ("begin", "give") else OnlineEncoders
        setattr(holder, where, full)
    with tiny_session(world, config) as (session, heard):
        train(session, heard.listener, resume=False)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("begin", f"handing over what was encoded: rank 1 is out of memory; {BEFORE}; "),
        ("give", f"handing over what was encoded: rank 1 is out of memory; {BEFORE}; "),
        ("rest", "encoding (clips|captions): rank 1 is out of memory; "),
    ],
)
def test_in_a_step_the_run_ends_with_a_line_of_what_helps_the_encoder(config, where, line):
    unfilled = with_manifest(changed(config, "planner", fill=False))
    with pytest.raises(RankMemoryError, match=f"^step 1, {line}") as error:
        run_ranks(2, run_until_full, (unfilled, where), timeout_s=60.0)
    assert "optimizer.gradients" not in str(error.value)
    assert BEFORE in str(error.value)
    assert "--resume" in str(error.value)
