"""Seconds and bytes of encoder cascades, and of handing their results to the GPUs that train."""

from dataclasses import dataclass, replace
from math import ceil

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade, Encoder
from arachne.core.cluster import Device, Link
from arachne.core.encoder_shape import TextEncoderShape, VideoEncoderShape
from arachne.core.families import family_named
from arachne.core.model_shape import ModelShape
from arachne.cost.collectives import transfer_s
from arachne.cost.encoder_work import EncoderWork, encoder_work
from arachne.cost.model_counts import model_counts
from arachne.cost.training_state import HOST_BYTES_PER_S

_CONVOLUTION_RATE = 0.5
"""Rate of 3-D convolutions beside that of matrix products; *assumption*: their kernels read each
number more often and fit the tensor cores less well."""

_OVERLAP_PIXELS = 64
"""What neighbouring tiles share of the side that they cut: diffusers' autoencoders cut tiles of 256
pixels, 192 apart."""

TILE_SIDE = 256
"""Of most of diffusers' autoencoders."""

_RESULT_BYTES = 4
"""Encoders give float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoders:
    """The frozen encoders of a run.

    Attributes:
        video: The autoencoder.
        texts: Text encoders, all of which see each caption.
        element_bytes: Bytes of their weights and activations.
        max_video_degree: Most GPUs that may share one clip's autoencoding, tile by tile.
        tile_side: Pixels of a side of the square tiles that are encoded one after another, so that
            memory is bounded; None encodes whole frames, which no two GPUs can share.
        are_on_host: Whether their weights come from the host's memory for each cascade.
    """

    video: VideoEncoderShape
    texts: tuple[TextEncoderShape, ...]
    element_bytes: int
    max_video_degree: int = 1
    tile_side: int | None = None
    are_on_host: bool = False

    @property
    def parameter_bytes(self) -> float:
        """Weights of all of them, as a rank holds them that encodes and trains in turn."""
        num_parameters = self.video.num_parameters + sum(t.num_parameters for t in self.texts)
        return float(num_parameters * self.element_bytes)

    def can_split(self, module: Encoder, bucket: Bucket, degree: int) -> bool:
        """Whether so many GPUs may share a cascade: each has to have a tile."""
        if degree == 1 or module == "text" or self.tile_side is None:
            return degree == 1
        return degree <= min(self.max_video_degree, _tiles(bucket, self.tile_side)[1])

    def work(self, module: Encoder, bucket: Bucket, num_clips: int, degree: int) -> EncoderWork:
        """What each of `degree` GPUs has to do.

        With a tile side there are n = ⌈(W − overlap) / (side − overlap)⌉ tiles across, times as
        many down, all taken as whole ones. A GPU has ⌈n / degree⌉ of them to encode, and the memory
        of one.
        """
        tile, num_tiles = bucket, 1
        if module == "vae" and self.tile_side is not None:
            tile, num_tiles = _tiles(bucket, self.tile_side)
        cascade = Cascade(module=module, slots=tuple(range(num_clips)), bucket=tile, num_tokens=1)
        of_tile = encoder_work(cascade, self.video, self.texts, self.element_bytes)
        return replace(of_tile, flops=ceil(num_tiles / degree) * of_tile.flops)

    def seconds(self, module: Encoder, work: EncoderWork, num_clips: int, device: Device) -> float:
        """Seconds of some work on a full-speed GPU: a launch's fixed cost, and FLOPs at the rate.

        Text runs at the rate that products of its n tokens have, R·n / (n + h). Weights that are on
        the host are fetched first, weights / `HOST_BYTES_PER_S`. Ignores what the kernels of an
        encoder cost by themselves.
        """
        fixed_s = device.launch_s
        if self.are_on_host:
            fixed_s += work.parameter_bytes / HOST_BYTES_PER_S
        if module == "vae":
            return fixed_s + work.flops / (device.matmul_flops_per_s * _CONVOLUTION_RATE)
        rows = num_clips * max((text.num_tokens for text in self.texts), default=1)
        slowdown = 1.0 + device.half_rate_tokens / rows
        return fixed_s + work.flops * slowdown / device.matmul_flops_per_s


def published_encoders(model: ModelShape, element_bytes: int) -> Encoders:
    """Those that the model's family was published with.

    An autoencoder whose attention spans frames keeps scores for each pair of all latents, so it
    runs in tiles of diffusers' default size, as its users let it.
    """
    family = family_named(model.family)
    video = family.video_encoder
    return Encoders(
        video=video,
        texts=family.text_encoders,
        element_bytes=element_bytes,
        tile_side=TILE_SIDE if video.attends_across_frames else None,
    )


def handoff_bytes(model: ModelShape, cascade: Cascade) -> float:
    """What an encoder cascade makes: latents, or the states of the text tokens."""
    if cascade.module == "vae":
        numbers = cascade.num_tokens * model_counts(model).output_size
    else:
        numbers = model.text_tokens * model.text_size + model.pooled_text_size
    return float(cascade.num_clips * numbers * _RESULT_BYTES)


def handoff_s(num_bytes: float, num_senders: int, link: Link) -> float:
    """Seconds until all that need a result have it, on the slowest link between them.

    Each of `num_senders` GPUs holds an equal part and sends it once: in parts if the receivers
    share them out, or as a broadcast that receivers pass on. Ignores the start of that pipeline.
    """
    return transfer_s(num_bytes / num_senders, link)


def _tiles(bucket: Bucket, side: int) -> tuple[Bucket, int]:
    """The largest tile of a bucket, and how many tiles cover it."""
    tile = Bucket(
        width=min(side, bucket.width), height=min(side, bucket.height), frames=bucket.frames
    )
    stride = side - _OVERLAP_PIXELS
    across, down = (
        max(1, ceil((pixels - _OVERLAP_PIXELS) / stride))
        for pixels in (bucket.width, bucket.height)
    )
    return tile, across * down
