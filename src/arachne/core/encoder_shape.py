"""What planning has to know of the frozen encoders: how large they are, and what a clip costs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoEncoderShape:
    """A convolutional video autoencoder, as far as encoding goes.

    Convolutions cost the same for every pixel: once for the first frame, and once for each later
    latent frame, which stands for `temporal_compression` frames. `cost.encoder_work` has the sums.

    Attributes:
        name: For messages.
        num_parameters: Of the whole autoencoder, decoder included, since it is loaded whole.
        temporal_compression: Frames per latent frame, the first frame apart.
        spatial_compression: Pixels per latent, on each side.
        first_frame_flops: FLOPs for each pixel of the first frame.
        latent_frame_flops: FLOPs for each pixel of a frame and each later latent frame.
        attention_size: Channels of the attention at the latent's resolution; 0 without one.
        attends_across_frames: That attention sees all frames that are encoded at once, not one.
        frames_at_once: Frames after the first that are encoded in one piece; None for all.
        tile_stride: Where pieces overlap and are computed apart, frames from one's start to the
            next one's; None where pieces continue each other and no frame is computed twice.
        first_frame_elements: Numbers alive at the peak, for each pixel of the first frame.
        frame_elements: The same for each pixel of every later frame that is encoded at once.
    """

    name: str
    num_parameters: int
    temporal_compression: int
    spatial_compression: int
    first_frame_flops: float
    latent_frame_flops: float
    attention_size: int = 0
    attends_across_frames: bool = False
    frames_at_once: int | None = None
    tile_stride: int | None = None
    first_frame_elements: float
    frame_elements: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEncoderShape:
    """A transformer that turns a caption into token states; captions are padded to one length.

    Attributes:
        name: For messages.
        num_parameters: Of the encoder as it is loaded, embedding table included.
        weights_per_token: Weights that each token meets in matrix products.
        num_layers: Layers of self-attention.
        num_heads: Attention heads of a layer.
        attention_size: Heads × head size of the queries.
        ffn_size: Inner width of the feed-forward layers, the widest activation.
        num_tokens: Tokens that the encoder sees for each clip, padding and prompt frame counted.
        joined_size: Width of the states of several layers side by side, where those are needed.
    """

    name: str
    num_parameters: int
    weights_per_token: int
    num_layers: int
    num_heads: int
    attention_size: int
    ffn_size: int
    num_tokens: int
    joined_size: int = 0
