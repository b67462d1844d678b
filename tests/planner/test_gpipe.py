"""GPipe as a reference: stages, micro-batches and memory, on the cost model of a small Wan."""

from dataclasses import replace

import pytest

from arachne.core.batch import Batch
from arachne.core.errors import InfeasibleError
from arachne.core.launch_mode import WHOLE
from arachne.cost.model import CostModel
from arachne.planner.gpipe import (
    PipelineStep,
    _Pipelines,  # pyright: ignore[reportPrivateUsage]
    gpipe_steps,
)
from arachne.planner.stacking import stacked_cascades
from tests.planner.problems import batch_of, cluster_of, costs_of

LONG = "224x96x81"


def costs_on(
    num_gpus: int,
    gpus_per_node: int | None = None,
    *,
    memory_bytes: float = 1e12,
    num_layers: int = 6,
) -> CostModel:
    """A small Wan whose transfers cost nothing, and whose launches have no cost of their own."""
    costs = costs_of(num_gpus)
    device = replace(costs.cluster.device, memory_bytes=memory_bytes, launch_s=0.0)
    cluster = cluster_of(num_gpus, gpus_per_node)
    free = replace(cluster.intra_node, latency_s=0.0, bandwidth_bytes_per_s=1e30)
    cluster = replace(cluster, device=device, intra_node=free, inter_node=free)
    return replace(costs, model=replace(costs.model, num_layers=num_layers), cluster=cluster)


def step_of(batch: Batch, costs: CostModel, stack_tokens: int = 0) -> PipelineStep:
    (step,) = gpipe_steps([batch], costs, stack_tokens)
    return step


def launch_s(batch: Batch, costs: CostModel) -> float:
    """Forward and backward of the batch's first clip on one GPU."""
    cascade = stacked_cascades(batch, 0)[0]
    computed_s, _ = costs.seconds_in(WHOLE, cascade, (0,))
    return costs.launch_overhead_s + computed_s


def test_equal_micro_batches_on_one_pipeline_take_what_the_paper_says():
    """Two GPUs are two stages; five clips take (5 + 1) times half a clip's launch."""
    batch, costs = batch_of(*[LONG] * 5), costs_on(2)

    step = step_of(batch, costs)

    assert (step.num_stages, step.num_micro_batches, step.is_recomputed) == (2, 5, False)
    assert step.makespan_s == pytest.approx(6 * launch_s(batch, costs) / 2)
    assert step.bubble_ratio == pytest.approx(1 / 6)
    assert step.ideal_bubble_ratio == pytest.approx(1 / 6)


def test_clips_are_dealt_to_the_pipelines_that_have_least_to_do():
    batch = batch_of(LONG, *["96x64x33"] * 2, LONG)
    costs = costs_on(4, 2)  # pipelines of two GPUs in each node, or one over both nodes

    step = step_of(batch, costs)

    assert (step.num_stages, step.num_micro_batches) == (2, 2)


@pytest.mark.parametrize(("gpus_per_node", "num_stages"), [(4, 4), (12, 3)])
def test_stages_lie_in_one_node_or_fill_whole_nodes(gpus_per_node: int, num_stages: int):
    """Two stages do not fit; three of twelve GPUs would lie across nodes of four."""
    batch = batch_of(*[LONG] * 12)
    roomy = costs_on(12, gpus_per_node)
    pipelines = _Pipelines(roomy, 2)
    two_stages_bytes = pipelines.least_bytes(pipelines.dealt(stacked_cascades(batch, 0)))

    costs = costs_on(12, gpus_per_node, memory_bytes=0.99 * two_stages_bytes)

    assert step_of(batch, roomy).num_stages == 2
    assert step_of(batch, costs).num_stages == num_stages


def test_uneven_stages_are_as_slow_as_the_one_with_most_blocks():
    """Three blocks on two stages: two blocks of three pass one after another, five times."""
    batch, costs = batch_of(*[LONG] * 5), costs_on(2, num_layers=3)

    step = step_of(batch, costs)

    clip_s = launch_s(batch, costs)
    # The shorter stage's part of the first clip goes before, or after, the longer one's.
    assert step.makespan_s == pytest.approx(clip_s * (5 * 2 / 3 + 1 / 3))


def test_activations_are_computed_again_only_where_they_do_not_fit():
    batch = batch_of(*[LONG] * 6)
    roomy = step_of(batch, costs_on(2))
    cramped = step_of(batch, costs_on(2, memory_bytes=1e9))

    assert (roomy.is_recomputed, cramped.is_recomputed) == (False, True)
    assert cramped.makespan_s == pytest.approx(roomy.makespan_s * 4 / 3)
    with pytest.raises(InfeasibleError, match=r"'gpipe': 2 stages need .* may be used; use more"):
        gpipe_steps([batch], costs_on(2, memory_bytes=3e8), 0)


def test_memory_grows_with_the_micro_batches_that_wait_for_their_backward():
    few, many = batch_of(*[LONG] * 2), batch_of(*[LONG] * 20)
    costs = costs_on(2, memory_bytes=2e9)
    assert not step_of(few, costs).is_recomputed
    assert step_of(many, costs).is_recomputed


def test_more_stages_are_taken_where_fewer_do_not_fit():
    batch = batch_of(*[LONG] * 8)
    assert step_of(batch, costs_on(4)).num_stages == 2
    assert step_of(batch, costs_on(4, memory_bytes=2.5e8)).num_stages == 4


def test_the_end_of_the_step_sums_a_stages_gradients_alone():
    costs = costs_of(4)
    slow = replace(costs.cluster.intra_node, bandwidth_bytes_per_s=1e9)
    costs = replace(costs, cluster=replace(costs.cluster, intra_node=slow))
    step = step_of(batch_of(*[LONG] * 8), costs)

    end_s = step.step_s - step.makespan_s
    assert step.num_stages == 2
    # Two holders of half the gradients, and of half the weights, instead of four of all.
    sent = (1 / 2 * 1 / 2) / (3 / 4)
    exchanged_s = costs.gradient_reduce_s() + costs.parameter_gather_s()
    assert end_s == pytest.approx(sent * exchanged_s + costs.optimizer_s(), rel=1e-2)


def test_sending_between_stages_costs_time():
    batch, free = batch_of(*[LONG] * 4), costs_on(2)
    slow = replace(free.cluster.intra_node, bandwidth_bytes_per_s=1e8)
    step = step_of(batch, replace(free, cluster=replace(free.cluster, intra_node=slow)))

    hidden_bytes = batch.clips[0].num_tokens * free.model.hidden_size * 4
    sent_s = step.makespan_s - step_of(batch, free).makespan_s
    assert sent_s == pytest.approx(2 * hidden_bytes / 1e8)


def test_stages_run_at_the_pace_of_the_slowest_gpu():
    batch, costs = batch_of(*[LONG] * 4), costs_on(2)
    uneven = replace(costs, cluster=replace(costs.cluster, speeds=(1.0, 0.5)))
    assert step_of(batch, uneven).makespan_s == pytest.approx(2 * step_of(batch, costs).makespan_s)


def test_one_number_of_stages_serves_all_batches():
    batches = [batch_of(*[LONG] * 12), batch_of("96x64x1", step=1)]
    steps = gpipe_steps(batches, costs_on(4), 0)
    assert len({step.num_stages for step in steps}) == 1
    assert steps[1].bubble_ratio > steps[0].bubble_ratio


@pytest.mark.parametrize(("num_gpus", "num_layers"), [(1, 6), (2, 1)])
def test_one_gpu_or_one_block_make_no_pipeline(num_gpus: int, num_layers: int):
    with pytest.raises(InfeasibleError, match="make no pipeline; it needs two of each"):
        gpipe_steps([batch_of(LONG)], costs_on(num_gpus, num_layers=num_layers), 0)


def test_an_empty_step_takes_its_end_alone():
    step = step_of(batch_of(), costs_on(2))
    assert (step.makespan_s, step.bubble_ratio) == (0.0, 0.0)
    assert step.step_s > 0.0
