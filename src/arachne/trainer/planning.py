"""From a step's batch to the placed plan that all ranks run; needs no torch, runs anywhere."""

from dataclasses import dataclass, replace

from arachne.core.batch import Batch
from arachne.core.blocks import allowed_degrees, ladders, plan_blocks
from arachne.core.cluster import Cluster
from arachne.core.families import family_named
from arachne.core.families.encoders import DCT_CODEC, HASHED_TEXT
from arachne.core.model_shape import ModelShape
from arachne.core.placed_plan import PlacedPlan
from arachne.core.plan import Plan
from arachne.core.plan_rules import check_placed_plan
from arachne.cost.encoder_costs import TILE_SIDE, Encoders
from arachne.cost.launch_modes import CostOptions
from arachne.cost.model import CostModel
from arachne.cost.model_counts import model_counts
from arachne.cost.trained_part import TrainedPart
from arachne.cost.training_state import TrainingState, lora_weights
from arachne.mapper.placement import place
from arachne.planner.budget import iterations_within
from arachne.planner.problem import SHAPE_SETTINGS, PlanningProblem
from arachne.planner.registry import planner_named
from arachne.planner.tree import NAME as ARACHNE
from arachne.planner.tree import baseline_plans, shortest_plan
from arachne.simulator.simulate import simulate
from arachne.trainer.config import RunConfig

_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float64": 8}

_MASTER_BYTES = 4
"""Master weights are float32, or wider when the model is."""

_8BIT_BLOCK = 256
"""8-bit moments share a scale of this many elements."""

MOST_SHARING_A_CLIP = 8
"""Ranks that encode one clip's tiles, each of which decodes it: a node of GPUs. *Assumption*."""

_ENCODER_ELEMENT_BYTES = 4
"""Encoders run in float32."""


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
        budget_s: If not 0, as many search steps as fit into so much planning time, instead.
        domain: Neighbouring GPUs that share out parameters: degrees are multiples of it.
        shape_settings: What bounds the shapes of clips, as messages name it.
        degree_setting: `planner.max_degree`, for messages; `max_degree` is what it comes to.
    """

    batch: Batch
    costs: CostModel
    planner: str = "arachne"
    max_degree: int = 0
    stack_tokens: int = 1024
    seed: int = 0
    iterations: int = 2000
    budget_s: float = 0.0
    next_batch: Batch | None = None
    domain: int = 1
    shape_settings: str = SHAPE_SETTINGS
    degree_setting: int = 0

    @property
    def problem(self) -> PlanningProblem:
        """The request as planners read it.

        Raises:
            ConfigError: The GPUs do not fill domains.
        """
        num_gpus = self.costs.cluster.num_gpus
        problem = PlanningProblem(
            batch=self.batch,
            num_gpus=num_gpus,
            degrees=allowed_degrees(num_gpus, self.max_degree or num_gpus, multiple_of=self.domain),
            costs=self.costs,
            stack_tokens=self.stack_tokens,
            seed=self.seed,
            iterations=self.iterations,
            next_batch=self.next_batch,
            shape_settings=self.shape_settings,
            max_degree=self.degree_setting,
        )
        if not self.budget_s:
            return problem
        return replace(problem, iterations=_iterations_within(self.budget_s, problem))


def _iterations_within(budget_s: float, problem: PlanningProblem) -> int:
    return iterations_within(
        budget_s,
        problem.num_gpus,
        len(problem.batch.clips),
        num_ladders=len(ladders(problem.num_gpus, problem.degrees)),
        has_encoders=problem.has_encoders,
    )


def run_costs(
    config: RunConfig,
    model: ModelShape,
    cluster: Cluster,
    *,
    on_gpus: bool,
    trained: TrainedPart | None = None,
    raised_reserves: tuple[tuple[int, float], ...] = (),
) -> CostModel:
    """What launches of a run cost.

    Args:
        config: The run.
        model: Its model's shape.
        cluster: Where it trains.
        on_gpus: Where each rank needs a head, and rings a kernel, see `can_ring`.
        trained: The part of the model that it trains; None is all of it, or adapters.
        raised_reserves: Of shapes that ran out of memory.
    """
    encoders = run_encoders(config) if config.data.encode == "online" else None
    return CostModel(
        model=model,
        cluster=cluster,
        element_bytes=_ELEMENT_BYTES[config.model.dtype],
        state=TrainingState(
            gradients=config.optimizer.gradients,
            optimizer_bytes=_optimizer_bytes(config, model),
            num_adapter_weights=_num_adapter_weights(config, model),
            trained=trained,
            frozen_encoder_bytes=_resident_encoder_bytes(encoders),
            raised_reserves=raised_reserves,
            base_bits=config.memory.base_bits,
            swapped_layers=config.memory.swapped_blocks,
            are_inputs_on_host=config.memory.inputs_on_host,
        ),
        options=run_options(config, model, on_gpus=on_gpus),
        encoders=encoders,
    )


def run_options(config: RunConfig, model: ModelShape, *, on_gpus: bool) -> CostOptions:
    """Which modes the launches of a run may run in."""
    return CostOptions(
        recompute=config.planner.recompute,
        ring=config.planner.ring,
        needs_heads=on_gpus,
        can_ring=not on_gpus or can_ring(config, model),
    )


def can_ring(config: RunConfig, model: ModelShape) -> bool:
    """Whether the run's attention kernel computes rings of the model on GPUs.

    The fused ones take no mask there, and need 16-bit numbers and heads of a multiple of 8; see
    `runtime/attention_kernels.py`, which refuses what this lets pass. `math` can do all.
    """
    is_fused = config.model.attention != "math"
    is_narrow = config.model.dtype == "bfloat16" and model.head_size % 8 == 0
    return not is_fused or (is_narrow and not family_named(model.family).masks_keys)


def _resident_encoder_bytes(encoders: Encoders | None) -> float:
    """What of a run's encoders is on a GPU also while it trains."""
    return encoders.parameter_bytes if encoders and not encoders.are_on_host else 0.0


def _optimizer_bytes(config: RunConfig, model: ModelShape) -> float:
    """Bytes of master weight, optimizer state and moving average for each trained weight.

    A class that is named by its path is taken to keep two moments. Muon keeps one for the matrices
    of the blocks, which are taken to be all of their weights, and adapters to be matrices of
    blocks too.
    """
    optimizer = config.optimizer
    number_bytes = max(_MASTER_BYTES, _ELEMENT_BYTES[config.model.dtype])
    moment_bytes = 2.0 * number_bytes
    if optimizer.name == "adamw8bit":
        moment_bytes = 2.0 * (1.0 + number_bytes / _8BIT_BLOCK)
    elif optimizer.name == "muon":
        counts = model_counts(model)
        in_blocks = counts.block_parameters * model.num_blocks / counts.parameters
        moment_bytes = number_bytes * (1.0 if config.lora.is_on else 2.0 - in_blocks)
    has_average = optimizer.ema_decay > 0.0
    return number_bytes * (1.0 + has_average) + moment_bytes


def _num_adapter_weights(config: RunConfig, model: ModelShape) -> int | None:
    """Parameters of the run's adapters, rather too many; None if it trains the model itself."""
    if not config.lora.is_on:
        return None
    return lora_weights(model, config.lora.rank, only_attention=config.lora.targets == "attention")


def run_encoders(config: RunConfig) -> Encoders:
    """What encodes the clips of a run within its steps.

    With `model.video_tiling` several ranks may share a clip's tiles; image to video encodes first
    frames beside, which are not cut. An encoder in a folder is taken to be of the size of the
    family's published one.
    """
    family = family_named(config.model.family)
    has_codec, has_hashes = (
        config.model.video_encoder == "dct",
        config.model.text_encoder == "hashed",
    )
    hashed = replace(HASHED_TEXT, num_tokens=config.model.num_text_tokens)
    return Encoders(
        video=DCT_CODEC if has_codec else family.video_encoder,
        texts=(hashed,) if has_hashes else family.text_encoders,
        element_bytes=_ENCODER_ELEMENT_BYTES,
        max_video_degree=1 if config.model.image_to_video else MOST_SHARING_A_CLIP,
        tile_side=TILE_SIDE if config.model.video_tiling else None,
        are_on_host=config.memory.encoders_on_host,
    )


def run_degrees(
    config: RunConfig, model: ModelShape, num_gpus: int, *, on_gpus: bool
) -> tuple[int, ...]:
    """Degrees that plans of a run may use; none leaves a GPU without a head.

    With rings a degree may pass the number of heads: only its Ulysses groups may not.
    """
    limit = min(config.planner.max_degree or num_gpus, num_gpus)
    if run_options(config, model, on_gpus=on_gpus).is_limited_by_heads:
        limit = min(limit, model.num_heads)
    return allowed_degrees(num_gpus, limit)


def run_request(
    config: RunConfig, batch: Batch, costs: CostModel, planner: str | None = None
) -> PlanRequest:
    """What the plan of one step of a run depends on; by its own planner unless one is named."""
    settings = config.planner
    degrees = run_degrees(
        config, costs.model, costs.cluster.num_gpus, on_gpus=costs.options.needs_heads
    )
    return PlanRequest(
        batch=batch,
        costs=costs,
        planner=planner or settings.name,
        max_degree=degrees[-1],
        degree_setting=settings.max_degree,
        stack_tokens=settings.stack_tokens,
        seed=config.run.seed,
        iterations=settings.iterations,
        budget_s=settings.budget_s,
    )


def plan_batch(request: PlanRequest) -> PlacedPlan:
    """Plan, place and check one step.

    Planners know no nodes. Static groups that cross nodes as they are planned may not cross them as
    they are placed; where nodes have another number of GPUs than 2^k or share NICs, launches are
    placed, or slow each other down, as no planner knows. There `arachne` is compared once more, as
    placed and simulated.

    Raises:
        ConfigError: No planner has this name, or the GPUs do not fill domains.
        InfeasibleError: A clip does not fit on the cluster.
    """
    problem, cluster = request.problem, request.costs.cluster
    if request.planner != ARACHNE or cluster.num_nodes == 1:
        return placed_plan(planner_named(request.planner)(problem), request)
    baselines = baseline_plans(problem)
    shortest = placed_plan(shortest_plan(problem, baselines), request)
    if cluster.gpus_per_node & (cluster.gpus_per_node - 1) == 0 and not cluster.shares_nics:
        baselines = [plan for plan in baselines if _may_gain_from_placing(plan, cluster)]
    if baselines:
        placed = [shortest, *(placed_plan(plan, request) for plan in baselines)]
        shortest = min(placed, key=lambda plan: simulate(plan, request.costs).makespan_s)
    return replace(shortest, planner=ARACHNE)


def _may_gain_from_placing(plan: Plan, cluster: Cluster) -> bool:
    """Whether some launch crosses more nodes, as it is planned, than its GPUs need."""
    per_node = cluster.gpus_per_node
    return any(
        launch.gpus[-1] // per_node - launch.gpus[0] // per_node > (launch.degree - 1) // per_node
        for launch in plan.launches
    )


def placed_plan(plan: Plan, request: PlanRequest) -> PlacedPlan:
    """A plan of the request's problem on the ranks of its cluster, checked.

    A plan on the blocks that `core.blocks` names stays on them, whose process groups a runtime has;
    models of other systems have groups of their own.

    Raises:
        InfeasibleError: The plan breaks a rule that placed plans keep.
    """
    cluster = request.costs.cluster
    of_degree = plan_blocks(cluster.num_gpus, request.problem.degrees)
    groups = frozenset(block for blocks in of_degree.values() for block in blocks)
    is_of_blocks = all(launch.degree == 1 or launch.gpus in groups for launch in plan.launches)
    placed = place(
        plan,
        cluster,
        request.batch.step,
        costs=request.costs,
        groups=groups if is_of_blocks else None,
    )
    check_placed_plan(placed, request.batch, cluster.num_gpus, next_batch=request.next_batch)
    return placed
