"""Ranks agree on the time, on the CPU and on GPUs."""

import time

import numpy as np
import pytest
import torch
import torch.distributed as dist

from arachne.runtime.clock import CudaClock, HostClock, clock_for
from arachne.runtime.launcher import run_ranks

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def around_barriers(world):
    """The best of several barriers: all ranks leave one within moments of each other."""
    time.sleep(0.05 * world.rank)  # clocks start at different moments
    clock = HostClock()
    stamps = []
    for _ in range(20):
        dist.barrier()
        stamps.append(clock.stamp())
    return clock.seconds(stamps)


@pytest.mark.distributed
def test_host_clocks_of_ranks_agree_to_milliseconds():
    by_rank = run_ranks(3, around_barriers, timeout_s=15.0)
    spreads = [max(moment) - min(moment) for moment in zip(*by_rank, strict=True)]
    assert min(spreads) < 5e-3
    assert abs(by_rank[0][-1] - time.time()) < 5.0, "seconds since the epoch"


def test_host_stamps_measure_seconds():
    clock = clock_for(torch.device("cpu"))
    first = clock.stamp()
    time.sleep(0.05)
    start_s, end_s = clock.seconds([first, clock.stamp()])
    assert 0.05 <= end_s - start_s < 1.0


class ModelledEvent:
    """An event as CUDA keeps it: the time between two is float32 milliseconds."""

    device_s = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at_s = ModelledEvent.device_s

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "ModelledEvent") -> float:
        return float(np.float32((end.at_s - self.at_s) * 1e3))


def test_stamps_of_a_long_run_stay_exact(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", ModelledEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(time, "time", lambda: 1e9 + ModelledEvent.device_s)
    clock = CudaClock()
    for begin_s in (5.0, 7 * 24 * 3600.0):
        stamps = []
        for after_s in (0.0, 0.001, 0.0025):
            ModelledEvent.device_s = begin_s + after_s
            stamps.append(clock.stamp())
        seconds = clock.seconds(stamps)
        assert seconds == pytest.approx([1e9 + begin_s + s for s in (0.0, 0.001, 0.0025)], abs=1e-6)
    assert clock.seconds([]) == []


@pytest.mark.gpu
@needs_gpu
def test_gpu_stamps_mark_the_end_of_the_work_before_them():
    clock = clock_for(torch.device("cuda"))
    assert isinstance(clock, CudaClock)
    big = torch.randn(4096, 4096, device="cuda")
    (big @ big).sum().item()
    for _ in range(2):
        stamps = [clock.stamp()]
        for _ in range(20):
            big @ big
        stamps.append(clock.stamp())
        host_s = time.time()
        start_s, end_s = clock.seconds(stamps)
        assert end_s > start_s
        assert abs(end_s - host_s) < 1.0
