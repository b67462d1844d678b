"""Counts where a plan needs more memory than a GPU has; most planners cannot make such plans."""

from collections import defaultdict

from arachne.core.plan import Plan
from arachne.planner.group_costs import GroupCosts
from arachne.planner.problem import PlanningProblem

_SLACK = 1e-6


def num_cap_violations(plan: Plan, problem: PlanningProblem, *, is_packed: bool) -> int:
    """Launches that do not fit on their GPUs.

    Args:
        plan: Of this problem.
        problem: Its costs know what fits.
        is_packed: The clips that one phase trains on the same GPUs are in memory at once; then each
            such pack that does not fit counts as one. Encoders run alone in any case.
    """
    alone = [launch for launch in plan.launches if not is_packed or launch.cascade.module != "dit"]
    num_alone = sum(not problem.costs.fits(launch.cascade, launch.gpus) for launch in alone)
    if not is_packed:
        return num_alone
    costs = GroupCosts(problem)
    packs: dict[tuple[int, tuple[int, ...]], float] = defaultdict(float)
    for launch in plan.launches:
        if launch.cascade.module == "dit":
            packs[launch.phase, launch.gpus] += costs.pack_share(launch.cascade, launch.degree)
    return num_alone + sum(share > 1.0 + _SLACK for share in packs.values())
