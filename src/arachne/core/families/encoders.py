"""Encoders that the families were trained with, and the demo's training-free ones.

Video autoencoders: the defaults of diffusers' classes, which hold the published sizes. Parameters
are exact. FLOPs per pixel are what torch's FlopCounterMode counts in the class's `encode`; numbers
alive at the peak are those of all tensors that `encode` holds at one moment, counted without
gradients on the meta device. Both leave out what a convolution's algorithm needs for itself.

Text encoders: the published `config.json`. Lengths: diffusers' pipelines.
"""

from arachne.core.encoder_shape import TextEncoderShape, VideoEncoderShape

WAN_VAE = VideoEncoderShape(
    name="AutoencoderKLWan",
    num_parameters=126_892_531,
    temporal_compression=4,
    spatial_compression=8,
    first_frame_flops=6_656_864,
    latent_frame_flops=20_011_424,
    attention_size=384,
    frames_at_once=4,
    first_frame_elements=968,
    frame_elements=645,
)

WAN_5B_VAE = VideoEncoderShape(
    # Not the class's defaults but diffusers' `convert_wan_to_diffusers.py`: 160 and 256 channels at
    # the least, 48 of the latent, residual blocks, patches of 2 x 2 pixels.
    name="AutoencoderKLWan of 2.2",
    num_parameters=704_688_668,
    temporal_compression=4,
    spatial_compression=16,
    first_frame_flops=4_643_752,
    latent_frame_flops=13_963_112,
    attention_size=640,
    frames_at_once=4,
    first_frame_elements=491,
    frame_elements=363,
)

HUNYUAN_VIDEO_VAE = VideoEncoderShape(
    name="AutoencoderKLHunyuanVideo",
    num_parameters=246_478_803,
    temporal_compression=4,
    spatial_compression=8,
    first_frame_flops=12_265_248,
    latent_frame_flops=36_280_864,
    attention_size=512,
    attends_across_frames=True,
    frames_at_once=16,
    tile_stride=12,
    first_frame_elements=899,
    frame_elements=645,
)

HUNYUAN_VIDEO15_VAE = VideoEncoderShape(
    name="AutoencoderKLHunyuanVideo15",
    num_parameters=1_260_634_115,
    temporal_compression=4,
    spatial_compression=16,
    first_frame_flops=17_209_088,
    latent_frame_flops=56_089_088,
    attention_size=1024,
    attends_across_frames=True,
    first_frame_elements=899,
    frame_elements=768,
)

COGVIDEOX_VAE = VideoEncoderShape(
    name="AutoencoderKLCogVideoX",
    num_parameters=215_583_907,
    temporal_compression=4,
    spatial_compression=8,
    first_frame_flops=13_823_744,
    latent_frame_flops=34_767_360,
    frames_at_once=12,
    first_frame_elements=2665,
    frame_elements=768,
)

LTX_VAE = VideoEncoderShape(
    name="AutoencoderKLLTXVideo",
    num_parameters=419_193_649,
    temporal_compression=8,
    spatial_compression=32,
    first_frame_flops=1_533_083,
    latent_frame_flops=6_493_083,
    first_frame_elements=75,
    frame_elements=43,
)

LTX2_VAE = VideoEncoderShape(
    name="AutoencoderKLLTX2Video",
    num_parameters=1_222_479_601,
    temporal_compression=8,
    spatial_compression=32,
    first_frame_flops=5_923_692,
    latent_frame_flops=23_293_548,
    first_frame_elements=91,
    frame_elements=43,
)

MOCHI_VAE = VideoEncoderShape(
    # Its attention along time costs 0.5 % of the whole and is left out.
    name="AutoencoderKLMochi",
    num_parameters=459_748_611,
    temporal_compression=6,
    spatial_compression=8,
    first_frame_flops=6_949_024,
    latent_frame_flops=24_867_360,
    first_frame_elements=453,
    frame_elements=460,
)

DCT_CODEC = VideoEncoderShape(
    # Colour matrix: 18 FLOPs a pixel; 48 kernels of a block's pixels, a third of them on each
    # plane: 96. What it holds is an *assumption*: four copies of three colour planes.
    name="dct",
    num_parameters=0,
    temporal_compression=4,
    spatial_compression=8,
    first_frame_flops=114,
    latent_frame_flops=4 * 114,
    frames_at_once=4,
    first_frame_elements=12,
    frame_elements=12,
)


def _t5(
    name: str,
    *,
    num_tokens: int,
    vocabulary: int,
    num_layers: int = 24,
    width: int = 4096,
    num_heads: int = 64,
    ffn_size: int = 10240,
    position_tables: int = 1,
) -> TextEncoderShape:
    """An encoder of T5 v1.1: no biases, gated feed-forward, heads of 64, 32 position buckets."""
    attention_size = 64 * num_heads
    weights = num_layers * (4 * width * attention_size + 3 * width * ffn_size)
    norms = (2 * num_layers + 1) * width
    positions = position_tables * 32 * num_heads
    return TextEncoderShape(
        name=name,
        num_parameters=weights + vocabulary * width + norms + positions,
        weights_per_token=weights,
        num_layers=num_layers,
        num_heads=num_heads,
        attention_size=attention_size,
        ffn_size=ffn_size,
        num_tokens=num_tokens,
    )


def _llama(
    name: str,
    *,
    num_tokens: int,
    vocabulary: int,
    num_layers: int,
    width: int,
    key_width: int,
    ffn_size: int,
    has_biases: bool = False,
) -> TextEncoderShape:
    """A decoder of Llama's layers without its head; Qwen's has biases at queries, keys, values.

    Heads are 128 wide. Attention is counted over all pairs of tokens, as torch counts it; a causal
    kernel does half.
    """
    weights = num_layers * (2 * width * width + 2 * width * key_width + 3 * width * ffn_size)
    norms = (2 * num_layers + 1) * width
    biases = num_layers * (width + 2 * key_width) if has_biases else 0
    return TextEncoderShape(
        name=name,
        num_parameters=weights + vocabulary * width + norms + biases,
        weights_per_token=weights,
        num_layers=num_layers,
        num_heads=width // 128,
        attention_size=width,
        ffn_size=ffn_size,
        num_tokens=num_tokens,
    )


UMT5_XXL = _t5("UMT5-XXL", num_tokens=512, vocabulary=256_384, position_tables=24)
"""Wan and SkyReels-V2."""


def t5_xxl(num_tokens: int) -> TextEncoderShape:
    """T5 v1.1 XXL (CogVideoX, LTX-Video, Mochi), whose families differ in the caption's length."""
    return _t5("T5-XXL", num_tokens=num_tokens, vocabulary=32_128)


LLAMA_3_8B = _llama(
    # 95 tokens of HunyuanVideo's prompt frame precede the caption and are cut off afterwards.
    "Llama-3-8B",
    num_tokens=95 + 256,
    vocabulary=128_256,
    num_layers=32,
    width=4096,
    key_width=1024,
    ffn_size=14_336,
)

GEMMA_3_12B = TextEncoderShape(
    # The language model alone: heads of 256, 16 of queries and 8 of keys; four norms a layer, and
    # those of queries and keys. With LTX-2's connectors: a matrix for the states of all 49 layers
    # together, then two layers of attention for the video and two for the audio, which the class
    # runs as well, with 128 registers each.
    name="Gemma-3-12B and LTX-2's connectors",
    num_parameters=11_766_034_176 + 1_431_475_200,
    weights_per_token=48 * (2 * 3840 * 4096 + 2 * 3840 * 2048 + 3 * 3840 * 15_360)
    + 49 * 3840 * 3840
    + 4 * (4 * 3840 * 3840 + 2 * 3840 * 15_360),
    num_layers=48 + 4,
    num_heads=16,
    attention_size=4096,
    ffn_size=15_360,
    num_tokens=1024,
    joined_size=49 * 3840,
)

CLIP_L_TEXT = TextEncoderShape(
    # 12 layers of width 768 with biases, 49,408 words, 77 positions.
    name="CLIP-L text",
    num_parameters=123_060_480,
    weights_per_token=12 * (4 * 768 * 768 + 2 * 768 * 3072),
    num_layers=12,
    num_heads=12,
    attention_size=768,
    ffn_size=3072,
    num_tokens=77,
)

QWEN_2_5_VL_7B = _llama(
    # The language model alone. 108 tokens of HunyuanVideo 1.5's prompt frame precede the caption.
    "Qwen2.5-VL-7B",
    num_tokens=108 + 1000,
    vocabulary=152_064,
    num_layers=28,
    width=3584,
    key_width=512,
    ffn_size=18_944,
    has_biases=True,
)

GLYPH_BYT5 = _t5(
    # ByT5-small's encoder. The published one adds some 1,500 words for colours and fonts.
    "ByT5-small",
    num_tokens=256,
    vocabulary=384,
    num_layers=12,
    width=1472,
    num_heads=6,
    ffn_size=3584,
)

HASHED_TEXT = TextEncoderShape(
    # Adding up the vectors of about 20 parts a word, 128 wide: an *assumption*.
    name="hashed",
    num_parameters=0,
    weights_per_token=20 * 128 // 2,
    num_layers=0,
    num_heads=0,
    attention_size=0,
    ffn_size=128,
    num_tokens=512,
)
