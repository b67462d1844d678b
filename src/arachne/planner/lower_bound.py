"""A time that no plan of a problem can beat."""

from dataclasses import dataclass
from math import inf

from arachne.core.blocks import blocks
from arachne.planner.infeasible import does_not_fit
from arachne.planner.problem import PlanningProblem
from arachne.planner.stacking import cascade_of
from arachne.planner.variants import Variants

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class _Option:
    """One way to train clips of a shape: a stack on a degree's fastest block."""

    duration_s: float
    gpu_seconds_per_clip: float


@dataclass(frozen=True, slots=True)
class _Shape:
    """A shape of the batch: its clips, and every way to train one of them."""

    num_clips: int
    options: tuple[_Option, ...]

    def least_gpu_s(self, limit_s: float) -> float:
        """Least GPU-seconds of all its clips if no launch is longer than `limit_s`."""
        return self.num_clips * min(
            option.gpu_seconds_per_clip for option in self.options if option.duration_s <= limit_s
        )


def lower_bound_s(problem: PlanningProblem, variants: Variants | None = None) -> float:
    """Smallest T in which the work fits, even if it could be cut and spread at will.

        Σ over clips of min { p·t(k, p) / k : t(k, p) ≤ T, fits } ≤ T · GPUs

    over stack sizes k that the shape's clips and `stack_tokens` allow, degrees p, and the fastest
    block of each; T is at least the longest clip at its best degree. Source: area bound of
    malleable tasks (Turek et al., 1992) with stacking. Lowered by 1e-9 for rounding. `variants`
    lends durations that are already known.

    Raises:
        InfeasibleError: A clip does not fit on any block, whatever it is stacked with.
    """
    variants = variants or Variants(problem)
    shapes = [_shape(problem, variants, shape) for shape in range(len(variants.slots_of_shape))]
    if not shapes:
        return 0.0

    def work_s(limit_s: float) -> float:
        return sum(shape.least_gpu_s(limit_s) for shape in shapes) / problem.num_gpus

    low_s = max(min(option.duration_s for option in shape.options) for shape in shapes)
    high_s = work_s(low_s)
    if high_s <= low_s:
        return low_s * (1.0 - _ROUNDING)
    for _ in range(60):
        middle_s = (low_s + high_s) / 2.0
        if work_s(middle_s) <= middle_s:
            high_s = middle_s
        else:
            low_s = middle_s
    return low_s * (1.0 - _ROUNDING)


def _shape(problem: PlanningProblem, variants: Variants, shape: int) -> _Shape:
    options: list[_Option] = []
    for size in range(1, variants.most_clips(shape) + 1):
        for degree in problem.degrees:
            fastest_s = min(
                variants.duration_s((shape, size), gpus)
                for gpus in variants.kinds_of_degree[degree]
            )
            if fastest_s < inf:
                options.append(_Option(fastest_s, degree * fastest_s / size))
    slots = variants.slots_of_shape[shape]
    if not options:
        widest = blocks(problem.num_gpus, problem.degrees[-1])[0]
        single = cascade_of(problem.batch.clips, slots[:1])
        raise does_not_fit(problem, single, widest)
    return _Shape(len(slots), tuple(options))
