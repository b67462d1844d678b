"""Peer `knapformer`: KnapFormer's fixed bags of GPUs, by its description.

The GPUs are cut into bags of one size (left-over GPUs make smaller ones). Clips go, the longest
first, to the bag that is emptiest for its size; a bag splits each of its clips over all its GPUs.
Of the bag sizes that are powers of two up to 8, the best is taken. Synchronization: none before the
step's end. Memory: none is looked at, neither that of one clip nor that of a bag's pack, so plans
may break the cap; the comparison counts where. Ignored: tokens travel to the bag and back for
nothing; weights are our cost model's seconds instead of 24sd² + γ·4s²d with a fitted γ; a bag's
clips pay their launches one by one.
"""

from arachne.core.plan import Plan
from arachne.planner.gpu_groups import Group, laid_out
from arachne.planner.group_costs import powers_of_two
from arachne.planner.problem import PlanningProblem
from arachne.planner.schedule import scheduled
from arachne.planner.stacking import stacked_cascades

NAME = "knapformer"

_LARGEST_BAG = 8


def plan_knapformer(problem: PlanningProblem) -> Plan:
    """The shortest plan over the bag sizes, memory not looked at; ties to the smaller size."""
    degrees = powers_of_two(problem.degrees)
    sizes = [degree for degree in degrees if degree <= _LARGEST_BAG] or [degrees[0]]
    plans = [_plan_with_bags_of(problem, size, degrees) for size in sizes]
    return min(plans, key=lambda plan: plan.makespan_s)


def _plan_with_bags_of(problem: PlanningProblem, size: int, degrees: tuple[int, ...]) -> Plan:
    bags = _bags(problem.num_gpus, size, degrees)
    cascades = stacked_cascades(problem.batch, problem.stack_tokens)

    def duration_s(degree: int) -> dict[tuple[int, int], float]:
        gpus = tuple(range(degree))
        return {(c.num_tokens, c.num_clips): problem.duration_s(c, gpus) for c in cascades}

    durations_s = {degree: duration_s(degree) for degree in {bag.degree for bag in bags}}
    in_whole_bag_s = durations_s[bags[0].degree]
    for cascade in sorted(
        cascades, key=lambda c: (-in_whole_bag_s[c.num_tokens, c.num_clips], c.slots)
    ):
        bag = min(bags, key=lambda bag: bag.load)
        bag.cascades.append(cascade)
        bag.load += durations_s[bag.degree][cascade.num_tokens, cascade.num_clips]
    return scheduled(problem, NAME, laid_out(bags))


def _bags(num_gpus: int, size: int, degrees: tuple[int, ...]) -> list[Group]:
    bags: list[Group] = []
    for degree in sorted((d for d in degrees if d <= size), reverse=True):
        count, num_gpus = divmod(num_gpus, degree)
        bags += [Group(degree=degree) for _ in range(count)]
    return bags
