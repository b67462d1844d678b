"""Planner `arachne`: balance the leaves of a tree of blocks, from the best of many starts.

Never longer than a baseline on the same problem: all of them are starts. The same problem, seed and
number of iterations give the same plan on every machine.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from arachne.core.blocks import ladders
from arachne.core.errors import InfeasibleError
from arachne.core.plan import Plan
from arachne.planner.assignment import Assignment, placements
from arachne.planner.block_tree import BlockTree, block_tree
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.problem import Planner, PlanningProblem
from arachne.planner.schedule import scheduled
from arachne.planner.static_degree_longest_first import plan_static_degree_longest_first
from arachne.planner.static_dp import plan_static_dp
from arachne.planner.static_dp_longest_first import plan_static_dp_longest_first
from arachne.planner.static_sp import plan_static_sp
from arachne.planner.tree_search import improved
from arachne.planner.variants import Variants
from arachne.planner.warm_start import constructed, from_plan

NAME = "arachne"

BASELINES: tuple[Planner, ...] = (
    plan_static_degree_longest_first,
    plan_static_dp_longest_first,
    plan_static_dp,
    plan_static_sp,
)
"""Cheap planners that every search starts from."""

_SEARCHED_LADDERS = 2
"""Ladders that share the iterations: those with the shortest starts."""


def plan_arachne(problem: PlanningProblem) -> Plan:
    """The shortest plan found: a degree, a block and a place in the order for each cascade.

    Raises:
        InfeasibleError: A clip fits on no block of any allowed degree.
    """
    variants = Variants(problem)
    bound_s = lower_bound_s(problem, variants)
    plans = _baseline_plans(problem)
    starts = _starts(problem, variants, plans, bound_s)
    rng = Random(problem.seed)
    for start in starts[:_SEARCHED_LADDERS]:
        num_steps = problem.iterations // min(len(starts), _SEARCHED_LADDERS)
        counts = improved(start, bound_s, num_steps, rng)
        found = placements(problem, variants, start.tree, counts)
        plans.append(scheduled(problem, NAME, found))
    best = min(plans, key=lambda plan: plan.makespan_s)
    return replace(best, planner=NAME)


def _baseline_plans(problem: PlanningProblem) -> list[Plan]:
    plans: list[Plan] = []
    for planner in BASELINES:
        try:
            plans.append(planner(problem))
        except InfeasibleError:
            continue  # this baseline keeps no memory cap here; the others may
    return plans


def _starts(
    problem: PlanningProblem, variants: Variants, plans: Sequence[Plan], bound_s: float
) -> list[Assignment]:
    """The best start of each ladder, shortest first; ties to the first ladder."""
    starts: list[Assignment] = []
    for ladder in ladders(problem.num_gpus, problem.degrees):
        tree = block_tree(problem.num_gpus, ladder)
        candidates = _starts_on(variants, tree, plans, bound_s)
        if candidates:
            starts.append(min(candidates, key=lambda start: start.makespan_s))
    return sorted(starts, key=lambda start: start.makespan_s)


def _starts_on(
    variants: Variants, tree: BlockTree, plans: Sequence[Plan], bound_s: float
) -> list[Assignment]:
    built = [constructed(variants, tree, bound_s)]
    built += [from_plan(variants, tree, plan) for plan in plans]
    return [start for start in built if start is not None]
