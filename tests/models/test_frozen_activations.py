"""Memory of partly frozen models as it is planned, against what autograd keeps and what trains."""

from dataclasses import replace

import pytest
import torch

from arachne.core.errors import ConfigError
from arachne.core.families import family_named
from arachne.cost.activations import launch_activations
from arachne.cost.memory import resident_use
from arachne.cost.training_state import TrainingState
from arachne.models.families import transformer_named
from arachne.trainer.settings.model import ModelSettings
from arachne.trainer.trained_parameters import choose_trained, planned_part, trained_part
from tests.models.test_activation_counts import (
    DTYPE,
    GRIDS,
    filled,
    forward_of,
    kept_bytes,
    num_tokens_of,
    small,
)

CASES = {
    "the last block of wan": ("wan", "blocks.3.*", ("passed",) * 3 + ("trained",)),
    "two blocks of wan": (
        "wan",
        "blocks.[13].*",
        ("passed", "trained", "frozen", "trained"),
    ),
    "the patch embedding of wan": ("wan", "patch_embedding.*", ("frozen",) * 4),
    "attention of wan": ("wan", "blocks.*.attn*", ("trained",) * 4),
    "a block of cogvideox": (
        "cogvideox",
        "transformer_blocks.2.*",
        ("passed", "passed", "trained", "frozen"),
    ),
    "a single block of hunyuan_video": (
        "hunyuan_video",
        "single_transformer_blocks.0.*",
        ("passed",) * 4 + ("trained", "frozen", "frozen"),
    ),
}


@DTYPE
@pytest.mark.parametrize("case", CASES)
def test_activations_are_those_that_autograd_saves_or_somewhat_more(case, dtype: torch.dtype):
    family, pattern, blocks = CASES[case]
    shape, grid = small(family), filled(family, GRIDS["video"])
    module, forward = forward_of(shape, grid, dtype)
    choose_trained(module, ModelSettings(family=family, train_only=(pattern,)))
    part = trained_part(module, transformer_named(family).layout)
    assert part.blocks == blocks
    num_tokens = num_tokens_of(shape, grid)
    joint_tokens = family_named(family).flop_inputs(shape).joint_tokens
    counted = kept_bytes(module, forward, num_tokens + joint_tokens)

    def modelled(trained):
        made = launch_activations(shape, num_tokens, 1, 1, dtype.itemsize, False, trained)
        return made.kept_bytes(0)

    assert 0.99 * counted < modelled(part) < 1.5 * counted
    if "passed" in blocks:
        assert modelled(part) < 0.85 * modelled(None)


def test_gradients_and_optimizer_state_are_those_of_trained_parameters_alone():
    shape = small("wan")
    settings = ModelSettings(
        family="wan",
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        head_size=shape.head_size,
        ffn_size=shape.ffn_size,
        train_only=("blocks.2.*", "proj_out.*"),
        freeze=("*.bias",),
    )
    module, _ = forward_of(shape, GRIDS["video"], torch.float32)
    choose_trained(module, settings)
    counted = sum(p.numel() for p in module.parameters() if p.requires_grad)
    part = trained_part(module, transformer_named("wan").layout)
    whole, partly = (
        resident_use(shape, 2, 2, TrainingState(trained=trained)) for trained in (None, part)
    )
    assert 0 < counted < 0.3 * sum(p.numel() for p in module.parameters())
    assert (partly.gradients, partly.optimizer) == (4 * counted, 12 * counted / 2)
    assert partly.weights == whole.weights


def test_planning_finds_the_part_without_weights():
    settings = ModelSettings(family="wan", preset="wan-1.3b", train_only=("blocks.2?.*",))
    part = planned_part(settings)
    assert part is not None
    assert part.blocks == ("passed",) * 20 + ("trained",) * 10
    counts = family_named("wan").num_parameters
    preset = family_named("wan").presets["wan-1.3b"]
    assert part.num_parameters == counts(preset) - counts(replace(preset, num_layers=20))
    assert planned_part(replace(settings, train_only=())) is None
    with pytest.raises(ConfigError, match=r"model.train_only holds 'block\.2', .* did you mean"):
        planned_part(replace(settings, train_only=("block.2",)))


def test_adapters_and_a_trained_part_exclude_each_other():
    settings = ModelSettings(family="wan", preset="wan-1.3b", train_only=("blocks.2?.*",))
    with pytest.raises(ConfigError, match="adapters are trained alone, or parts of the model"):
        TrainingState(num_adapter_weights=4, trained=planned_part(settings))
