"""Floating-point operations of one forward pass; training costs three times as many."""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape

TRAINING_PASSES = 3
"""Forward, and a backward of twice the forward: one product for the input, one for the weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFlops:
    """The forward pass of one cascade, split by how sequence parallelism shares it out.

    Attributes:
        sharded_matmul: Matrix products on video tokens inside the blocks; every rank does a part.
        replicated_matmul: Patch embedding, text and timestep; every rank does all of it.
        self_attention: Video tokens attend to video tokens; shared out by heads.
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

    With S video tokens, T text tokens, width d and L layers, for each clip:

        2·S·weights_per_token + 2·T·weights_per_text_token + 2·weights_per_clip
        + 4·S²·d·L (self-attention) + 4·S·T·d·L (cross-attention)

    A multiply-add is two operations. Source: counting matrix products, as torch's FlopCounterMode
    does. Ignores norms, activations, softmax and rotary embeddings.
    """
    family = family_named(shape.family)
    inputs = family.flop_inputs(shape)
    num_text_tokens = num_clips * shape.text_tokens
    embed_weights = shape.latent_channels * prod(family.geometry.patch) * shape.hidden_size
    pairs = num_clips * num_tokens * num_tokens
    text_pairs = num_clips * num_tokens * shape.text_tokens
    return ForwardFlops(
        sharded_matmul=2.0 * num_clips * num_tokens * (inputs.weights_per_token - embed_weights),
        replicated_matmul=2.0
        * (
            num_clips * num_tokens * embed_weights
            + num_text_tokens * inputs.weights_per_text_token
            + num_clips * inputs.weights_per_clip
        ),
        self_attention=4.0 * pairs * inputs.attention_size * inputs.self_attention_layers,
        cross_attention=4.0 * text_pairs * inputs.attention_size * inputs.cross_attention_layers,
    )


def forward_flops(shape: ModelShape, num_tokens: int, num_clips: int = 1) -> float:
    """FLOPs of one forward pass; `forward_flops_split` has the formula."""
    return forward_flops_split(shape, num_tokens, num_clips).total


def training_flops(shape: ModelShape, num_tokens: int, num_clips: int = 1) -> float:
    """FLOPs of forward and backward, without recomputation."""
    return TRAINING_PASSES * forward_flops(shape, num_tokens, num_clips)


def num_matmul_weights(shape: ModelShape) -> int:
    """Weights that take part in matrix products, each counted once."""
    inputs = family_named(shape.family).flop_inputs(shape)
    return inputs.weights_per_token + inputs.weights_per_text_token + inputs.weights_per_clip
