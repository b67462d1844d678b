"""Peers `static_lockstep_*`: one degree for all clips, as Megatron-LM and DeepSpeed are used.

Micro-batches (cascades of the common stacking rule) are dealt to the data-parallel groups in turn,
in the sampler's order. Synchronization: with ZeRO-1 the groups meet at the end of the step only,
with ZeRO-3 after each micro-batch, because parameters are gathered by all. Each form comes with the
best degree, as a careful user finds it, and with the least degree at which every clip fits, as most
users set it. Ignored: ZeRO-3's gathering of parameters costs nothing here, and the memory that it
saves is not counted.
"""

from itertools import chain

from arachne.core.blocks import blocks
from arachne.core.plan import Plan
from arachne.planner.each_degree import at_each_degree
from arachne.planner.group_costs import GroupCosts
from arachne.planner.problem import Placement, PlanningProblem
from arachne.planner.schedule import scheduled_in_phases

ZERO1 = "static_lockstep_zero1"
ZERO1_LEAST = "static_lockstep_zero1_least"
ZERO3 = "static_lockstep_zero3"
ZERO3_LEAST = "static_lockstep_zero3_least"


def plan_static_lockstep_zero1(problem: PlanningProblem) -> Plan:
    """ZeRO-1 at its best degree; ties to the smaller one.

    Raises:
        InfeasibleError: Some clip does not fit at each degree; says so for the largest one.
    """
    return _best(_plans(problem, ZERO1, has_barriers=False))


def plan_static_lockstep_zero1_least(problem: PlanningProblem) -> Plan:
    """ZeRO-1 at the least degree at which every clip fits.

    Raises:
        InfeasibleError: There is none.
    """
    return _plans(problem, ZERO1_LEAST, has_barriers=False)[0]


def plan_static_lockstep_zero3(problem: PlanningProblem) -> Plan:
    """ZeRO-3 at its best degree; ties to the smaller one.

    Raises:
        InfeasibleError: Some clip does not fit at each degree; says so for the largest one.
    """
    return _best(_plans(problem, ZERO3, has_barriers=True))


def plan_static_lockstep_zero3_least(problem: PlanningProblem) -> Plan:
    """ZeRO-3 at the least degree at which every clip fits.

    Raises:
        InfeasibleError: There is none.
    """
    return _plans(problem, ZERO3_LEAST, has_barriers=True)[0]


def _best(plans: list[Plan]) -> Plan:
    return min(plans, key=lambda plan: plan.makespan_s)


def _plans(problem: PlanningProblem, planner: str, *, has_barriers: bool) -> list[Plan]:
    """One plan for each degree at which all clips fit, ascending; at least one."""

    def made_at(degree: int) -> Plan:
        micro_batches = _micro_batches(problem, degree, planner)
        phases = micro_batches if has_barriers else [list(chain(*micro_batches))]
        return scheduled_in_phases(problem, planner, phases)

    return at_each_degree(problem.degrees, made_at)


def _micro_batches(problem: PlanningProblem, degree: int, planner: str) -> list[list[Placement]]:
    """One cascade for each group at a time; the last micro-batch may leave groups without."""
    groups = blocks(problem.num_gpus, degree)
    cascades = GroupCosts(problem).cascades((degree,), planner=planner)
    return [
        list(zip(cascades[first : first + len(groups)], groups, strict=False))
        for first in range(0, len(cascades), len(groups))
    ]
