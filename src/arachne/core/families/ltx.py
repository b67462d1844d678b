"""LTX-Video: cross-attention to the text, and an autoencoder that leaves few tokens.

Layers: diffusers' `LTXVideoTransformer3DModel`. Sizes: the class's defaults, into which
diffusers' `convert_ltx_to_diffusers.py` loads the published 2B weights strictly; its text length.
"""

from arachne.core.activation_inputs import ActivationInputs, BlockRun, Kept
from arachne.core.families.encoders import LTX_VAE, t5_xxl
from arachne.core.families.family import Family
from arachne.core.families.layers import linear, two_layers
from arachne.core.model_shape import FlopInputs, Geometry, ModelShape, WeightGroup, time_group

LTX_GEOMETRY = Geometry(temporal_compression=8, spatial_compression=32, patch=(1, 1, 1))


def ltx_ffn_size(hidden_size: int) -> int:
    """The feed-forward's width, which the class fixes."""
    return 4 * hidden_size


def ltx_parameters(shape: ModelShape) -> int:
    """Trainable parameters of a transformer with LTX-Video's layers."""
    d, f, channels = shape.hidden_size, shape.ffn_size, shape.latent_channels
    attention = 4 * linear(d, d) + 2 * d  # q, k, v, out; RMS norms of q and k
    block = 2 * attention + two_layers(d, f, d) + 6 * d  # feed-forward, modulation
    embed = linear(channels, d) + two_layers(shape.text_size, d, d)
    embed += two_layers(shape.freq_size, d, d) + linear(d, 6 * d)
    return embed + shape.num_layers * block + linear(d, channels) + 2 * d


def ltx_flop_inputs(shape: ModelShape) -> FlopInputs:
    """What a transformer with LTX-Video's layers multiplies."""
    d, f, layers = shape.hidden_size, shape.ffn_size, shape.num_layers
    block = 4 * d * d + 2 * d * d + 2 * d * f  # self q k v out; cross q out; feed-forward
    text = shape.text_size * d + d * d + layers * 2 * d * d  # projection; cross k v
    time = shape.freq_size * d + d * d + 6 * d * d
    return FlopInputs(
        weights=(
            WeightGroup(num_weights=shape.latent_channels * d, meets_video=True),
            WeightGroup(
                num_weights=layers * block + d * shape.latent_channels,
                meets_video=True,
                is_split=True,
            ),
            WeightGroup(num_weights=text, num_other_tokens=shape.text_tokens),
            time_group(shape, time),
        ),
        self_attention_layers=layers,
        cross_attention_layers=layers,
        attention_size=d,
    )


def _activation_inputs(shape: ModelShape) -> ActivationInputs:
    d, f = shape.hidden_size, shape.ffn_size
    times = 8 * d if shape.keeps_first_frame else 0  # modulations of each token
    end_times = 5 * d + shape.freq_size if shape.keeps_first_frame else 0
    trained, adapted = 21 * d + 2 * f + times, 14 * d + 2 * f + times
    block = BlockRun(
        num_blocks=shape.num_layers,
        trained=Kept(video=trained, other=4 * d, video_copies=20 * d, other_copies=4 * d),
        adapted=Kept(video=adapted, other=3 * d, video_copies=14 * d, other_copies=2 * d),
        entered=Kept(video=d),
    )
    return ActivationInputs(
        blocks=(block,),
        ends=Kept(video=5 * d + end_times, other=3 * d + shape.text_size, video_copies=4 * d),
        other_tokens=shape.text_tokens,
    )


LTX = Family(
    name="ltx",
    geometry=LTX_GEOMETRY,
    presets={
        "ltx-video-2b": ModelShape(
            family="ltx",
            num_layers=28,
            num_heads=32,
            head_size=64,
            ffn_size=4 * 2048,
            latent_channels=128,
            text_size=4096,
            text_tokens=128,
        ),
    },
    num_parameters=ltx_parameters,
    flop_inputs=ltx_flop_inputs,
    video_encoder=LTX_VAE,
    text_encoders=(t5_xxl(128),),
    activation_inputs=_activation_inputs,
    fixed_ffn_size=ltx_ffn_size,
    keeps_first_frame="always",
)
