"""From a step's batch to the placed plan that all ranks run; needs no torch, runs anywhere."""

from dataclasses import dataclass

from arachne.core.batch import Batch
from arachne.core.blocks import allowed_degrees
from arachne.core.placed_plan import PlacedPlan
from arachne.core.plan import Plan
from arachne.core.plan_rules import check_placed_plan
from arachne.cost.model import CostModel
from arachne.mapper.placement import place
from arachne.planner.problem import PlanningProblem
from arachne.planner.registry import planner_named


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """All that one step's plan depends on; travels to the planning process by pickle.

    Attributes:
        batch: The step's clips; those that name encoders are encoded within the step.
        next_batch: The next step's clips, whose encoders fill this step's idle ends; None if they
            do not.
        costs: The cost model; its cluster is where the plan runs.
        planner: Name of the planner.
        max_degree: Most GPUs that one cascade may use; 0 = no limit but the world.
        stack_tokens: Clips of one shape may share a cascade of at most this many tokens.
        seed: Seed of the search.
        iterations: Search steps.
        domain: Neighbouring GPUs that share out parameters: degrees are multiples of it.
    """

    batch: Batch
    costs: CostModel
    planner: str = "arachne"
    max_degree: int = 0
    stack_tokens: int = 1024
    seed: int = 0
    iterations: int = 2000
    next_batch: Batch | None = None
    domain: int = 1

    @property
    def problem(self) -> PlanningProblem:
        """The request as planners read it.

        Raises:
            ConfigError: The GPUs do not fill domains.
        """
        num_gpus = self.costs.cluster.num_gpus
        return PlanningProblem(
            batch=self.batch,
            num_gpus=num_gpus,
            degrees=allowed_degrees(num_gpus, self.max_degree or num_gpus, multiple_of=self.domain),
            costs=self.costs,
            stack_tokens=self.stack_tokens,
            seed=self.seed,
            iterations=self.iterations,
            next_batch=self.next_batch,
        )


def plan_batch(request: PlanRequest) -> PlacedPlan:
    """Plan, place and check one step.

    Raises:
        ConfigError: No planner has this name, or the GPUs do not fill domains.
        InfeasibleError: A clip does not fit on the cluster.
    """
    return placed_plan(planner_named(request.planner)(request.problem), request)


def placed_plan(plan: Plan, request: PlanRequest) -> PlacedPlan:
    """A plan of the request's problem on the ranks of its cluster, checked.

    Raises:
        InfeasibleError: The plan breaks a rule that placed plans keep.
    """
    cluster = request.costs.cluster
    placed = place(plan, cluster, request.batch.step, costs=request.costs)
    check_placed_plan(placed, request.batch, cluster.num_gpus, next_batch=request.next_batch)
    return placed
