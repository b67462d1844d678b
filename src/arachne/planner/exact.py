"""The referee `exact`: the shortest plan of a small problem, with a proof, by integer programming.

Clips of a shape are interchangeable, so the unknowns are counts: x[v, b] cascades of variant v
(shape, stacked clips) on block b of one laminar family.

    minimise T   with   Σ over v of a shape, b:  clips(v) · x[v, b] = clips of that shape
                        Σ over v, b that hold g: t(v, b) · x[v, b] ≤ T   for every GPU g

Blocks of a family are nested or disjoint and every GPU runs its cascades from the largest block to
the smallest, so nothing waits and a plan is as long as its most loaded GPU. Where a small
world has few families all are solved, elsewhere the ladders alone. Plans whose blocks cross are not
looked at. Needs the extra `planner` (CP-SAT of OR-tools); slow above 16 GPUs.
"""

import time
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from math import floor, inf
from types import ModuleType
from typing import Any

from arachne.core.blocks import ladders, laminar_families
from arachne.core.errors import ConfigError
from arachne.core.plan import Plan
from arachne.planner.block_tree import ROOT, BlockTree, block_tree, tree_of
from arachne.planner.encode_order import in_order
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import Placement, PlanningProblem
from arachne.planner.schedule import scheduled_as_given
from arachne.planner.tree import plan_arachne
from arachne.planner.trees import MOST_FAMILIES, MOST_GPUS
from arachne.planner.variants import Gpus, Variant, Variants

NAME = "exact"

_UNITS_PER_BOUND = 1_000_000
"""Durations are counted in millionths of the lower bound, rounded down so that proofs hold."""

_ROUNDING = 1e-4
"""A plan this close to what was proved counts as the shortest."""

_PASSES = 2

_Counts = Counter[tuple[Variant, int]]
"""Cascades of each variant on each node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the referee knows about a problem.

    Attributes:
        plan: The shortest plan found.
        proved_s: No plan that stays on one of the families that were solved is shorter than this.
    """

    plan: Plan
    proved_s: float

    @property
    def is_proved(self) -> bool:
        """Whether no shorter plan exists on these families, rounding (a ten-thousandth) apart."""
        return _is_proved(self.plan, self.proved_s)


def plan_exact(
    problem: PlanningProblem, *, time_limit_s: float = 10.0, num_workers: int = 1
) -> Verdict:
    """The shortest plan, or the best within the time limit and how short one could be.

    Starts from the plan of `arachne`. The families share the time limit; a run that meets it may
    end differently on another machine.

    Raises:
        ConfigError: OR-tools is not installed.
        InfeasibleError: A clip fits on no block of any allowed degree.
    """
    solver = _cp_sat()
    variants = Variants(problem)
    bound_s = lower_bound_s(problem, variants)
    best = plan_arachne(problem)
    trees = _trees(problem) if problem.batch.clips else []
    proved_s = [bound_s] * len(trees)
    left_s = time_limit_s
    for _ in range(_PASSES):  # what some families leave of the time, others have in a second pass
        open_trees = [i for i, each_s in enumerate(proved_s) if not _is_proved(best, each_s)]
        for done, index in enumerate(open_trees if left_s > 0.0 else ()):
            begin_s = time.monotonic()
            model = _TreeModel(solver, variants, trees[index], bound_s)
            share_s = left_s / (len(open_trees) - done)
            counts, tree_s = model.solved(best, share_s, num_workers)
            proved_s[index] = max(proved_s[index], tree_s)
            order = in_order(problem, model.placements(counts), variants.launch_s)
            found = scheduled_as_given(problem, NAME, order.placements)
            if counts and found.makespan_s < best.makespan_s:
                best = found
            left_s = max(left_s - (time.monotonic() - begin_s), 0.0)
    least_s = min([best.makespan_s, *proved_s])
    return Verdict(plan=replace(best, planner=NAME), proved_s=max(least_s, bound_s))


def _is_proved(plan: Plan, proved_s: float) -> bool:
    return plan.makespan_s <= proved_s * (1.0 + _ROUNDING)


def _trees(problem: PlanningProblem) -> list[BlockTree]:
    """Those of all families, if they are few; else those of the ladders."""
    num_gpus, degrees = problem.num_gpus, problem.degrees
    if num_gpus <= MOST_GPUS:
        families = laminar_families(problem.blocks, MOST_FAMILIES)
        if families:
            return [tree_of(num_gpus, family) for family in families]
    return [block_tree(num_gpus, ladder) for ladder in ladders(num_gpus, degrees)]


class _TreeModel:
    """The integer programme of one tree of blocks."""

    def __init__(
        self, solver: ModuleType, variants: Variants, tree: BlockTree, bound_s: float
    ) -> None:
        self.variants = variants
        self.tree = tree
        self._unit_s = bound_s / _UNITS_PER_BOUND
        self._solver: Any = solver
        self._model: Any = solver.CpModel()
        self._unknowns: dict[tuple[Variant, int], Any] = {}

    def solved(self, known: Plan, time_limit_s: float, num_workers: int) -> tuple[_Counts, float]:
        """Counts of the best plan, empty if none is as short as `known`, and the proved seconds."""
        limit = floor(known.makespan_s / self._unit_s) + 1
        if not self._has_counts(limit):
            return Counter(), inf
        makespan = self._model.NewIntVar(_UNITS_PER_BOUND - 1, limit, "makespan")
        self._add_loads(makespan, limit)
        self._hint(known)
        self._model.Minimize(makespan)
        cp_solver = self._solver.CpSolver()
        cp_solver.parameters.max_time_in_seconds = time_limit_s
        cp_solver.parameters.num_workers = num_workers
        cp_solver.parameters.random_seed = 0
        status = cp_solver.Solve(self._model)
        if status == self._solver.INFEASIBLE:
            return Counter(), known.makespan_s
        proved_s = float(cp_solver.BestObjectiveBound()) * self._unit_s
        if status not in (self._solver.OPTIMAL, self._solver.FEASIBLE):
            return Counter(), proved_s
        values = {key: int(cp_solver.Value(count)) for key, count in self._unknowns.items()}
        return Counter({key: value for key, value in values.items() if value}), proved_s

    def placements(self, counts: _Counts) -> list[Placement]:
        """Cascades on GPUs in launch order; clips of a shape are dealt out in slot order."""
        next_of_shape = [0] * self.variants.num_shapes
        found: list[Placement] = []
        for variant, node in sorted(counts.elements(), key=lambda key: (key[1], key[0])):
            first = next_of_shape[variant[0]]
            next_of_shape[variant[0]] = first + variant[1]
            slots = self.variants.slots_of_shape[variant[0]][first : first + variant[1]]
            cascade = self.variants.cascade(variant[0], slots)
            found.append((cascade, self.tree.gpus[node]))
        return found

    def _has_counts(self, limit: int) -> bool:
        """Make one unknown per variant and block that can run it; False if a shape has none."""
        for shape, slots in enumerate(self.variants.slots_of_shape):
            unknowns: list[Any] = []
            sizes: list[int] = []
            for size in range(1, self.variants.most_clips(shape) + 1):
                for node in range(1, self.tree.num_nodes):
                    if self._units((shape, size), node) <= limit:
                        name = f"{size} clips of shape {shape} on node {node}"
                        unknowns.append(self._model.NewIntVar(0, len(slots) // size, name))
                        sizes.append(size)
                        self._unknowns[(shape, size), node] = unknowns[-1]
            if not unknowns:
                return False
            self._model.Add(self._weighted(unknowns, sizes) == len(slots))
        return True

    def _add_loads(self, makespan: Any, limit: int) -> None:
        """No GPU is busy for longer than the makespan; of siblings alike the left has more work.

        The second is no loss: siblings whose blocks cost the same can change places.
        """
        tree = self.tree
        work = [self._model.NewIntVar(0, limit, f"work {node}") for node in range(tree.num_nodes)]
        area = [
            self._model.NewIntVar(0, limit * self.variants.problem.num_gpus, f"area {node}")
            for node in range(tree.num_nodes)
        ]
        for node in range(tree.num_nodes):
            here = [key for key in self._unknowns if key[1] == node]
            units = [self._units(*key) for key in here]
            self._model.Add(self._weighted([self._unknowns[k] for k in here], units) == work[node])
            children = tree.children[node]
            parts = [work[node], *[area[child] for child in children]]
            weights = [len(tree.gpus[node]), *[1] * len(children)]
            self._model.Add(self._weighted(parts, weights) == area[node])
            if not children:
                path = [work[above] for above in _path(tree, node)]
                self._model.Add(self._weighted(path, [1] * len(path)) <= makespan)
            for left, right in pairwise(children):
                if self._form(left) == self._form(right):
                    self._model.Add(area[left] >= area[right])

    def _form(self, node: int) -> object:
        """Equal for subtrees of one form whose blocks cost the same."""
        kind = self.variants.kind(self.tree.gpus[node])
        return (kind, tuple(self._form(child) for child in self.tree.children[node]))

    def _hint(self, known: Plan) -> None:
        """Start from a known plan, if it stays on this tree."""
        node_of_block = {gpus: node for node, gpus in enumerate(self.tree.gpus) if gpus}
        counts: _Counts = Counter()
        for launch in known.launches:
            node = node_of_block.get(launch.gpus)
            if node is None:
                return
            shape = self.variants.shape_of(launch.cascade)
            counts[(shape, launch.cascade.num_clips), node] += 1
        ordered = self._ordered(counts)
        for key, unknown in self._unknowns.items():
            self._model.AddHint(unknown, ordered[key])

    def _ordered(self, counts: _Counts) -> _Counts:
        """The same plan with siblings that are alike in the order that `_add_loads` asks for."""
        tree = self.tree
        area = [0] * tree.num_nodes
        for key, count in counts.items():
            area[key[1]] += len(tree.gpus[key[1]]) * self._units(*key) * count
        for node in range(tree.num_nodes - 1, ROOT, -1):
            area[tree.parents[node]] += area[node]
        source = list(range(tree.num_nodes))
        for node in range(tree.num_nodes):
            targets = list(tree.children[node])
            sources = list(tree.children[source[node]])
            while targets:
                alike = [n for n in targets if self._form(n) == self._form(targets[0])]
                theirs = [n for n in sources if self._form(n) == self._form(targets[0])]
                theirs.sort(key=lambda n: -area[n])
                for target, origin in zip(alike, theirs, strict=True):
                    source[target] = origin
                targets = [n for n in targets if n not in alike]
        target_of = {origin: target for target, origin in enumerate(source)}
        return Counter(
            {(variant, target_of[node]): count for (variant, node), count in counts.items()}
        )

    def _units(self, variant: Variant, node: int) -> int:
        gpus: Gpus = self.tree.gpus[node]
        seconds = self.variants.duration_s(variant, gpus) if gpus else inf
        return floor(seconds / self._unit_s) if seconds < inf else 1 << 60

    def _weighted(self, unknowns: list[Any], weights: list[int]) -> Any:
        return self._solver.LinearExpr.weighted_sum(unknowns, weights)


def _path(tree: BlockTree, leaf: int) -> list[int]:
    path: list[int] = []
    while leaf != ROOT:
        path.append(leaf)
        leaf = tree.parents[leaf]
    return path


def _cp_sat() -> ModuleType:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ConfigError(
            "planner 'exact' needs OR-tools, which is not installed; "
            "install it with: pip install 'arachne[planner]'"
        ) from error
    return cp_model
