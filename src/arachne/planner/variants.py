"""Costs of every variant (shape, number of stacked clips), looked up once per kind of block."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade, Module
from arachne.planner.best_stacks import BestStacks
from arachne.planner.problem import PlanningProblem
from arachne.planner.stacking import cascade_of, stack_limit

Variant = tuple[int, int]
"""Index of a shape, and how many clips of it one cascade stacks."""

Gpus = tuple[int, ...]

Kind = int
"""Number of a kind of block: blocks of one degree that cost the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Work that may be stacked: what one module has to do for the clips of one bucket.

    Attributes:
        module: Which module.
        steps_ahead: 1 if the clips are those of the next step.
        bucket: The clips' shape.
        num_tokens: Tokens of one clip.
        slots: The clips, ascending; to a planner they are all alike.
    """

    module: Module
    steps_ahead: int
    bucket: Bucket
    num_tokens: int
    slots: tuple[int, ...]


def shapes_of(problem: PlanningProblem) -> tuple[Shape, ...]:
    """All work of a problem: training first, then encoders of this step, then of the next one."""
    slots: dict[tuple[int, Module], dict[Bucket, list[int]]] = {}
    for steps_ahead, batch in enumerate(problem.batches):
        for module in _MODULES[steps_ahead]:
            of_module = slots[steps_ahead, module] = defaultdict(list)
            for slot, clip in enumerate(batch.clips):
                if module == "dit" or module in clip.to_encode:
                    of_module[clip.bucket].append(slot)
    return tuple(
        Shape(
            module=module,
            steps_ahead=steps_ahead,
            bucket=bucket,
            num_tokens=problem.batches[steps_ahead].clips[of_bucket[0]].num_tokens,
            slots=tuple(of_bucket),
        )
        for (steps_ahead, module), of_module in slots.items()
        for bucket, of_bucket in of_module.items()
    )


_MODULES: tuple[tuple[Module, ...], ...] = (("dit", "vae", "text"), ("vae", "text"))
"""What runs in a step for its own clips, and for those of the next step."""


class Variants:
    """The shapes of a problem with their slots, and the durations of their stacks."""

    def __init__(self, problem: PlanningProblem) -> None:
        self.problem = problem
        self.shapes = shapes_of(problem)
        self.slots_of_shape: tuple[tuple[int, ...], ...] = tuple([s.slots for s in self.shapes])
        self._shape_of = {
            (shape.module, shape.steps_ahead, shape.bucket): index
            for index, shape in enumerate(self.shapes)
        }
        self._kinds: dict[Gpus, Kind] = {}
        self._kind_of_probes: dict[tuple[float, ...], Kind] = {}
        self._cascades: dict[Variant, Cascade] = {}
        self._durations_s: dict[tuple[Variant, Kind], float] = {}
        self._stacks: dict[tuple[int, Kind], BestStacks] = {}

    @property
    def num_shapes(self) -> int:
        """Different shapes in the problem."""
        return len(self.shapes)

    def shape_of(self, cascade: Cascade) -> int:
        """Index of the shape that a cascade stacks clips of."""
        return self.shape_index(cascade.module, cascade.steps_ahead, cascade.bucket)

    def shape_index(self, module: Module, steps_ahead: int, bucket: Bucket) -> int:
        """Index of a shape by what tells it from others."""
        return self._shape_of[module, steps_ahead, bucket]

    def cascade(self, shape: int, slots: Sequence[int]) -> Cascade:
        """The cascade of some slots of a shape."""
        of_shape = self.shapes[shape]
        return cascade_of(
            self.problem.batches[of_shape.steps_ahead].clips,
            slots,
            of_shape.module,
            steps_ahead=of_shape.steps_ahead,
        )

    def most_clips(self, shape: int) -> int:
        """Most clips of a shape that one cascade may hold."""
        of_shape = self.shapes[shape]
        return min(len(of_shape.slots), stack_limit(of_shape.num_tokens, self.problem.stack_tokens))

    def duration_s(self, variant: Variant, gpus: Gpus) -> float:
        """Seconds of a launch of this variant; infinite where it does not fit."""
        key = (variant, self.kind(gpus))
        known_s = self._durations_s.get(key)
        if known_s is None:
            known_s = self._durations_s[key] = self._asked_s(variant, gpus)
        return known_s

    def launch_s(self, cascade: Cascade, gpus: Gpus) -> float:
        """Seconds of a launch of a cascade; infinite where it does not fit."""
        return self.duration_s((self.shape_of(cascade), cascade.num_clips), gpus)

    def kind(self, gpus: Gpus) -> Kind:
        """What the block costs like: blocks that cost the same for one clip and for a full stack
        of every trained shape, and for one clip of each encoder's largest, are taken to cost the
        same for everything.
        """
        known = self._kinds.get(gpus)
        if known is None:
            probes_s = [self._asked_s(variant, gpus) for variant in self._probes]
            key = (float(len(gpus)), *probes_s)
            known = self._kind_of_probes.setdefault(key, len(self._kind_of_probes))
            self._kinds[gpus] = known
        return known

    def stacks(self, shape: int, gpus: Gpus) -> BestStacks:
        """How any number of clips of the shape is best stacked on a block."""
        key = (shape, self.kind(gpus))
        known = self._stacks.get(key)
        if known is None:
            durations_s = [
                self.duration_s((shape, size), gpus)
                for size in range(1, self.most_clips(shape) + 1)
            ]
            known = self._stacks[key] = BestStacks(durations_s)
        return known

    def fastest_s(self, variant: Variant, degree: int) -> float:
        """Seconds on the fastest block of a degree."""
        return min([self.duration_s(variant, gpus) for gpus in self.kinds_of_degree[degree]])

    @cached_property
    def kinds_of_degree(self) -> dict[int, tuple[Gpus, ...]]:
        """Of each allowed degree, the first block of each kind."""
        found: dict[int, tuple[Gpus, ...]] = {}
        of_degree = self.problem.allowed_blocks
        for degree, of_plans in of_degree.items():
            firsts: dict[Kind, Gpus] = {}
            for gpus in of_plans:
                firsts.setdefault(self.kind(gpus), gpus)
            found[degree] = tuple(firsts.values())
        return found

    @cached_property
    def _probes(self) -> tuple[Variant, ...]:
        probes = [
            (index, size)
            for index, shape in enumerate(self.shapes)
            if shape.module == "dit"
            for size in sorted({1, self.most_clips(index)})
        ]
        largest = {  # a later one with more tokens takes the place of an earlier one
            shape.module: index
            for index, shape in sorted(enumerate(self.shapes), key=lambda s: s[1].num_tokens)
            if shape.module != "dit"
        }
        return (*probes, *[(index, 1) for index in largest.values()])

    def _asked_s(self, variant: Variant, gpus: Gpus) -> float:
        cascade = self._cascades.get(variant)
        if cascade is None:
            shape, num_clips = variant
            cascade = self.cascade(shape, self.slots_of_shape[shape][:num_clips])
            self._cascades[variant] = cascade
        if not self.problem.costs.fits(cascade, gpus):
            return inf
        return self.problem.duration_s(cascade, gpus)
