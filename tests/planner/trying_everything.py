"""The shortest makespan of a tiny problem with encoders, by trying everything; shares no code with
the planners.

Launches are put one after another in order of their starts, each as soon as its GPUs are free and
its inputs are there: the shortest plan is among these. Clips of a shape are stacked in every way.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from arachne.core.blocks import plan_blocks
from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade, Module
from arachne.planner.problem import SHORTEST_S, PlanningProblem

Gpus = tuple[int, ...]
Slots = tuple[int, ...]


def shortest_s(problem: PlanningProblem) -> float:
    """The makespan that no valid plan is below; infinite if there is no plan."""
    best_s = float("inf")
    for cascades in _stackings(problem):
        trial = _Trial(problem, cascades, best_s)
        if all(trial.ways):
            trial.put([0.0] * problem.num_gpus, list(range(len(cascades))), (0.0, ()), {})
            best_s = trial.best_s
    return best_s


def _stackings(problem: PlanningProblem) -> Iterator[list[Cascade]]:
    """Every way to stack the clips, each as all cascades of the step."""
    slots: dict[tuple[int, Module, Bucket, int], list[int]] = defaultdict(list)
    for ahead, batch in enumerate(problem.batches):
        for slot, clip in enumerate(batch.clips):
            modules: tuple[Module, ...] = (*clip.to_encode, *(() if ahead else ("dit",)))
            for module in modules:
                slots[ahead, module, clip.bucket, clip.num_tokens].append(slot)
    choices = [
        list(_partitions(of_shape, max(1, problem.stack_tokens // tokens)))
        for (_, _, _, tokens), of_shape in slots.items()
    ]
    for chosen in product(*choices):
        yield [
            Cascade(module=module, slots=part, bucket=bucket, num_tokens=tokens, steps_ahead=ahead)
            for (ahead, module, bucket, tokens), parts in zip(slots, chosen, strict=True)
            for part in parts
        ]


def _partitions(slots: Sequence[int], most: int) -> Iterator[list[Slots]]:
    """Every way to cut slots into parts of at most so many."""
    if not slots:
        yield []
        return
    for rest in _partitions(slots[1:], most):
        yield [(slots[0],), *rest]
        for index, part in enumerate(rest):
            if len(part) < most:
                yield [*rest[:index], (slots[0], *part), *rest[index + 1 :]]


@dataclass
class _Trial:
    """Depth first over orders and blocks of some cascades, cut off where it cannot get shorter."""

    problem: PlanningProblem
    cascades: list[Cascade]
    best_s: float
    ways: list[list[tuple[float, Gpus]]] = field(init=False)

    def __post_init__(self) -> None:
        costs = self.problem.costs
        of_degree = plan_blocks(self.problem.num_gpus, self.problem.degrees)
        blocks = [gpus for blocks in of_degree.values() for gpus in blocks]
        self.ways = [
            [(max(costs.launch_s(c, g), SHORTEST_S), g) for g in blocks if costs.fits(c, g)]
            for c in self.cascades
        ]
        self.areas_s = [min([s * len(g) for s, g in way], default=0.0) for way in self.ways]
        self.needs: list[list[int]] = [[] for _ in self.cascades]
        for index, cascade in enumerate(self.cascades):
            if cascade.module == "dit":
                self.needs[index] = [
                    other
                    for other, encoder in enumerate(self.cascades)
                    if encoder.module != "dit"
                    and not encoder.steps_ahead
                    and encoder.bucket == cascade.bucket
                    and set(encoder.slots) & set(cascade.slots)
                ]

    def put(
        self,
        free_s: list[float],
        left: list[int],
        last: tuple[float, Gpus],
        made: dict[int, tuple[float, Gpus]],
    ) -> None:
        """Try every next launch, given when GPUs are free and what has been encoded so far."""
        if not left:
            self.best_s = min(self.best_s, max(free_s))
            return
        area_s = sum(free_s) + sum(self.areas_s[index] for index in left)
        if max(max(free_s), area_s / len(free_s)) >= self.best_s:
            return
        for index in left:
            if any(need not in made for need in self.needs[index]):
                continue
            rest = [other for other in left if other != index]
            for seconds, gpus in self.ways[index]:
                ready_s = [free_s[gpu] for gpu in gpus]
                for need in self.needs[index]:
                    ended_s, on = made[need]
                    ready_s.append(ended_s + self._handoff_s(need, on, gpus))
                start_s = max(ready_s)
                if start_s + seconds < self.best_s and (start_s, gpus) >= last:
                    after_s = list(free_s)
                    for gpu in gpus:
                        after_s[gpu] = start_s + seconds
                    done = made | {index: (start_s + seconds, gpus)}
                    self.put(after_s, rest, (start_s, gpus), done)

    def _handoff_s(self, encoder: int, on: Gpus, gpus: Gpus) -> float:
        return self.problem.costs.handoff_s(self.cascades[encoder], on, gpus)
