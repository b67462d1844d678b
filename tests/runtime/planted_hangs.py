"""Ranks of which one stops answering in a known launch, each time in another way."""

import os
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from arachne.core.cascade import Cascade
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.data.loader import ClipLoader
from arachne.runtime import collectives
from arachne.runtime.collectives import Parcel, Sizes, start_exchange
from arachne.runtime.executor import run_launches
from arachne.runtime.process_groups import RankGroup
from arachne.runtime.recorder import Recorder
from arachne.runtime.watched import launch_texts, watched
from arachne.runtime.world import World
from tests.runtime.plans import BUCKETS, batch_of
from tests.runtime.rank_groups import open_groups

CULPRIT, STEP, HANGING_LAUNCH = 2, 7, 2
FOREVER_S = 60.0


def plan_on(world_size: int) -> PlacedPlan:
    """Two launches side by side, then one of all ranks, in which one rank hangs."""
    everyone, half = tuple(range(world_size)), world_size // 2
    blocks = (everyone[:half], everyone[half:], everyone)
    return PlacedPlan(
        step=STEP,
        planner="by hand",
        world_size=world_size,
        launches=tuple(
            PlacedLaunch(
                cascade=Cascade(module="dit", slots=(slot,), bucket=BUCKETS[slot], num_tokens=8),
                ranks=ranks,
                start_s=float(slot),
                duration_s=1.0,
            )
            for slot, ranks in enumerate(blocks)
        ),
    )


def all_to_all(group: RankGroup) -> None:
    ones = [1] * group.size
    sizes = Sizes(received=ones, sent=ones, of_all_members=group.size**2)
    collectives.all_to_all(torch.zeros(group.size), torch.zeros(group.size), sizes, group)


def all_gather(group: RankGroup) -> None:
    collectives.all_gather(torch.zeros(group.size), torch.zeros(1), group)


def reduce_scatter(group: RankGroup) -> None:
    collectives.reduce_scatter(torch.zeros(1), torch.zeros(group.size), group)


def broadcast(group: RankGroup) -> None:
    collectives.broadcast(torch.zeros(1), group)


def exchange(group: RankGroup) -> None:
    after, before = (group.index + 1) % group.size, (group.index - 1) % group.size
    start_exchange(
        group,
        [Parcel(member=after, content="x", tensor=torch.zeros(4))],
        [Parcel(member=before, content="x", tensor=torch.zeros(4))],
        of_all_members=4 * group.size,
        dtype=torch.float32,
    ).wait()


COLLECTIVES: dict[str, Callable[[RankGroup], None]] = {
    each.__name__: each for each in (all_to_all, all_gather, reduce_scatter, broadcast, exchange)
}


def sleep_forever(_recorder: Recorder) -> None:
    time.sleep(FOREVER_S)


def be_stopped(_recorder: Recorder) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(FOREVER_S)


def hold_the_interpreter(_recorder: Recorder) -> None:
    re.match("(a+)+b", "a" * 64)  # 2^64 ways to fail, and no other thread runs meanwhile


def stuck_read(_item: int) -> int:
    time.sleep(FOREVER_S)
    return 0


def wait_for_a_clip(recorder: Recorder) -> None:
    with ClipLoader[int](stuck_read, 2) as loader, recorder.doing("load"):
        loader.prefetch([5])
        loader.take(5)


HANGS: dict[str, Callable[[Recorder], None]] = {
    each.__name__: each
    for each in (sleep_forever, be_stopped, hold_the_interpreter, wait_for_a_clip)
}


def hang_in_a_launch(
    world: World, folder: Path, timeout_s: float, operation: str, hang: str
) -> Any:
    """All ranks run two steps' launches; in the last launch of the second one rank hangs."""
    with watched(world, timeout_s=timeout_s, report_dir=folder) as progress:
        recorder, groups = open_groups(world)
        recorder.progress = progress
        plan = plan_on(world.size)
        batch = batch_of([launch.cascade.bucket for launch in plan.launches], STEP)

        def work(launch: PlacedLaunch, is_planted: bool) -> None:
            is_last = launch.degree == world.size
            if is_planted and is_last and world.rank == CULPRIT:
                (folder / "hangs since").write_text(str(time.monotonic()))
                HANGS[hang](recorder)
            COLLECTIVES[operation](groups.of(launch.ranks))

        for step in (STEP - 1, STEP):
            progress.begin_step(step, launch_texts(batch, plan, world.rank))
            run_launches(
                plan,
                rank=world.rank,
                groups=groups,
                recorder=recorder,
                work=partial(work, is_planted=step == STEP),
            )
            collectives.all_reduce_sum(torch.zeros(1), groups.world)
            recorder.finish(step=step, planner=plan.planner)
