"""The frozen encoders that a run names."""

from arachne.models.encoders import first_frame_encoder, text_encoder_named, video_encoder_named
from arachne.models.interface import TextEncoder, VideoEncoder
from arachne.trainer.planning_shape import keeps_first_frame, picture_every, pooled_text_size
from arachne.trainer.settings.model import ModelSettings


def run_video_encoder(settings: ModelSettings, *, device: str = "cpu") -> VideoEncoder:
    """What encodes a run's clips; with image to video their first frames too, unless kept.

    Raises:
        ConfigError: A folder holds no such encoder, or one that the family cannot use.
    """
    encoder = video_encoder_named(
        settings.video_encoder,
        family=settings.family,
        device=device,
        latents=settings.video_latents,
        is_tiled=settings.video_tiling,
    )
    if not settings.image_to_video or keeps_first_frame(settings):
        return encoder
    return first_frame_encoder(
        encoder, settings.image_encoder, family=settings.family, device=device
    )


def run_text_encoder(settings: ModelSettings, *, device: str = "cpu") -> TextEncoder:
    """What encodes a run's captions; LLaVA looks at first frames, in image to video alone.

    Raises:
        ConfigError: The folder holds no such encoder, or transformers is not installed.
    """
    return text_encoder_named(
        settings.text_encoder,
        settings.num_text_tokens,
        family=settings.family,
        pooled_size=pooled_text_size(settings),
        picture_every=picture_every(settings, keeps_first_frame(settings)),
        device=device,
    )
