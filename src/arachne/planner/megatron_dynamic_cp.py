"""Peer `megatron_dynamic_cp`: Megatron-LM's dynamic context parallelism, by its description.

As `megatron_hybrid_cp`, but all GPUs are to be busy in each micro-batch: while GPUs are left over,
the costliest group that can do so doubles its degree. Synchronization: a barrier after each
micro-batch. Memory and what is ignored: as there.
"""

from arachne.core.plan import Plan
from arachne.planner.gpu_groups import Group
from arachne.planner.group_costs import GroupCosts, powers_of_two
from arachne.planner.megatron_hybrid_cp import best_setting
from arachne.planner.problem import PlanningProblem

NAME = "megatron_dynamic_cp"


def plan_megatron_dynamic_cp(problem: PlanningProblem) -> Plan:
    """The shortest plan over the settings of tokens per rank; ties to the larger setting.

    Raises:
        InfeasibleError: A clip fits on no degree that is a power of two.
    """
    costs = GroupCosts(problem)
    degrees = powers_of_two(problem.degrees)

    def can_double(group: Group, num_free: int) -> bool:
        return (
            group.degree <= num_free
            and 2 * group.degree in degrees
            and all(costs.fits(cascade, 2 * group.degree) for cascade in group.cascades)
        )

    def grown(groups: list[Group]) -> list[Group]:
        num_free = problem.num_gpus - sum(group.degree for group in groups)
        while True:
            growing = [group for group in groups if can_double(group, num_free)]
            if not growing:
                return groups
            costliest = max(growing, key=lambda group: group.load)
            num_free -= costliest.degree
            costliest.degree *= 2
            costliest.load /= 2.0

    return best_setting(problem, NAME, grown)
