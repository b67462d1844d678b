"""Adapters: where they go, how they start, and that any split keeps their gradient."""

import itertools
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn

from arachne.core.errors import ConfigError
from arachne.core.launch_mode import LaunchMode
from arachne.cost.training_state import lora_weights
from arachne.models.diffusers_module import build_transformer
from arachne.models.lora import (
    AdapterOptions,
    adapter_targets,
    adapter_tensors,
    add_adapters,
    merge_adapters,
    remove_adapters,
    set_adapter_tensors,
)
from arachne.runtime import collectives
from arachne.runtime.launcher import run_ranks
from arachne.runtime.sequence_parallel import install, sequence_parallel
from tests.models.tiny_transformers import tiny_inputs, tiny_shape, tiny_transformer
from tests.runtime.rank_groups import open_groups
from tests.runtime.tiny_wan import float64_everywhere

pytestmark = pytest.mark.filterwarnings("ignore:In CPU autocast")  # Mochi asks for float32

OPTIONS = AdapterOptions(rank=2, alpha=6.0)


def adapted(
    family="wan",
    targets="attention+ffn",
    options=OPTIONS,
    dtype=torch.float64,
    *,
    seed=7,
    text_tokens=5,
):
    """A tiny transformer whose adapters have learned something."""
    shape = replace(tiny_shape(family), text_tokens=text_tokens)
    model = build_transformer(shape, dtype=dtype, seed=0)
    names = adapter_targets(model.module, model.layout, targets, model.family.frozen)
    add_adapters(model.module, names, options, seed=seed)
    learn(model.module)
    return model


def learn(module):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "lora_B" in name:
                drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(drawn * 0.05)
            elif "magnitude" in name:
                parameter.mul_(1.1)


def output_of(model, dtype=torch.float64):
    with torch.no_grad():
        return model.predict(*tiny_inputs(model, 2, dtype))


def error(found, needed):
    return float((found - needed).norm() / needed.norm())


@pytest.mark.parametrize(
    ("family", "targets", "num_layers"),
    [
        ("wan", "attention", 2 * 8),
        ("wan", "attention+ffn", 2 * 10),
        ("wan", "all-linear", 2 * 10),
        ("wan", ["attn1.to_q", "to_v"], 2 * 3),
        ("wan", ["proj_out"], 1),
        ("hunyuan_video", "attention", 2 * 8 + 3),
        ("hunyuan_video", "attention+ffn", 2 * 12 + 5),
        ("hunyuan_video", "all-linear", 2 * 14 + 6),
        ("ltx", "attention+ffn", 2 * 10),
        ("ltx2", "attention", 2 * 8),
        ("ltx2", "all-linear", 2 * 10),
        ("ltx2", ["to_q"], 2 * 2),
    ],
)
def test_targets_name_linear_layers_of_the_family(family, targets, num_layers):
    model = tiny_transformer(family)
    names = adapter_targets(model.module, model.layout, targets, model.family.frozen)
    assert len(names) == len(set(names)) == num_layers
    modules = dict(model.module.named_modules())
    assert all(isinstance(modules[name], nn.Linear) for name in names)
    assert list(names) == [name for name in modules if name in set(names)], "the model's order"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("attn1.to_w", "did you mean 'attn1.to_"),
        ("norm2", "holds 'norm2', which ends no linear layer's name"),
        ("tn1.to_q", "did you mean 'attn1.to_q'"),
    ],
)
def test_a_target_that_is_no_linear_layer_is_refused(target, words):
    model = tiny_transformer("wan")
    with pytest.raises(ConfigError, match=words):
        adapter_targets(model.module, model.layout, ["to_q", target])


@pytest.mark.parametrize(
    ("family", "use_dora"),
    [("wan", False), ("wan", True), ("hunyuan_video", False), ("ltx", True), ("mochi", False)],
)
def test_new_adapters_change_nothing_and_are_all_that_is_trained(family, use_dora):
    model = tiny_transformer(family)
    before = output_of(model)
    names = adapter_targets(model.module, model.layout, "all-linear")
    state = torch.get_rng_state()

    add_adapters(model.module, names, AdapterOptions(rank=2, alpha=1.0, use_dora=use_dora), seed=0)

    assert torch.equal(torch.get_rng_state(), state), "the global generator moved"
    assert error(output_of(model), before) < 1e-12
    trained = {n for n, p in model.module.named_parameters() if p.requires_grad}
    assert len(trained) == len(names) * (3 if use_dora else 2)
    assert all("lora_" in name for name in trained)


def test_a_start_depends_on_the_seed_and_the_layers_name_alone():
    few = adapter_tensors(adapted(targets=["attn2.to_k"]).module)
    many = adapter_tensors(adapted(targets="all-linear").module)
    other = adapter_tensors(adapted(targets=["attn2.to_k"], seed=8).module)
    firsts = [name for name in few if "lora_A" in name]
    assert len(firsts) == 2
    for name in firsts:
        assert torch.equal(few[name], many[name])
        assert not torch.equal(few[name], other[name])
        assert 0.5 < float(few[name].abs().max() * few[name].shape[1] ** 0.5) <= 1.0
    assert not torch.equal(*(few[name] for name in firsts))


@pytest.mark.parametrize("use_dora", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_merged_is_unmerged_to_rounding(use_dora, dtype, tolerance):
    options = AdapterOptions(rank=2, alpha=6.0, use_dora=use_dora)
    model = adapted(targets="all-linear", options=options, dtype=dtype)
    plain = tiny_transformer("wan", dtype)
    with float64_everywhere() if dtype == torch.float64 else nullcontext():
        needed = output_of(model, dtype)

        merge_adapters(model.module)

        assert error(output_of(plain, dtype), needed) > 1e-3, "the adapters did something"
        assert 0.0 < error(output_of(model, dtype), needed) < tolerance
    assert [n for n, _ in model.module.named_parameters()] == [
        n for n, _ in plain.module.named_parameters()
    ]


def test_removing_adapters_leaves_the_frozen_model():
    model = adapted()
    remove_adapters(model.module)
    assert torch.equal(output_of(model), output_of(tiny_transformer("wan")))


def test_adapters_take_over_each_others_tensors():
    model, other = adapted(), adapted(seed=9)
    assert error(output_of(other), output_of(model)) > 1e-4
    set_adapter_tensors(other.module, adapter_tensors(model.module))
    assert torch.equal(output_of(other), output_of(model))


def test_in_bfloat16_adapters_have_the_layers_type():
    model = adapted(dtype=torch.bfloat16)
    assert {p.dtype for p in model.module.parameters()} == {torch.bfloat16}


CASES = [
    ("wan", "all-linear", True),
    ("wan", ["attn1.to_q", "proj_out"], False),
    ("hunyuan_video", "all-linear", False),
]


WIDE_CASES = [("wan", "all-linear", True), ("hunyuan_video", "all-linear", False)]
"""Of groups of more ranks than there are heads, some of which hold none."""


def errors_of_splits(world, cases):
    """By case, ring and recomputed blocks: error of the adapters' gradient over its norm."""
    _, groups = open_groups(world)
    errors = {}
    with float64_everywhere():
        for case, (family, targets, use_dora) in enumerate(cases):
            options = AdapterOptions(rank=2, alpha=6.0, use_dora=use_dora)
            errors |= _errors_of_case(world, groups.world, case, (family, targets, options))
    return errors


def _errors_of_case(world, group, case, arguments):
    # Joint attention needs a word on each rank.
    model = adapted(*arguments, text_tokens=max(5, world.size + 1))
    parameters = [p for p in model.module.parameters() if p.requires_grad]

    def loss(num_clips):
        latents, sigma, text = tiny_inputs(model, num_clips)
        return (model.predict(latents, sigma, text) - latents).pow(2).mean()

    expected = {n: torch.autograd.grad(loss(n), parameters) for n in (1, 2)}
    install(model.module, model.layout)
    rings = [ring for ring in range(1, world.size + 1) if world.size % ring == 0]
    errors = {}
    for ring, (num_clips, layers) in itertools.product(rings, ((1, 0), (2, 2))):
        model.module.zero_grad()
        with sequence_parallel(group, LaunchMode(ring=ring, recompute_layers=layers)):
            (loss(num_clips) / world.size).backward()
        squares = torch.zeros(2, dtype=torch.float64)
        for parameter, wanted in zip(parameters, expected[num_clips], strict=True):
            total = torch.zeros_like(wanted) if parameter.grad is None else parameter.grad
            collectives.all_reduce_sum(total, group)
            squares += torch.stack([(total - wanted).pow(2).sum(), wanted.pow(2).sum()])
        assert all(p.grad is None for p in model.module.parameters() if not p.requires_grad)
        errors[case, ring, layers] = float((squares[0] / squares[1]).sqrt())
    return errors


@pytest.mark.distributed
@pytest.mark.parametrize(("world_size", "num_rings"), [(1, 1), (2, 2), (3, 2)])
def test_any_split_has_the_adapters_gradient_of_one_process(world_size, num_rings):
    for errors in run_ranks(world_size, errors_of_splits, (CASES,), timeout_s=60.0):
        assert len(errors) == len(CASES) * num_rings * 2
        assert max(errors.values()) < 1e-12, errors


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("world_size", "num_rings"), [(5, 2), (6, 4), (8, 4)])
def test_so_has_a_split_over_more_ranks_than_heads(world_size, num_rings):
    for errors in run_ranks(world_size, errors_of_splits, (WIDE_CASES,), timeout_s=120.0):
        assert len(errors) == len(WIDE_CASES) * num_rings * 2
        assert max(errors.values()) < 1e-12, errors


@pytest.mark.parametrize("family", ["wan", "hunyuan_video", "ltx", "cogvideox"])
def test_planning_counts_no_fewer_adapters_than_there_are(family):
    model = adapted(family, "attention")
    built = sum(value.numel() for value in adapter_tensors(model.module).values())
    counted = lora_weights(model.shape, OPTIONS.rank, only_attention=True)
    assert counted == built if family == "wan" else built <= counted <= 2 * built
