"""What a step came to: FLOPs by rank, utilisation, evenness, waiting for data."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.launch_mode import LaunchMode
from arachne.core.model_shape import ModelShape
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.cost.cluster_files import load_cluster
from arachne.cost.flops import training_flops
from arachne.cost.model import CostModel
from arachne.cost.model_counts import model_counts
from arachne.cost.rank_work import rank_work
from arachne.cost.trained_part import TrainedPart
from arachne.cost.training_state import TrainingState
from arachne.trainer.step_figures import StepFigures, rank_flops

SHAPE = ModelShape(
    family="wan",
    num_layers=2,
    num_heads=2,
    head_size=16,
    ffn_size=64,
    latent_channels=4,
    text_size=8,
    text_tokens=4,
)
COSTS = CostModel(model=SHAPE, cluster=load_cluster("cpux4"), element_bytes=4)
BUCKET = Bucket(width=64, height=64, frames=1)


def launch(slots: tuple[int, ...], ranks: tuple[int, ...], tokens: int = 32) -> PlacedLaunch:
    return PlacedLaunch(
        cascade=Cascade(module="dit", slots=slots, bucket=BUCKET, num_tokens=tokens),
        ranks=ranks,
        start_s=0.0,
        duration_s=1.0,
    )


def plan(*launches: PlacedLaunch) -> PlacedPlan:
    return PlacedPlan(step=0, planner="by hand", world_size=4, launches=launches)


@given(kept=st.lists(st.booleans(), min_size=4, max_size=4))
def test_the_ranks_flops_sum_to_the_model_flops_of_the_clips_that_were_kept(kept):
    whole = plan(launch((0, 1), (0,)), launch((2,), (0, 1, 2), 96), launch((3,), (2, 3), 48))
    tokens = (32, 32, 96, 48)
    needed = sum(training_flops(SHAPE, n) for n, k in zip(tokens, kept, strict=True) if k)
    assert sum(rank_flops(COSTS, whole, kept)) == pytest.approx(needed, rel=1e-12)


def test_a_launch_is_shared_out_evenly_whatever_is_recomputed():
    plain = launch((0,), (1, 3))
    recomputing = replace(plain, mode=LaunchMode(recompute_layers=2))
    flops = rank_flops(COSTS, plan(plain), (True,))
    assert flops[0] == flops[2] == 0.0
    assert flops[1] == flops[3] == training_flops(SHAPE, 32) / 2
    assert rank_flops(COSTS, plan(recomputing), (True,)) == flops


def test_frozen_weights_count_two_passes():
    adapters = replace(COSTS, state=TrainingState(num_adapter_weights=0))
    frozen = sum(rank_flops(adapters, plan(launch((0,), (0,))), (True,)))
    assert frozen < training_flops(SHAPE, 32)


def test_weights_that_are_not_trained_count_two_passes_as_well():
    num_parameters = model_counts(SHAPE).parameters

    def flops(num_trained: int) -> float:
        part = TrainedPart(num_parameters=num_trained, blocks=())
        costs = replace(COSTS, state=TrainingState(trained=part))
        return sum(rank_flops(costs, plan(launch((0,), (0,))), (True,)))

    whole, none = flops(num_parameters), flops(0)
    assert whole == pytest.approx(training_flops(SHAPE, 32), rel=1e-12)
    matmul = rank_work(SHAPE, 32, 1, degree=1).matmul_flops
    assert whole - none == pytest.approx(matmul / 3, rel=1e-12)
    assert flops(num_parameters // 2) == pytest.approx((whole + none) / 2, rel=1e-3)


FIGURES = StepFigures(
    rank_flops=(3e9, 1e9),
    load_s=(0.5, 0.1),
    step_s=2.0,
    period_s=2.5,
    peak_memory_bytes=1e9,
    sigmas=(0.5,),
)


def test_utilisation_is_flops_over_seconds_ranks_and_rate():
    assert FIGURES.utilisation(2e9) == pytest.approx(4e9 / (2.5 * 2 * 2e9))


def test_the_variation_of_rates_is_deviation_over_mean():
    assert FIGURES.flop_rate_variation == pytest.approx(0.5)
    assert replace(FIGURES, rank_flops=(2.0, 2.0)).flop_rate_variation == 0.0
    assert replace(FIGURES, rank_flops=(0.0, 0.0)).flop_rate_variation == 0.0


def test_the_load_share_is_the_ranks_mean():
    assert FIGURES.load_share == pytest.approx(0.15)
