"""Every family that can be built has the gradient of one process on any split, in every mode."""

import functools
import itertools
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from arachne.core.families import FAMILIES
from arachne.core.launch_mode import LaunchMode
from arachne.models import hunyuan_video15
from arachne.models.diffusers_module import build_transformer
from arachne.models.families import TRANSFORMERS
from arachne.models.interface import FirstFrames
from arachne.runtime import collectives
from arachne.runtime.launcher import run_ranks
from arachne.runtime.sequence_parallel import install, sequence_parallel
from tests.models.tiny_transformers import tiny_inputs, tiny_shape
from tests.runtime.rank_groups import open_groups
from tests.runtime.tiny_wan import float64_everywhere

pytestmark = pytest.mark.filterwarnings("ignore:In CPU autocast")  # Mochi asks for float32

STACKS = (1, 2)
KEPT = " with its first frame kept"
CASES = (
    *TRANSFORMERS,
    *(f"{name}{KEPT}" for name, family in FAMILIES.items() if family.keeps_first_frame != "never"),
)
"""Families, and those again whose tokens can have noise levels of their own."""

TOLERANCE = {"mochi": 1e-6}
"""Mochi casts modulations and rotary angles to float32 itself."""


def errors_of_all_families(world):
    """By family, ring, recomputed blocks and clips: error of the gradient over its norm."""
    _, groups = open_groups(world)
    few_tokens = patch.multiple(hunyuan_video15, GLYPH_TOKENS=2, IMAGE_TOKENS=4)
    with float64_everywhere(), few_tokens:
        return {case: errors_of_modes(world, groups.world, case) for case in CASES}


def errors_of_modes(world, group, case):
    name = case.removesuffix(KEPT)
    keeps = case.endswith(KEPT)
    shape = replace(tiny_shape(name), keeps_first_frame=keeps)
    if world.size > shape.text_tokens:  # joint attention needs a word on each rank
        shape = replace(shape, text_tokens=world.size + 1)
    model = build_transformer(shape, dtype=torch.float64, seed=0)
    parameters = list(model.module.parameters())

    def loss(num_clips):
        latents, sigma, text = tiny_inputs(model, num_clips)
        first = FirstFrames(latents=latents[:, :, :1] + 0.5) if keeps else None
        return (model.predict(latents, sigma, text, first) - latents).pow(2).mean()

    expected = {
        num_clips: torch.autograd.grad(loss(num_clips), parameters, materialize_grads=True)
        for num_clips in STACKS
    }
    install(model.module, model.layout)
    rings = [ring for ring in range(1, world.size + 1) if world.size % ring == 0]
    errors = {}
    for ring, (num_clips, layers) in itertools.product(
        rings, zip(STACKS, (0, model.shape.num_blocks), strict=True)
    ):
        model.module.zero_grad()
        with sequence_parallel(group, LaunchMode(ring=ring, recompute_layers=layers)):
            (loss(num_clips) / world.size).backward()
        squares = torch.zeros(2, dtype=torch.float64)
        for parameter, wanted in zip(parameters, expected[num_clips], strict=True):
            total = torch.zeros_like(wanted) if parameter.grad is None else parameter.grad
            collectives.all_reduce_sum(total, group)
            squares += torch.stack([(total - wanted).pow(2).sum(), wanted.pow(2).sum()])
        errors[ring, layers, num_clips] = float((squares[0] / squares[1]).sqrt())
    return errors


@functools.cache
def errors_of_ranks(world_size):
    """All families on one start of the ranks."""
    return run_ranks(world_size, errors_of_all_families, timeout_s=60.0 * max(1, world_size - 3))


def check(world_size, case, num_modes):
    for errors in errors_of_ranks(world_size):
        assert len(errors[case]) == num_modes
        assert max(errors[case].values()) < TOLERANCE.get(case, 1e-12), errors[case]


@pytest.mark.distributed
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_together_have_the_gradient_of_one_process(world_size, case):
    check(world_size, case, 4)


@pytest.mark.slow
@pytest.mark.timeout(900)  # all families on one start of the ranks
@pytest.mark.distributed
@pytest.mark.parametrize("case", CASES)
def test_more_ranks_than_heads_in_rows_and_columns_have_it_too(case):
    check(4, case, 6)


@pytest.mark.slow
@pytest.mark.timeout(900)  # all families on one start of the ranks
@pytest.mark.distributed
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("world_size", "num_modes"), [(6, 8), (12, 12)])
def test_six_and_twelve_ranks_have_it_too(world_size, num_modes, case):
    check(world_size, case, num_modes)
