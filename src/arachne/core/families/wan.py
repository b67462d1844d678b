"""Wan 2.1: text-to-video transformers with cross-attention to the text.

Sizes: the `transformer/config.json` of Wan2.1-T2V-1.3B and -14B in diffusers' layout.
"""

from math import prod

from arachne.core.families.family import Family
from arachne.core.model_shape import FlopInputs, Geometry, ModelShape

_GEOMETRY = Geometry(temporal_compression=4, spatial_compression=8, patch=(1, 2, 2))


def _shape(num_layers: int, num_heads: int, ffn_size: int) -> ModelShape:
    return ModelShape(
        family="wan",
        num_layers=num_layers,
        num_heads=num_heads,
        head_size=128,
        ffn_size=ffn_size,
        latent_channels=16,
        text_size=4096,
        text_tokens=512,
    )


def _num_parameters(shape: ModelShape) -> int:
    d, f = shape.hidden_size, shape.ffn_size
    patch_channels = shape.latent_channels * prod(_GEOMETRY.patch)
    attention = 4 * (d * d + d) + 2 * d  # q, k, v, out with biases; RMS norms of q and k
    block = 2 * attention + 2 * d + (d * f + f) + (f * d + d) + 6 * d  # norm2, ffn, modulation
    embed = (patch_channels * d + d) + (shape.freq_size * d + d) + (d * d + d)
    embed += (d * 6 * d + 6 * d) + (shape.text_size * d + d) + (d * d + d)
    return embed + shape.num_layers * block + (d * patch_channels + patch_channels) + 2 * d


def _flop_inputs(shape: ModelShape) -> FlopInputs:
    d, f = shape.hidden_size, shape.ffn_size
    patch_channels = shape.latent_channels * prod(_GEOMETRY.patch)
    block = 4 * d * d + 2 * d * d + 2 * d * f  # self q k v out; cross q out; feed-forward
    return FlopInputs(
        weights_per_token=shape.num_layers * block + 2 * patch_channels * d,
        weights_per_text_token=shape.text_size * d + d * d + shape.num_layers * 2 * d * d,
        weights_per_clip=shape.freq_size * d + d * d + 6 * d * d,
        self_attention_layers=shape.num_layers,
        cross_attention_layers=shape.num_layers,
        attention_size=d,
    )


WAN = Family(
    name="wan",
    geometry=_GEOMETRY,
    presets={
        "wan-1.3b": _shape(num_layers=30, num_heads=12, ffn_size=8960),
        "wan-14b": _shape(num_layers=40, num_heads=40, ffn_size=13824),
    },
    num_parameters=_num_parameters,
    flop_inputs=_flop_inputs,
)
