"""CogVideoX-5B: one stream of text and video tokens that share all weights but the modulation.

Layers: diffusers' `CogVideoXTransformer3DModel` without `patch_size_t`. Sizes: the
class's defaults, with the layers and heads that `convert_cogvideox_to_diffusers.py` of diffusers
names for the published weights; text length: `CogVideoXPipeline`. Image to video sees its first
frame in further channels (`CogVideoXImageToVideoPipeline`).
"""

from math import prod

from arachne.core.activation_inputs import ActivationInputs, BlockRun, Kept
from arachne.core.families.encoders import COGVIDEOX_VAE, t5_xxl
from arachne.core.families.family import Family
from arachne.core.families.layers import linear, two_layers
from arachne.core.model_shape import FlopInputs, Geometry, ModelShape, WeightGroup

COGVIDEOX_GEOMETRY = Geometry(temporal_compression=4, spatial_compression=8, patch=(1, 2, 2))

_TIME_SIZE = 512
"""`time_embed_dim` of the published models: the width of what modulates the blocks."""


def cogvideox_shape(family: str, *, num_layers: int, num_heads: int) -> ModelShape:
    """A published shape; of all of them only layers and heads differ."""
    return ModelShape(
        family=family,
        num_layers=num_layers,
        num_heads=num_heads,
        head_size=64,
        ffn_size=cogvideox_ffn_size(num_heads * 64),
        latent_channels=16,
        text_size=4096,
        text_tokens=226,
    )


def cogvideox_ffn_size(hidden_size: int) -> int:
    """The feed-forward's width, which the class fixes."""
    return 4 * hidden_size


def cogvideox_parameters(shape: ModelShape, geometry: Geometry = COGVIDEOX_GEOMETRY) -> int:
    """Trainable parameters of a transformer with CogVideoX's layers.

    What the published image-to-video model learned of positions is a buffer, which nothing trains.
    """
    d, f, time = shape.hidden_size, shape.ffn_size, _TIME_SIZE
    inputs = shape.input_channels * prod(geometry.patch)
    outputs = shape.latent_channels * prod(geometry.patch)
    norm = linear(time, 6 * d) + 2 * d  # modulation of text and video; layer norm
    attention = 4 * linear(d, d) + 4 * shape.head_size  # q, k, v, out; layer norms of q and k
    block = 2 * norm + attention + two_layers(d, f, d)
    embed = linear(inputs, d) + linear(shape.text_size, d) + two_layers(d, time, time)
    ends = 2 * d + linear(time, 2 * d) + 2 * d + linear(d, outputs)
    return embed + shape.num_layers * block + ends


def cogvideox_flop_inputs(shape: ModelShape, geometry: Geometry = COGVIDEOX_GEOMETRY) -> FlopInputs:
    """What a transformer with CogVideoX's layers multiplies."""
    d, f, layers, text_tokens = (
        shape.hidden_size,
        shape.ffn_size,
        shape.num_layers,
        shape.text_tokens,
    )
    inputs = shape.input_channels * prod(geometry.patch)
    outputs = shape.latent_channels * prod(geometry.patch)
    time = d * _TIME_SIZE + _TIME_SIZE**2 + (layers * 2 * 6 + 2) * _TIME_SIZE * d
    return FlopInputs(
        weights=(
            WeightGroup(num_weights=inputs * d, meets_video=True),
            WeightGroup(
                num_weights=layers * (4 * d * d + 2 * d * f),
                meets_video=True,
                num_other_tokens=text_tokens,
                is_split=True,
            ),
            WeightGroup(num_weights=d * outputs, meets_video=True, is_split=True),
            WeightGroup(num_weights=shape.text_size * d, num_other_tokens=text_tokens),
            WeightGroup(num_weights=time, num_other_tokens=1),
        ),
        self_attention_layers=layers,
        joint_tokens=text_tokens,
        attention_size=d,
    )


def cogvideox_activation_inputs(shape: ModelShape) -> ActivationInputs:
    """What a transformer with CogVideoX's layers keeps for its backward."""
    d, f = shape.hidden_size, shape.ffn_size
    trained, adapted = 15 * d + 2 * f, 11 * d + 2 * f
    block = BlockRun(
        num_blocks=shape.num_layers,
        trained=Kept(video=trained, other=trained),
        adapted=Kept(video=adapted, other=adapted),
        entered=Kept(video=d, other=d),
    )
    return ActivationInputs(
        blocks=(block,),
        ends=Kept(video=4 * d, other=shape.text_size),
        other_tokens=shape.text_tokens,
        is_other_split=True,
    )


def _condition_channels(latent_channels: int) -> int:
    """Channels that show the first frame: its latents."""
    return latent_channels


COGVIDEOX = Family(
    name="cogvideox",
    geometry=COGVIDEOX_GEOMETRY,
    presets={"cogvideox-5b": cogvideox_shape("cogvideox", num_layers=42, num_heads=48)},
    num_parameters=cogvideox_parameters,
    flop_inputs=cogvideox_flop_inputs,
    video_encoder=COGVIDEOX_VAE,
    text_encoders=(t5_xxl(226),),
    activation_inputs=cogvideox_activation_inputs,
    fixed_ffn_size=cogvideox_ffn_size,
    objective="ddpm",
    condition_channels=_condition_channels,
    first_frame_is_before="zeros",
)
