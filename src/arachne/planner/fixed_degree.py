"""What the static planners share: an order, blocks of one degree, and the check that all fits."""

from collections.abc import Iterable
from heapq import heappop, heappush, heapreplace

from arachne.core.blocks import blocks
from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade, Encoder
from arachne.planner.in_place import InPlace
from arachne.planner.infeasible import does_not_fit
from arachne.planner.problem import Placement, PlanningProblem
from arachne.planner.schedule import end_s


def longest_first(
    problem: PlanningProblem, cascades: Iterable[Cascade], degree: int
) -> list[Cascade]:
    """Cascades by their seconds on the first block of a degree; ties in slot order."""
    gpus = tuple(range(degree))
    known_s: dict[tuple[Bucket, int], float] = {}
    keyed: list[tuple[float, tuple[int, ...], Cascade]] = []
    for cascade in cascades:
        key = (cascade.bucket, cascade.num_clips)
        if key not in known_s:
            known_s[key] = problem.duration_s(cascade, gpus)
        keyed.append((-known_s[key], cascade.slots, cascade))
    return [cascade for _, _, cascade in sorted(keyed, key=lambda entry: entry[:2])]


def on_least_loaded_block(
    problem: PlanningProblem, cascades: Iterable[Cascade], degree: int, *, planner: str
) -> tuple[list[Placement], float]:
    """Give each cascade, in order, to the block that is free first; ties to the first block.

    What its encoders take there (`InPlace`) counts too. Gives where all are, and when the last
    block has run its own; the next step's encoders not counted.

    Raises:
        InfeasibleError: A cascade does not fit on any block, or its encoders within none.
    """
    busy = _BusySeconds(problem, InPlace(problem, planner))
    choices = blocks(problem.num_gpus, degree)
    heap = [(0.0, index) for index in range(len(choices))]
    placements: list[Placement] = []
    for cascade in cascades:
        passed: list[tuple[float, int]] = []
        while heap and not problem.costs.fits(cascade, choices[heap[0][1]]):
            passed.append(heappop(heap))
        if not heap:
            raise does_not_fit(problem, cascade, choices[0], planner=planner)
        load_s, index = heap[0]
        gpus = choices[index]
        heapreplace(heap, (load_s + busy.of(cascade, gpus), index))
        placements.append((cascade, gpus))
        for entry in passed:
            heappush(heap, entry)
    return placements, max(load_s for load_s, _ in heap)


class _BusySeconds:
    """How long cascades keep their GPUs, encoders included; looked up once for clips alike."""

    def __init__(self, problem: PlanningProblem, in_place: InPlace) -> None:
        self._problem = problem
        self._in_place = in_place
        self._known_s: dict[tuple[Bucket, tuple[tuple[Encoder, ...], ...], int], float] = {}

    def of(self, cascade: Cascade, gpus: tuple[int, ...]) -> float:
        """Seconds from the first encoder to the end of training."""
        if not self._in_place.has_encoders:
            return self._problem.duration_s(cascade, gpus)
        clips = self._problem.batch.clips
        needs = tuple([clips[slot].to_encode for slot in cascade.slots])
        key = (cascade.bucket, needs, gpus[0])
        known_s = self._known_s.get(key)
        if known_s is None:
            known_s = end_s(self._problem, self._in_place.with_encoders(cascade, gpus))
            self._known_s[key] = known_s
        return known_s
