"""The mode that a launch runs in: the fastest of a bounded set that fits."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.families import family_named
from arachne.core.launch_mode import WHOLE, LaunchMode
from arachne.core.model_shape import ModelShape
from arachne.cost.activations import launch_activations
from arachne.cost.cluster_files import load_cluster
from arachne.cost.launch_modes import CostOptions
from arachne.cost.memory import launch_use, resident_use
from arachne.cost.model import CostModel
from arachne.cost.training_state import TrainingState

SMALL = ModelShape(
    family="wan",
    num_layers=6,
    num_heads=4,
    head_size=64,
    ffn_size=1024,
    latent_channels=16,
    text_size=64,
    text_tokens=16,
)
AUTO = CostOptions(recompute="auto", ring="auto")
WAN_1_3B = family_named("wan").presets["wan-1.3b"]
HUNYUAN = family_named("hunyuan_video").presets["hunyuanvideo-13b"]


def cascade(num_tokens: int, num_clips: int = 1) -> Cascade:
    bucket = Bucket(width=16, height=16, frames=1)
    slots = tuple(range(num_clips))
    return Cascade(module="dit", slots=slots, bucket=bucket, num_tokens=num_tokens)


def costs_of(
    cluster: str,
    options: CostOptions = AUTO,
    *,
    model: ModelShape = WAN_1_3B,
    memory_bytes: float | None = None,
    state: TrainingState | None = None,
) -> CostModel:
    loaded = load_cluster(cluster)
    device = replace(loaded.device, memory_bytes=memory_bytes or loaded.device.memory_bytes)
    costs = CostModel(
        model=model, cluster=replace(loaded, device=device), element_bytes=2, options=options
    )
    return replace(costs, state=state) if state else costs


def gpus(degree: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first + degree))


def needed_bytes(costs: CostModel, work: Cascade, degree: int, level: int) -> float:
    made = launch_activations(costs.model, work.num_tokens, work.num_clips, degree, 2)
    resident = resident_use(costs.model, costs.cluster.num_gpus, 2, costs.state)
    return launch_use(resident, made, level, costs.state).total


@given(
    num_tokens=st.integers(16, 20_000),
    num_clips=st.integers(1, 4),
    degree=st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]),
    first=st.integers(0, 8),
    memory_bytes=st.floats(5e7, 4e9),
    needs_heads=st.booleans(),
    inputs_on_host=st.booleans(),
    speed=st.sampled_from([1.0, 0.5]),
)
@settings(max_examples=200)
def test_a_launch_runs_in_the_fastest_mode_that_fits(
    num_tokens, num_clips, degree, first, memory_bytes, needs_heads, inputs_on_host, speed
):
    options = replace(AUTO, needs_heads=needs_heads)
    state = TrainingState(are_inputs_on_host=inputs_on_host)
    costs = costs_of("h100x24", options, model=SMALL, memory_bytes=memory_bytes, state=state)
    speeds = tuple(speed if rank % 5 == 0 else 1.0 for rank in range(24))
    costs = replace(costs, cluster=replace(costs.cluster, speeds=speeds))
    work, group = cascade(num_tokens, num_clips), gpus(degree, first)

    fitting = [
        (sum(costs.seconds_in(mode, work, group)), ring, level)
        for ring in range(1, degree + 1)
        if degree % ring == 0 and not (needs_heads and degree // ring > 4)
        for level in (0, 2, 3, 5, 6)
        if needed_bytes(costs, work, degree, level) <= memory_bytes
        for mode in [LaunchMode(ring=ring, recompute_layers=level)]
    ]
    assert costs.fits(work, group) == bool(fitting)
    if fitting:
        best_s, ring, level = min(fitting)
        assert costs.launch_s(work, group) == best_s
        assert costs.mode(work, group) == LaunchMode(ring=ring, recompute_layers=level)
        assert costs.launch_bytes(work, group) == needed_bytes(costs, work, degree, level)
        twice = cascade(num_tokens, 2 * num_clips)
        assert costs.added_bytes(work, group) == needed_bytes(
            costs, twice, degree, level
        ) - needed_bytes(costs, work, degree, level)
    else:
        least = min(needed_bytes(costs, work, degree, level) for level in (0, 2, 3, 5, 6))
        assert costs.launch_bytes(work, group) == least


@given(
    num_tokens=st.integers(16, 100_000),
    degree=st.sampled_from([1, 2, 4, 8, 16]),
    ring=st.sampled_from([1, 2, 4]),
    levels=st.lists(st.integers(0, 30), min_size=2, max_size=2).map(sorted),
    inputs_on_host=st.booleans(),
)
def test_more_recomputing_never_takes_less_time(num_tokens, degree, ring, levels, inputs_on_host):
    state = TrainingState(are_inputs_on_host=inputs_on_host)
    costs = costs_of("h100x16", state=state)
    less_s, more_s = (
        sum(
            costs.seconds_in(
                LaunchMode(ring=min(ring, degree), recompute_layers=level),
                cascade(num_tokens),
                gpus(degree),
            )
        )
        for level in levels
    )

    assert less_s <= more_s


def test_without_a_choice_everything_is_as_if_there_were_no_modes():
    plain = costs_of("h100x16", CostOptions())
    work = cascade(32760)

    for group in (gpus(1), gpus(8), gpus(16), gpus(12)):
        assert plain.mode(work, group) == WHOLE
        assert plain.launch_s(work, group) == sum(plain.seconds_in(WHOLE, work, group))


def test_what_fits_whole_is_not_recomputed_and_what_does_not_is():
    costs = costs_of("h100x8")

    assert costs.mode(cascade(1560), gpus(1)).recompute_layers == 0
    assert costs.mode(cascade(32760), gpus(1)).recompute_layers == 23
    assert not costs_of("h100x8", CostOptions()).fits(cascade(32760), gpus(1))
    assert costs.fits(cascade(32760), gpus(1))


def test_recomputing_can_be_asked_for_and_forbidden():
    always = costs_of("h100x8", CostOptions(recompute="all"))
    never = costs_of("h100x8", CostOptions(recompute="none"))

    assert always.mode(cascade(1560), gpus(1)).recompute_layers == 30
    assert never.mode(cascade(75600), gpus(1)).recompute_layers == 0


def test_recomputing_everything_costs_about_a_third_more():
    costs = costs_of("h100x8")
    whole_s, again_s = (
        costs.seconds_in(LaunchMode(recompute_layers=level), cascade(32760), gpus(1))[0]
        for level in (0, 30)
    )

    assert again_s / whole_s == pytest.approx(4 / 3, rel=0.02)


def test_across_nodes_all_to_alls_stay_inside_and_a_ring_goes_between():
    # 24 heads: 16 do not divide them, and 8 do.
    costs = costs_of("h100x16", model=HUNYUAN)
    work, group = cascade(118_800), gpus(16)

    assert costs.mode(work, group).ring == 2
    ulysses_s, ring_s = (costs.seconds_in(LaunchMode(ring=ring), work, group)[1] for ring in (1, 2))
    assert ring_s < ulysses_s


def test_inside_a_node_nothing_beats_all_to_alls_of_heads_that_divide():
    costs = costs_of("h100x8", model=HUNYUAN)

    assert costs.mode(cascade(32_760), gpus(8)).ring == 1


def test_a_ring_spares_heads_that_do_not_divide():
    # 12 heads on 8 ranks: one has 2 of them; in two rings of 4 it has 3 of half of the queries.
    costs = costs_of("h100x8")

    assert costs.mode(cascade(75_600), gpus(8)).ring == 2


def test_more_ranks_than_heads_need_a_ring_on_gpus():
    work = cascade(75_600)
    rings = CostOptions(ring="auto", needs_heads=True)

    assert costs_of("h100x24", rings).mode(work, gpus(24)).ulysses(24) <= 12
    assert costs_of("h100x24", rings).fits(work, gpus(24))
    assert not costs_of("h100x24", CostOptions(needs_heads=True)).fits(work, gpus(24))
    assert costs_of("h100x24", CostOptions()).fits(work, gpus(24))


def test_merging_the_parts_of_a_ring_takes_time():
    costs = costs_of("h100x8", model=HUNYUAN)
    whole_s, ring_s = (
        costs.seconds_in(LaunchMode(ring=ring), cascade(32_000), gpus(8))[0] for ring in (1, 8)
    )

    # 8 parts of 60 layers, forward and backward, 28 bytes of traffic for each of 4,032 · 3,072.
    merged_bytes = 8 * 60 * 2 * 28 * (32_000 + 256) / 8 * 3072
    assert ring_s - whole_s == pytest.approx(
        merged_bytes / costs.cluster.device.memory_bytes_per_s, rel=1e-6
    )


def test_joint_attention_takes_no_more_ranks_than_there_are_text_tokens() -> None:
    costs = costs_of("cpux8", model=replace(SMALL, family="mochi", text_tokens=3))
    assert costs.launch_cost(cascade(64), gpus(2)).fits
    assert not costs.launch_cost(cascade(64), gpus(4)).fits
    alone = costs_of("cpux8", model=replace(SMALL, text_tokens=3))
    assert alone.launch_cost(cascade(64), gpus(4)).fits
