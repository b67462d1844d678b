from dataclasses import replace
from pathlib import Path

import pytest

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.families import family_named
from arachne.core.strict_toml import load_toml
from arachne.cost.cluster_files import load_cluster
from arachne.cost.fitting import fitting_states, fitting_text, misfit_text
from arachne.cost.launch_modes import ONE_MODE, CostOptions
from arachne.cost.model import CostModel
from arachne.cost.training_state import FULL_TRAINING, TrainingState, lora_weights
from arachne.trainer.config import RunConfig


def question(
    preset: str,
    bucket: str,
    cluster: str,
    degree: int,
    state: TrainingState = FULL_TRAINING,
    options: CostOptions = ONE_MODE,
) -> tuple[CostModel, Cascade, tuple[int, ...]]:
    family = family_named({"hunyuanvideo-13b": "hunyuan_video"}.get(preset, "wan"))
    shape = Bucket.parse(bucket)
    costs = CostModel(
        model=family.presets[preset],
        cluster=load_cluster(cluster),
        element_bytes=2,
        state=state,
        options=options,
    )
    tokens = family.geometry.num_tokens(shape)
    cascade = Cascade(module="dit", slots=(0,), bucket=shape, num_tokens=tokens)
    return costs, cascade, tuple(range(degree))


HUNYUAN = question("hunyuanvideo-13b", "848x480x129", "h100x16", 16)
WAN_14B = family_named("wan").presets["wan-14b"]
LORA = TrainingState(num_adapter_weights=lora_weights(WAN_14B, 16))


def test_a_13b_model_on_80_gigabytes_is_told_what_would_fit():
    costs, cascade, gpus = HUNYUAN

    assert not costs.fits(cascade, gpus)
    assert fitting_text(costs, cascade, gpus) == (
        "fits with optimizer.gradients=bfloat16 and planner.recompute=auto (70.3 GB), or with "
        "optimizer.gradients=host (68.3 GB), or with lora.rank=16 (53.7 GB)"
    )


@pytest.mark.parametrize(
    "asked",
    [
        HUNYUAN,
        question("wan-14b", "832x480x81", "h100x8", 8),
        question("wan-14b", "832x480x81", "rtx4090x1", 1, LORA),
        question("wan-14b", "832x480x81", "rtx4090x4", 2, LORA),
        question("wan-1.3b", "832x480x1", "h100x8", 1, LORA),
    ],
    ids=lambda asked: asked[0].cluster.name,
)
def test_all_that_is_offered_fits_and_the_cheapest_comes_first(asked):
    costs, cascade, gpus = asked
    states = fitting_states(costs, cascade, gpus)

    assert states
    for state in states:
        assert state.costs.fits(cascade, gpus)
        assert state.cost.memory.total <= costs.memory_bytes
        is_told = any(change.startswith("planner.recompute=") for change in state.changes)
        assert is_told == (state.cost.mode.recompute_layers > 0)
        assert state.launch_s == state.costs.launch_s(cascade, gpus)
        if state.costs.state.are_inputs_on_host:
            assert state.cost.mode.recompute_layers > 0
    assert list(states) == sorted(states, key=lambda state: state.launch_s)


def test_14b_adapters_at_480p_and_81_frames_fit_24_gigabytes_with_4_bits():
    costs, cascade, gpus = question("wan-14b", "832x480x81", "rtx4090x1", 1, LORA)
    cheapest = fitting_states(costs, cascade, gpus)[0]

    assert cheapest.changes == (
        "memory.base=nf4",
        "memory.inputs_on_host=true",
        "planner.recompute=auto",
    )
    # Weights 8.55, gradients 0.35, optimizer 1.05, one block at work 8.88.
    assert cheapest.cost.memory.total == pytest.approx(18.83e9, rel=0.001)


def test_block_inputs_alone_fill_more_than_half_of_24_gigabytes():
    costs, cascade, gpus = question("wan-14b", "832x480x81", "rtx4090x1", 1, LORA)
    smallest = replace(LORA, base_bits=4, swapped_layers=40)
    here = replace(costs, state=smallest, options=CostOptions(recompute="all"))

    assert here.memory(cascade, gpus).activations == pytest.approx(40 * 32760 * 5120 * 2, rel=0.15)
    assert not here.fits(cascade, gpus)


def test_what_fits_as_it_is_comes_with_no_change():
    costs, cascade, gpus = question("wan-1.3b", "832x480x1", "h100x8", 1)
    states = fitting_states(costs, cascade, gpus)

    assert () in {state.changes for state in states}


def test_changes_that_are_not_needed_are_not_told():
    asked = question("wan-1.3b", "832x480x81", "h100x8", 1)

    text = fitting_text(*asked)
    assert text.startswith("fits with planner.recompute=auto (50.3 GB)")
    assert "bfloat16" not in text
    assert "lora" not in text


RUN_FILE = '[run]\ndir = "r"\nsteps = 1\n[data]\npath = "d"\ncache = "c"\n'


@pytest.mark.parametrize(
    ("asked", "lora_rank"),
    [
        (HUNYUAN, 0),
        (question("wan-14b", "832x480x81", "h100x8", 8), 0),
        (question("wan-14b", "832x480x81", "rtx4090x1", 1, LORA), 16),
        (question("wan-14b", "832x480x49", "rtx4090x4", 4), 0),
    ],
    ids=["13b", "14b", "adapters", "24 GB"],
)
def test_all_that_is_offered_is_what_a_run_file_takes(tmp_path: Path, asked, lora_rank: int):
    (tmp_path / "run.toml").write_text(RUN_FILE)
    found = fitting_states(*asked)

    assert found
    for state in found:
        sizes = ["model.preset=wan-14b", f"lora.rank={lora_rank}"]
        overrides = [*sizes, *state.changes]
        config = load_toml(tmp_path / "run.toml", RunConfig, overrides=overrides)
        told = state.costs.state
        assert (config.optimizer.gradients, config.memory.base_bits) == (
            told.gradients,
            told.base_bits,
        )
        assert config.memory.swapped_blocks == told.swapped_layers
        assert config.memory.inputs_on_host == told.are_inputs_on_host
        assert config.lora.is_on == (told.num_adapter_weights is not None)


def test_a_machine_without_a_second_memory_is_not_offered_its_host():
    costs, cascade, gpus = question("wan-14b", "832x480x81", "rtx4090x1", 1, LORA)
    no_host = replace(costs.cluster, device=replace(costs.cluster.device, name="CPU core"))

    assert fitting_states(costs, cascade, gpus)
    assert fitting_states(replace(costs, cluster=no_host), cascade, gpus) == ()


def test_nothing_is_told_where_nothing_helps():
    assert fitting_text(*question("wan-14b", "1280x720x801", "rtx4090x1", 1)) == ""


def test_an_encoder_finds_room_where_less_is_stored_for_training():
    costs, cascade, _ = question("wan-14b", "832x480x81", "h100x16", 1)
    encoding = replace(cascade, module="vae")

    assert not costs.fits(encoding, (0,))
    assert fitting_text(costs, encoding, (0,)).startswith(
        "fits with optimizer.gradients=bfloat16 (7"
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            question("wan-1.3b", "832x480x1", "h100x24", 24, options=CostOptions(needs_heads=True)),
            "would leave some of 24 GPUs without one of the model's 12 attention heads; lower "
            "planner.max_degree, or set planner.ring=auto",
        ),
        (
            question("wan-1.3b", "832x480x1", "h100x8", 2, TrainingState(parameter_shards=4)),
            "would run on 2 GPUs, but groups of 4 share out the parameters; allow degrees that are "
            "multiples of 4",
        ),
        (
            question("wan-1.3b", "32x32x1", "h100x8", 8),
            "has too few tokens for 8 GPUs; lower planner.max_degree",
        ),
    ],
    ids=["heads", "groups", "tokens"],
)
def test_what_memory_cannot_mend_has_its_own_words(asked, message: str):
    costs, cascade, gpus = asked

    assert not costs.fits(cascade, gpus)
    assert misfit_text(costs, cascade, gpus) == message


def test_encoding_on_several_gpus_has_its_own_words():
    costs, cascade, _ = question("wan-1.3b", "832x480x81", "h100x8", 1)

    assert misfit_text(costs, replace(cascade, module="text"), (0, 1)) == (
        "cannot be encoded (text) by 2 GPUs together; allow degree 1"
    )
