"""Sample videos while a run trains, from the weights as they are at that moment."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from arachne.core.families import family_named
from arachne.trainer.objective import objective_of
from arachne.trainer.prompts import own_prompts
from arachne.trainer.run_encoders import run_video_encoder
from arachne.trainer.sampling import noise_of, walk
from arachne.trainer.sampling_model import first_frames, other_expert, picture, sampling_predict
from arachne.trainer.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleVideo:
    """One video: which of `validation.prompts` it was drawn for, and its frames [F, H, W, 3]."""

    number: int
    prompt: str
    frames: NDArray[np.uint8]


class _StopAskedError(Exception):
    """Ends the drawing of a video in its midst."""


def sample_videos(
    session: Session, wants_stop: Callable[[], bool]
) -> tuple[SampleVideo, ...] | None:
    """This rank's videos; meets no other rank. None if this rank was asked to stop meanwhile.

    A prompt's noise depends on its number and the run's seed alone: videos of two steps differ by
    what was learned between them.
    """
    try:
        return _drawn(session, wants_stop)
    except _StopAskedError:
        return None


def _drawn(session: Session, wants_stop: Callable[[], bool]) -> tuple[SampleVideo, ...]:
    prompts = own_prompts(session.config, session.world)
    if not prompts:
        return ()
    settings, model = session.config.validation, session.config.model
    device = session.world.device
    # Made for this moment: on a GPU its weights would stand in the way of training.
    encoder = run_video_encoder(model, device=str(device))
    other = other_expert(session.config, session.model, dtype=session.dtype, device=device)
    geometry = family_named(model.family).geometry
    bucket = settings.sample_bucket
    shape = (1, encoder.latent_channels, *geometry.latent_grid(bucket))
    steps = objective_of(session.config).sampler_steps(
        settings.sample_steps, geometry.num_tokens(bucket)
    )
    wide = torch.promote_types(session.dtype, torch.float32)
    videos: list[SampleVideo] = []

    def go_on() -> None:
        session.recorder.progress.change("sample")
        if wants_stop():
            raise _StopAskedError

    for number, prompt in prompts.items():
        first = None
        if model.image_to_video:
            frame = picture(Path(settings.images[number]), bucket)
            first = first_frames(encoder, frame, bucket.frames, dtype=wide).to(device)
        latents = walk(
            sampling_predict(
                session.config,
                session.model,
                other=other,
                first=first,
                tell=go_on,
            ),
            noise_of(shape, session.config.run.seed + number, wide).to(device),
            session.prompt_texts[number][None].to(device=device, dtype=wide),
            null_text_LD=session.null_text.to(device=device, dtype=wide),
            steps=steps,
            guidance=settings.guidance,
        )
        frames = encoder.decode(latents[0].float().cpu().numpy())
        videos.append(SampleVideo(number=number, prompt=prompt, frames=frames))
    return tuple(videos)
