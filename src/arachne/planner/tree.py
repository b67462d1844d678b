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
from arachne.planner.assignment import Assignment, TreeCosts
from arachne.planner.block_tree import block_tree
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

_MOST_STARTS = 6
"""Starts that are searched, each for a little while before the best is searched on."""

_RACE_SHARE = 0.4
"""Part of the iterations that the starts race with."""

_LEAST_RACE_STEPS = 20
"""Fewer steps tell nothing about a start; then fewer starts race."""


def plan_arachne(problem: PlanningProblem) -> Plan:
    """The shortest plan found: a degree, a block and a place in the order for each cascade.

    Raises:
        InfeasibleError: A clip fits on no block of any allowed degree.
    """
    variants = Variants(problem)
    bound_s = lower_bound_s(problem, variants)
    plans = _baseline_plans(problem)
    starts = _starts(problem, variants, plans, bound_s)[:_MOST_STARTS]
    if starts:
        best = _searched(starts, bound_s, problem.iterations, Random(problem.seed))
        plans.append(scheduled(problem, NAME, best.placements()))
    shortest = min(plans, key=lambda plan: plan.makespan_s)
    return replace(shortest, planner=NAME)


def _searched(
    starts: Sequence[Assignment], bound_s: float, iterations: int, rng: Random
) -> Assignment:
    """The best assignment: all starts are searched for a while, then the best of them further."""
    num_racing = min(len(starts), int(_RACE_SHARE * iterations) // _LEAST_RACE_STEPS)
    if num_racing < 2:
        return improved(starts[0], bound_s, iterations, rng)
    num_steps = int(_RACE_SHARE * iterations) // num_racing
    raced = [improved(start, bound_s, num_steps, rng) for start in starts[:num_racing]]
    best = min(raced, key=lambda assignment: assignment.makespan_s)
    return improved(best, bound_s, iterations - num_steps * num_racing, rng)


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
    """Different starts on all ladders, shortest first; ties to the first ladder."""
    starts: list[Assignment] = []
    for ladder in ladders(problem.num_gpus, problem.degrees):
        costs = TreeCosts(variants, block_tree(problem.num_gpus, ladder))
        on_tree = [from_plan(costs, plan) for plan in plans]
        for start in (*constructed(costs, bound_s, _MOST_STARTS), *on_tree):
            if start is not None and all(start.counts != known.counts for known in starts):
                starts.append(start)
    return sorted(starts, key=lambda start: start.makespan_s)
