"""Planner `arachne`: balance the leaves of a tree of blocks, from the best of many starts.

Never longer than a baseline on the same problem: all of them are starts. The same problem, seed and
number of iterations give the same plan on every machine.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from arachne.core.errors import InfeasibleError
from arachne.core.plan import Plan
from arachne.planner.encoder_search import plan_with_encoders
from arachne.planner.few_clips import plan_few_clips
from arachne.planner.lower_bound import lower_bound_s
from arachne.planner.peer_starts import peer_plans
from arachne.planner.problem import Planner, PlanningProblem
from arachne.planner.schedule import scheduled_as_given
from arachne.planner.search import searched
from arachne.planner.static_degree_longest_first import plan_static_degree_longest_first
from arachne.planner.static_dp import plan_static_dp
from arachne.planner.static_dp_longest_first import plan_static_dp_longest_first
from arachne.planner.static_sp import plan_static_sp
from arachne.planner.variants import Variants

NAME = "arachne"

BASELINES: tuple[Planner, ...] = (
    plan_static_degree_longest_first,
    plan_static_dp_longest_first,
    plan_static_dp,
    plan_static_sp,
)
"""Cheap planners that every search starts from."""


def plan_arachne(problem: PlanningProblem) -> Plan:
    """The shortest plan found: a degree, a block and a place in the order for each cascade.

    Raises:
        InfeasibleError: A clip fits on no block of any allowed degree, or all clips together need
            blocks that cross.
    """
    return shortest_plan(problem, baseline_plans(problem))


def shortest_plan(problem: PlanningProblem, baselines: Sequence[Plan]) -> Plan:
    """The same for a caller who has the baselines' plans of the problem; raises alike."""
    variants = Variants(problem)
    bound_s = lower_bound_s(problem, variants)
    plans = [*baselines, *peer_plans(problem, NAME)]
    if problem.has_encoders:
        if found := plan_with_encoders(problem, variants, bound_s, NAME, plans):
            plans.append(found)
    else:
        starts = list(baselines)
        best_s = min([plan.makespan_s for plan in plans], default=inf)
        if few := plan_few_clips(variants, NAME, best_s):
            plans.append(few)
            starts.append(few)
        if best := searched(variants, starts, bound_s):
            plans.append(scheduled_as_given(problem, NAME, best.placements()))
    if not plans:
        raise InfeasibleError(
            f"planner {NAME!r}: each clip fits on some blocks, but no set of blocks of which any "
            "two are nested or apart has one for each; needed: more memory on each GPU, such as "
            "by planner.recompute = 'auto', or encoders that run before training"
        )
    shortest = min(plans, key=lambda plan: plan.makespan_s)
    return replace(shortest, planner=NAME)


def baseline_plans(problem: PlanningProblem) -> list[Plan]:
    """Plans of all baselines that find one."""
    plans: list[Plan] = []
    for planner in BASELINES:
        try:
            plans.append(planner(problem))
        except InfeasibleError:
            continue  # this baseline keeps no memory cap here; the others may
    return plans
