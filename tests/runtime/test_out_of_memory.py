"""A rank runs out of memory: before a launch's first collective all of its ranks give it up; later
the rank says that it is stranded. Planted at the collectives of a small model, one after another.
"""

from typing import Any

import pytest
import torch

from arachne.core.cascade import Cascade
from arachne.core.launch_mode import LaunchMode
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.runtime import collectives
from arachne.runtime.executor import run_launches
from arachne.runtime.launcher import run_ranks
from arachne.runtime.out_of_memory import is_out_of_memory
from arachne.runtime.progress import Unwatched
from arachne.runtime.sequence_parallel import install
from arachne.runtime.world import World
from tests.runtime.meetings import meetings_of
from tests.runtime.plans import BUCKETS, batch_of
from tests.runtime.rank_groups import open_groups
from tests.runtime.tiny_wan import loss_of, tiny_wan

BATCH = batch_of([BUCKETS[1]] * 3)
CULPRIT = 1
SHARED = 2
"""Index of the first launch that all ranks share."""


def plan_for(world_size: int, mode: LaunchMode) -> PlacedPlan:
    """A launch on each of two ranks, and then two on all of them."""
    everyone = tuple(range(world_size))
    placed = (((0,), (0,), 0.0), ((1,), (CULPRIT,), 0.0), ((0,), everyone, 1.0))
    clip = BATCH.clips[0]
    return PlacedPlan(
        step=0,
        planner="test",
        world_size=world_size,
        launches=tuple(
            PlacedLaunch(
                cascade=Cascade(
                    module="dit", slots=slots, bucket=clip.bucket, num_tokens=clip.num_tokens
                ),
                ranks=ranks,
                start_s=start_s,
                duration_s=1.0,
                mode=mode if len(ranks) > 1 else LaunchMode(),
            )
            for slots, ranks, start_s in (*placed, ((2,), everyone, 2.0))
        ),
    )


class FullAfter(Unwatched):
    """Memory is full when this rank has issued so many collectives; it is so once."""

    def __init__(self, num_issued: int) -> None:
        self._left = num_issued

    def issued(self, operation: str, ranks: tuple[int, ...]) -> None:
        self._left -= 1
        if self._left == -1:
            raise torch.OutOfMemoryError("planted")


def run_full(world: World, mode: LaunchMode, full_after: int | None, full_in: int | None) -> Any:
    """Memory of rank 1 is full after some collectives, or before those of its n-th launch.

    Gives the launches that were given up, those that were trained, and a sum over all ranks.
    """
    recorder, groups = open_groups(world)
    model = tiny_wan(4, torch.float32)
    install(model.module, model.layout)
    given_up: list[int] = []
    trained: list[tuple[int, ...]] = []
    num_begun = 0

    def work(launch: PlacedLaunch) -> None:
        nonlocal num_begun
        num_begun += 1
        if world.rank == CULPRIT and num_begun - 1 == full_in:
            raise torch.OutOfMemoryError("planted")
        slots = launch.cascade.slots
        (loss_of(model, BATCH, slots, torch.float32) / launch.degree).backward()
        trained.append(launch.ranks)

    if world.rank == CULPRIT and full_after is not None:
        recorder.progress = FullAfter(full_after)
    run_launches(
        plan_for(world.size, mode),
        rank=world.rank,
        groups=groups,
        recorder=recorder,
        work=work,
        give_up=given_up.append,
    )
    total = torch.ones(1)
    collectives.all_reduce_sum(total, groups.world)
    recorder.finish(step=0, planner="test")
    return given_up, len(trained), int(total)


def num_collectives(world_size: int, mode: LaunchMode) -> int:
    """Of one launch on all ranks, the gate's own counted."""
    return 1 + sum(meetings_of(mode, degree=world_size, num_layers=2).values())


@pytest.mark.distributed
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("index", [0, 1])
def test_before_a_launchs_first_collective_all_of_its_ranks_give_it_up(world_size, index):
    by_rank = run_ranks(world_size, run_full, (LaunchMode(), None, 1 + index), timeout_s=20.0)
    for rank, (given_up, num_trained, total) in enumerate(by_rank):
        assert given_up == [SHARED + index]
        assert num_trained == (2 if rank < 2 else 1), "the others are trained"
        assert total == world_size


@pytest.mark.distributed
def test_a_rank_alone_gives_up_its_own_launch():
    by_rank = run_ranks(2, run_full, (LaunchMode(), None, 0), timeout_s=20.0)
    assert [given_up for given_up, *_ in by_rank] == [[], [1]]
    assert [num_trained for _, num_trained, _ in by_rank] == [3, 2]


def check_full_after(world_size: int, mode: LaunchMode, full_after: int) -> None:
    """Whatever collective it was that memory was full before."""
    launch, place = divmod(full_after, num_collectives(world_size, mode))
    if place == 0:  # the gate: nobody is inside yet
        by_rank = run_ranks(world_size, run_full, (mode, full_after, None), timeout_s=20.0)
        assert all(given_up == [SHARED + launch] for given_up, *_ in by_rank)
        return
    found = f"out of memory in launch {SHARED + launch}, in collective {place}"
    with pytest.raises(RuntimeError, match=rf"rank {CULPRIT} on(?s:.*)StrandedError: {found}\n"):
        run_ranks(world_size, run_full, (mode, full_after, None), timeout_s=20.0)


@pytest.mark.distributed
@pytest.mark.parametrize(("world_size", "full_after"), [(2, 0), (2, 1), (3, 13)])
def test_inside_a_launch_the_rank_is_stranded_at_some_collectives(world_size, full_after):
    check_full_after(world_size, LaunchMode(), full_after)


EVERYWHERE = [
    (size, mode, full_after)
    for size in (2, 3)
    for mode in (LaunchMode(), LaunchMode(ring=size), LaunchMode(recompute_layers=1))
    for full_after in range(2 * num_collectives(size, mode))
]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(("world_size", "mode", "full_after"), EVERYWHERE)
def test_inside_a_launch_the_rank_is_stranded_at_every_collective(world_size, mode, full_after):
    check_full_after(world_size, mode, full_after)


def test_what_says_that_memory_is_full():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60)
    assert is_out_of_memory(error.value)
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"))
    cublas = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    assert is_out_of_memory(RuntimeError(cublas))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
