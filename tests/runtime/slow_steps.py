"""Steps of two emulated ranks, of which one waits for the other, now and then for long."""

from pathlib import Path

from arachne.core.placed_plan import PlacedPlan
from arachne.runtime.emulation import EmulatedRank
from arachne.runtime.launcher import run_ranks
from arachne.runtime.watched import collective_timeout_s, watched
from arachne.runtime.world import World
from tests.runtime.planted_hangs import plan_on
from tests.runtime.rank_groups import open_groups

SLOW_SHARE = 0.4
"""Of the time-out: what each of four launches takes in a slow step, in which rank 0 waits."""


def emulated(
    world: World, folder: Path, steps: int, launch_s: float, timeout_s: float, slow_every: int
) -> list[float]:
    """The longest waits of this rank while rank 1 works on, launch after launch; longest first."""
    waits_s: list[float] = []
    with watched(world, timeout_s=timeout_s, report_dir=folder) as progress:
        recorder, groups = open_groups(world)
        recorder.progress = progress
        first, last, shared = plan_on(world.size).launches
        for step in range(steps):
            is_slow = step % slow_every == slow_every - 1
            seconds = SLOW_SHARE * timeout_s if is_slow else launch_s
            rank = EmulatedRank(
                rank=world.rank,
                groups=groups,
                recorder=recorder,
                compute_s=lambda launch, seconds=seconds: seconds,
                optimizer_s=0.0,
            )
            launches = (shared, first, *(4 * (last,)))
            progress.begin_step(step, {})
            log = rank.run_step(
                PlacedPlan(step=step, planner="", world_size=world.size, launches=launches)
            )
            waits_s.append(max(event.span.duration_s for event in log.events))
    return sorted(waits_s, reverse=True)


def longest_waits_s(
    folder: Path, steps: int, *, launch_s: float, timeout_s: float, slow_every: int = 50
) -> list[float]:
    """How long rank 0 waited at most in each step, longest first.

    One step of `slow_every` waits for longer than the time-out. A report in `folder` would be a
    false alarm.

    Raises:
        LostRankError: The watchdog ended the run.
    """
    return run_ranks(
        2,
        emulated,
        (folder, steps, launch_s, timeout_s, slow_every),
        timeout_s=collective_timeout_s(timeout_s),
    )[0]
