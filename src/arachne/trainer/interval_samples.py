"""Sample videos while a run trains, from the weights as they are at that moment."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from arachne.core.families import family_named
from arachne.models.encoders import video_encoder_named
from arachne.trainer.objective import objective_of
from arachne.trainer.prompts import own_prompts
from arachne.trainer.sampling import noise_of, walk
from arachne.trainer.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleVideo:
    """One video: which of `validation.prompts` it was drawn for, and its frames [F, H, W, 3]."""

    number: int
    prompt: str
    frames: NDArray[np.uint8]


def sample_videos(session: Session) -> tuple[SampleVideo, ...]:
    """This rank's videos; meets no other rank.

    A prompt's noise depends on its number and the run's seed alone: videos of two steps differ by
    what was learned between them.
    """
    prompts = own_prompts(session.config, session.world)
    if not prompts:
        return ()
    settings, model = session.config.validation, session.config.model
    device = session.world.device
    # Made for this moment: on a GPU its weights would stand in the way of training.
    encoder = video_encoder_named(model.video_encoder, family=model.family, device=str(device))
    geometry = family_named(model.family).geometry
    bucket = settings.sample_bucket
    shape = (1, encoder.latent_channels, *geometry.latent_grid(bucket))
    steps = objective_of(session.config).sampler_steps(
        settings.sample_steps, geometry.num_tokens(bucket)
    )
    wide = torch.promote_types(session.dtype, torch.float32)

    def predict(latents: torch.Tensor, level: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        session.recorder.progress.change("sample")
        return session.model.predict(latents, level, text)

    videos: list[SampleVideo] = []
    for number, prompt in prompts.items():
        latents = walk(
            predict,
            noise_of(shape, session.config.run.seed + number, wide).to(device),
            session.prompt_texts[number][None].to(device=device, dtype=wide),
            null_text_LD=session.null_text.to(device=device, dtype=wide),
            steps=steps,
            guidance=settings.guidance,
        )
        frames = encoder.decode(latents[0].float().cpu().numpy())
        videos.append(SampleVideo(number=number, prompt=prompt, frames=frames))
    return tuple(videos)
