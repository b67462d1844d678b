"""Mochi 1: joint attention, with a text stream half as wide as the video's.

Layers: diffusers' `MochiTransformer3DModel`; the last block drops its text stream. Sizes: the
class's defaults, into which diffusers' `convert_mochi_to_diffusers.py` loads the published weights
strictly, and its text length.
"""

from math import prod

from arachne.core.activation_inputs import ActivationInputs, BlockRun, Kept
from arachne.core.families.encoders import MOCHI_VAE, t5_xxl
from arachne.core.families.family import Family
from arachne.core.families.layers import linear, two_layers
from arachne.core.model_shape import FlopInputs, Geometry, ModelShape, WeightGroup

_GEOMETRY = Geometry(temporal_compression=6, spatial_compression=8, patch=(1, 2, 2))


def _ffn_size(hidden_size: int) -> int:
    return 8 * hidden_size // 3


def _text_stream_size(shape: ModelShape) -> int:
    """Width of the text stream: 1536 beside 3072 in the published model."""
    return shape.hidden_size // 2


def _num_parameters(shape: ModelShape) -> int:
    d, f, t, c = shape.hidden_size, shape.ffn_size, _text_stream_size(shape), shape.text_size
    patch_channels = shape.latent_channels * prod(_GEOMETRY.patch)
    embed = linear(patch_channels, d) + two_layers(shape.freq_size, d, d) + linear(c, t)
    embed += linear(c, 2 * c) + linear(c, c) + linear(c, d)  # attention pooling of the text
    embed += 3 * d // 2  # learned frequencies of the rotary embedding, three axes
    video = linear(d, 4 * d) + 3 * d * d + linear(d, d) + 3 * d * f
    text = linear(d, 4 * t) + 3 * t * d + linear(d, t) + 3 * t * _ffn_size(t)
    last_text = linear(d, t) + 3 * t * d  # modulation; q, k, v
    norms = 4 * shape.head_size
    ends = linear(d, 2 * d) + linear(d, patch_channels)
    blocks = shape.num_layers * (video + norms) + (shape.num_layers - 1) * text + last_text
    return embed + blocks + ends


def _flop_inputs(shape: ModelShape) -> FlopInputs:
    """Ignores the one query of the text's attention pooling: 4·(T + 1) products of `text_size`."""
    d, f, t, c = shape.hidden_size, shape.ffn_size, _text_stream_size(shape), shape.text_size
    layers, text_tokens = shape.num_layers, shape.text_tokens
    patch_channels = shape.latent_channels * prod(_GEOMETRY.patch)
    video = layers * (4 * d * d + 3 * d * f)  # q k v out; gated feed-forward
    text = layers * 3 * t * d + (layers - 1) * (d * t + 3 * t * _ffn_size(t))
    clip = shape.freq_size * d + d * d + c * c + c * d  # timestep; pooling's query and output
    clip += layers * 4 * d * d + (layers - 1) * 4 * d * t + d * t + 2 * d * d  # modulations
    return FlopInputs(
        weights=(
            WeightGroup(num_weights=patch_channels * d + 3 * d // 2, meets_video=True),
            WeightGroup(num_weights=video + d * patch_channels, meets_video=True, is_split=True),
            WeightGroup(num_weights=text, num_other_tokens=text_tokens, is_split=True),
            WeightGroup(num_weights=c * t, num_other_tokens=text_tokens),
            WeightGroup(num_weights=2 * c * c, num_other_tokens=text_tokens + 1),
            WeightGroup(num_weights=clip, num_other_tokens=1),
        ),
        self_attention_layers=layers,
        joint_tokens=text_tokens,
        attention_size=d,
    )


def _activation_inputs(shape: ModelShape) -> ActivationInputs:
    """Counts the text stream of the last block too, which has less."""
    d, f, t = shape.hidden_size, shape.ffn_size, _text_stream_size(shape)
    inner = _ffn_size(t)
    block = BlockRun(
        num_blocks=shape.num_layers,
        trained=Kept(
            video=21 * d + 4 * f,
            other=14 * d + 4 * inner,
            video_copies=32 * d,
            other_copies=20 * d,
        ),
        adapted=Kept(
            video=13 * d + 4 * f,
            other=10 * d + 4 * inner,
            video_copies=16 * d,
            other_copies=12 * d,
        ),
        entered=Kept(video=d, other=t),
    )
    return ActivationInputs(
        blocks=(block,),
        ends=Kept(video=5 * d, other=4 * shape.text_size, video_copies=2 * d),
        other_tokens=shape.text_tokens,
        is_other_split=True,
    )


MOCHI = Family(
    name="mochi",
    geometry=_GEOMETRY,
    masks_keys=True,
    presets={
        "mochi-10b": ModelShape(
            family="mochi",
            num_layers=48,
            num_heads=24,
            head_size=128,
            ffn_size=8192,
            latent_channels=12,
            text_size=4096,
            text_tokens=256,
        ),
    },
    num_parameters=_num_parameters,
    flop_inputs=_flop_inputs,
    video_encoder=MOCHI_VAE,
    text_encoders=(t5_xxl(256),),
    activation_inputs=_activation_inputs,
    fixed_ffn_size=_ffn_size,
)
