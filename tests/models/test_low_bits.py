"""Frozen weights in 4 or 8 bits: smaller, near the model, and adapters beside them learn."""

from importlib.util import find_spec

import pytest
import torch

from arachne.core.errors import ConfigError
from arachne.cost.cluster_files import load_cluster
from arachne.models.codec import DctCodec
from arachne.models.float8 import Float8Linear
from arachne.models.hashed_text import HashedTextEncoder
from arachne.models.lora import adapter_tensors
from arachne.trainer.built_model import training_model
from arachne.trainer.planning import run_costs
from arachne.trainer.settings.lora import LoraSettings
from arachne.trainer.settings.memory import MemorySettings
from arachne.trainer.settings.model import ModelSettings
from arachne.trainer.settings.planner import PlannerSettings
from tests.models.tiny_transformers import tiny_inputs
from tests.trainer.tiny_runs import changed, tiny_config

needs_bitsandbytes = pytest.mark.skipif(
    find_spec("bitsandbytes") is None, reason="the extra eight-bit is not installed"
)


def config_of(folder, base):
    config = tiny_config(folder, folder / "run", dtype="float32")
    config = changed(config, "model", num_heads=4, head_size=16, ffn_size=128, num_layers=2)
    return changed(changed(config, "lora", rank=2), "memory", base=base)


@pytest.mark.parametrize(
    ("base", "bytes_each", "error"),
    [
        ("fp8", 1.0, 0.05),
        pytest.param("nf4", 0.5, 0.3, marks=needs_bitsandbytes),
        pytest.param("int8", 1.0, 0.05, marks=needs_bitsandbytes),
    ],
)
def test_the_blocks_take_few_bits_and_the_adapters_get_a_gradient(
    tmp_path, base, bytes_each, error
):
    encoders = DctCodec(), HashedTextEncoder(num_tokens=4)
    plain = training_model(config_of(tmp_path, "model"), *encoders)
    stored = training_model(config_of(tmp_path, base), *encoders)
    layer = stored.module.blocks[0].attn1.to_q.get_base_layer()
    assert layer.weight.nbytes == bytes_each * 64 * 64
    assert {p.dtype for p in stored.module.parameters() if p.requires_grad} == {torch.float32}
    inputs = tiny_inputs(plain, 1, torch.float32)
    needed, found = plain.predict(*inputs), stored.predict(*inputs)
    off = (found.detach() - needed.detach()).norm() / needed.detach().norm()
    assert 0.0 < float(off) < error
    found.pow(2).mean().backward()
    trained = {n: p for n, p in stored.module.named_parameters() if p.requires_grad}
    names = {name for name, p in plain.module.named_parameters() if p.requires_grad}
    assert trained.keys() == names
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in trained.values())
    assert any(p.grad.abs().max() > 0 for n, p in trained.items() if "lora_B" in n)


@pytest.mark.parametrize(
    ("memory", "lora", "words"),
    [
        ({"base": "nf4"}, {}, r"memory\.base is 'nf4', but weights of few bits cannot be trained"),
        ({"base": "nf4", "swapped_blocks": 1}, {"rank": 2}, "does not go with memory.swapped_bl"),
        ({"base": "int8"}, {"rank": 2, "use_dora": True}, "does not go with lora.use_dora"),
        ({"swapped_blocks": 1}, {}, "every weight is trained, and only frozen ones can wait"),
        ({"swapped_blocks": 1}, {"rank": 2}, r"set planner\.recompute = 'all'"),
    ],
)
def test_what_cannot_work_is_refused(memory, lora, words):
    with pytest.raises(ConfigError, match=words):
        MemorySettings(**memory).check(ModelSettings(), LoraSettings(**lora), PlannerSettings())


def test_inputs_wait_on_the_host_only_where_blocks_are_recomputed():
    planner = PlannerSettings(recompute="none")
    with pytest.raises(ConfigError, match=r"inputs_on_host is for blocks that are recomputed"):
        MemorySettings(inputs_on_host=True).check(ModelSettings(), LoraSettings(), planner)


def test_memory_is_planned_with_the_bits_of_the_base(tmp_path):
    cluster = load_cluster("h100x1")
    found = {}
    for base in ("model", "fp8", "int8", "nf4"):
        config = config_of(tmp_path, base)
        shape = config.model.shape(latent_channels=48, text_size=16)
        found[base] = run_costs(config, shape, cluster, on_gpus=True).state.base_bits
    assert found == {"model": None, "fp8": 8, "int8": 8, "nf4": 4}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_float8_layer_is_the_layer_of_its_rounded_weights(dtype, has_bias):
    torch.manual_seed(0)
    layer = torch.nn.Linear(24, 10, bias=has_bias, dtype=dtype)
    with torch.no_grad():
        layer.weight[3] = 0.0
        layer.weight[4] *= 1e4
    stored = Float8Linear(layer)
    rounded = stored.weight.to(dtype) * stored.scale[:, None]
    off = (rounded - layer.weight).abs() / layer.weight.abs().amax(1, keepdim=True).clamp(min=1e-9)
    held = stored.weight.to(dtype).abs().amax(1)
    rows = [row for row in range(10) if row != 3]
    assert (held[rows] == 448.0).all(), "every row reaches the largest number, however small it is"
    assert 0.0 < float(off.detach().max()) <= 2.0**-4, "half of e4m3's spacing beside the largest"
    assert not rounded[3].any()
    x, same_x = (torch.randn(2, 5, 24, dtype=dtype, generator=seeded()) for _ in range(2))
    x.requires_grad_()
    same_x.requires_grad_()
    needed = torch.nn.functional.linear(same_x, rounded, layer.bias)
    found = stored(x)
    assert found.dtype == dtype
    tolerance = 40.0 * torch.finfo(dtype).eps
    assert (found - needed).norm() <= tolerance * needed.norm()
    weights = torch.randn(found.shape, dtype=dtype, generator=seeded())
    (found * weights).sum().backward()
    (needed * weights).sum().backward()
    assert x.grad is not None
    assert same_x.grad is not None
    assert (x.grad - same_x.grad).norm() <= tolerance * same_x.grad.norm()


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_adapters_beside_float8_weights_start_as_beside_others(tmp_path):
    encoders = DctCodec(), HashedTextEncoder(num_tokens=4)
    plain, stored = (
        adapter_tensors(training_model(config_of(tmp_path, base), *encoders).module)
        for base in ("model", "fp8")
    )
    assert plain.keys() == stored.keys()
    assert all(torch.equal(stored[name], plain[name]) for name in plain)
