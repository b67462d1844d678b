"""Waiting for clips: a run whose reads are quick waits for next to nothing, and slow reads show."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import loading
import pytest

from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset import TrainingData
from tests.trainer.tiny_runs import make_clips, tiny_config, with_manifest

pytestmark = pytest.mark.distributed

_SLOW_S = 0.2


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    config = tiny_config(make_clips(tmp_path / "clips"), tmp_path / "run", steps=5)
    return with_manifest(replace(config, logging=replace(config.logging, trace_every=0)))


def waits_of_slow_reads(world: World, config: RunConfig) -> list[loading.StepWait]:
    read = TrainingData.read

    def slow(self: TrainingData, item: int) -> Any:
        time.sleep(_SLOW_S)
        return read(self, item)

    TrainingData.read = slow
    try:
        return loading.waits_of_rank(world, config)
    finally:
        TrainingData.read = read


def test_every_step_of_every_rank_is_timed_and_slow_reads_are_waited_for(config):
    ranks = run_ranks(2, loading.waits_of_rank, (config,))
    assert [len(waits) for waits in ranks] == [5, 5]
    quick = loading.summary(ranks)
    assert 0.0 <= quick["wait_share"] <= quick["worst_step_share"] < 1.0
    assert quick["read_mb"] > 0.0

    slow = loading.summary(run_ranks(2, waits_of_slow_reads, (config,)))
    assert slow["wait_share"] > 0.5


def test_the_first_steps_and_the_ranks_that_wait_less_do_not_count():
    def wait(waited_s: float) -> loading.StepWait:
        return loading.StepWait(waited_s=waited_s, step_s=2.0, num_bytes=10**6)

    found = loading.summary([[wait(2.0), wait(2.0), wait(0.0), wait(0.0)], [wait(0.1)] * 4])
    assert found["wait_share"] == pytest.approx(0.05)
    assert found["worst_step_share"] == pytest.approx(0.05)
    assert found["read_mb"] == pytest.approx(2.0)
