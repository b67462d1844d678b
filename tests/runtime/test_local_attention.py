"""Which kernel computes attention on one rank, and which cannot be had."""

import os
import subprocess
import sys

import pytest
import torch
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import TorchDispatchMode

from arachne.core.errors import ConfigError
from arachne.runtime import attention_kernels, local_attention
from arachne.runtime.local_attention import prefer_kernel, ring_note

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def nothing_preferred():
    yield
    prefer_kernel("auto", CPU)


class Operations(TorchDispatchMode):
    """Names of the operations that run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


def computed(**rest):
    torch.manual_seed(0)
    query = torch.randn(1, 2, 5, 8, dtype=torch.float64)
    with Operations() as operations:
        mixed = local_attention.local_attention(query, query, query, **rest)
    return mixed, any("flash" in name for name in operations.names)


def test_what_is_preferred_computes_and_the_result_stays():
    expected, uses_flash = computed()
    assert uses_flash  # torch's own choice here
    for name, is_flash in (("math", False), ("flash", True), ("auto", True)):
        assert prefer_kernel(name, CPU) == name  # rings use it too
        mixed, uses_flash = computed()
        assert uses_flash == is_flash
        torch.testing.assert_close(mixed, expected, rtol=1e-12, atol=1e-12)


def test_what_the_preferred_kernel_cannot_do_the_next_one_does():
    mask = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)  # no fused kernel learns it
    expected, _ = computed(attn_mask=mask)
    prefer_kernel("flash", CPU)
    mixed, uses_flash = computed(attn_mask=mask)
    assert not uses_flash
    torch.testing.assert_close(mixed, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("generation", "first"), [(9, SDPBackend.CUDNN_ATTENTION), (8, None), (10, None)]
)
def test_auto_asks_cudnn_first_on_hopper_alone(generation, first, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (generation, 0))
    assert prefer_kernel("auto", GPU) == "auto"
    assert (local_attention._preferred or (None,))[0] == first


def test_it_is_said_where_rings_compute_with_another_kernel(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert ring_note("auto", GPU).startswith("rings compute with torch's FlashAttention 2, other")
    assert ring_note("diffusers:xformers", GPU).endswith("not with 'diffusers:xformers'")
    assert not any(ring_note(name, GPU) for name in ("cudnn", "flash", "flash3", "math"))
    assert not ring_note("auto", CPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert not ring_note("auto", GPU)


WITH_FLASH3 = """
import sys, types
import torch

torch.library.define("flash_attn_3::fwd", "(Tensor x) -> Tensor")
torch.library.define("flash_attn_3::bwd", "(Tensor x) -> Tensor")
sys.modules["flash_attn_interface"] = types.ModuleType("flash_attn_interface")
from arachne.runtime.local_attention import prefer_kernel

replaced = []
impl = torch.library.Library.impl
def noting(self, name, *rest, **named):
    replaced.append(str(name))
    return impl(self, name, *rest, **named)
torch.library.Library.impl = noting
assert prefer_kernel("flash3", torch.device("cuda")) == "flash"
print(*replaced)
"""


@pytest.mark.skipif(
    not hasattr(local_attention.torch_attention, "activate_flash_attention_impl"),
    reason="needs torch 2.11",
)
def test_flash3_takes_the_place_of_the_operations_that_rings_call():
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITH_FLASH3],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    for name in ("forward", "backward"):
        kernel = getattr(attention_kernels, f"_cuda_flash_{name}")
        (called,) = [each for each in kernel.__code__.co_names if "flash" in each]
        assert called in found.stdout.split()


@pytest.mark.parametrize("name", ["cudnn", "flash3"])
def test_kernels_of_gpus_are_refused_on_a_cpu(name):
    with pytest.raises(ConfigError, match=rf"model.attention is '{name}'.*found 'cpu'; use 'auto'"):
        prefer_kernel(name, CPU)


def test_flash3_is_loaded_or_what_is_missing_is_said(monkeypatch):
    loaded = []
    attention = local_attention.torch_attention
    monkeypatch.setattr(attention, "activate_flash_attention_impl", loaded.append, raising=False)
    assert prefer_kernel("flash3", GPU) == "flash"
    assert loaded == ["FA3"]

    def fails(_):
        raise ImportError("No module named 'flash_attn_interface'")

    monkeypatch.setattr(attention, "activate_flash_attention_impl", fails, raising=False)
    with pytest.raises(ConfigError, match=r"flash_attn_interface'.*; install FlashAttention 3"):
        prefer_kernel("flash3", GPU)
    monkeypatch.delattr(attention, "activate_flash_attention_impl", raising=False)
    with pytest.raises(ConfigError, match=r"use torch 2\.11 or newer"):
        prefer_kernel("flash3", GPU)
