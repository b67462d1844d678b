"""LTX-2's video stream: LTX-Video's layers, wider and deeper, beside an audio stream at rest.

Layers: diffusers' `LTX2VideoTransformer3DModel` of version 2.0, without gates and without modulated
text. Sizes: `convert_ltx2_to_diffusers.py` of diffusers, version 2.0; text length: `LTX2Pipeline`.

Each block has a video and an audio half and two attentions between them. Training runs the video
half alone, as the class does with `isolate_modalities`; the rest of the model, a third of it, is
loaded, kept and written back as it was. Its audio stream has as many heads, half as wide.
"""

from arachne.core.activation_inputs import ActivationInputs, BlockRun, Kept
from arachne.core.families.encoders import GEMMA_3_12B, LTX2_VAE
from arachne.core.families.family import Family
from arachne.core.families.layers import linear, two_layers
from arachne.core.families.ltx import LTX_GEOMETRY, ltx_ffn_size, ltx_flop_inputs, ltx_parameters
from arachne.core.model_shape import ModelShape


def _num_idle_parameters(shape: ModelShape) -> int:
    """Of the audio stream, and of the attentions between it and the video."""
    d, a = shape.hidden_size, shape.hidden_size // 2
    channels, text, freq = shape.latent_channels, shape.text_size, shape.freq_size

    def modulation(width: int, num_values: int) -> int:
        return two_layers(freq, width, width) + linear(width, num_values * width)

    alone = 4 * linear(a, a) + 2 * a  # q, k, v, out; RMS norms of q and k
    to_video = linear(d, a) + 2 * linear(a, a) + linear(a, d) + 2 * a
    to_audio = 2 * linear(a, a) + 2 * linear(d, a) + 2 * a
    tables = 6 * a + 5 * a + 5 * d
    block = 2 * alone + to_video + to_audio + two_layers(a, ltx_ffn_size(a), a) + tables
    ends = linear(channels, a) + two_layers(text, a, a) + 2 * a + linear(a, channels)
    modulations = modulation(a, 6) + modulation(a, 4) + modulation(a, 1)
    modulations += modulation(d, 4) + modulation(d, 1)
    return shape.num_layers * block + ends + modulations


def _activation_inputs(shape: ModelShape) -> ActivationInputs:
    d, f = shape.hidden_size, shape.ffn_size
    block = BlockRun(
        num_blocks=shape.num_layers,
        trained=Kept(video=23 * d + 2 * f, other=4 * d, video_copies=26 * d, other_copies=4 * d),
        adapted=Kept(video=16 * d + 2 * f, other=3 * d, video_copies=20 * d, other_copies=2 * d),
        entered=Kept(video=d),
    )
    return ActivationInputs(
        blocks=(block,),
        ends=Kept(video=5 * d, other=3 * d + shape.text_size, video_copies=4 * d),
        other_tokens=shape.text_tokens,
    )


LTX2 = Family(
    name="ltx2",
    geometry=LTX_GEOMETRY,
    presets={
        "ltx-2-19b": ModelShape(
            family="ltx2",
            num_layers=48,
            num_heads=32,
            head_size=128,
            ffn_size=4 * 4096,
            latent_channels=128,
            text_size=3840,
            text_tokens=1024,
        ),
    },
    num_parameters=ltx_parameters,
    num_idle_parameters=_num_idle_parameters,
    flop_inputs=ltx_flop_inputs,
    video_encoder=LTX2_VAE,
    text_encoders=(GEMMA_3_12B,),
    activation_inputs=_activation_inputs,
    fixed_ffn_size=ltx_ffn_size,
)
