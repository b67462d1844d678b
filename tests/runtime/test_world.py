"""Which ranks there are, and where they compute."""

import os

import pytest
import torch

from arachne.core.errors import ConfigError
from arachne.runtime import collectives
from arachne.runtime.launcher import run_ranks
from arachne.runtime.torchrun import is_under_torchrun
from arachne.runtime.world import default_num_ranks, join_world, resolved_device_kind
from tests.runtime.rank_groups import open_groups

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.fixture
def machine(monkeypatch):
    """Pretend that this machine has so many GPUs and cores."""

    def pretend(num_gpus: int, num_cores: int = 4) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(num_cores)))

    return pretend


@pytest.mark.parametrize(("num_cores", "num_ranks"), [(1, 2), (2, 2), (6, 6), (64, 8)])
def test_without_gpus_there_is_a_rank_per_core_from_two_to_eight(machine, num_cores, num_ranks):
    machine(0, num_cores)
    assert default_num_ranks("auto") == default_num_ranks("cpu") == num_ranks


def test_with_gpus_there_is_a_rank_per_gpu_unless_the_cpu_is_asked_for(machine):
    machine(5, 3)
    assert default_num_ranks("auto") == default_num_ranks("cuda") == 5
    assert default_num_ranks("cpu") == 3


def test_auto_takes_a_gpu_where_there_is_one(machine):
    machine(1)
    assert [resolved_device_kind(kind) for kind in ("auto", "cuda", "cpu")] == [
        "cuda",
        "cuda",
        "cpu",
    ]
    machine(0)
    assert [resolved_device_kind(kind) for kind in ("auto", "cpu")] == ["cpu", "cpu"]


class JoiningError(Exception):
    """Instead of joining."""


@pytest.mark.parametrize(("given", "found"), [(None, "1"), ("0", "0")])
def test_groups_of_gpus_keep_the_hosts_order_unless_the_user_says_otherwise(
    machine, monkeypatch, given, found
):
    machine(1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr("arachne.runtime.world.end_by_signals", lambda *signals: None)

    def join(*arguments, **named):
        raise JoiningError(os.environ["NCCL_LAUNCH_ORDER_IMPLICIT"])

    monkeypatch.setattr(torch.distributed, "init_process_group", join)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("NCCL_LAUNCH_ORDER_IMPLICIT", given or "")  # it is put back in the end
    if given is None:
        monkeypatch.delenv("NCCL_LAUNCH_ORDER_IMPLICIT")
    with pytest.raises(JoiningError, match=found):
        join_world("cuda", 1.0, store=torch.distributed.HashStore())


def test_cuda_without_a_gpu_is_refused_in_one_line(machine):
    machine(0)
    with pytest.raises(ConfigError, match=r"^run\.device is 'cuda' but torch finds no GPU; use"):
        resolved_device_kind("cuda")
    with pytest.raises(ConfigError, match="finds no GPU"):
        run_ranks(2, print, device="cuda")


def test_more_ranks_than_gpus_are_refused_before_anybody_meets(machine, monkeypatch):
    machine(2)
    for name, value in {"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="rank 2 of this machine needs a GPU of its own but"):
        join_world("auto", timeout_s=1.0)


def test_a_rank_of_torchrun_is_told_by_its_environment(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert not is_under_torchrun()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert is_under_torchrun()


def facts(world):
    world.store.set(f"fact/{world.rank}", str(world.rank))
    met = [int(world.store.get(f"fact/{rank}")) for rank in range(world.size)]
    return world.rank, world.size, world.device.type, torch.get_num_threads(), met


@pytest.mark.distributed
def test_ranks_share_a_store_and_compute_on_one_thread_each():
    assert run_ranks(3, facts, timeout_s=15.0) == [
        (rank, 3, "cpu", 1, [0, 1, 2]) for rank in range(3)
    ]


def nccl_sums(world):
    _, groups = open_groups(world)
    values = torch.arange(3.0, device=world.device)
    collectives.all_reduce_sum(values, groups.world)
    torch.distributed.all_reduce(values)
    return torch.distributed.get_backend(), values.cpu().tolist()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.distributed
def test_a_world_of_one_gpu_runs_on_nccl():
    assert run_ranks(1, nccl_sums, device="cuda", timeout_s=60.0) == [("nccl", [0.0, 1.0, 2.0])]
