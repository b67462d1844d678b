from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core.families import FAMILIES, family_named
from arachne.cost.activations import launch_activations
from arachne.cost.memory import MemoryUse, fitting_use, launch_use, resident_use
from arachne.cost.model_counts import model_counts
from arachne.cost.training_state import (
    COMMUNICATOR_BYTES,
    FULL_TRAINING,
    TrainingState,
    lora_weights,
)

WAN_14B = family_named("wan").presets["wan-14b"]
HUNYUAN = family_named("hunyuan_video").presets["hunyuanvideo-13b"]
PRESETS = [shape for family in FAMILIES.values() for shape in family.presets.values()]
P = 14_288_491_584
BLOCK = (14_288_491_584 - family_named("wan").num_parameters(replace(WAN_14B, num_layers=39))) * 1.0


def resident(state: TrainingState, world_size: int = 16) -> MemoryUse:
    return resident_use(WAN_14B, world_size, 2, state)


def test_full_training_holds_weights_gradients_and_a_part_of_the_optimizer():
    use = resident(FULL_TRAINING)

    assert use.weights == pytest.approx(2 * P)
    assert use.gradients == 4 * P
    assert use.optimizer == 12 * P / 16
    assert use.total == use.resident == pytest.approx(P * (2 + 4 + 0.75))


def test_thirteen_billion_parameters_need_26_and_52_gigabytes():
    use = resident_use(HUNYUAN, 16, 2, FULL_TRAINING)

    assert (use.weights / 1e9, use.gradients / 1e9) == pytest.approx((25.6, 51.3), abs=0.1)


def test_float64_models_keep_float64_state():
    use = resident_use(WAN_14B, 1, 8, FULL_TRAINING)

    assert (use.weights, use.gradients, use.optimizer) == (
        pytest.approx(8 * P),
        8 * P,
        24 * P,
    )


def test_gradients_take_two_bytes_or_none():
    assert resident(TrainingState(gradients="bfloat16")).gradients == 2 * P
    assert resident(TrainingState(gradients="host")).gradients == 0.0


def test_shared_out_parameters_leave_two_whole_blocks():
    use = resident(TrainingState(parameter_shards=8))

    assert use.weights == pytest.approx(2 * P / 8 + 2 * 2 * BLOCK)
    assert use.gradients == 4 * P / 8
    assert use.optimizer == 12 * P / 16


def test_adapters_alone_have_gradients_and_optimizer_state():
    use = resident(TrainingState(num_adapter_weights=1_000_000))

    assert use.weights == pytest.approx(2 * P + 2e6)
    assert (use.gradients, use.optimizer) == (4e6, 12e6 / 16)


@pytest.mark.parametrize(("bits", "bytes_each"), [(16, 2.0), (8, 1.0), (4, 4.5 / 8)])
def test_a_frozen_base_takes_its_bits_and_4_bits_a_scale_too(bits, bytes_each: float):
    use = resident(TrainingState(num_adapter_weights=0, base_bits=bits))

    assert use.weights == pytest.approx(2 * (P - 40 * BLOCK) + 40 * BLOCK * bytes_each)


def test_swapped_blocks_leave_room_for_two():
    half = resident(TrainingState(num_adapter_weights=0, swapped_layers=20))
    all_of_them = resident(TrainingState(num_adapter_weights=0, swapped_layers=40))

    assert half.weights == pytest.approx(2 * (P - 20 * BLOCK) + 2 * 2 * BLOCK)
    assert all_of_them.weights == pytest.approx(2 * (P - 40 * BLOCK) + 2 * 2 * BLOCK)


def test_encoders_and_communicators_are_items_of_their_own():
    use = resident(TrainingState(frozen_encoder_bytes=9e9, num_communicators=4))

    assert (use.encoders, use.communicators) == (9e9, 4 * COMMUNICATOR_BYTES)
    assert use.total - resident(FULL_TRAINING).total == pytest.approx(9e9 + 4 * COMMUNICATOR_BYTES)


def test_the_allocator_reserves_a_share_of_what_launches_use():
    made = launch_activations(WAN_14B, 1560, 1, 1, 2)
    use = launch_use(resident(FULL_TRAINING), made, 0, TrainingState(reserve_share=0.1))

    assert use.reserve == pytest.approx(0.1 * (use.activations + use.workspace))
    assert use.total == pytest.approx(use.resident + 1.1 * (use.activations + use.workspace))


def test_a_wan_block_keeps_68_bytes_per_width_and_4_per_feed_forward_width():
    # bfloat16: (22·d + 2·f)·2 + 24·d bytes for each of 100 video tokens, and 4·d·2 + 4·d for text.
    d, f = 5120, 13824
    made = launch_activations(WAN_14B, 100, 1, 1, 2)

    block_bytes = 100 * (68 * d + 4 * f) + 512 * 12 * d
    assert made.runs == ((40, block_bytes, 100 * d * 2),)
    assert made.work_bytes == block_bytes
    assert made.ends_bytes == 100 * 10 * d + 512 * (3 * d + 4096) * 2


def test_stacked_clips_keep_as_much_as_clips_one_by_one():
    for shape in (WAN_14B, HUNYUAN):
        one, three = (launch_activations(shape, 100, clips, 2, 2) for clips in (1, 3))
        assert three.kept_bytes(5) == pytest.approx(3 * one.kept_bytes(5))
        assert three.work_bytes == pytest.approx(3 * one.work_bytes)


def test_recomputed_blocks_keep_their_input_the_first_ones_first():
    made = launch_activations(HUNYUAN, 1000, 1, 1, 2)
    (num_dual, dual, entered), (num_single, single, _) = made.runs

    assert (num_dual, num_single) == (20, 40)
    assert dual > single > entered
    assert made.kept_bytes(0) == pytest.approx(made.ends_bytes + 20 * dual + 40 * single)
    assert made.kept_bytes(15) == pytest.approx(
        made.ends_bytes + 15 * entered + 5 * dual + 40 * single
    )
    assert made.kept_bytes(30) == pytest.approx(made.ends_bytes + 30 * entered + 30 * single)
    assert made.kept_bytes(60) == pytest.approx(made.ends_bytes + 60 * entered)


def test_inputs_on_the_host_take_nothing_here():
    made = launch_activations(HUNYUAN, 1000, 1, 1, 2)

    on_host = made.kept_bytes(60, are_inputs_on_host=True)
    assert on_host == pytest.approx(made.ends_bytes)
    assert made.kept_bytes(0, are_inputs_on_host=True) == made.kept_bytes(0)


def test_text_is_shared_out_in_joint_attention_alone():
    cog = family_named("cogvideox_2b").presets["cogvideox-2b"]

    for shape, is_split in ((cog, True), (WAN_14B, False)):
        whole, half = (
            launch_activations(shape, 8, 1, degree, 2).kept_bytes(0) for degree in (1, 2)
        )
        assert (half == pytest.approx(whole / 2)) == is_split


@given(
    shape=st.sampled_from(PRESETS),
    num_tokens=st.integers(1, 200_000),
    num_clips=st.integers(1, 4),
    degrees=st.lists(st.integers(1, 64), min_size=2, max_size=2).map(sorted),
    element_bytes=st.sampled_from([2, 4]),
    is_adapted=st.booleans(),
    level=st.integers(0, 60),
)
def test_a_larger_degree_and_more_recomputing_never_need_more(
    shape, num_tokens, num_clips, degrees, element_bytes, is_adapted, level
):
    fewer, more = (
        launch_activations(shape, num_tokens, num_clips, degree, element_bytes, is_adapted)
        for degree in degrees
    )

    assert more.kept_bytes(level) <= fewer.kept_bytes(level)
    assert more.work_bytes <= fewer.work_bytes
    assert fewer.kept_bytes(level + 1) <= fewer.kept_bytes(level)
    assert fewer.kept_bytes(level, are_inputs_on_host=True) <= fewer.kept_bytes(level)


def test_the_first_level_that_fits_is_taken_else_the_last():
    made = launch_activations(WAN_14B, 10_000, 1, 1, 2)
    levels = (0, 10, 20, 30, 40)
    needed = [launch_use(MemoryUse(), made, level).total for level in levels]

    assert fitting_use(MemoryUse(), made, levels, needed[0])[0] == 0
    assert fitting_use(MemoryUse(), made, levels, needed[0] - 1)[0] == 10
    assert fitting_use(MemoryUse(), made, levels, needed[3])[0] == 30
    assert fitting_use(MemoryUse(), made, levels, needed[4] - 1) == (
        40,
        launch_use(MemoryUse(), made, 40),
    )


def test_the_sum_reads_as_people_write_it():
    use = MemoryUse(weights=25.6e9, gradients=51.3e9, workspace=1e9)

    assert use.text == "weights 25.6 GB + gradients 51.3 GB + workspace 1 GB = 77.9 GB"
    assert use.items == (("weights", 25.6e9), ("gradients", 51.3e9), ("workspace", 1e9))


@pytest.mark.parametrize("shape", PRESETS, ids=lambda shape: shape.family)
def test_blocks_hold_nearly_all_parameters(shape):
    counts = model_counts(shape)

    assert 0.95 < counts.block_parameters * shape.num_blocks / counts.parameters < 1.0


def test_adapters_are_counted_rather_too_many():
    # Wan-14B: 8 projections of d × d and two of d × f in each of 40 blocks.
    exact = 40 * 16 * (8 * 2 * 5120 + 2 * (5120 + 13824))

    assert exact <= lora_weights(WAN_14B, 16) <= 1.2 * exact


def test_adapters_of_attention_are_fewer():
    d, rank = 5120, 16  # Wan: four matrices to attend to itself, four to attend to text
    assert lora_weights(WAN_14B, rank, only_attention=True) == 40 * 8 * 2 * d * rank

    d = HUNYUAN.hidden_size  # 20 blocks with eight matrices, 40 with three
    exact = (20 * 8 + 40 * 3) * 2 * d * rank
    assert exact <= lora_weights(HUNYUAN, rank, only_attention=True) < lora_weights(HUNYUAN, rank)
