"""One iteration as events: a launch starts when nothing holds it back any more."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial

from arachne.core.cluster import Cluster
from arachne.core.placed_plan import PlacedPlan
from arachne.core.trace import Span, SpanKind
from arachne.simulator.events import EventQueue
from arachne.simulator.launch_seconds import LaunchSeconds
from arachne.simulator.nics import SharedNics, Transfer, nics_used
from arachne.simulator.perturbation import Perturbation

Interval = tuple[float, float]


class Iteration:
    """The launches of one placed plan on their way.

    Attributes:
        spans: What ranks did in and before their launches; empty ones too.
        free_s: Of each rank, when its last launch so far ended.
    """

    def __init__(
        self,
        plan: PlacedPlan,
        inputs: Sequence[tuple[int, ...]],
        seconds: Sequence[LaunchSeconds],
        perturbation: Perturbation,
        cluster: Cluster | None,
    ) -> None:
        """Get ready.

        Args:
            plan: What runs.
            inputs: Of each launch, the encoder launches that it needs.
            seconds: Of each launch, what it takes undisturbed.
            perturbation: What disturbs.
            cluster: Whose NICs launches share; None if each GPU has a NIC of its own.
        """
        num_launches = len(plan.launches)
        self.spans: list[Span] = []
        self.free_s = [0.0] * plan.world_size
        self._plan = plan
        self._inputs = inputs
        self._seconds = seconds
        self._perturbation = perturbation
        self._cluster = cluster
        self._events = EventQueue()
        self._nics = SharedNics(self._events, cluster.num_nics) if cluster else None
        self._num_awaited = [0] * num_launches
        self._followers: list[list[int]] = [[] for _ in range(num_launches)]
        self._trained_by: list[list[tuple[int, int]]] = [[] for _ in range(num_launches)]
        self._handoffs: defaultdict[int, list[Interval]] = defaultdict(list)
        self._num_left = Counter(launch.phase for launch in plan.launches)

    def run(self) -> None:
        """Let all launches happen."""
        self._find_what_waits()
        for index, num_awaited in enumerate(list(self._num_awaited)):
            if not num_awaited:
                self._events.at(0.0, partial(self._start, index))
        self._events.run()
        assert not any(self._num_awaited), "launches wait for each other in a circle"

    def _find_what_waits(self) -> None:
        last_on_rank: dict[int, int] = {}
        first_phase = min(self._num_left, default=0)
        for index, launch in enumerate(self._plan.launches):
            for rank in launch.ranks:
                if rank in last_on_rank:
                    self._followers[last_on_rank[rank]].append(index)
                    self._num_awaited[index] += 1
                last_on_rank[rank] = index
            for place, encoder in enumerate(self._inputs[index]):
                self._trained_by[encoder].append((index, place))
                self._num_awaited[index] += 1
            self._num_awaited[index] += launch.phase > first_phase

    def _release(self, index: int) -> None:
        self._num_awaited[index] -= 1
        if not self._num_awaited[index]:
            self._start(index)

    def _start(self, index: int) -> None:
        launch, seconds, now_s = (
            self._plan.launches[index],
            self._seconds[index],
            self._events.now_s,
        )
        step, disturb = self._plan.step, self._perturbation
        factor = disturb.launch_factor(step, launch.cascade, launch.degree)
        modelled_s = (seconds.total_s - seconds.communicate_s) * factor
        computes_s = [
            disturb.compute_s(step, rank, now_s, modelled_s * share)
            for rank, share in zip(launch.ranks, seconds.compute_shares, strict=True)
        ]
        slowest_s = max(computes_s)
        communicate_s = seconds.communicate_s * factor
        # What it takes longer is added to one sum, so that an undisturbed launch ends exactly where
        # the plan says.
        extra_s = slowest_s - modelled_s + communicate_s / disturb.bandwidth - communicate_s
        end_s = now_s + (seconds.total_s * factor + extra_s)
        meet_s = min(now_s + slowest_s, end_s) if communicate_s else end_s
        for rank, compute_s in zip(launch.ranks, computes_s, strict=True):
            computed_s = meet_s if compute_s == slowest_s else min(now_s + compute_s, meet_s)
            self._spans_before(index, rank, now_s)
            self._span(index, rank, "compute", now_s, computed_s)
            self._span(index, rank, "wait", computed_s, meet_s)
        self._events.at(meet_s, partial(self._meet, index, end_s))

    def _meet(self, index: int, end_s: float) -> None:
        end = partial(self._end, index, self._events.now_s)
        nics = nics_used(self._cluster, self._plan.launches[index].ranks) if self._cluster else {}
        if self._nics and nics and end_s > self._events.now_s:
            self._nics.send(Transfer(nics=nics, end_s=end_s, on_end=end))
        else:
            self._events.at(end_s, end)

    def _end(self, index: int, meet_s: float) -> None:
        launch, now_s = self._plan.launches[index], self._events.now_s
        for rank in launch.ranks:
            self._span(index, rank, "communicate", meet_s, now_s)
            self.free_s[rank] = now_s
        for trained, place in self._trained_by[index]:
            handoff_s = self._seconds[trained].handoffs_s[place] / self._perturbation.bandwidth
            if handoff_s:
                self._handoffs[trained].append((now_s, now_s + handoff_s))
            self._events.at(now_s + handoff_s, partial(self._release, trained))
        for follower in self._followers[index]:
            self._release(follower)
        self._end_in_phase(launch.phase)

    def _end_in_phase(self, phase: int) -> None:
        self._num_left[phase] -= 1
        if self._num_left[phase]:
            return
        del self._num_left[phase]
        following = min(self._num_left, default=None)
        for index, launch in enumerate(self._plan.launches):
            if launch.phase == following:
                self._release(index)

    def _spans_before(self, index: int, rank: int, start_s: float) -> None:
        """What a rank did since its last launch: bytes came in, or nothing did."""
        now_s = self.free_s[rank]
        for begin_s, arrival_s in sorted(self._handoffs[index]):
            if arrival_s > now_s:
                begin_s = max(begin_s, now_s)
                self._span(index, rank, "wait", now_s, begin_s)
                self._span(index, rank, "handoff", begin_s, arrival_s)
                now_s = arrival_s
        self._span(index, rank, "wait", now_s, start_s)

    def _span(self, index: int, rank: int, kind: SpanKind, start_s: float, end_s: float) -> None:
        if end_s > start_s:
            self.spans.append(
                Span(rank=rank, kind=kind, start_s=start_s, end_s=end_s, launch=index)
            )
