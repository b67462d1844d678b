"""A clip whose tiles several ranks encode trains as one that a single rank encoded, to the bit."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan  # noqa: F401  imported once, before ranks are forked

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade, Encoder
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.plan_rules import check_placed_plan
from arachne.models.pretrained_vae import PretrainedVideoEncoder
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer.config import RunConfig
from arachne.trainer.online_encoders import with_everything_missing
from arachne.trainer.online_steps import online_steps
from arachne.trainer.planning import run_encoders
from arachne.trainer.resting_encoder import RestingEncoder
from arachne.trainer.step import run_step
from tests.data.media import Look, write_video
from tests.models.tiny_autoencoders import save_tiny_autoencoder
from tests.trainer.test_resting_encoder import places
from tests.trainer.tiny_runs import (
    changed,
    step_batch,
    tiny_config,
    tiny_session,
    with_manifest,
    write_captions,
)

pytestmark = pytest.mark.distributed

WIDTH, HEIGHT = 448, 64
"""Three tiles of diffusers' Wan, the last one small."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("shared")
    clips = folder / "clips"
    clips.mkdir()
    random = np.random.default_rng(0)
    for name in ("a.mp4", "b.mp4"):
        pixels = random.integers(0, 256, (5, HEIGHT, WIDTH, 3)).astype(np.uint8)
        write_video(clips / name, list(pixels), Look(width=WIDTH, height=HEIGHT, fps=Fraction(8)))
    write_captions(clips, ["a.mp4", "b.mp4"])
    config = tiny_config(clips, folder / "run", batch=2)
    vae = save_tiny_autoencoder("AutoencoderKLWan", folder / "vae")
    config = changed(config, "model", video_encoder=str(vae), video_tiling=True)
    data: dict[str, Any] = {"encode": "online", "cache_online": False}
    return with_manifest(changed(config, "data", resolution=170, **data))


def plan_with(batch: Any, world_size: int, encoding: tuple[int, ...]) -> PlacedPlan:
    """Captions on rank 0; `vae` of both clips on some ranks; both train on the last rank."""
    launches: list[PlacedLaunch] = []

    def add(module: Encoder | Any, slot: int, ranks: tuple[int, ...]) -> None:
        clip = batch.clips[slot]
        cascade = Cascade(
            module=module, slots=(slot,), bucket=clip.bucket, num_tokens=clip.num_tokens
        )
        start_s = float(len(launches))
        launches.append(PlacedLaunch(cascade=cascade, ranks=ranks, start_s=start_s, duration_s=1.0))

    for slot in range(2):
        add("text", slot, (0,))
        add("vae", slot, encoding)
    for slot in range(2):
        add("dit", slot, (world_size - 1,))
    plan = PlacedPlan(step=0, planner="by hand", world_size=world_size, launches=tuple(launches))
    check_placed_plan(plan, batch, world_size)
    return plan


def trained(
    world: World, config: RunConfig, encoding: tuple[int, ...], full_rank: int | None
) -> tuple[Any, ...]:
    """Loss, norm and whether there was an update; tiles encoded here; what ranks told."""
    encoded: list[int] = []
    encode_tile = PretrainedVideoEncoder.encode_tile

    def noted(self: Any, frames: np.ndarray, index: int) -> np.ndarray:
        encoded.append(index)
        if world.rank == full_rank:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return encode_tile(self, frames, index)

    PretrainedVideoEncoder.encode_tile = noted
    with tiny_session(world, config) as (session, heard), online_steps(session, 0) as online:
        assert online is not None
        chosen = step_batch(session, (0, 1))
        batch = with_everything_missing(chosen.batch)
        assert {str(clip.bucket) for clip in batch.clips} == {f"{WIDTH}x{HEIGHT}x5"}
        plan = plan_with(batch, world.size, encoding)
        encoded.clear()  # of what was encoded before the first step
        online.expect(plan)
        outcome = run_step(
            session,
            chosen,
            plan,
            read=session.prepared.train.read,
            lr=0.0,
            online=online.of_step(plan, None),
        )
        online.say_full(0, 2)
        told = heard.said
    return outcome.loss, outcome.grad_norm, outcome.is_updated, encoded, told


def test_however_many_ranks_encode_a_clip_its_loss_is_the_same_bit_for_bit(config):
    ((alone, norm, is_updated, tiles, _),) = run_ranks(1, trained, (config, (0,), None))
    assert is_updated
    assert tiles == [0, 1, 2] * 2
    for world_size, encoding, parts in (
        (2, (0, 1), [[0, 1] * 2, [2] * 2]),
        (3, (0, 1), [[0, 1] * 2, [2] * 2, []]),
        (3, (0, 1, 2), [[0] * 2, [1] * 2, [2] * 2]),
    ):
        by_rank = run_ranks(world_size, trained, (config, encoding, None), timeout_s=60.0)
        assert [found[3] for found in by_rank] == parts
        for loss, norm_here, *_ in by_rank:
            assert loss == alone
            assert norm_here == pytest.approx(norm, rel=1e-14)  # summed shard by shard


def moved(world: World, config: RunConfig) -> tuple[Any, list[str]]:
    """What `trained` gives on this rank, and what its autoencoder did; captions are hashed."""
    happened: list[str] = []
    wake, rest = RestingEncoder.wake, RestingEncoder.rest

    def noted(move: Any, name: str) -> Any:
        def moving(self: Any) -> None:
            before = places(self._encoder)
            move(self)
            if places(self._encoder) != before:
                happened.append(name)

        return moving

    RestingEncoder.wake, RestingEncoder.rest = noted(wake, "wake"), noted(rest, "rest")
    encode_tile = PretrainedVideoEncoder.encode_tile

    def encoding(self: Any, frames: np.ndarray, index: int) -> np.ndarray:
        happened.append("encode")
        return encode_tile(self, frames, index)

    PretrainedVideoEncoder.encode_tile = encoding
    return trained(world, config, (world.rank,), None), happened


def test_encoders_that_rest_on_the_host_wake_once_a_launch_and_train_to_the_same_bit(config):
    ((alone, norm, *_),) = run_ranks(1, trained, (config, (0,), None))
    resting = changed(config, "memory", encoders_on_host=True)
    (((loss, norm_here, *_), happened),) = run_ranks(1, moved, (resting,))
    assert (loss, norm_here) == (alone, norm)
    first, second = ["encode"] * 3, ["wake", *["encode"] * 3, "rest"]
    assert happened == first + second, "it is loaded in its first launch, and stays on a CPU"


def test_a_rank_without_memory_for_its_tiles_costs_the_step_and_is_named(config):
    by_rank = run_ranks(2, trained, (config, (0, 1), 1), timeout_s=60.0)
    for loss, _, is_updated, _, _ in by_rank:
        assert math.isnan(loss)
        assert not is_updated
    told = sorted(line for line in by_rank[0][4] if "memory" in line)
    for name, line in zip(("a.mp4", "b.mp4"), told, strict=True):
        assert line.startswith(f"step 1: rank 1 ran out of memory while it encoded clip {name!r} (")
        assert line.endswith(
            "; the clip is left out of the step: encode before training with "
            "data.encode = 'before', or take smaller clips"
        ), "frames are tiled already"


def test_ranks_share_clips_only_where_frames_are_tiled(config):
    assert run_encoders(config).can_split("vae", Bucket.parse("832x480x81"), 8)
    whole = run_encoders(changed(config, "model", video_tiling=False))
    assert not whole.can_split("vae", Bucket.parse("832x480x81"), 2)
    assert not run_encoders(config).can_split("vae", Bucket.parse("256x256x81"), 2), "one tile"
