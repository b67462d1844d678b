"""The search for plans of steps with encoders: starts that know about waits, then local search.

First on loads, as without encoders: that scales. Then, where launches are few, on whole plans
(`planner/order_search.py`), from the plan found and from those of others.
"""

from collections.abc import Sequence
from random import Random

from arachne.core.plan import Plan
from arachne.planner.assignment import Assignment
from arachne.planner.encode_order import Order, in_order
from arachne.planner.encoder_starts import Start, Ways, encoders_first, encoders_last, even_out
from arachne.planner.order_search import OrderSearch
from arachne.planner.problem import Placement, PlanningProblem
from arachne.planner.schedule import end_s, scheduled_as_given
from arachne.planner.tree_search import improved
from arachne.planner.trees import Trees
from arachne.planner.variants import Variants

_TARGETS = (1.03, 1.003, 1.08)
"""Multiples of the lower bound that starts of a step that encodes its own clips aim at."""

_TRIED_TREES = 4
_MOST_TREES = 2
_MOST_STARTS = 4

_RACE_SHARE = 0.4
"""Part of the iterations in which starts race; the best of them is searched on."""

_LAST_SHARE = 0.3
"""Part of the iterations in which the next step's encoders are moved too."""

_LAUNCHES_OF_AN_ITERATION = 40
"""Launches that a search on whole plans may look at for each iteration; they take as long."""

_MOST_STEPS_OF_AN_ITERATION = 3

_FEWEST_STEPS = 30
"""A search on whole plans of fewer steps is not worth its start."""

_ROUNDS = 8
_MOST_ORDERS = 3
_WORTH_A_TRY = 1.3
"""Parts of such a search, each of which accepts setbacks anew. The first start from different
plans, as many as this, none longer than the shortest by more than this; the others from the best.
"""


def plan_with_encoders(
    problem: PlanningProblem,
    variants: Variants,
    bound_s: float,
    planner: str,
    others: Sequence[Plan] = (),
) -> Plan | None:
    """The best plan found; None if there are no `others`, and no block tree has blocks for all.

    A clip may fit on no degree but 12, say, and blocks of 12 exclude those of 8.
    """
    rng = Random(problem.seed)
    starts = [_placements_of(plan) for plan in others]
    if order := _on_one_tree(problem, variants, bound_s, rng):
        starts.insert(0, order.placements)
    if not starts:
        return None
    placements = _on_whole_plans(variants, starts, bound_s, rng)
    return scheduled_as_given(problem, planner, placements)


def _placements_of(plan: Plan) -> list[Placement]:
    return [(launch.cascade, launch.gpus) for launch in plan.launches]


def _on_whole_plans(
    variants: Variants, starts: Sequence[list[Placement]], bound_s: float, rng: Random
) -> list[Placement]:
    """The best order of launches found from the shortest of several plans."""
    problem = variants.problem
    timed = sorted([(end_s(problem, start), i, start) for i, start in enumerate(starts)])
    most = max(1, min(len(start) for start in starts))
    num_steps = problem.iterations * min(
        _MOST_STEPS_OF_AN_ITERATION, _LAUNCHES_OF_AN_ITERATION / most
    )
    if num_steps < _FEWEST_STEPS:
        return timed[0][2]
    search = OrderSearch(variants, rng)
    num_each = int(num_steps / _ROUNDS)
    found = [
        search.improved(start, bound_s, num_each)
        for start_s, _, start in timed[:_MOST_ORDERS]
        if start_s <= _WORTH_A_TRY * timed[0][0]
    ]
    best = min(found, key=lambda one: one[1])
    for _ in range(_ROUNDS - len(found)):
        best = min(best, search.improved(best[0], bound_s, num_each), key=lambda one: one[1])
    return best[0]


def _on_one_tree(
    problem: PlanningProblem, variants: Variants, bound_s: float, rng: Random
) -> Order | None:
    """The best plan found by loads; None if no tree has blocks for all clips."""
    trees = [Ways(costs) for costs in Trees(variants).of_all_kinds()]
    trees = [ways for ways in trees if ways.can_run_all]
    if not trees:
        return None
    search = _encoding_first if trees[0].encoders[0] else _encoding_last
    return search(problem, variants, trees, bound_s, rng)


def _encoding_first(
    problem: PlanningProblem,
    variants: Variants,
    trees: Sequence[Ways],
    bound_s: float,
    rng: Random,
) -> Order:
    """A plan that encodes this step's clips: what counts is how long it is with its waits."""
    starts = _different_starts(trees, bound_s)
    num_steps = int(_RACE_SHARE * problem.iterations) // len(starts)
    for start in starts:
        improved(start.assignment, max(bound_s, start.floor_s), num_steps, rng)
    starts.sort(key=lambda start: start.assignment.makespan_s)
    start, order = starts[0], _order(problem, variants, starts[0].assignment)
    for other in starts[1:]:
        if other.assignment.makespan_s < order.makespan_s:  # waits only make it longer
            found = _order(problem, variants, other.assignment)
            if found.makespan_s < order.makespan_s:
                start, order = other, found
    left = problem.iterations - num_steps * len(starts)
    improved(start.assignment, max(bound_s, start.floor_s), left, rng)
    last = _order(problem, variants, start.assignment)
    return min(order, last, key=lambda found: found.makespan_s)


def _different_starts(trees: Sequence[Ways], bound_s: float) -> list[Start]:
    """Starts for several targets on the trees that do best with one of them, shortest first."""
    starts = [
        (encoders_first(ways, _TARGETS[0] * bound_s, is_split=False), ways)
        for ways in trees[:_TRIED_TREES]
    ]
    starts = sorted(starts, key=lambda entry: entry[0].assignment.makespan_s)[:_MOST_TREES]
    different = [start for start, _ in starts]
    for _, ways in starts:
        aims = [(target, False) for target in _TARGETS[1:]]
        if ways.can_split_encoders:
            aims += [(target, True) for target in _TARGETS]
        for target, is_split in aims:
            start = encoders_first(ways, target * bound_s, is_split=is_split)
            if all(start.assignment.counts != s.assignment.counts for s in different):
                different.append(start)
    return sorted(different, key=lambda start: start.assignment.makespan_s)[:_MOST_STARTS]


def _encoding_last(
    problem: PlanningProblem,
    variants: Variants,
    trees: Sequence[Ways],
    bound_s: float,
    rng: Random,
) -> Order:
    """A plan that fills its ends with the next step's encoders; nothing waits in it."""
    starts = [(encoders_last(ways, bound_s), ways) for ways in trees]
    starts = sorted(starts, key=lambda entry: entry[0].assignment.makespan_s)[:_MOST_STARTS]
    num_steps = int(_RACE_SHARE * problem.iterations) // len(starts)
    for start, _ in starts:
        improved(start.assignment, start.floor_s, num_steps, rng)
    start, ways = min(starts, key=lambda entry: entry[0].assignment.makespan_s)
    num_last = int(_LAST_SHARE * problem.iterations)
    left = problem.iterations - num_steps * len(starts) - num_last
    improved(start.assignment, start.floor_s, left, rng)
    even_out(ways, start.assignment, bound_s)
    improved(start.assignment, bound_s, num_last, rng)
    return _order(problem, variants, start.assignment)


def _order(problem: PlanningProblem, variants: Variants, assignment: Assignment) -> Order:
    return in_order(problem, assignment.placements(), variants.launch_s)
