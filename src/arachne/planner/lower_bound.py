"""A time that no plan of a problem can beat."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from arachne.core.blocks import blocks
from arachne.planner.infeasible import does_not_fit
from arachne.planner.problem import PlanningProblem
from arachne.planner.variants import Kind, Variants

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class _Ways:
    """How one clip of a shape may run: less area takes longer.

    Attributes:
        durations_s: Of a stack on some block, ascending.
        areas_s: Its duration times the speed of its GPUs, for each of its clips; descending.
    """

    durations_s: list[float]
    areas_s: list[float]

    def least_area_s(self, limit_s: float) -> float:
        """Least area that ends within the limit; of the shortest if, by rounding, none does."""
        return self.areas_s[max(bisect_right(self.durations_s, limit_s) - 1, 0)]


@dataclass(frozen=True, slots=True)
class _Work:
    """Clips that one module has to work on.

    Attributes:
        num_clips: How many.
        is_training: Whether that module trains.
        ways: How each may run.
        elsewhere_s: Least time that a clip spends before this or after it, in its other modules.
    """

    num_clips: int
    is_training: bool
    ways: _Ways
    elsewhere_s: float = 0.0

    @property
    def shortest_s(self) -> float:
        """Least time that one clip takes with its other modules."""
        return self.ways.durations_s[0] + self.elsewhere_s

    def least_area_s(self, limit_s: float) -> float:
        """Least area of all its clips if none ends after the limit."""
        return self.num_clips * self.ways.least_area_s(limit_s - self.elsewhere_s)


def lower_bound_s(problem: PlanningProblem, variants: Variants | None = None) -> float:
    """Smallest T in which the work fits, even if it could be cut and spread at will.

        Σ over clips and modules of min { speed(b)·t(k, b) / k : t(k, b) ≤ T − e, fits }
            ≤ T · Σ over GPUs of speed

    over stack sizes k that the shape's clips and `stack_tokens` allow, and blocks b of the allowed
    degrees, whose speed is the sum of their GPUs'. e is what the clip's other modules take at
    least, before it trains or after it is encoded. Training that cannot start before e has to fit
    into T − e: for each e the inequality also holds for these clips' training alone, with T − e on
    the right. T is at least the longest clip's way through encoders and training, each on its best
    block. Encoders of the next step count, and wait for nothing; handoffs are taken to be free.
    Since a launch keeps all its GPUs, any weights may stand in place of speeds. Source: area bound
    of malleable tasks (Turek et al., 1992) with stacking. Lowered by 1e-9 for rounding. `variants`
    lends durations that are already known.

    Raises:
        InfeasibleError: A clip does not fit on any block, whatever it is stacked with.
    """
    variants = variants or Variants(problem)
    works = _works(problem, variants)
    if not works:
        return 0.0
    all_speeds = sum(problem.costs.gpu_speed(gpu) for gpu in range(problem.num_gpus))
    windows = _windows(works)

    def needed_s(limit_s: float) -> float:
        return max(
            elsewhere_s + sum(work.least_area_s(limit_s) for work in inside) / all_speeds
            for elsewhere_s, inside in windows
        )

    low_s = max(work.shortest_s for work in works)
    high_s = needed_s(low_s)
    if high_s <= low_s:
        return low_s * (1.0 - _ROUNDING)
    for _ in range(60):
        middle_s = (low_s + high_s) / 2.0
        if needed_s(middle_s) <= middle_s:
            high_s = middle_s
        else:
            low_s = middle_s
    return low_s * (1.0 - _ROUNDING)


def _windows(works: Sequence[_Work]) -> list[tuple[float, list[_Work]]]:
    """All work in the whole step, and training in what is left of it after encoding."""
    waiting = [work for work in works if work.is_training and work.elsewhere_s]
    return [
        (0.0, list(works)),
        *[
            (encode_s, [work for work in waiting if work.elsewhere_s >= encode_s])
            for encode_s in sorted({work.elsewhere_s for work in waiting})
        ],
    ]


def _works(problem: PlanningProblem, variants: Variants) -> list[_Work]:
    speeds = _least_speeds(problem, variants)
    ways = [_ways(problem, variants, shape, speeds) for shape in range(variants.num_shapes)]
    works: list[_Work] = []
    for of_shape, way in zip(variants.shapes, ways, strict=True):
        clips = problem.batches[of_shape.steps_ahead].clips
        if of_shape.steps_ahead:
            works.append(_Work(len(of_shape.slots), False, way))
        elif of_shape.module == "dit":
            for encoders, num_clips in Counter(clips[s].to_encode for s in of_shape.slots).items():
                shapes = [variants.shape_index(module, 0, of_shape.bucket) for module in encoders]
                encode_s = max([ways[shape].durations_s[0] for shape in shapes], default=0.0)
                works.append(_Work(num_clips, True, way, encode_s))
        else:
            train_s = ways[variants.shape_index("dit", 0, of_shape.bucket)].durations_s[0]
            works.append(_Work(len(of_shape.slots), False, way, train_s))
    return works


def _least_speeds(problem: PlanningProblem, variants: Variants) -> dict[Kind, float]:
    """Of each kind of block, the least sum of its GPUs' speeds."""
    speeds: dict[Kind, float] = {}
    for of_degree in problem.allowed_blocks.values():
        for gpus in of_degree:
            kind = variants.kind(gpus)
            speed = sum([problem.costs.gpu_speed(gpu) for gpu in gpus])
            speeds[kind] = min(speed, speeds.get(kind, inf))
    return speeds


def _ways(
    problem: PlanningProblem, variants: Variants, shape: int, speeds: dict[Kind, float]
) -> _Ways:
    options = [
        (duration_s, speeds[variants.kind(gpus)] * duration_s / size)
        for size in range(1, variants.most_clips(shape) + 1)
        for kinds in variants.kinds_of_degree.values()
        for gpus in kinds
        if (duration_s := variants.duration_s((shape, size), gpus)) < inf
    ]
    if not options:
        single = variants.cascade(shape, variants.slots_of_shape[shape][:1])
        # Training needs least memory on most GPUs; encoders may not be split at all.
        degree = problem.degrees[-1 if single.module == "dit" else 0]
        raise does_not_fit(problem, single, blocks(problem.num_gpus, degree)[0])
    durations_s: list[float] = []
    areas_s: list[float] = []
    for duration_s, area_s in sorted(options):
        if not areas_s or area_s < areas_s[-1]:
            durations_s.append(duration_s)
            areas_s.append(area_s)
    return _Ways(durations_s, areas_s)
