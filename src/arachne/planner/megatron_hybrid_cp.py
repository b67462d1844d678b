"""Peer `megatron_hybrid_cp`: Megatron-LM's hybrid context parallelism, by its description.

Each sequence gets the degree max(1, 2^⌈log2(length / tokens per rank)⌉), counts as length²/degree.
Longest first, sequences fill a micro-batch: each opens a group of its degree while GPUs are left,
else joins the emptiest such group if that stays within 5 % of the longest; those that do not fit
wait for the next micro-batch. Synchronization: a barrier after each micro-batch. Tokens per rank is
a setting; of those that give the longest clip one of the degrees, the best is taken. Memory: the
degree rises further where a clip would not fit. Its schedulers assert a number of GPUs that is a
power of two; here GPUs that no group takes stay idle. Ignored: packing within a rank (cascades of
the common stacking rule run in turn).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from arachne.core.cascade import Cascade
from arachne.core.plan import Plan
from arachne.planner.gpu_groups import Group, laid_out
from arachne.planner.group_costs import GroupCosts, powers_of_two
from arachne.planner.problem import PlanningProblem
from arachne.planner.schedule import scheduled_in_phases

NAME = "megatron_hybrid_cp"

_SLACK = 1.05

Sequenced = tuple[Cascade, int]
"""A cascade and its degree."""


def plan_megatron_hybrid_cp(problem: PlanningProblem) -> Plan:
    """The shortest plan over the settings of tokens per rank; ties to the larger setting.

    Raises:
        InfeasibleError: A clip fits on no degree that is a power of two.
    """
    return best_setting(problem, NAME, lambda groups: groups)


def best_setting(
    problem: PlanningProblem, planner: str, finished: Callable[[list[Group]], list[Group]]
) -> Plan:
    """The shortest plan over tokens per rank; `finished` may change each micro-batch's groups."""
    costs = GroupCosts(problem)
    degrees = powers_of_two(problem.degrees)
    cascades = costs.cascades(degrees, planner=planner)
    longest = max((cascade.num_tokens for cascade in cascades), default=0)
    plans: list[Plan] = []
    for smallest in degrees:
        waiting = [(c, _degree(costs, c, degrees, longest / smallest)) for c in cascades]
        waiting.sort(key=lambda pair: (-attention_cost(*pair), pair[0].slots))
        phases: list[list[Group]] = []
        while waiting:
            groups, waiting = _micro_batch(waiting, problem.num_gpus)
            phases.append(finished(groups))
        placed = [laid_out(groups) for groups in phases]
        plans.append(scheduled_in_phases(problem, planner, placed))
    return min(plans, key=lambda plan: plan.makespan_s)


def attention_cost(cascade: Cascade, degree: int) -> float:
    """What Megatron balances by: length²/degree, for each stacked clip."""
    return cascade.num_clips * cascade.num_tokens**2 / degree


def _degree(
    costs: GroupCosts, cascade: Cascade, degrees: tuple[int, ...], tokens_per_rank: float
) -> int:
    fitting = [degree for degree in degrees if costs.fits(cascade, degree)]
    enough = (d for d in fitting if d * tokens_per_rank >= cascade.num_tokens)
    return next(enough, fitting[-1])


def _micro_batch(
    waiting: Sequence[Sequenced], num_gpus: int
) -> tuple[list[Group], list[Sequenced]]:
    """The groups of one micro-batch, and the sequences that have to wait."""
    limit = _SLACK * attention_cost(*waiting[0])
    groups: dict[int, list[Group]] = defaultdict(list)
    rest: list[Sequenced] = []
    num_free = num_gpus
    for cascade, degree in waiting:
        cost = attention_cost(cascade, degree)
        if degree <= num_free:
            group = Group(degree=degree)
            groups[degree].append(group)
            num_free -= degree
        else:
            group = min(groups[degree], key=lambda g: g.load, default=None)
            if group is None or group.load + cost > limit:
                rest.append((cascade, degree))
                continue
        group.cascades.append(cascade)
        group.load += cost
    return [group for same in groups.values() for group in same], rest
