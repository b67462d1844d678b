"""A video from a checkpoint, in one process."""

from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from arachne.core.bucket import Bucket
from arachne.core.families import family_named
from arachne.models.diffusers_module import VideoTransformer
from arachne.models.encoders import text_encoder_named, video_encoder_named
from arachne.models.interface import TextEncoder, VideoEncoder
from arachne.trainer.checkpoint import CheckpointReader
from arachne.trainer.config import RunConfig
from arachne.trainer.sampling import noise_of, sample_latents
from arachne.trainer.session import DTYPES, built_model
from arachne.trainer.state import check_same_model


def generate(
    config: RunConfig,
    checkpoint: Path,
    *,
    prompt: str,
    bucket: Bucket,
    steps: int,
    guidance: float,
    seed: int,
) -> NDArray[np.uint8]:
    """Frames [F, H, W, 3] for a prompt, in the run's own encoders and model.

    Raises:
        ConfigError: The bucket is not legal for the model.
        CheckpointError: The checkpoint is of another model.
    """
    settings = config.model
    grid = family_named(settings.family).geometry.latent_grid(bucket)
    video_encoder = video_encoder_named(settings.video_encoder, family=settings.family)
    text_encoder = text_encoder_named(settings.text_encoder, settings.num_text_tokens)
    model = trained_model(config, checkpoint, video_encoder, text_encoder)
    dtype = torch.promote_types(DTYPES[settings.dtype], torch.float32)
    latents = sample_latents(
        model.predict,
        noise_of((1, video_encoder.latent_channels, *grid), seed, dtype),
        torch.from_numpy(text_encoder.encode(prompt))[None].to(dtype),
        null_text_LD=torch.from_numpy(text_encoder.encode("")).to(dtype),
        steps=steps,
        shift=config.objective.shift,
        guidance=guidance,
    )
    return video_encoder.decode(latents[0].float().numpy())


def trained_model(
    config: RunConfig, checkpoint: Path, video_encoder: VideoEncoder, text_encoder: TextEncoder
) -> VideoTransformer:
    """The run's model with a checkpoint's master weights, in `model.dtype`, on the CPU.

    Raises:
        ConfigError: The encoders do not fit the model.
        CheckpointError: The checkpoint has other parameters.
    """
    model = built_model(config.model, config.run.seed, video_encoder, text_encoder)
    reader = CheckpointReader(checkpoint)
    parameters = dict(model.module.named_parameters())
    check_same_model(reader, {name: tuple(p.shape) for name, p in parameters.items()})
    with torch.no_grad():
        for name, parameter in parameters.items():
            values = reader.read(name, "master", 0, prod(parameter.shape))
            parameter.copy_(torch.from_numpy(values).view(parameter.shape))
    return model
