"""Training loops as users of other libraries write them, for `peers.py`; one process per rank.

All train the same diffusers Wan in float32 with AdamW and clipping, on clips that are in memory.
Every loop deals a step's clips to the ranks, a micro-batch each, and sums gradients over them:

- `ddp`: accelerate with DistributedDataParallel, gradients exchanged in the last micro-batch.
- `deepspeed`: ZeRO stage 1.
- `deepspeed_ulysses`: ZeRO stage 1, each clip on all ranks with DeepSpeed's `DistributedAttention`.

As used, a micro-batch is one clip, and clips are dealt in the order in which they are drawn.
`ddp_packed` and `deepspeed_packed` get what Arachne's baselines have too: clips longest first to
the rank with least work, by measured seconds, and clips of one shape of a rank together.
"""

# pyright: reportMissingImports=false

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from arachne.trainer.objective import ClipSample

LEARNING_RATE = 1e-4
MAX_GRAD_NORM = 1.0
STACK_TOKENS = 1024
"""Packed clips share a forward pass up to so many tokens, as Arachne's do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepClips:
    """A step's clips.

    Attributes:
        samples: By slot, with noise and noise level.
        num_tokens: By slot.
        seconds: By slot: what the clip takes alone.
    """

    samples: Mapping[int, ClipSample]
    num_tokens: Sequence[int]
    seconds: Sequence[float]


Deal = Callable[[StepClips, int, int], list[list[int]]]
"""(clips, rank, ranks) to the rank's micro-batches of slots."""


def dealt_in_order(clips: StepClips, rank: int, size: int) -> list[list[int]]:
    """One clip after the other, in turns."""
    return [[slot] for slot in range(rank, len(clips.samples), size)]


def dealt_to_all(clips: StepClips, rank: int, size: int) -> list[list[int]]:
    """Every clip to every rank."""
    return [[slot] for slot in range(len(clips.samples))]


def dealt_longest_first(clips: StepClips, rank: int, size: int) -> list[list[int]]:
    """Longest first to the rank with least work; a rank's clips of one shape together."""
    loads_s, slots_of = [0.0] * size, [list[int]() for _ in range(size)]
    for slot in sorted(clips.samples, key=lambda slot: -clips.seconds[slot]):
        least = loads_s.index(min(loads_s))
        loads_s[least] += clips.seconds[slot]
        slots_of[least].append(slot)
    micro_batches: list[list[int]] = []
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for slot in slots_of[rank]:
        shape, tokens = clips.samples[slot].noise.shape, clips.num_tokens[slot]
        stack = by_shape.get(shape)
        if stack is None or (len(stack) + 1) * tokens > STACK_TOKENS:
            by_shape[shape] = stack = []
            micro_batches.append(stack)
        stack.append(slot)
    return micro_batches


class Peer(ABC):
    """A training loop on this rank; all ranks step together."""

    def __init__(self, name: str, model: nn.Module, deal: Deal, *, null_text: Tensor) -> None:
        self.name = name
        self.model = model
        self.deal = deal
        self.null_text = null_text

    def step(self, clips: StepClips) -> Tensor:
        """Train one step; this rank's share of its loss, whose sum over the ranks is the loss."""
        size = dist.get_world_size()
        micro_batches = self.deal(clips, dist.get_rank(), size)
        shared = torch.zeros(())
        for index, slots in enumerate(micro_batches):
            with self.micro_batch(is_last=index == len(micro_batches) - 1):
                share = 1.0 / (len(clips.samples) * self.ranks_per_clip)
                loss = share * self.losses([clips.samples[slot] for slot in slots]).sum()
                self.backward(size * loss)  # all loops average over the ranks
            shared += loss.detach()
        self.update()
        return shared

    ranks_per_clip = 1

    def losses(self, samples: Sequence[ClipSample]) -> Tensor:
        """Flow matching loss of each clip; they have one shape."""
        clean = torch.stack([torch.from_numpy(each.arrays.latents) for each in samples])
        noise = torch.stack([each.noise for each in samples])
        text = torch.stack(
            [
                torch.from_numpy(each.arrays.text) if each.has_caption else self.null_text
                for each in samples
            ]
        )
        level = torch.tensor([each.sigma for each in samples])
        scale = level.view(-1, 1, 1, 1, 1)
        predicted = self.model(
            hidden_states=(1.0 - scale) * clean + scale * noise,
            timestep=1000.0 * level,
            encoder_hidden_states=text,
            return_dict=False,
        )[0]
        return (predicted - (noise - clean)).pow(2).flatten(1).mean(dim=1)

    @abstractmethod
    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Around forward and backward; gradients are averaged over the ranks in the last one."""

    @abstractmethod
    def backward(self, loss: Tensor) -> None:
        """Add to the gradients."""

    @abstractmethod
    def update(self) -> None:
        """Clip, update, and forget the gradients."""


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """With Arachne's defaults."""
    return torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01
    )


class AccelerateDdp(Peer):
    """diffusers' training scripts: accelerate and DistributedDataParallel."""

    def __init__(self, name: str, model: nn.Module, deal: Deal, *, null_text: Tensor) -> None:
        from accelerate import Accelerator

        self.accelerator = Accelerator(cpu=True)
        prepared: Any = self.accelerator.prepare(model, adamw(model))
        super().__init__(name, prepared[0], deal, null_text=null_text)
        self.optimizer = prepared[1]

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Gradients are exchanged while the last micro-batch's are computed."""
        return nullcontext() if is_last else self.accelerator.no_sync(self.model)

    def backward(self, loss: Tensor) -> None:
        """See the base."""
        self.accelerator.backward(loss)

    def update(self) -> None:
        """Every rank updates the whole model."""
        self.accelerator.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()


class DeepSpeedZero1(Peer):
    """DeepSpeed's engine with optimizer state shared out."""

    def __init__(self, name: str, model: nn.Module, deal: Deal, *, null_text: Tensor) -> None:
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=adamw(model),
            config={
                "train_micro_batch_size_per_gpu": 1,
                "gradient_accumulation_steps": 1,  # told step by step: see `backward`
                "zero_optimization": {"stage": 1},
                "zero_allow_untested_optimizer": True,
                "gradient_clipping": MAX_GRAD_NORM,
                "steps_per_print": 1_000_000,
            },
        )
        super().__init__(name, engine, deal, null_text=null_text)
        self.engine: Any = engine

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """The last one is the engine's boundary."""
        self.engine.set_gradient_accumulation_boundary(is_boundary=is_last)
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """See the base."""
        self.engine.backward(loss)
        self.engine.step()  # updates at the boundary alone

    def update(self) -> None:
        """Done at the boundary."""


class DeepSpeedUlysses(DeepSpeedZero1):
    """ZeRO 1 with each clip split over all ranks; clips that do not divide are trained whole."""

    def __init__(self, name: str, model: nn.Module, deal: Deal, *, null_text: Tensor) -> None:
        self._is_split = False
        _split_over_ranks(model, lambda: self._is_split)
        super().__init__(name, model, deal, null_text=null_text)

    @property
    def ranks_per_clip(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All of them."""
        return dist.get_world_size()

    def losses(self, samples: Sequence[ClipSample]) -> Tensor:
        """See the base."""
        _, frames, height, width = samples[0].noise.shape
        num_tokens = frames * (height // 2) * (width // 2)
        self._is_split = num_tokens % dist.get_world_size() == 0
        return super().losses(samples)


def _split_over_ranks(model: Any, is_split: Callable[[], bool]) -> None:
    """Cut video tokens and rotary tables before the blocks, and gather after the last layer."""
    from deepspeed.sequence.layer import DistributedAttention

    def cut(tensor: Tensor) -> Tensor:
        return tensor.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]

    def before_blocks(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return (cut(inputs[0]), *inputs[1:]) if is_split() else None

    def after_rope(module: nn.Module, inputs: Any, tables: tuple[Tensor, ...]) -> Any:
        return tuple(map(cut, tables)) if is_split() else None

    def after_last(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        return _Gathered.apply(output) if is_split() else None  # pyright: ignore

    model.blocks[0].register_forward_pre_hook(before_blocks)
    model.rope.register_forward_hook(after_rope)
    model.proj_out.register_forward_hook(after_last)
    attention = DistributedAttention(_LocalAttention(), dist.group.WORLD, 2, 1)
    for block in model.blocks:
        block.attn1.set_processor(_UlyssesProcessor(block.attn1.processor, attention, is_split))


class _Gathered(torch.autograd.Function):
    """All ranks' tokens; the backward takes this rank's part, since all compute the same loss."""

    @staticmethod
    def forward(context: Any, mine: Tensor) -> Tensor:
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine.contiguous())
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:  # pyright: ignore
        # The loss counts each clip 1/ranks on every rank; a token's gradient is the sum.
        return dist.get_world_size() * gradient.chunk(dist.get_world_size(), 1)[dist.get_rank()]


class _LocalAttention(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of whole sequences [B, S, H, D] over this rank's heads."""
        mixed = functional.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        )
        return mixed.transpose(1, 2)


class _UlyssesProcessor:
    """A processor of diffusers' Wan attention that trades tokens for heads."""

    def __init__(self, whole: Any, attention: nn.Module, is_split: Callable[[], bool]) -> None:
        self.whole = whole
        self.attention = attention
        self.is_split = is_split

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        if not self.is_split():
            return self.whole(
                attn, hidden_states, encoder_hidden_states, attention_mask, rotary_emb
            )
        assert rotary_emb is not None
        query, key, value = (
            each.unflatten(2, (attn.heads, -1))
            for each in (
                attn.norm_q(attn.to_q(hidden_states)),
                attn.norm_k(attn.to_k(hidden_states)),
                attn.to_v(hidden_states),
            )
        )
        mixed = self.attention(_rotated(query, rotary_emb), _rotated(key, rotary_emb), value, 0)
        return attn.to_out[1](attn.to_out[0](mixed.flatten(2, 3)))


def _rotated(states: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of neighbouring pairs."""
    cosines, sines = tables[0][..., 0::2], tables[1][..., 1::2]
    even, odd = states[..., 0::2], states[..., 1::2]
    pairs = torch.stack((even * cosines - odd * sines, even * sines + odd * cosines), dim=-1)
    return pairs.flatten(-2)
