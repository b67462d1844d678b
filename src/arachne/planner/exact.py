"""The referee `exact`: the shortest plan of a small problem, with a proof, by integer programming.

Clips of a shape are interchangeable, so the unknowns are counts: x[v, b] cascades of variant v
(shape, stacked clips) on block b of one ladder.

    minimise T   with   Σ over v of a shape, b:  clips(v) · x[v, b] = clips of that shape
                        Σ over b over leaf g, v: t(v, b) · x[v, b] ≤ T   for every leaf g

Blocks of a ladder are nested or disjoint and every GPU runs its cascades from the largest block to
the smallest, so nothing waits and a plan is as long as its most loaded leaf. Plans that mix ladders
are not looked at. Needs the extra `planner` (CP-SAT of OR-tools); minutes above 16 GPUs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import floor, inf
from typing import TYPE_CHECKING, Any

from arachne.core.blocks import ladders
from arachne.core.errors import ConfigError
from arachne.core.plan import Plan
from arachne.planner.assignment import Placed, placements
from arachne.planner.block_tree import ROOT, BlockTree, block_tree
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import PlanningProblem
from arachne.planner.schedule import scheduled
from arachne.planner.tree import plan_arachne
from arachne.planner.variants import Variant, Variants
from arachne.planner.warm_start import items_of_plan

if TYPE_CHECKING:
    from types import ModuleType

NAME = "exact"

_UNITS_PER_BOUND = 1_000_000
"""Durations are counted in millionths of the lower bound, rounded down so that proofs hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the referee knows about a problem.

    Attributes:
        plan: The shortest plan found.
        proved_s: No plan on one ladder is shorter than this.
    """

    plan: Plan
    proved_s: float

    @property
    def is_proved(self) -> bool:
        """Whether the plan is the shortest, to the millionths that durations are counted in."""
        return self.plan.makespan_s <= self.proved_s * (1.0 + 1e-4)


@dataclass(frozen=True, slots=True)
class _Solved:
    """What one ladder gave: items of its best plan (None: nothing new), and a proved bound."""

    items: list[Placed] | None
    proved_s: float


def plan_exact(
    problem: PlanningProblem, *, time_limit_s: float = 10.0, num_workers: int = 1
) -> Verdict:
    """The shortest plan, or the best within the time limit and how short one could be.

    Starts from the plan of `arachne`. The time limit is shared by the ladders; a run that meets it
    may end differently on another machine.

    Raises:
        ConfigError: OR-tools is not installed.
        InfeasibleError: A clip fits on no block of any allowed degree.
    """
    solver = _cp_sat()
    variants = Variants(problem)
    bound_s = lower_bound_s(problem, variants)
    best = plan_arachne(problem)
    if not problem.batch.clips:
        return Verdict(plan=replace(best, planner=NAME), proved_s=bound_s)
    chains = ladders(problem.num_gpus, problem.degrees)
    proved_s = inf
    for ladder in chains:
        model = _LadderModel(solver, variants, block_tree(problem.num_gpus, ladder), bound_s)
        solved = model.solve(best, time_limit_s / len(chains), num_workers)
        proved_s = min(proved_s, solved.proved_s)
        if solved.items is not None:
            found = placements(variants, model.tree, solved.items)
            plan = scheduled(problem, NAME, found)
            best = min(best, plan, key=lambda made: made.makespan_s)
    return Verdict(plan=replace(best, planner=NAME), proved_s=max(proved_s, bound_s))


class _LadderModel:
    """The integer programme of one ladder."""

    def __init__(
        self, solver: "ModuleType", variants: Variants, tree: BlockTree, bound_s: float
    ) -> None:
        self.variants = variants
        self.tree = tree
        self.bound_s = bound_s
        self._solver: Any = solver
        self._model: Any = solver.CpModel()
        self._unit_s = bound_s / _UNITS_PER_BOUND
        self._counts: dict[Placed, Any] = {}

    def solve(self, known: Plan, time_limit_s: float, num_workers: int) -> _Solved:
        """Items of a plan no longer than `known`, if the ladder has one."""
        limit = floor(known.makespan_s / self._unit_s) + 1
        if not self._add_counts(limit):
            return _Solved(None, inf)
        makespan = self._model.NewIntVar(_UNITS_PER_BOUND - 1, limit, "makespan")
        work = self._add_loads(makespan)
        self._order_alike_siblings(work)
        self._hint(known)
        self._model.Minimize(makespan)
        cp_solver = self._solver.CpSolver()
        cp_solver.parameters.max_time_in_seconds = time_limit_s
        cp_solver.parameters.num_workers = num_workers
        cp_solver.parameters.random_seed = 0
        status = cp_solver.Solve(self._model)
        if status == self._solver.INFEASIBLE:
            return _Solved(None, known.makespan_s)
        proved_s = float(cp_solver.BestObjectiveBound()) * self._unit_s
        if status not in (self._solver.OPTIMAL, self._solver.FEASIBLE):
            return _Solved(None, max(proved_s, self.bound_s))
        items: list[Placed] = []
        for placed, count in self._counts.items():
            items += [placed] * int(cp_solver.Value(count))
        return _Solved(items, max(proved_s, self.bound_s))

    def _add_counts(self, limit: int) -> bool:
        """One unknown per variant and block that can run it; False if a shape has none."""
        for shape, slots in enumerate(self.variants.slots_of_shape):
            terms: list[Any] = []
            for size in range(1, self.variants.most_clips(shape) + 1):
                for node in range(1, self.tree.num_nodes):
                    if self._units((shape, size), node) <= limit:
                        name = f"{size} of {shape} on {node}"
                        count = self._model.NewIntVar(0, len(slots) // size, name)
                        self._counts[(shape, size), node] = count
                        terms.append(size * count)
            if not terms:
                return False
            self._model.Add(sum(terms) == len(slots))
        return True

    def _add_loads(self, makespan: Any) -> list[Any]:
        """No leaf is busy for longer than the makespan; gives the work of each node."""
        work: list[Any] = [0] * self.tree.num_nodes
        for (variant, node), count in self._counts.items():
            work[node] += self._units(variant, node) * count
        for leaf in range(1, self.tree.num_nodes):
            if not self.tree.children[leaf]:
                self._model.Add(sum(work[node] for node in _path(self.tree, leaf)) <= makespan)
        return work

    def _order_alike_siblings(self, work: list[Any]) -> None:
        """Of siblings that could change places the left one has no less work in its subtree."""
        area: list[Any] = list(work)
        for node in range(self.tree.num_nodes - 1, 0, -1):
            area[self.tree.parents[node]] += area[node]
        for siblings in self.tree.children:
            for left, right in zip(siblings, siblings[1:], strict=False):
                if self._signature(left) == self._signature(right):
                    self._model.Add(area[left] >= area[right])

    def _signature(self, node: int) -> object:
        """Equal for subtrees of one form whose blocks cost the same."""
        return (
            tuple(
                self._units((shape, size), node)
                for shape in range(len(self.variants.slots_of_shape))
                for size in range(1, self.variants.most_clips(shape) + 1)
            ),
            tuple(self._signature(child) for child in self.tree.children[node]),
        )

    def _hint(self, known: Plan) -> None:
        items = items_of_plan(self.variants, self.tree, known)
        if items is not None:
            for placed, count in self._counts.items():
                self._model.AddHint(count, items.count(placed))

    def _units(self, variant: Variant, node: int) -> float:
        seconds = self.variants.duration_s(variant, self.tree.gpus[node])
        return floor(seconds / self._unit_s) if seconds < inf else inf


def _path(tree: BlockTree, leaf: int) -> Iterator[int]:
    node = leaf
    while node != ROOT:
        yield node
        node = tree.parents[node]


def _cp_sat() -> "ModuleType":
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ConfigError(
            "planner 'exact' needs OR-tools, which is not installed; "
            "install Arachne with the extra: pip install 'arachne[planner]'"
        ) from error
    return cp_model


__all__ = ["NAME", "Iterable", "Verdict", "plan_exact"]
