"""One emulated rank of `emulated.py`: it times this host's collectives, and runs plans."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from arachne.core.blocks import allowed_degrees, blocks
from arachne.core.cascade import Cascade
from arachne.core.cluster import Cluster
from arachne.core.placed_plan import PlacedLaunch
from arachne.core.rank_log import RankLog, trace_from_logs
from arachne.core.strict_json import from_json, to_json
from arachne.cost.model import CostModel
from arachne.runtime import collectives
from arachne.runtime.clock import HostClock
from arachne.runtime.emulation import LAUNCH_COLLECTIVES, EmulatedRank, meet
from arachne.runtime.messages import gathered_texts, text_of_first
from arachne.runtime.process_groups import ProcessGroups
from arachne.runtime.recorder import Recorder
from arachne.runtime.world import World
from arachne.simulator.perturbation import Perturbation

STEP_S = 2.0
"""Modelled makespan that all times are scaled to: what a step of a small GPU training takes."""

CLIPS_PER_RANK = 3

ARRIVAL_SHARE = 0.02
"""Of a step, in which the ranks come to its reduction one after the other. *Assumption*: plans are
balanced to 1-4 %."""

MAX_DEGREE = 8


@dataclass(frozen=True, kw_only=True)
class HostCosts:
    """Modelled computing, scaled to `STEP_S`, and collectives as this host has them.

    Attributes:
        costs: The model.
        scale: Factor of modelled seconds.
        meeting_s: By degree, seconds of a launch's collectives on this host.
        reduce_s: Seconds of the small reduce-scatter of the world.
        gather_s: Seconds of the small all-gather of the world.
    """

    costs: CostModel
    scale: float
    meeting_s: dict[int, float]
    reduce_s: float
    gather_s: float

    @property
    def cluster(self) -> Cluster:
        """As modelled."""
        return self.costs.cluster

    def handoff_s(
        self, cascade: Cascade, from_gpus: tuple[int, ...], to_gpus: tuple[int, ...]
    ) -> float:
        """None: all clips are encoded."""
        return 0.0

    def launch_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Sleeping, then meeting."""
        return self.scale * self.costs.launch_s(cascade, gpus) + self.communicate_s(cascade, gpus)

    def communicate_s(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Meeting."""
        return self.meeting_s.get(len(gpus), 0.0)

    def gradient_reduce_s(self) -> float:
        """As measured."""
        return self.reduce_s

    def optimizer_s(self) -> float:
        """As modelled; the emulation sleeps for it."""
        return self.scale * self.costs.optimizer_s()

    def parameter_gather_s(self) -> float:
        """As measured."""
        return self.gather_s


@dataclass(frozen=True, kw_only=True)
class Emulator:
    """One rank's side of the benchmark.

    Attributes:
        world: This rank's world.
        recorder: Records its spans.
        groups: Every group that plans may name.
    """

    world: World
    recorder: Recorder
    groups: ProcessGroups

    @classmethod
    def on(cls, world: World) -> "Emulator":
        """Every rank makes its own at the same moment."""
        recorder = Recorder(rank=world.rank, world_size=world.size, clock=HostClock())
        groups = ProcessGroups(world, allowed_degrees(world.size, MAX_DEGREE), recorder)
        return cls(world=world, recorder=recorder, groups=groups)

    def timed(self, work: Callable[[], object], repeats: int, arrival_s: float = 0.0) -> float:
        """Median seconds of something that all ranks do, from when the last one begins.

        Over `arrival_s` they begin one after the other, as they do in a step.
        """
        seconds: list[float] = []
        for _ in range(repeats):
            self.barrier()
            time.sleep(arrival_s * self.world.rank / self.world.size)
            began_s = time.perf_counter()  # the same clock in all processes of a machine
            work()
            times_s = torch.tensor([began_s, time.perf_counter()], dtype=torch.float64)
            collectives.all_reduce_max(times_s, self.groups.world)
            seconds.append(float(times_s[1] - times_s[0]))
        self.recorder.finish(step=0, planner="timed")
        return median(seconds)

    def meeting_s(self, degree: int, repeats: int) -> float:
        """Median seconds of a launch's collectives, on the slowest member of the slowest group.

        Groups meet one after the other, as far apart as launches end in a step.
        """
        all_blocks = list(blocks(self.world.size, degree))
        mine = [n for n, ranks in enumerate(all_blocks) if self.world.rank in ranks]
        apart_s = STEP_S / (CLIPS_PER_RANK * self.world.size)
        seconds: list[float] = []
        for _ in range(repeats):
            self.barrier()
            took_s = 0.0
            for number in mine:  # a rank that no block of this degree has waits for the others
                time.sleep(apart_s * number)
                began_s = time.perf_counter()
                meet(self.groups.of(all_blocks[number]), LAUNCH_COLLECTIVES)
                took_s = time.perf_counter() - began_s
            slowest = torch.tensor([took_s], dtype=torch.float64)
            collectives.all_reduce_max(slowest, self.groups.world)
            seconds.append(float(slowest))
        self.recorder.finish(step=0, planner="timed")
        return median(seconds)

    def barrier(self) -> None:
        """All ranks are here."""
        collectives.all_reduce_sum(torch.zeros(1), self.groups.world)

    def sent(self, text: str) -> str:
        """Rank 0's text, on every rank."""
        return text_of_first(text, self.groups.world, self.world.device)

    def trace_s(self, log: RankLog) -> float:
        """Seconds of a step over all ranks, its vote counted; on rank 0, else 0."""
        texts = gathered_texts(to_json(log), self.groups.world, self.world.device)
        self.recorder.finish(step=0, planner="logs")
        if self.world.rank:
            return 0.0
        return trace_from_logs([from_json(t, RankLog, what="rank log") for t in texts]).iteration_s

    def host_costs(self, costs: CostModel, repeats: int) -> HostCosts:
        """What collectives take on this host in a step."""
        world = self.groups.world
        whole, shard = torch.zeros(16 * world.size), torch.zeros(16)
        degrees = [d for d in allowed_degrees(world.size, MAX_DEGREE) if d > 1]
        return HostCosts(
            costs=costs,
            scale=1.0,
            meeting_s={degree: self.meeting_s(degree, repeats) for degree in degrees},
            reduce_s=self.timed(
                lambda: collectives.reduce_scatter(shard, whole, world),
                repeats,
                ARRIVAL_SHARE * STEP_S,
            ),
            gather_s=self.timed(lambda: collectives.all_gather(whole, shard, world), repeats),
        )

    def emulated(self, host: HostCosts, perturbation: Perturbation) -> EmulatedRank:
        """This rank as a device under a disturbance."""

        def compute_s(launch: PlacedLaunch) -> float:
            modelled_s = host.scale * host.costs.launch_s(launch.cascade, launch.ranks)
            factor = perturbation.launch_factor(0, launch.cascade, launch.degree)
            return perturbation.compute_s(0, self.world.rank, 0.0, modelled_s * factor)

        return EmulatedRank(
            rank=self.world.rank,
            groups=self.groups,
            recorder=self.recorder,
            compute_s=compute_s,
            optimizer_s=host.optimizer_s(),
        )
