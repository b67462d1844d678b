"""Emulated devices: real processes, groups and collectives, but computing is waiting.

A launch sleeps for its modelled time, which uses no core, then meets its members in real
collectives on small tensors. So plans for many ranks run for real on few cores: who waits for whom,
in which groups and in which order, what agreeing on a plan costs, and whether anything deadlocks.
Not emulated: what the collectives carry, memory, and that a launch computes and communicates in
turns.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.rank_log import RankLog
from arachne.runtime import collectives
from arachne.runtime.executor import run_launches
from arachne.runtime.process_groups import ProcessGroups, RankGroup
from arachne.runtime.recorder import Recorder

LAUNCH_COLLECTIVES = 2
"""Collectives that each launch of a degree above 1 issues: all-to-alls of one element per pair."""

_SHARD_ELEMENTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedRank:
    """One rank that emulates a device.

    Attributes:
        rank: This rank.
        groups: Its groups.
        recorder: Records its spans.
        compute_s: Seconds that a launch computes on this rank, noise counted.
        optimizer_s: Seconds of the optimizer.
    """

    rank: int
    groups: ProcessGroups
    recorder: Recorder
    compute_s: Callable[[PlacedLaunch], float]
    optimizer_s: float

    def run_step(self, plan: PlacedPlan) -> RankLog:
        """One step: vote on the plan, launch, reduce, optimize, gather; every rank calls it.

        Raises:
            RuntimeError: Ranks hold different plans.
        """
        self._vote(plan)
        run_launches(
            plan,
            rank=self.rank,
            groups=self.groups,
            recorder=self.recorder,
            work=self._launch,
        )
        world = self.groups.world
        whole = torch.zeros(_SHARD_ELEMENTS * world.size)
        shard = torch.zeros(_SHARD_ELEMENTS)
        collectives.reduce_scatter(shard, whole, world)
        with self.recorder.doing("optimizer"):
            time.sleep(self.optimizer_s)
        collectives.all_gather(whole, shard, world)
        return self.recorder.finish(step=plan.step, planner=plan.planner)

    def _vote(self, plan: PlacedPlan) -> None:
        digest = int(plan.digest[:15], 16)
        ballot = torch.tensor([digest, -digest], dtype=torch.int64)
        collectives.all_reduce_max(ballot, self.groups.world)
        if int(ballot.sum()):
            raise RuntimeError(f"ranks hold different plans of step {plan.step}; nothing was run")

    def _launch(self, launch: PlacedLaunch) -> None:
        time.sleep(self.compute_s(launch))
        meet(self.groups.of(launch.ranks), LAUNCH_COLLECTIVES)


def meet(group: RankGroup, num_collectives: int) -> None:
    """Small all-to-alls of a group, one after the other; a rank alone meets nobody."""
    if group.size == 1:
        return
    ones = [1] * group.size
    sizes = collectives.Sizes(received=ones, sent=ones, of_all_members=group.size**2)
    sent, received = torch.zeros(group.size), torch.zeros(group.size)
    for _ in range(num_collectives):
        collectives.all_to_all(received, sent, sizes, group)
