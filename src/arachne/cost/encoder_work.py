"""FLOPs and memory of encoder cascades (`vae` and `text`); encoders are frozen, so forward only."""

from dataclasses import dataclass

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.encoder_shape import TextEncoderShape, VideoEncoderShape

_COPIES_OF_ALL_PAIRS = 3
"""Numbers for each pair of latents where attention spans frames: mask, its product, the scores.
Counted in diffusers' AutoencoderKLHunyuanVideo, on the meta device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderWork:
    """What an encoder cascade costs the GPU that runs it.

    Attributes:
        flops: FLOPs of all its clips.
        parameter_bytes: Weights that have to be in memory.
        working_bytes: Memory beside them at the peak; clips are encoded one after another.
    """

    flops: float
    parameter_bytes: float
    working_bytes: float


def encoder_work(
    cascade: Cascade,
    video_encoder: VideoEncoderShape,
    text_encoders: tuple[TextEncoderShape, ...],
    element_bytes: int,
) -> EncoderWork:
    """The work of a `vae` or `text` cascade with weights and activations of `element_bytes`.

    Several text encoders run one after another on the same caption.
    """
    if cascade.module == "vae":
        return EncoderWork(
            flops=cascade.num_clips * video_encoder_flops(video_encoder, cascade.bucket),
            parameter_bytes=float(video_encoder.num_parameters * element_bytes),
            working_bytes=element_bytes * video_encoder_elements(video_encoder, cascade.bucket),
        )
    assert cascade.module == "text", cascade
    return EncoderWork(
        flops=cascade.num_clips * sum(map(text_encoder_flops, text_encoders)),
        parameter_bytes=float(sum(e.num_parameters for e in text_encoders) * element_bytes),
        working_bytes=element_bytes * max(map(text_encoder_elements, text_encoders), default=0.0),
    )


def video_encoder_flops(encoder: VideoEncoderShape, bucket: Bucket) -> float:
    """FLOPs that encode one clip.

    With W × H pixels, h × w latents in a frame and n latent frames, for each piece that is
    computed apart:

        W·H·(first_frame_flops + (n − 1)·latent_frame_flops) + 4·attention_size·pairs

    where pairs is (n·h·w)² if attention spans frames and n·(h·w)² if not. Source: counting
    products in diffusers' autoencoders, as torch's FlopCounterMode does. Ignores norms and
    activations, and tiles in space (diffusers' default is to use none).
    """
    frame_pixels = bucket.width * bucket.height
    return sum(
        frame_pixels * (encoder.first_frame_flops + (latents - 1) * encoder.latent_frame_flops)
        + 4.0 * encoder.attention_size * _attention_pairs(encoder, bucket, latents)
        for latents in _latent_frames_of_pieces(encoder, bucket.frames)
    )


def video_encoder_elements(encoder: VideoEncoderShape, bucket: Bucket) -> float:
    """Numbers that encoding one clip holds at its peak, beside the weights.

        max( W·H·(first_frame_elements + min(F − 1, frames_at_once)·frame_elements),
             3·pairs where attention spans frames )

    Source: the live tensors of diffusers' autoencoders, counted on the meta device; within −3 %
    and +50 % of that count. Ignores what a convolution's algorithm needs for itself.
    """
    later_frames = bucket.frames - 1
    if encoder.frames_at_once is not None:
        later_frames = min(later_frames, encoder.frames_at_once)
    per_pixel = encoder.first_frame_elements + later_frames * encoder.frame_elements
    elements = bucket.width * bucket.height * per_pixel
    if not encoder.attends_across_frames:
        return elements
    latents = later_frames // encoder.temporal_compression + 1
    return max(elements, _COPIES_OF_ALL_PAIRS * _attention_pairs(encoder, bucket, latents))


def text_encoder_flops(encoder: TextEncoderShape) -> float:
    """FLOPs that encode one caption of T tokens: 2·T·weights + 4·T²·attention_size·layers.

    Source: counting products, as torch's FlopCounterMode does. Ignores norms, activations, softmax.
    """
    tokens = encoder.num_tokens
    return (
        2.0 * tokens * encoder.weights_per_token
        + 4.0 * tokens * tokens * encoder.attention_size * encoder.num_layers
    )


def text_encoder_elements(encoder: TextEncoderShape) -> float:
    """Numbers that encoding one caption of T tokens holds at its peak, beside the weights.

        max(10·T·ffn_size + 4·T²·num_heads, 6·T·joined_size)

    Source: an upper bound, at most three times what transformers' T5, Llama and CLIP, and
    diffusers' connectors of LTX-2, held when their live tensors were counted on the meta device. T5
    keeps its attention scores.
    """
    tokens = encoder.num_tokens
    in_a_layer = 10.0 * tokens * encoder.ffn_size + 4.0 * tokens * tokens * encoder.num_heads
    return max(in_a_layer, 6.0 * tokens * encoder.joined_size)


def _latent_frames_of_pieces(encoder: VideoEncoderShape, frames: int) -> list[int]:
    """Latent frames of each piece of a clip that is computed apart; one piece without tiles."""
    at_once, stride = encoder.frames_at_once, encoder.tile_stride
    if at_once is None or stride is None or frames <= at_once:
        return [(frames - 1) // encoder.temporal_compression + 1]
    pieces = [min(frames - start, at_once + 1) for start in range(0, frames, stride)]
    return [(piece - 1) // encoder.temporal_compression + 1 for piece in pieces]


def _attention_pairs(encoder: VideoEncoderShape, bucket: Bucket, latent_frames: int) -> float:
    """Pairs of latents that attend to each other in one piece."""
    side = encoder.spatial_compression
    latents = float((bucket.width // side) * (bucket.height // side))
    if encoder.attends_across_frames:
        return (latent_frames * latents) ** 2
    return latent_frames * latents**2
