"""Attention to parts of the keys: what each kernel gives, and which are refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.errors import ConfigError
from arachne.runtime.attention_kernels import _FUSED, MATH, PartInputs, kernel_named
from arachne.runtime.ring_attention import _merge

CPU_FLASH = _FUSED["cpu", "flash"]


@st.composite
def attentions(draw, is_masked):
    """Queries, keys and values in float64, where the keys are cut, and a mask over them."""
    batch, heads = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    num_queries, lengths = draw(st.integers(1, 9)), draw(st.lists(st.integers(1, 6), min_size=1))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))

    def normal(tokens):
        # In memory the sequence is first, as after the exchange of tokens for heads.
        shape = (tokens, batch, heads, 4)
        return torch.randn(shape, generator=generator, dtype=torch.float64).permute(1, 2, 0, 3)

    num_keys = sum(lengths)
    mask = torch.rand(batch, 1, 1, num_keys, generator=generator) < 0.3
    mask[..., draw(st.integers(0, num_keys - 1))] = True
    if draw(st.booleans()):
        mask = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    tensors = normal(num_queries), normal(num_keys), normal(num_keys), normal(num_queries)
    return *tensors, lengths, mask if is_masked else None


def by_parts(kernel, query, key, value, gradient, lengths, mask):
    """Output and gradients, computed part by part as a ring does."""
    keys, values = key.split(lengths, dim=2), value.split(lengths, dim=2)
    masks = [None] * len(lengths) if mask is None else mask.split(lengths, dim=-1)
    parts = [
        PartInputs(query=query, key=k, value=v, mask=m, scale=0.7)
        for k, v, m in zip(keys, values, masks, strict=True)
    ]
    out = torch.zeros_like(query)
    lse = torch.full((*query.shape[:3], 1), torch.finfo(torch.float64).min, dtype=torch.float64)
    for part in parts:
        _merge(out, lse, *kernel.forward(part))
    shares = [kernel.backward(part, gradient, out, lse) for part in parts]
    of_query, of_key, of_value = zip(*shares, strict=True)
    return out, sum(of_query), torch.cat(of_key, dim=2), torch.cat(of_value, dim=2)


def at_once(query, key, value, gradient, mask):
    tensors = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    out = torch.nn.functional.scaled_dot_product_attention(*tensors, mask, scale=0.7)
    out.backward(gradient)
    return out.detach(), *(tensor.grad for tensor in tensors)


@pytest.mark.parametrize(
    ("kernel", "is_masked"),
    [(CPU_FLASH, False), (MATH, False), (MATH, True)],
    ids=["flash", "math", "math with masks"],
)
@settings(max_examples=30)
@given(data=st.data())
def test_parts_together_are_attention_to_all_keys(kernel, is_masked, data):
    query, key, value, gradient, lengths, mask = data.draw(attentions(is_masked))
    found = by_parts(kernel, query, key, value, gradient, lengths, mask)
    for part, whole in zip(found, at_once(query, key, value, gradient, mask), strict=True):
        assert torch.allclose(part, whole, rtol=0.0, atol=1e-12)


def test_a_query_that_may_see_no_key_gets_zero_and_gives_no_gradient():
    query, key = torch.randn(2, 1, 1, 3, 4, dtype=torch.float64)
    found = by_parts(
        MATH, query, key, key, torch.ones_like(query), [2, 1], torch.zeros(1, 1, 1, 3).bool()
    )
    assert all(torch.equal(tensor, torch.zeros_like(tensor)) for tensor in found)


def test_math_keeps_its_sums_in_float32():
    query, key, value = torch.randn(3, 1, 2, 50, 16).bfloat16()
    part = PartInputs(query=query, key=key, value=value, mask=None, scale=0.25)
    out, lse = MATH.forward(part)
    assert out.dtype == lse.dtype == torch.float32
    assert {g.dtype for g in MATH.backward(part, out.bfloat16(), out, lse)} == {torch.bfloat16}


@pytest.mark.parametrize("name", ["flash", "cudnn"])
def test_kernels_for_gpus_are_called_as_torch_declares_them(name):
    # The meta device knows shapes only: arguments, not results, are checked here.
    kernel = _FUSED["cuda", name]
    query = torch.empty(2, 3, 5, 16, dtype=torch.bfloat16, device="meta")
    key = torch.empty(2, 3, 7, 16, dtype=torch.bfloat16, device="meta")
    part = PartInputs(query=query, key=key, value=key, mask=None, scale=0.25)
    out, lse = kernel.forward(part)
    assert out.shape == query.shape
    assert lse.shape == (2, 3, 5, 1)
    gradients = kernel.backward(part, out, out, lse)
    assert [g.shape for g in gradients] == [query.shape, key.shape, key.shape]


def test_auto_is_the_fused_kernel_of_the_device():
    query = torch.zeros(1, 1, 2, 8)
    assert kernel_named("auto", query, is_masked=False) is CPU_FLASH
    assert kernel_named("auto", query, is_masked=True) is MATH
    on_gpu = torch.zeros(1, 1, 2, 8, dtype=torch.bfloat16, device="meta")
    assert kernel_named("math", on_gpu, is_masked=True) is MATH


class OnGpu:
    """What `kernel_named` asks of a query."""

    device = torch.device("cuda")

    def __init__(self, dtype=torch.bfloat16, head_size=128):
        self.dtype, self.shape = dtype, (1, 2, 3, head_size)

    def element_size(self):
        return self.dtype.itemsize


def test_on_gpus_auto_is_flash():
    assert kernel_named("auto", OnGpu(), is_masked=False) is _FUSED["cuda", "flash"]  # pyright: ignore


@pytest.mark.parametrize(
    ("name", "query", "is_masked", "message"),
    [
        ("cudnn", torch.zeros(1, 1, 2, 8), False, "kernel 'cudnn' does not exist on 'cpu'"),
        ("flash", torch.zeros(1, 1, 2, 8), True, "with a mask has no 'flash' kernel on 'cpu'"),
        ("auto", OnGpu(), True, "with a mask has no 'flash' kernel on 'cuda'; set planner"),
        ("auto", OnGpu(torch.float32), False, "needs bfloat16 or float16"),
        ("cudnn", OnGpu(head_size=12), False, "a multiple of 8; found torch.bfloat16 and 12"),
    ],
)
def test_what_a_kernel_cannot_do_is_refused_in_one_line(name, query, is_masked, message):
    with pytest.raises(ConfigError, match=message) as caught:
        kernel_named(name, query, is_masked=is_masked)
    assert "\n" not in str(caught.value)
