"""HunyuanVideo 1.5: dual-stream blocks on text, glyph and image tokens, 16x in space.

Layers: diffusers' `HunyuanVideo15Transformer3DModel` without mean flow. Sizes: the class's
defaults, which are those of the published models in diffusers'
`convert_hunyuan_video1_5_to_diffusers.py`. Token counts: `HunyuanVideo15Pipeline`. The published
model carries glyph and image tokens through all blocks, also where a clip has neither.
"""

from arachne.core.activation_inputs import ActivationInputs, Kept
from arachne.core.families.encoders import GLYPH_BYT5, HUNYUAN_VIDEO15_VAE, QWEN_2_5_VL_7B
from arachne.core.families.family import Family
from arachne.core.families.hunyuan_video import hunyuan_blocks, hunyuan_condition_channels
from arachne.core.families.layers import linear, two_layers
from arachne.core.model_shape import FlopInputs, Geometry, ModelShape, WeightGroup

_GEOMETRY = Geometry(temporal_compression=4, spatial_compression=16, patch=(1, 1, 1))

GLYPH_TOKENS = 256
GLYPH_SIZE = 1472
"""Tokens and width of the ByT5 states for text to be drawn."""

IMAGE_TOKENS = 729
IMAGE_SIZE = 1152
"""Tokens and width of the SigLIP states of a first frame; zeros for text-to-video."""

_GLYPH_INNER_SIZE = 2048
_REFINER_FFN_RATIO = 4


def _input_channels(shape: ModelShape) -> int:
    """Noisy latents, and what shows a first frame: zeros for text to video."""
    return shape.latent_channels + hunyuan_condition_channels(shape.latent_channels)


def _num_parameters(shape: ModelShape) -> int:
    d, f, inner = shape.hidden_size, shape.ffn_size, _GLYPH_INNER_SIZE
    time = two_layers(shape.freq_size, d, d)
    refiner_block = 4 * linear(d, d) + two_layers(d, _REFINER_FFN_RATIO * d, d)
    refiner_block += 4 * d + linear(d, 2 * d)  # two layer norms, gates
    refiner = time + two_layers(shape.text_size, d, d) + linear(shape.text_size, d)
    refiner += shape.num_refiner_layers * refiner_block
    glyphs = 2 * GLYPH_SIZE + two_layers(GLYPH_SIZE, inner, inner) + linear(inner, d)
    image = 2 * IMAGE_SIZE + two_layers(IMAGE_SIZE, IMAGE_SIZE, d) + 2 * d
    stream = linear(d, 6 * d) + 4 * linear(d, d) + 2 * shape.head_size + two_layers(d, f, d)
    embed = linear(_input_channels(shape), d) + time + refiner + glyphs + image
    embed += 3 * d  # what kind of token it is
    ends = linear(d, 2 * d) + linear(d, shape.latent_channels)
    return embed + shape.num_layers * 2 * stream + ends


def _flop_inputs(shape: ModelShape) -> FlopInputs:
    d, f, inner = shape.hidden_size, shape.ffn_size, _GLYPH_INNER_SIZE
    layers, refiners = shape.num_layers, shape.num_refiner_layers
    stream = layers * (4 * d * d + 2 * d * f)
    refiner = shape.text_size * d + refiners * (4 + 2 * _REFINER_FFN_RATIO) * d * d
    glyphs = GLYPH_SIZE * inner + inner * inner + inner * d
    image = IMAGE_SIZE * IMAGE_SIZE + IMAGE_SIZE * d
    # Embedders of time (twice, also in the refiner) and of the mean text; modulations.
    clip = 2 * shape.freq_size * d + shape.text_size * d + 3 * d * d
    clip += (2 * refiners + 12 * layers + 2) * d * d
    joint_tokens = shape.text_tokens + GLYPH_TOKENS + IMAGE_TOKENS
    return FlopInputs(
        weights=(
            WeightGroup(num_weights=_input_channels(shape) * d, meets_video=True),
            WeightGroup(
                num_weights=stream + d * shape.latent_channels, meets_video=True, is_split=True
            ),
            WeightGroup(num_weights=stream, num_other_tokens=joint_tokens, is_split=True),
            WeightGroup(num_weights=refiner, num_other_tokens=shape.text_tokens),
            WeightGroup(num_weights=glyphs, num_other_tokens=GLYPH_TOKENS),
            WeightGroup(num_weights=image, num_other_tokens=IMAGE_TOKENS),
            WeightGroup(num_weights=clip, num_other_tokens=1),
        ),
        self_attention_layers=layers,
        joint_tokens=joint_tokens,
        text_attention_layers=refiners,
        attention_size=d,
    )


def _activation_inputs(shape: ModelShape) -> ActivationInputs:
    """Without the mask of all pairs of tokens that diffusers' class makes in every block."""
    d, f = shape.hidden_size, shape.ffn_size
    return ActivationInputs(
        blocks=(hunyuan_blocks(shape, shape.num_layers, trained=16 * d + 2 * f),),
        ends=Kept(video=3 * d, other=shape.num_refiner_layers * 20 * d + shape.text_size),
        other_tokens=shape.text_tokens + GLYPH_TOKENS + IMAGE_TOKENS,
        is_other_split=True,
    )


HUNYUAN_VIDEO15 = Family(
    name="hunyuan_video15",
    geometry=_GEOMETRY,
    masks_keys=True,
    presets={
        "hunyuanvideo-1.5-8b": ModelShape(
            family="hunyuan_video15",
            num_layers=54,
            num_heads=16,
            head_size=128,
            ffn_size=4 * 2048,
            latent_channels=32,
            text_size=3584,
            text_tokens=1000,
            num_refiner_layers=2,
        ),
    },
    num_parameters=_num_parameters,
    flop_inputs=_flop_inputs,
    video_encoder=HUNYUAN_VIDEO15_VAE,
    text_encoders=(QWEN_2_5_VL_7B, GLYPH_BYT5),
    activation_inputs=_activation_inputs,
    condition_channels=hunyuan_condition_channels,
    first_frame_is_before="zeros",
    image_states="always",
)
