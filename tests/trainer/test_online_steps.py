"""Runs that encode within their steps train as those that encode before, on every world."""

import math
import os
import shutil
import signal
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arachne.core.errors import DataError
from arachne.models.codec import DctCodec
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer.config import RunConfig
from arachne.trainer.loop import train
from tests.trainer.tiny_runs import (
    NUM_CLIPS,
    Heard,
    changed,
    tiny_config,
    tiny_session,
    with_manifest,
)

STEPS = 3
"""Every step takes all clips, and all are planned before the first has stored anything."""


@dataclass(kw_only=True)
class Run:
    """What one rank saw of a run."""

    losses: list[float]
    norms: list[float]
    is_kept: list[tuple[bool, ...]]
    encoded: list[list[tuple[int, str, int]]]
    said: list[str]
    spans: set[str]


def trained(
    world: World, config: RunConfig, resume: bool = False, stop_after: int | None = None
) -> Run:
    with tiny_session(world, config) as (session, heard):
        listener = heard.listener
        if stop_after is not None:
            listener = replace(listener, on_step=partial(_stop, heard, stop_after))
        train(session, listener, resume=resume)
    measured = [each.launch.cascade.module for report in heard.reports for each in report.launches]
    assert set(measured) == {"dit"}, "the cost model is fitted to training alone"
    return Run(
        losses=heard.losses,
        norms=[report.outcome.grad_norm for report in heard.reports],
        is_kept=[report.outcome.vote.is_kept for report in heard.reports],
        encoded=[_encoded(report) for report in heard.reports],
        said=heard.said,
        spans={
            span.kind
            for report in heard.reports
            if report.trace is not None
            for span in report.trace.spans
        },
    )


def _stop(heard: Heard, after_step: int, report: Any) -> None:
    heard.reports.append(report)
    if report.step == after_step:
        os.kill(os.getpid(), signal.SIGTERM)


def _encoded(report: Any) -> list[tuple[int, str, int]]:
    """(steps ahead, encoder, slot) of everything that a step's plan encodes."""
    cascades = [launch.cascade for launch in report.plan.launches]
    return sorted(
        (c.steps_ahead, c.module, s) for c in cascades if c.module != "dit" for s in c.slots
    )


def everything(steps_ahead: int) -> list[tuple[int, str, int]]:
    return sorted((steps_ahead, e, slot) for e in ("text", "vae") for slot in range(NUM_CLIPS))


def config_in(folder: Path, clips: Path, **data: Any) -> RunConfig:
    """A run with a cache of its own in `folder`."""
    config = tiny_config(clips, folder / "run", steps=STEPS, batch=NUM_CLIPS)
    return with_manifest(changed(config, "data", cache=str(folder / "cache"), **data))


def arrays_in(config: RunConfig) -> dict[str, bytes]:
    """Every file of a run's cache."""
    paths = Path(config.data.cache).rglob("*.safetensors")
    return {path.name: path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def made_before(clips, tmp_path_factory) -> tuple[Run, dict[str, bytes]]:
    """The run that encodes everything before step 1, and its cache."""
    config = config_in(tmp_path_factory.mktemp("before"), clips)
    return run_ranks(1, trained, (config,))[0], arrays_in(config)


@pytest.fixture(scope="module")
def before(made_before) -> Run:
    return made_before[0]


@pytest.mark.distributed
@pytest.mark.parametrize(("world_size", "fill"), [(1, False), (2, True), (3, True)])
def test_what_is_encoded_in_steps_trains_as_what_was_encoded_before(
    clips, tmp_path, made_before, world_size, fill
):
    before, expected = made_before
    config = changed(config_in(tmp_path, clips, encode="online"), "planner", fill=fill)
    for run in run_ranks(world_size, trained, (config,), timeout_s=60.0):
        assert run.losses == pytest.approx(before.losses, rel=1e-12)
        assert run.norms == pytest.approx(before.norms, rel=1e-11)
        assert all(all(is_kept) for is_kept in run.is_kept)
        assert run.encoded[0] == (everything(0) + everything(1) if fill else everything(0))
        assert run.encoded[1:] == ([everything(1), []] if fill else [everything(0)] * 2)
    assert arrays_in(config) == expected, "later epochs find what encoding before would have made"


@pytest.mark.distributed
def test_nothing_is_encoded_that_the_cache_has_got(clips, tmp_path, made_before):
    config = config_in(tmp_path, clips, encode="online")
    _, arrays = made_before
    for name, content in arrays.items():
        path = Path(config.data.cache) / name[:2] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (run,) = run_ranks(1, trained, (changed(config, "run", steps=2),), timeout_s=60.0)
    assert run.encoded == [[], []]
    assert run.losses == pytest.approx(made_before[0].losses[:2], rel=1e-12)


@pytest.mark.distributed
def test_without_a_cache_every_step_encodes_and_a_resumed_run_encodes_again_what_it_dropped(
    clips, tmp_path, before
):
    config = config_in(tmp_path, clips, encode="online", cache_online=False)
    stopped = run_ranks(2, trained, (config, False, 0), timeout_s=60.0)
    resumed = run_ranks(2, trained, (config, True), timeout_s=60.0)
    for first, second in zip(stopped, resumed, strict=True):
        assert first.losses + second.losses == pytest.approx(before.losses, rel=1e-12)
        assert len(first.losses) == 2  # the stop is heard in the next step
        assert first.encoded[-1] == everything(1)  # for a step that this run did not reach
        assert second.encoded == [everything(0)]
    assert len(arrays_in(config)) == 1, "the empty caption alone"


@pytest.mark.distributed
def test_a_clip_that_cannot_be_decoded_is_voted_out_on_all_ranks(clips, tmp_path):
    own = Path(shutil.copytree(clips, tmp_path / "clips"))
    config = config_in(tmp_path, own, encode="online")
    (own / "b.mp4").write_bytes(b"no video any more")
    runs = run_ranks(2, trained, (changed(config, "run", steps=2),), timeout_s=60.0)
    for run in runs:
        assert [sum(is_kept) for is_kept in run.is_kept] == [NUM_CLIPS - 1] * 2
        assert run.losses == runs[0].losses
        assert all(map(math.isfinite, run.losses))
    assert runs[0].said.count("step 2: clip 'b.mp4' cannot be read; left out") == 1


def trained_with_a_failing_encoder(world: World, config: RunConfig) -> Run:
    """The autoencoder knows no clip of 48 x 64 pixels."""
    encode = DctCodec.encode

    def failing(self: DctCodec, frames: np.ndarray) -> np.ndarray:
        if frames.shape[1:3] == (64, 48):
            raise DataError("too tall")
        return encode(self, frames)

    DctCodec.encode = failing
    return trained(world, config)


@pytest.mark.distributed
def test_a_clip_that_cannot_be_encoded_costs_one_step_at_most_and_is_left_out_from_then_on(
    clips, tmp_path
):
    config = config_in(tmp_path, clips, encode="online")
    for run in run_ranks(2, trained_with_a_failing_encoder, (config,), timeout_s=60.0):
        # Step 0 has trained others when it is found out; step 1 was encoded ahead, and can vote.
        assert [math.isfinite(loss) for loss in run.losses] == [False, True, True]
        assert [sum(is_kept) for is_kept in run.is_kept] == [NUM_CLIPS] + [NUM_CLIPS - 1] * 2
        if run.said:
            assert any("step 1: no finite gradient (clips 'b.mp4' (" in line for line in run.said)
    assert [path.read_text() for path in (tmp_path / "cache" / "rejected").iterdir()] == [
        "too tall"
    ]


@dataclass(kw_only=True)
class Opened:
    """What a rank finds when it begins: names of the clips, and of those that are cached."""

    training: set[str]
    held_out: set[str]
    cached: set[str]


def opened(world: World, config: RunConfig) -> Opened:
    with tiny_session(world, config) as (session, _):
        encoders = session.encoders
        assert encoders is not None
        has = encoders.workshop.store.cache.has
        rows = (*session.prepared.train.rows, *session.prepared.held_out.rows)
        return Opened(
            training={row.clip.name for row in session.prepared.train.rows},
            held_out={row.clip.name for row in session.prepared.held_out.rows},
            cached={row.clip.name for row in rows if has(encoders.key("vae", row))},
        )


@pytest.mark.distributed
def test_only_what_validation_needs_is_encoded_before_the_first_step(clips, tmp_path):
    shared = config_in(tmp_path / "a", clips, encode="online", held_out=0.5)
    (found,) = run_ranks(1, opened, (shared,), timeout_s=60.0)
    assert found.held_out
    assert found.cached == found.held_out

    validated = changed(config_in(tmp_path / "b", clips, encode="online"), "validation", every=1)
    (found,) = run_ranks(1, opened, (changed(validated, "validation", clips=2),), timeout_s=60.0)
    assert not found.held_out
    assert len(found.cached) == 2


@pytest.mark.distributed
def test_a_resumed_run_draws_its_steps_from_the_same_clips_although_one_was_rejected_since(
    clips, tmp_path
):
    config = config_in(tmp_path, clips, encode="online")
    key = run_ranks(1, rejected_key, (config,), timeout_s=60.0)[0]
    assert (tmp_path / "cache" / "rejected" / key).is_file()
    (found,) = run_ranks(1, opened, (config,), timeout_s=60.0)
    assert len(found.training) == NUM_CLIPS


def rejected_key(world: World, config: RunConfig) -> str:
    """Reject the first clip, as a step does."""
    with tiny_session(world, config) as (session, _):
        encoders = session.encoders
        assert encoders is not None
        key = encoders.key("vae", session.prepared.train.rows[0])
        encoders.workshop.store.rejections.add(key, "too tall")
        return key
