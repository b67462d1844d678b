"""The order of a plan with encoders: what is encoded where first, and which clip is meant.

Read a plan backwards in time: training comes first, and a clip may be encoded as soon as its
training has ended and its results have travelled back. On a tree of blocks training from the
largest block to the smallest, then encoding from the smallest to the largest, leaves a GPU idle
only if no clip that it could encode has been trained yet: a path's load from root to leaf is its
end, as without encoders. So backwards, training needs no decision, and encoders are put one after
another where a GPU is free, each with clips that are ready by then, those of its own GPUs first.
Turned round, encoders run first and small blocks train before large ones.

Encoders of the next step wait for nothing: they follow a GPU's last training.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade, Module
from arachne.planner.problem import Placement, PlanningProblem

_NEARLY = 1e-4
"""Waits of this part of a plan are not worth another look."""

Gpus = tuple[int, ...]

LaunchSeconds = Callable[[Cascade, Gpus], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A plan's launches without their starts.

    Attributes:
        placements: In launch order, encoders before what needs them.
        makespan_s: How long they take at most.
    """

    placements: list[Placement]
    makespan_s: float


def in_order(
    problem: PlanningProblem, placements: Iterable[Placement], launch_s: LaunchSeconds
) -> Order:
    """Placements of a block tree, largest blocks first, in the shortest order of launches found.

    Clips of a shape are dealt anew, to training and to the encoders of this step. `launch_s` gives
    a launch's seconds, for example from what is known already.
    """
    trained, own, ahead = _by_purpose(placements)
    backwards = _dealt_backwards(problem, [*ahead[::-1], *trained], own, launch_s)
    if not own:  # nothing has to be dealt, and the next step's encoders come last
        return Order(placements=[*trained, *ahead[::-1]], makespan_s=backwards.makespan_s)
    if backwards.makespan_s > backwards.most_loaded_s * (1.0 + _NEARLY):
        others = _dealt_backwards(problem, [*ahead, *trained[::-1]], own, launch_s)
        backwards = min(backwards, others, key=lambda found: found.makespan_s)
    return Order(placements=backwards.turned_round(), makespan_s=backwards.makespan_s)


def _by_purpose(
    placements: Iterable[Placement],
) -> tuple[list[Placement], list[Placement], list[Placement]]:
    """Training, encoders of this step, and encoders of the next one."""
    trained: list[Placement] = []
    own: list[Placement] = []
    ahead: list[Placement] = []
    for placed in placements:
        cascade = placed[0]
        (trained if cascade.module == "dit" else ahead if cascade.steps_ahead else own).append(
            placed
        )
    return trained, own, ahead


def _dealt_backwards(
    problem: PlanningProblem,
    first: Sequence[Placement],
    encoders: Sequence[Placement],
    launch_s: LaunchSeconds,
) -> "_Backwards":
    """Backwards: `first` as they come, then encoders, small blocks before large ones."""
    backwards = _Backwards(problem.num_gpus, launch_s)
    for cascade, gpus in _with_late_clips_last(problem, first, encoders, launch_s):
        backwards.run(cascade, gpus)
    waiting = _Waiting(problem, backwards, encoders)
    levels: dict[int, dict[Gpus, list[Cascade]]] = defaultdict(lambda: defaultdict(list))
    for cascade, gpus in encoders:
        levels[len(gpus)][gpus].append(cascade)
    for degree in sorted(levels):
        blocks = levels[degree]
        heap = [(backwards.free_from(gpus), gpus) for gpus in blocks]
        heapify(heap)
        while heap:
            now_s, gpus = heappop(heap)
            stack, start_s, slots = waiting.next_of(blocks[gpus], gpus, now_s)
            blocks[gpus].remove(stack)
            backwards.run(replace(stack, slots=tuple(sorted(slots))), gpus, start_s)
            if blocks[gpus]:
                heappush(heap, (backwards.free_from(gpus), gpus))
    return backwards


def _with_late_clips_last(
    problem: PlanningProblem,
    first: Sequence[Placement],
    encoders: Iterable[Placement],
    launch_s: LaunchSeconds,
) -> Sequence[Placement]:
    """The same with clips of a shape dealt so that those that take longest to encode train last."""
    clips = problem.batch.clips
    if len({(clip.bucket, clip.to_encode) for clip in clips}) == len({c.bucket for c in clips}):
        return first  # clips of a shape are all alike
    encode_s: dict[tuple[Module, Bucket], float] = defaultdict(float)
    for cascade, gpus in encoders:
        key = (cascade.module, cascade.bucket)
        encode_s[key] = max(encode_s[key], launch_s(cascade, gpus))
    slots: dict[Bucket, list[int]] = defaultdict(list)
    for slot, clip in enumerate(clips):
        slots[clip.bucket].append(slot)
    for bucket, of_bucket in slots.items():  # the next one is taken from the end
        of_bucket.sort(
            key=lambda slot: (
                max([encode_s[module, bucket] for module in clips[slot].to_encode], default=0.0),
                -slot,
            )
        )
    backwards = _Backwards(problem.num_gpus, launch_s)
    until_s = [backwards.run(cascade, gpus) for cascade, gpus in first]
    dealt = list(first)
    for index in sorted(range(len(first)), key=lambda i: until_s[i]):
        cascade, gpus = first[index]
        if cascade.module == "dit":
            taken = [slots[cascade.bucket].pop() for _ in cascade.slots]
            dealt[index] = (replace(cascade, slots=tuple(sorted(taken))), gpus)
    return dealt


class _Backwards:
    """Launches put one after another from a plan's end to its start.

    Attributes:
        trained: Of each slot, how long before the end its training starts, and its GPUs.
    """

    def __init__(self, num_gpus: int, launch_s: LaunchSeconds) -> None:
        self._launch_s = launch_s
        self._free_s = [0.0] * num_gpus
        self._busy_s = [0.0] * num_gpus
        self._ran: list[tuple[float, Placement]] = []
        self.trained: dict[int, tuple[float, Gpus]] = {}

    @property
    def makespan_s(self) -> float:
        """From the plan's end to its start."""
        return max(self._free_s)

    @property
    def most_loaded_s(self) -> float:
        """What the busiest GPU has to do; no order is shorter."""
        return max(self._busy_s)

    def free_from(self, gpus: Gpus) -> float:
        """When all of the GPUs are free."""
        return max([self._free_s[gpu] for gpu in gpus])

    def run(self, cascade: Cascade, gpus: Gpus, not_before_s: float = 0.0) -> float:
        """Put a launch behind all that its GPUs have so far; gives when it is through."""
        duration_s = self._launch_s(cascade, gpus)
        until_s = max(self.free_from(gpus), not_before_s) + duration_s
        for gpu in gpus:
            self._free_s[gpu] = until_s
            self._busy_s[gpu] += duration_s
        self._ran.append((until_s, (cascade, gpus)))
        if cascade.module == "dit":
            self.trained |= dict.fromkeys(cascade.slots, (until_s, gpus))
        return until_s

    def turned_round(self) -> list[Placement]:
        """Everything that ran, the last first."""
        return [placed for _, placed in sorted(self._ran, key=lambda ran: ran[0])[::-1]]


class _Waiting:
    """Clips that no encoder was given yet, by encoder and shape."""

    def __init__(
        self, problem: PlanningProblem, backwards: _Backwards, encoders: Iterable[Placement]
    ) -> None:
        self._costs = problem.costs
        self._trained = backwards.trained
        self._soonest: dict[tuple[Module, Bucket], list[int]] = defaultdict(list)
        for cascade, _ in encoders:
            self._soonest[cascade.module, cascade.bucket] += cascade.slots
        self._on: dict[tuple[Module, Bucket, Gpus], list[int]] = defaultdict(list)
        self._blocks_over: dict[int, dict[Gpus, None]] = defaultdict(dict)
        for (module, bucket), slots in self._soonest.items():
            slots.sort(key=lambda slot: (-self._trained[slot][0], -slot))  # taken from the end
            for slot in slots:
                gpus = self._trained[slot][1]
                self._on[module, bucket, gpus].append(slot)
                for gpu in gpus:
                    self._blocks_over[gpu][gpus] = None
        self._given: set[tuple[Module, int]] = set()

    def next_of(
        self, stacks: Sequence[Cascade], gpus: Gpus, now_s: float
    ) -> tuple[Cascade, float, list[int]]:
        """Which of a block's stacks can start first, when, and with which clips."""
        found: list[tuple[float, int, list[int]]] = []
        tried: set[tuple[Module, Bucket, int]] = set()
        for index, stack in enumerate(stacks):
            key = (stack.module, stack.bucket, stack.num_clips)
            if key not in tried:
                tried.add(key)
                start_s, slots = self._clips_for(stack, gpus, now_s)
                found.append((start_s, index, slots))
                if start_s <= now_s:
                    break
        start_s, index, slots = min(found)
        stack = stacks[index]
        self._given |= {(stack.module, slot) for slot in slots}
        return stack, start_s, slots

    def _clips_for(self, stack: Cascade, gpus: Gpus, now_s: float) -> tuple[float, list[int]]:
        """The clips with which the stack can start first, and when; near ones preferred."""
        near = [
            slot
            for block in self._blocks_over[gpus[0]]
            if len(block) >= len(gpus)
            for slot in self._some(self._on.get((stack.module, stack.bucket, block), []), stack)
        ]
        soon = self._some(self._soonest[stack.module, stack.bucket], stack)
        keyed: list[tuple[float, float, int]] = []
        for slot in dict.fromkeys([*near, *soon]):
            ended_s, trained_on = self._trained[slot]
            handoff_s = self._costs.handoff_s(stack, gpus, trained_on)
            keyed.append((max(ended_s + handoff_s, now_s), handoff_s, slot))
        chosen = sorted(keyed)[: stack.num_clips]
        return chosen[-1][0], [slot for _, _, slot in chosen]

    def _some(self, slots: list[int], stack: Cascade) -> list[int]:
        """The first clips of a list that are still to be given, as many as the stack takes."""
        while slots and (stack.module, slots[-1]) in self._given:
            slots.pop()
        found: list[int] = []
        for slot in reversed(slots):
            if (stack.module, slot) not in self._given:
                found.append(slot)
                if len(found) == stack.num_clips:
                    break
        return found
