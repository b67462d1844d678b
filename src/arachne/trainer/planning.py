"""From a step's batch to the placed plan that all ranks run; needs no torch, runs anywhere."""

from dataclasses import dataclass

from arachne.core.batch import Batch
from arachne.core.blocks import allowed_degrees, ladders
from arachne.core.cluster import Cluster
from arachne.core.model_shape import ModelShape
from arachne.core.placed_plan import PlacedPlan
from arachne.core.plan import Plan
from arachne.core.plan_rules import check_placed_plan
from arachne.cost.launch_modes import CostOptions
from arachne.cost.model import CostModel
from arachne.cost.training_state import TrainingState
from arachne.mapper.placement import place
from arachne.planner.budget import iterations_within
from arachne.planner.problem import PlanningProblem
from arachne.planner.registry import planner_named
from arachne.trainer.config import RunConfig
from arachne.trainer.settings.planner import PlannerSettings

_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float64": 8}


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


def run_costs(
    config: RunConfig, model: ModelShape, cluster: Cluster, *, needs_heads: bool
) -> CostModel:
    """What launches of a run cost; `needs_heads` on GPUs, where each rank needs a head."""
    return CostModel(
        model=model,
        cluster=cluster,
        element_bytes=_ELEMENT_BYTES[config.model.dtype],
        state=TrainingState(gradients=config.optimizer.gradients),
        options=CostOptions(
            recompute=config.planner.recompute, ring=config.planner.ring, needs_heads=needs_heads
        ),
    )


def run_degrees(
    config: RunConfig, model: ModelShape, num_gpus: int, *, needs_heads: bool
) -> tuple[int, ...]:
    """Degrees that plans of a run may use; with `needs_heads` none leaves a GPU without a head.

    With rings a degree may pass the number of heads: only its Ulysses groups may not.
    """
    limit = min(config.planner.max_degree or num_gpus, num_gpus)
    if needs_heads and config.planner.ring == "none":
        limit = min(limit, model.num_heads)
    return allowed_degrees(num_gpus, limit)


def run_request(
    config: RunConfig, batch: Batch, costs: CostModel, planner: str | None = None
) -> PlanRequest:
    """What the plan of one step of a run depends on; by its own planner unless one is named."""
    settings = config.planner
    degrees = run_degrees(
        config, costs.model, costs.cluster.num_gpus, needs_heads=costs.options.needs_heads
    )
    return PlanRequest(
        batch=batch,
        costs=costs,
        planner=planner or settings.name,
        max_degree=degrees[-1],
        stack_tokens=settings.stack_tokens,
        seed=config.run.seed,
        iterations=_iterations(settings, costs.cluster.num_gpus, len(batch.clips), degrees),
    )


def _iterations(
    settings: PlannerSettings, num_gpus: int, num_clips: int, degrees: tuple[int, ...]
) -> int:
    if not settings.budget_s:
        return settings.iterations
    num_ladders = len(ladders(num_gpus, degrees))
    return iterations_within(settings.budget_s, num_gpus, num_clips, num_ladders=num_ladders)


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
