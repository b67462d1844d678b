"""Backends of diffusers' attention registry: what they compute, and which are refused."""

import pytest
import torch
from diffusers.models import attention_dispatch as registry

from arachne.core.errors import ConfigError
from arachne.core.launch_mode import LaunchMode
from arachne.runtime import local_attention
from arachne.runtime.launcher import run_ranks
from arachne.runtime.local_attention import prefer_kernel
from arachne.runtime.sequence_parallel import install, sequence_parallel
from tests.runtime.plans import BUCKETS, batch_of
from tests.runtime.rank_groups import open_groups
from tests.runtime.test_launch_modes import relative_error
from tests.runtime.tiny_wan import float64_everywhere, gradient_of_one_process, loss_of, tiny_wan

CPU = torch.device("cpu")
BATCH = batch_of([BUCKETS[1]])
MATH = registry.AttentionBackendName._NATIVE_MATH
BACKENDS = registry._AttentionBackendRegistry._backends


@pytest.fixture(autouse=True)
def nothing_preferred():
    yield
    prefer_kernel("auto", CPU)


def put_in_place_of_math(backend, monkeypatch):
    monkeypatch.setitem(BACKENDS, MATH, backend)


def errors_and_calls(world):
    """In one launch of all ranks, by ring: the gradient's error, and the backend's calls."""
    calls = []
    real = BACKENDS[MATH]

    def counting(**inputs):
        calls.append(tuple(inputs["query"].shape))
        return real(**inputs)

    _, groups = open_groups(world)
    with float64_everywhere():
        model = tiny_wan(4)
        expected = gradient_of_one_process(model, BATCH, torch.float64)
        install(
            model.module,
            model.layout,
            prefer_kernel("diffusers:_native_math", CPU, dtype=torch.float64, head_size=12),
        )
        BACKENDS[MATH] = counting
        found = {}
        for ring in {1, world.size}:
            calls.clear()
            model.module.zero_grad()
            with sequence_parallel(groups.world, LaunchMode(ring=ring)):
                (loss_of(model, BATCH, (0,), torch.float64) / world.size).backward()
            found[ring] = relative_error(model, expected, groups.world), list(calls)
    return found


@pytest.mark.distributed
@pytest.mark.parametrize(("world_size", "heads"), [(1, [4]), (3, [2, 1, 1])])
def test_a_backend_computes_self_attention_of_whole_sequences(world_size, heads):
    of_ranks = run_ranks(world_size, errors_and_calls, timeout_s=30.0)
    for found, num_heads in zip(of_ranks, heads, strict=True):
        error, calls = found[1]
        assert error < 1e-12
        assert calls == [(1, 18, num_heads, 12)] * 2, "one call a layer, and none across to text"
        if world_size > 1:
            error, calls = found[world_size]
            assert error < 1e-12
            assert not calls, "rings have kernels of their own"


@pytest.mark.parametrize("name", ["native", "_native_math", "_native_flash"])
def test_every_backend_gives_torchs_result_and_masks_stay_with_torch(name):
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 9, 8, generator=generator, dtype=torch.float64)
    mask = torch.arange(9).view(1, 1, 1, 9) < 5
    for each in (None, mask):
        expected = local_attention.local_attention(query, key, value, each, scale=0.3)
        assert prefer_kernel(f"diffusers:{name}", CPU, dtype=query.dtype, head_size=8) == "auto"
        found = local_attention.self_attention(query, key, value, each, scale=0.3)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_another_kernel_puts_the_backend_away(monkeypatch):
    prefer_kernel("diffusers:_native_math", CPU)
    put_in_place_of_math(None, monkeypatch)  # a call would fail
    prefer_kernel("math", CPU)
    query = torch.ones(1, 1, 2, 8)
    assert local_attention.self_attention(query, query, query, None, scale=None).shape == (
        query.shape
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("xformer", "'xformer', which this diffusers does not know; did you mean 'xformers'"),
        ("sage", "'sage', which cannot train torch.float32 heads of 64 on 'cpu' .*use 'auto'"),
    ],
)
def test_what_is_not_known_or_cannot_be_loaded_is_refused_in_one_line(name, message):
    with pytest.raises(ConfigError, match=message) as caught:
        prefer_kernel(f"diffusers:{name}", CPU)
    assert "\n" not in str(caught.value)


def test_a_backend_without_backward_is_refused(monkeypatch):
    put_in_place_of_math(lambda query, **_: query.detach().clone(), monkeypatch)
    with pytest.raises(ConfigError, match=r"cannot train .*does not require grad"):
        prefer_kernel("diffusers:_native_math", CPU)


def test_a_backend_with_other_results_is_refused(monkeypatch):
    put_in_place_of_math(lambda query, key, value, **_: query + key + value, monkeypatch)
    monkeypatch.setitem(
        registry._AttentionBackendRegistry._supported_arg_names, MATH, {"query", "key", "value"}
    )
    with pytest.raises(ConfigError, match=r"results are [0-9]+ % off torch's"):
        prefer_kernel("diffusers:_native_math", CPU)
