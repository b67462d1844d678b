"""A video from a checkpoint, in one process."""

from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from arachne.core.errors import CheckpointError
from arachne.core.families import family_named
from arachne.models.diffusers_module import VideoTransformer
from arachne.models.interface import TextEncoder, VideoEncoder
from arachne.runtime.sharded_optimizer import AVERAGE, MASTER
from arachne.trainer.built_model import DTYPES, training_model
from arachne.trainer.checkpoint_reader import CheckpointReader
from arachne.trainer.config import RunConfig
from arachne.trainer.frozen_base import check_same_base, frozen_base
from arachne.trainer.objective import objective_of
from arachne.trainer.run_encoders import run_text_encoder, run_video_encoder
from arachne.trainer.sample_request import SampleRequest
from arachne.trainer.sampling import noise_of, walk
from arachne.trainer.sampling_model import (
    first_frames,
    other_expert,
    picture,
    sampling_predict,
    text_states,
)
from arachne.trainer.state import check_same_model

Weights = Literal["raw", "ema"]
"""The weights as they were trained, or their moving average."""


def generate(
    config: RunConfig, checkpoint: Path, request: SampleRequest, weights: Weights = "raw"
) -> NDArray[np.uint8]:
    """Frames [F, H, W, 3] for a prompt, in the run's own encoders and model.

    Raises:
        ConfigError: As `SampleRequest.check`.
        DataError: The picture cannot be read.
        CheckpointError: The checkpoint is of another model.
    """
    request.check(config)
    settings = config.model
    geometry = family_named(settings.family).geometry
    grid = geometry.latent_grid(request.bucket)
    video_encoder, text_encoder = run_video_encoder(settings), run_text_encoder(settings)
    model = trained_model(config, checkpoint, video_encoder, text_encoder, weights)
    other = other_expert(config, model, dtype=DTYPES[settings.dtype], device=torch.device("cpu"))
    dtype = torch.promote_types(DTYPES[settings.dtype], torch.float32)
    frame = first = None
    if request.image is not None:
        frame = picture(request.image, request.bucket)
        first = first_frames(video_encoder, frame, request.bucket.frames, dtype=dtype)
    latents = walk(
        sampling_predict(config, model, other=other, first=first),
        noise_of((1, video_encoder.latent_channels, *grid), request.seed, dtype),
        torch.from_numpy(text_states(text_encoder, request.prompt, frame))[None].to(dtype),
        null_text_LD=torch.from_numpy(text_encoder.encode("")).to(dtype),
        steps=objective_of(config).sampler_steps(
            request.steps, geometry.num_tokens(request.bucket)
        ),
        guidance=request.guidance,
    )
    return video_encoder.decode(latents[0].float().numpy())


def trained_model(
    config: RunConfig,
    checkpoint: Path,
    video_encoder: VideoEncoder,
    text_encoder: TextEncoder,
    weights: Weights = "raw",
) -> VideoTransformer:
    """The run's model with a checkpoint's weights, in `model.dtype`, on the CPU.

    Parameters that were not trained are those that the run started from.

    Raises:
        ConfigError: The encoders do not fit the model.
        CheckpointError: The checkpoint has other parameters, or no moving average of them, or was
            trained on other frozen ones.
    """
    model = training_model(config, video_encoder, text_encoder, starts=False)
    reader = CheckpointReader(checkpoint)
    named = model.module.named_parameters()
    parameters = {name: parameter for name, parameter in named if parameter.requires_grad}
    check_same_model(reader, {name: tuple(p.shape) for name, p in parameters.items()})
    check_same_base(reader, frozen_base(config, model.module), config)
    kind = MASTER if weights == "raw" else AVERAGE
    if not all(reader.holds(name, kind) for name in parameters):
        raise CheckpointError(
            f"checkpoint {checkpoint.name} has no moving average of the weights, since the run had "
            "optimizer.ema_decay = 0; take --weights raw"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            values = reader.read(name, kind, 0, prod(parameter.shape))
            parameter.copy_(torch.from_numpy(values).view(parameter.shape))
    return model
