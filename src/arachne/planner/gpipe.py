"""GPipe, for reference: layers over GPUs instead of cascades, so that its steps are no plans.

A pipeline of p GPUs holds the model's blocks, about equally many each; N / p such pipelines share
out the micro-batches (cascades of the common stacking rule), the longest first to the one that has
least to do. All GPUs meet at the end of the step. p is the best one, and activations are computed
again (GPipe's re-materialization) only where they do not fit otherwise. Ignored: that embeddings
and output lie in the first and last stage (every stage bears its share of them), what single clips
of a stage would gain from more than one GPU, and pipelines that train while others reduce.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from arachne.core.batch import Batch
from arachne.core.cascade import Cascade
from arachne.core.errors import InfeasibleError
from arachne.core.families import family_named
from arachne.core.launch_mode import WHOLE
from arachne.core.units import bytes_text, count_text
from arachne.cost.activations import LaunchActivations, launch_activations
from arachne.cost.collectives import transfer_s
from arachne.cost.memory import resident_use
from arachne.cost.model import CostModel
from arachne.planner.pipeline_schedule import (
    MicroBatch,
    PipelineRun,
    ideal_bubble_ratio,
    pipeline_run,
)
from arachne.planner.stacking import stacked_cascades

NAME = "gpipe"

_ONE_GPU = (0,)

_FORWARD_SHARE = 1.0 / 3.0
"""Of a training launch: products of the backward are twice as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStep:
    """One step in pipelines.

    Attributes:
        num_stages: GPUs of a pipeline.
        num_micro_batches: Of the pipeline that has most.
        makespan_s: To the end of the last backward.
        step_s: With reduction, optimizer and gather of the stages' parameters.
        bubble_ratio: Share of the makespan in which GPUs do not compute, over all pipelines.
        is_recomputed: Stages keep their inputs alone, and compute the rest again.
    """

    num_stages: int
    num_micro_batches: int
    makespan_s: float
    step_s: float
    bubble_ratio: float
    is_recomputed: bool

    @property
    def ideal_bubble_ratio(self) -> float:
        """What as many micro-batches would leave if they were equal, and sent in no time."""
        return ideal_bubble_ratio(self.num_stages, max(1, self.num_micro_batches))


def gpipe_steps(
    batches: Sequence[Batch], costs: CostModel, stack_tokens: int
) -> tuple[PipelineStep, ...]:
    """The batches' steps with the number of stages that makes them shortest; ties to fewer.

    Raises:
        InfeasibleError: No number of stages fits the memory for every batch, or there is one GPU.
    """
    found: list[tuple[PipelineStep, ...]] = []
    needed: list[tuple[float, int]] = []
    for num_stages in _stage_counts(costs):
        pipelines = _Pipelines(costs, num_stages)
        dealt = [pipelines.dealt(stacked_cascades(batch, stack_tokens)) for batch in batches]
        needed_bytes = max(pipelines.least_bytes(shares) for shares in dealt)
        if needed_bytes <= costs.memory_bytes:
            found.append(tuple(pipelines.step(shares) for shares in dealt))
        needed.append((needed_bytes, num_stages))
    if not needed:
        raise InfeasibleError(
            f"planner {NAME!r}: {count_text(costs.cluster.num_gpus, 'GPU')} and "
            f"{count_text(costs.model.num_blocks, 'block')} make no pipeline; it needs two of each"
        )
    if not found:
        least_bytes, num_stages = min(needed)
        raise InfeasibleError(
            f"planner {NAME!r}: {count_text(num_stages, 'stage')} need {bytes_text(least_bytes)} "
            f"on each GPU, but {bytes_text(costs.memory_bytes)} may be used; use more GPUs"
        )
    return min(found, key=lambda steps: sum(step.step_s for step in steps))


def _stage_counts(costs: CostModel) -> list[int]:
    """Stages that divide the world, and lie in one node each or fill whole nodes."""
    cluster = costs.cluster
    return [
        num
        for num in range(2, min(cluster.num_gpus, costs.model.num_blocks) + 1)
        if cluster.num_gpus % num == 0
        and (cluster.gpus_per_node % num == 0 or num % cluster.gpus_per_node == 0)
    ]


class _Pipelines:
    """All pipelines of one number of stages: what a micro-batch costs them."""

    def __init__(self, costs: CostModel, num_stages: int) -> None:
        self.costs = replace(costs, state=replace(costs.state, parameter_shards=1))
        self.num_stages = num_stages
        self.num_pipelines = costs.cluster.num_gpus // num_stages
        num_blocks = costs.model.num_blocks
        self.blocks = [
            num_blocks * (stage + 1) // num_stages - num_blocks * stage // num_stages
            for stage in range(num_stages)
        ]

    def dealt(self, cascades: Sequence[Cascade]) -> list[list[Cascade]]:
        """Micro-batches of each pipeline: the longest first, each to the one with least to do."""
        shares: list[list[Cascade]] = [[] for _ in range(self.num_pipelines)]
        loads_s = [0.0] * self.num_pipelines
        for cascade in sorted(cascades, key=lambda c: (-self._whole_s(c), c.slots)):
            pipeline = loads_s.index(min(loads_s))
            loads_s[pipeline] += self._whole_s(cascade)
            shares[pipeline].append(cascade)
        return shares

    def least_bytes(self, shares: Sequence[Sequence[Cascade]]) -> float:
        """Memory of the GPU that needs most, with everything computed again."""
        return max(self._num_bytes(share, is_recomputed=True) for share in shares)

    def step(self, shares: Sequence[Sequence[Cascade]]) -> PipelineStep:
        """All pipelines' runs, and the step's end; recomputed only if memory asks for it."""
        is_recomputed = any(
            self._num_bytes(share, is_recomputed=False) > self.costs.memory_bytes
            for share in shares
        )
        runs = [self._run(share, is_recomputed=is_recomputed) for share in shares]
        makespan_s = max(run.makespan_s for run in runs)
        available_s = self.costs.cluster.num_gpus * makespan_s
        busy_s = sum(run.busy_s for run in runs)
        # Each GPU holds a stage: it sums, updates and gathers as if parameters were shared out.
        state = replace(self.costs.state, parameter_shards=self.num_stages)
        return PipelineStep(
            num_stages=self.num_stages,
            num_micro_batches=max(map(len, shares)),
            makespan_s=makespan_s,
            step_s=makespan_s + replace(self.costs, state=state).step_overhead_s(),
            bubble_ratio=1.0 - busy_s / available_s if available_s else 0.0,
            is_recomputed=is_recomputed,
        )

    def _run(self, share: Sequence[Cascade], *, is_recomputed: bool) -> PipelineRun:
        made = [self._micro_batch(cascade, is_recomputed=is_recomputed) for cascade in share]
        return pipeline_run(made, self.num_stages)

    def _micro_batch(self, cascade: Cascade, *, is_recomputed: bool) -> MicroBatch:
        stages_s = [self._stage_s(cascade, blocks) for blocks in self.blocks]
        backward_share = 1.0 if is_recomputed else 1.0 - _FORWARD_SHARE
        border_bytes = self._border_bytes(cascade)
        cluster = self.costs.cluster
        links = [cluster.link_within((stage, stage + 1)) for stage in range(self.num_stages - 1)]
        return MicroBatch(
            forward_s=tuple(_FORWARD_SHARE * seconds for seconds in stages_s),
            backward_s=tuple(backward_share * seconds for seconds in stages_s),
            send_s=tuple(transfer_s(border_bytes, link) for link in links),
        )

    def _stage_s(self, cascade: Cascade, num_blocks: int) -> float:
        """Forward and backward of a stage: its blocks' share of the whole model on one GPU."""
        device = self.costs.cluster.device
        computed_s, _ = self.costs.seconds_in(WHOLE, cascade, _ONE_GPU)
        shared_s = computed_s + self.costs.gradient_add_s
        share = num_blocks / self.costs.model.num_blocks
        seconds = device.launch_s + num_blocks * device.layer_s + share * shared_s
        return seconds / min(self.costs.cluster.speeds, default=1.0)

    def _whole_s(self, cascade: Cascade) -> float:
        return sum(self._stage_s(cascade, blocks) for blocks in self.blocks)

    def _border_bytes(self, cascade: Cascade) -> float:
        """What goes from one stage to the next: the hidden states of all tokens."""
        model = self.costs.model
        inputs = family_named(model.family).flop_inputs(model)
        num_tokens = cascade.num_tokens + inputs.joint_tokens
        return float(cascade.num_clips * num_tokens * model.hidden_size * self.costs.element_bytes)

    def _num_bytes(self, share: Sequence[Cascade], *, is_recomputed: bool) -> float:
        """Memory of the fullest stage: GPipe keeps something of all micro-batches at once."""
        part = max(self.blocks) / self.costs.model.num_blocks
        made = [self._activations(cascade) for cascade in share]
        kept = [part * one.kept_bytes(0) for one in made]
        held = sum(kept)
        if is_recomputed:
            held = sum(map(self._border_bytes, share)) + max(kept, default=0.0)
        return part * self._state_bytes + held + max((one.work_bytes for one in made), default=0.0)

    def _activations(self, cascade: Cascade) -> LaunchActivations:
        costs = self.costs
        is_adapted = costs.state.num_adapter_weights is not None
        tokens, clips = cascade.num_tokens, cascade.num_clips
        return launch_activations(costs.model, tokens, clips, 1, costs.element_bytes, is_adapted)

    @cached_property
    def _state_bytes(self) -> float:
        """Weights, gradients and optimizer state of the whole model, one GPU of each pipeline."""
        costs = self.costs
        use = resident_use(costs.model, self.num_pipelines, costs.element_bytes, costs.state)
        return use.weights + use.gradients + use.optimizer
