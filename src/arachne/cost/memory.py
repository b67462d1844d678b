"""Memory of one GPU: what stays for the whole run, and what one launch adds."""

from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape

_MASTER_BYTES = 4
"""Gradients, master weights and moments are float32, or wider when the model is."""


def resident_bytes(shape: ModelShape, world_size: int, element_bytes: int) -> float:
    """Bytes that every rank holds all the time.

    With P parameters of e bytes and sums of s = max(4, e) bytes:

        P·e (weights) + P·s (gradients) + 3·P·s / world (master and two moments, sharded)

    Source: ZeRO stage 1 (Rajbhandari et al., 2020). Ignores communicators and allocator reserve.
    """
    num_parameters = family_named(shape.family).num_parameters(shape)
    state_bytes = max(_MASTER_BYTES, element_bytes)
    return num_parameters * (element_bytes + state_bytes + 3.0 * state_bytes / world_size)


def activation_bytes(
    shape: ModelShape, num_tokens: int, num_clips: int, degree: int, element_bytes: int
) -> float:
    """Bytes that one rank keeps between forward and backward of a launch, without recomputation.

    With width d, feed-forward width f, L layers, e bytes an element and i = 1 where e < 4 (norms,
    modulation and rotary embedding then keep float32 copies), else 0:

        per video token and layer   (22·d + 2·f)·e + 24·d·i    shared out over the degree
        per text token and layer    4·d·e + 4·d·i              whole on every rank

    for L + 1 layers; the extra one stands for the backward's temporaries (assumption). Source:
    storages saved for the backward in diffusers' WanTransformer3DModel, counted with
    `torch.autograd.graph.saved_tensors_hooks`. Ignores embeddings and fragmentation.
    """
    d, f = shape.hidden_size, shape.ffn_size
    is_low_precision = element_bytes < 4
    token_bytes = (22 * d + 2 * f) * element_bytes + 24 * d * is_low_precision
    text_token_bytes = 4 * d * element_bytes + 4 * d * is_low_precision
    tokens_bytes = num_tokens / degree * token_bytes + shape.text_tokens * text_token_bytes
    return (shape.num_layers + 1) * num_clips * tokens_bytes


def launch_bytes(
    shape: ModelShape,
    num_tokens: int,
    num_clips: int,
    degree: int,
    *,
    world_size: int,
    element_bytes: int,
) -> float:
    """Memory that one rank of a launch needs in all: resident state and activations."""
    return resident_bytes(shape, world_size, element_bytes) + activation_bytes(
        shape, num_tokens, num_clips, degree, element_bytes
    )
