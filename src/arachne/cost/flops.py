"""Floating-point operations of one forward pass; training costs three times as many."""

from dataclasses import dataclass
from functools import lru_cache

from arachne.core.model_shape import ModelShape
from arachne.cost.model_counts import model_counts

TRAINING_PASSES = 3
"""Forward, and a backward of twice the forward: one product for the input, one for the weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFlops:
    """The forward pass of one cascade, split by how sequence parallelism shares it out.

    Attributes:
        sharded_matmul: Matrix products on the tokens that are split; every rank does a part.
        replicated_matmul: Patch embedding, text and timestep before the blocks, and the attention
            of text alone; every rank does all of it.
        self_attention: Video (and joint text) tokens attend to each other; shared out by heads.
        cross_attention: Video tokens attend to text tokens; shared out by tokens.
    """

    sharded_matmul: float
    replicated_matmul: float
    self_attention: float
    cross_attention: float

    @property
    def matmul(self) -> float:
        """All products with weights."""
        return self.sharded_matmul + self.replicated_matmul

    @property
    def attention(self) -> float:
        """All products of activations with activations."""
        return self.self_attention + self.cross_attention

    @property
    def total(self) -> float:
        """Everything, counted once."""
        return self.matmul + self.attention


@lru_cache(maxsize=4096)
def forward_flops_split(shape: ModelShape, num_tokens: int, num_clips: int = 1, /) -> ForwardFlops:
    """FLOPs of one forward pass over `num_clips` clips of `num_tokens` tokens each.

    With S video tokens, T text tokens, J joint tokens (T in families where text takes part in
    self-attention, else 0) and width d, for each clip:

        Σ over groups of 2·weights·(S, if they meet video, + other tokens)
        + 4·(S + J)²·d for each layer of self-attention
        + 4·S·T·d for each layer of cross-attention + 4·T²·d for each layer of text alone

    States of an image count as text tokens in cross-attention. A multiply-add is two operations.
    Source: counting matrix products, as torch's FlopCounterMode does. Ignores norms, activations,
    softmax and rotary embeddings.
    """
    inputs = model_counts(shape).flop_inputs
    text_tokens = shape.text_tokens
    split, whole = 0, 0
    for group in inputs.weights:
        rows = num_tokens * group.meets_video + group.num_other_tokens
        if group.is_split:
            split += group.num_weights * rows
        else:
            whole += group.num_weights * rows
    pairs = (num_tokens + inputs.joint_tokens) ** 2 * inputs.self_attention_layers
    cross_tokens = text_tokens + shape.image_tokens
    cross_pairs = num_tokens * cross_tokens * inputs.cross_attention_layers
    text_pairs = text_tokens * text_tokens * inputs.text_attention_layers
    per_pair = 4.0 * num_clips * inputs.attention_size
    return ForwardFlops(
        sharded_matmul=2.0 * num_clips * split,
        replicated_matmul=2.0 * num_clips * whole + per_pair * text_pairs,
        self_attention=per_pair * pairs,
        cross_attention=per_pair * cross_pairs,
    )


def forward_flops(shape: ModelShape, num_tokens: int, num_clips: int = 1) -> float:
    """FLOPs of one forward pass; `forward_flops_split` has the formula."""
    return forward_flops_split(shape, num_tokens, num_clips).total


def training_flops(shape: ModelShape, num_tokens: int, num_clips: int = 1) -> float:
    """FLOPs of forward and backward, without recomputation."""
    return TRAINING_PASSES * forward_flops(shape, num_tokens, num_clips)


def num_matmul_weights(shape: ModelShape) -> int:
    """Weights that take part in matrix products, each counted once."""
    return model_counts(shape).flop_inputs.num_weights
