"""Wan 2.1, and either expert of Wan 2.2 A14B: transformers with cross-attention to the text.

Layers: diffusers' `WanTransformer3DModel`. Sizes: the `transformer/config.json` of
Wan2.1-T2V-1.3B and -14B in diffusers' layout.

Image-to-video models see the first frame in further channels: its mask, one for each frame of a
latent frame, and the latents of that frame before grey ones. Those of Wan 2.1 also look at the
states that an image encoder makes of it. Source: diffusers' `WanImageToVideoPipeline`.
"""

from math import prod

from arachne.core.activation_inputs import ActivationInputs, BlockRun, Kept
from arachne.core.families.encoders import UMT5_XXL, WAN_VAE
from arachne.core.families.family import Family
from arachne.core.families.layers import linear, two_layers
from arachne.core.model_shape import FlopInputs, Geometry, ModelShape, WeightGroup, time_group

WAN_GEOMETRY = Geometry(temporal_compression=4, spatial_compression=8, patch=(1, 2, 2))

WAN_IMAGE_TOKENS = 257
"""States that CLIP ViT-H/14 makes of 224 x 224 pixels: 16 x 16 patches, and one of the whole."""


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


def wan_condition_channels(latent_channels: int) -> int:
    """The mask's channels, one for each frame of a latent frame, and the first frame's latents."""
    return WAN_GEOMETRY.temporal_compression + latent_channels


def wan_parameters(shape: ModelShape) -> int:
    """Trainable parameters of a transformer with Wan's layers."""
    d, f = shape.hidden_size, shape.ffn_size
    patch_volume = prod(WAN_GEOMETRY.patch)
    patch_channels = shape.latent_channels * patch_volume
    attention = 4 * linear(d, d) + 2 * d  # q, k, v, out; RMS norms of q and k
    block = 2 * attention + 2 * d + two_layers(d, f, d) + 6 * d  # norm2, feed-forward, modulation
    embed = linear(shape.input_channels * patch_volume, d) + two_layers(shape.text_size, d, d)
    embed += two_layers(shape.freq_size, d, d) + linear(d, 6 * d)
    if shape.image_size:
        block += 2 * linear(d, d) + d  # k and v of the image; RMS norm of k
        image = shape.image_size
        embed += 2 * image + two_layers(image, image, d) + 2 * d  # between two layer norms
    return embed + shape.num_layers * block + linear(d, patch_channels) + 2 * d


def wan_flop_inputs(shape: ModelShape) -> FlopInputs:
    """What a transformer with Wan's layers multiplies."""
    d, f, layers = shape.hidden_size, shape.ffn_size, shape.num_layers
    patch_volume = prod(WAN_GEOMETRY.patch)
    patch_channels = shape.latent_channels * patch_volume
    block = 4 * d * d + 2 * d * d + 2 * d * f  # self q k v out; cross q out; feed-forward
    text = shape.text_size * d + d * d + layers * 2 * d * d  # embedder; cross k v
    time = shape.freq_size * d + d * d + 6 * d * d
    image = (
        shape.image_size * (shape.image_size + d) + layers * 2 * d * d if shape.image_size else 0
    )
    return FlopInputs(
        weights=(
            WeightGroup(num_weights=shape.input_channels * patch_volume * d, meets_video=True),
            WeightGroup(
                num_weights=layers * block + d * patch_channels, meets_video=True, is_split=True
            ),
            WeightGroup(num_weights=text, num_other_tokens=shape.text_tokens),
            *([WeightGroup(num_weights=image, num_other_tokens=shape.image_tokens)] * (image > 0)),
            time_group(shape, time),
        ),
        self_attention_layers=layers,
        cross_attention_layers=layers,
        attention_size=d,
    )


def wan_activation_inputs(shape: ModelShape) -> ActivationInputs:
    """What a transformer with Wan's layers keeps for its backward."""
    d, f = shape.hidden_size, shape.ffn_size
    image = d if shape.image_size else 0  # what attention to the image gives
    times = 8 * d if shape.keeps_first_frame else 0  # modulations of each token, in float32
    end_times = 6 * d + shape.freq_size if shape.keeps_first_frame else 0
    more = image + times
    block = BlockRun(
        num_blocks=shape.num_layers,
        trained=Kept(
            video=22 * d + 2 * f + more,
            other=4 * d,
            video_copies=24 * d + 2 * times,
            other_copies=4 * d,
        ),
        adapted=Kept(
            video=15 * d + 2 * f + more,
            other=3 * d,
            video_copies=12 * d + 2 * times,
            other_copies=2 * d,
        ),
        entered=Kept(video=d),
    )
    return ActivationInputs(
        blocks=(block,),
        ends=Kept(video=3 * d + end_times, other=3 * d + shape.text_size, video_copies=4 * d),
        other_tokens=shape.text_tokens + shape.image_tokens,
    )


WAN = Family(
    name="wan",
    geometry=WAN_GEOMETRY,
    presets={
        "wan-1.3b": _shape(num_layers=30, num_heads=12, ffn_size=8960),
        "wan-14b": _shape(num_layers=40, num_heads=40, ffn_size=13824),
    },
    num_parameters=wan_parameters,
    flop_inputs=wan_flop_inputs,
    video_encoder=WAN_VAE,
    text_encoders=(UMT5_XXL,),
    activation_inputs=wan_activation_inputs,
    condition_channels=wan_condition_channels,
    image_states="some",
)
