"""HunyuanVideo: dual-stream, then single-stream blocks; joint attention of video and text.

Layers: diffusers' `HunyuanVideoTransformer3DModel`, with guidance embedding for text to video.
Image to video is one of two published models. The one of 33 channels (`image_condition_type`
`latent_concat`) has the first frame in them, and no guidance embedding; the one of 16
(`token_replace`) has all weights of text to video, and keeps that frame. Sizes: the class's
defaults, into which diffusers' `convert_hunyuan_video_to_diffusers.py` loads the published weights
strictly; text length: `HunyuanVideoPipeline`.
"""

from math import prod

from arachne.core.activation_inputs import ActivationInputs, BlockRun, Kept
from arachne.core.families.encoders import CLIP_L_TEXT, HUNYUAN_VIDEO_VAE, LLAMA_3_8B
from arachne.core.families.family import Family
from arachne.core.families.layers import linear, two_layers
from arachne.core.model_shape import FlopInputs, Geometry, ModelShape, WeightGroup

_GEOMETRY = Geometry(temporal_compression=4, spatial_compression=8, patch=(1, 2, 2))

_REFINER_FFN_RATIO = 4
"""The class gives the refiner's feed-forward layers this many times the width, always."""


def hunyuan_condition_channels(latent_channels: int) -> int:
    """Channels that show the first frame: its latents, and a mask that says where those are."""
    return latent_channels + 1


def _num_embedders(shape: ModelShape) -> int:
    """Embedders of a number: time, and without further channels guidance."""
    return 1 if shape.condition_channels else 2


def _num_parameters(shape: ModelShape) -> int:
    d, f = shape.hidden_size, shape.ffn_size
    inputs = shape.input_channels * prod(_GEOMETRY.patch)
    outputs = shape.latent_channels * prod(_GEOMETRY.patch)
    time = two_layers(shape.freq_size, d, d)
    refiner_block = 4 * linear(d, d) + two_layers(d, _REFINER_FFN_RATIO * d, d)
    refiner_block += 4 * d + linear(d, 2 * d)  # two layer norms, gates
    refiner = time + two_layers(shape.text_size, d, d) + linear(shape.text_size, d)
    refiner += shape.num_refiner_layers * refiner_block
    condition = _num_embedders(shape) * time + two_layers(shape.pooled_text_size, d, d)
    stream = linear(d, 6 * d) + 4 * linear(d, d) + 2 * shape.head_size + two_layers(d, f, d)
    single = linear(d, 3 * d) + 3 * linear(d, d) + 2 * shape.head_size
    single += linear(d, f) + linear(d + f, d)
    blocks = shape.num_layers * 2 * stream + shape.num_single_layers * single
    ends = linear(d, 2 * d) + linear(d, outputs)
    return linear(inputs, d) + refiner + condition + blocks + ends


def _flop_inputs(shape: ModelShape) -> FlopInputs:
    d, f, text_tokens = shape.hidden_size, shape.ffn_size, shape.text_tokens
    dual, single, refiners = shape.num_layers, shape.num_single_layers, shape.num_refiner_layers
    inputs = shape.input_channels * prod(_GEOMETRY.patch)
    outputs = shape.latent_channels * prod(_GEOMETRY.patch)
    stream = dual * (4 * d * d + 2 * d * f)
    refiner = shape.text_size * d + refiners * (4 + 2 * _REFINER_FFN_RATIO) * d * d
    # Embedders of time (twice, also in the refiner), guidance, pooled text, mean text; of a frame
    # that is kept also its time, and the modulations of its tokens.
    kept = shape.keeps_first_frame
    embedders = 1 + _num_embedders(shape) + kept
    clip = embedders * (shape.freq_size * d + d * d)
    clip += (shape.pooled_text_size + shape.text_size) * d + 2 * d * d
    clip += (2 * refiners + (12 + 6 * kept) * dual + (3 + 3 * kept) * single + 2) * d * d
    return FlopInputs(
        weights=(
            WeightGroup(num_weights=inputs * d, meets_video=True),
            WeightGroup(num_weights=stream + d * outputs, meets_video=True, is_split=True),
            WeightGroup(num_weights=stream, num_other_tokens=text_tokens, is_split=True),
            WeightGroup(
                num_weights=single * (4 * d * d + 2 * d * f),
                meets_video=True,
                num_other_tokens=text_tokens,
                is_split=True,
            ),
            WeightGroup(num_weights=refiner, num_other_tokens=text_tokens),
            WeightGroup(num_weights=clip, num_other_tokens=1),
        ),
        self_attention_layers=dual + single,
        joint_tokens=text_tokens,
        text_attention_layers=refiners,
        attention_size=d,
    )


def _activation_inputs(shape: ModelShape) -> ActivationInputs:
    d, f = shape.hidden_size, shape.ffn_size
    return ActivationInputs(
        blocks=(
            hunyuan_blocks(shape, shape.num_layers, trained=16 * d + 2 * f),
            hunyuan_blocks(shape, shape.num_single_layers, trained=14 * d + 2 * f),
        ),
        ends=Kept(video=3 * d, other=shape.num_refiner_layers * 20 * d + shape.text_size),
        other_tokens=shape.text_tokens,
        is_other_split=True,
    )


def hunyuan_blocks(shape: ModelShape, num_blocks: int, *, trained: int) -> BlockRun:
    """Blocks of this family's kinds, which keep `trained` elements of each token."""
    d = shape.hidden_size

    def kept(size: int) -> Kept:
        return Kept(video=size, other=size, video_copies=8 * d, other_copies=8 * d)

    return BlockRun(
        num_blocks=num_blocks,
        trained=kept(trained),
        adapted=kept(10 * d + 2 * shape.ffn_size),
        entered=Kept(video=d, other=d),
    )


HUNYUAN_VIDEO = Family(
    name="hunyuan_video",
    geometry=_GEOMETRY,
    masks_keys=True,
    presets={
        "hunyuanvideo-13b": ModelShape(
            family="hunyuan_video",
            num_layers=20,
            num_heads=24,
            head_size=128,
            ffn_size=4 * 3072,
            latent_channels=16,
            text_size=4096,
            text_tokens=256,
            num_single_layers=40,
            num_refiner_layers=2,
            pooled_text_size=768,
        ),
    },
    num_parameters=_num_parameters,
    flop_inputs=_flop_inputs,
    video_encoder=HUNYUAN_VIDEO_VAE,
    text_encoders=(LLAMA_3_8B, CLIP_L_TEXT),
    activation_inputs=_activation_inputs,
    condition_channels=hunyuan_condition_channels,
    first_frame_is_before="zeros",
    keeps_first_frame="some",
)
