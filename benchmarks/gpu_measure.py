"""What launches of a Wan take on one GPU, with torch alone: seconds, peak memory, ceilings."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from statistics import median
from typing import Any

import torch
from plain_wan import PlainWan, Share, WanSize, made_inputs
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

KERNELS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "math": SDPBackend.MATH,
}
"""Attention kernels by name; `auto` lets torch choose."""

_TRAINING_PASSES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A launch to run.

    Attributes:
        part: What it is measured for.
        num_tokens: Of one clip.
        num_clips: Stacked in the launch.
        share: Whose part of which degree.
        kernel: Of attention: a key of `KERNELS`, or `auto`.
        is_compiled: Blocks run compiled.
        repeats: Timed runs.
        warms_up: One run goes before them.
    """

    part: str
    num_tokens: int
    num_clips: int = 1
    share: Share = field(default_factory=Share)
    kernel: str = "auto"
    is_compiled: bool = False
    repeats: int = 3
    warms_up: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A model on a device, ready to run cases.

    Attributes:
        size: Of the model.
        module: The model.
        buffers: Sums of gradients over launches, float32, as training keeps them.
        device: Where it runs.
        dtype: Of weights and activations.
        ends_at_s: When no further case begins, on `time.monotonic`'s clock.
    """

    size: WanSize
    module: PlainWan
    buffers: Sequence[torch.Tensor]
    device: torch.device
    dtype: torch.dtype
    ends_at_s: float

    @property
    def is_cuda(self) -> bool:
        """Whether memory and kernels can be told apart."""
        return self.device.type == "cuda"

    @property
    def is_late(self) -> bool:
        """Whether the time that was given is over."""
        return time.monotonic() >= self.ends_at_s


def opened(size: WanSize, device: torch.device, dtype: torch.dtype, limit_s: float) -> Bench:
    """The model with random weights, and buffers that its gradients are added to."""
    with device:
        module = PlainWan(size).to(dtype)
    buffers: list[torch.Tensor] = []
    for parameter in module.parameters():
        buffer = torch.zeros(parameter.shape, device=device, dtype=torch.float32)
        buffers.append(buffer)
        parameter.register_post_accumulate_grad_hook(_adds_to(buffer))
    return Bench(
        size=size,
        module=module,
        buffers=buffers,
        device=device,
        dtype=dtype,
        ends_at_s=time.monotonic() + limit_s,
    )


def _adds_to(buffer: torch.Tensor) -> Callable[[torch.Tensor], None]:
    def add(parameter: torch.Tensor) -> None:
        buffer.add_(parameter.grad)  # type: ignore[arg-type]
        parameter.grad = None

    return add


def resident_bytes(bench: Bench) -> int:
    """Weights and gradient buffers."""
    return sum(t.numel() * t.element_size() for t in (*bench.module.parameters(), *bench.buffers))


def ceilings(bench: Bench, side: int) -> dict[str, float]:
    """FLOP/s of a product of random square matrices, and bytes/s read and written by a copy."""
    left, right = (
        torch.randn(side, side, device=bench.device, dtype=bench.dtype) for _ in range(2)
    )
    product_s = _timed(bench, lambda: left @ right, repeats=10)
    source = torch.empty(64 * side * side // 4, device=bench.device, dtype=torch.uint8)
    target = torch.empty_like(source)
    copy_s = _timed(bench, lambda: target.copy_(source), repeats=10)
    return {
        "matmul_flops_per_s": 2.0 * side**3 / product_s,
        "memory_bytes_per_s": 2.0 * source.numel() / copy_s,
    }


def measured(
    bench: Bench, cases: Iterable[Case], *, keeps_cache: bool = False
) -> Iterator[dict[str, Any]]:
    """Each case with its figures; one that has no kernel or too little memory with the reason.

    Args:
        bench: What runs them.
        cases: In this order.
        keeps_cache: The allocator keeps its memory from case to case, as in training.
    """
    for case in cases:
        if bench.is_late:
            yield row_of(case) | {"skipped": "the time that was given is over"}
            continue
        try:
            yield row_of(case) | _figures(bench, case)
        except torch.OutOfMemoryError:
            yield row_of(case) | {"skipped": "out of memory"}
        except RuntimeError as error:  # torch's word for "no such kernel here"
            yield row_of(case) | {"skipped": str(error).partition("\n")[0]}
        finally:
            bench.module.zero_grad(set_to_none=True)
            if bench.is_cuda and not keeps_cache:
                torch.cuda.empty_cache()


def row_of(case: Case) -> dict[str, Any]:
    """What was to be measured, as the JSON file has it."""
    row = asdict(case)
    del row["repeats"], row["warms_up"]
    return row | row.pop("share")


def _figures(bench: Bench, case: Case) -> dict[str, Any]:
    inputs = made_inputs(bench.size, case.num_tokens, case.num_clips, bench.device, bench.dtype)

    def launch() -> None:
        output = bench.module(*inputs, case.share)
        output.float().square().mean().backward()

    with attention_by(case.kernel), _compiled(bench, case.is_compiled):
        if bench.is_cuda:
            torch.cuda.reset_peak_memory_stats()
        seconds = _timed(bench, launch, repeats=case.repeats, warms_up=case.warms_up)
    flops = training_flops(bench.size, case)
    num_tokens = case.num_tokens * case.num_clips
    return {
        "seconds": seconds,
        "flops_per_s": flops / seconds,
        "tokens_per_s": num_tokens / case.share.degree / seconds,
        **_memory(bench),
    }


def _memory(bench: Bench) -> dict[str, int]:
    if not bench.is_cuda:
        return {}
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "unused_bytes": torch.cuda.max_memory_reserved() - torch.cuda.max_memory_allocated(),
    }


def attention_by(kernel: str) -> AbstractContextManager[Any]:
    """Attention inside runs with this kernel alone."""
    return nullcontext() if kernel == "auto" else sdpa_kernel(KERNELS[kernel])


@contextmanager
def _compiled(bench: Bench, is_compiled: bool) -> Iterator[None]:
    """Blocks inside run compiled, one graph for all lengths."""
    if not is_compiled:
        yield
        return
    blocks = bench.module.blocks
    bench.module.blocks = nn.ModuleList(
        torch.compile(block, dynamic=True, backend=COMPILER)  # type: ignore[misc]
        for block in blocks
    )
    try:
        yield
    finally:
        bench.module.blocks = blocks


COMPILER = "inductor"
"""What compiles blocks."""


def _timed(bench: Bench, work: Callable[[], Any], *, repeats: int, warms_up: bool = True) -> float:
    """Median seconds of a few runs, after one that is not timed."""
    if warms_up:
        work()
    taken_s: list[float] = []
    for _ in range(repeats):
        _synchronize(bench)
        began_s = time.perf_counter()
        work()
        _synchronize(bench)
        taken_s.append(time.perf_counter() - began_s)
        if bench.is_late:
            break
    return median(taken_s)


def _synchronize(bench: Bench) -> None:
    if bench.is_cuda:
        torch.cuda.synchronize()


def training_flops(size: WanSize, case: Case) -> float:
    """Of this rank: forward and backward, nothing counted twice where it is computed again."""
    once = replace(case.share, recompute_layers=0)
    return _TRAINING_PASSES * _forward_flops(size, case.num_tokens, case.num_clips, once)


@lru_cache
def _forward_flops(size: WanSize, num_tokens: int, num_clips: int, share: Share) -> float:
    """Counted on meta tensors, with one and with two blocks: all blocks cost the same."""
    meta = torch.device("meta")
    totals: list[int] = []
    for num_layers in (1, 2):
        with meta:
            module = PlainWan(replace(size, num_layers=num_layers))
        inputs = made_inputs(size, num_tokens, num_clips, meta, torch.float32)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            module(*inputs, share)
        totals.append(counter.get_total_flops())
    first, second = totals
    return float(first + (size.num_layers - 1) * (second - first))
