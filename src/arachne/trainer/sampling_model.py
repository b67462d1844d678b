"""What predicts while a video is drawn: a run's model, with another expert or a first frame.

Wan 2.2 A14B is two transformers: one for noise levels from a boundary up, one for those below. A
run trains one of them, in its `objective.timestep_range`; the other one draws with it. Source:
diffusers' `WanPipeline` with `boundary_ratio`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from arachne.core.bucket import Bucket
from arachne.core.errors import ConfigError, DataError
from arachne.data.decode import decode_clip
from arachne.models.diffusers_module import load_transformer
from arachne.models.first_frame import FirstFrameEncoder
from arachne.models.interface import (
    FirstFrames,
    PictureReader,
    TextEncoder,
    VideoEncoder,
    VideoModel,
)
from arachne.models.kept_frame import towards_kept
from arachne.trainer.config import RunConfig
from arachne.trainer.sampling import Predict
from arachne.trainer.settings.validation import ValidationSettings


def other_expert(
    config: RunConfig, model: VideoModel, *, dtype: torch.dtype, device: torch.device
) -> VideoModel | None:
    """The transformer that `model.other_expert` names, ready to predict; None if none is named.

    Raises:
        ConfigError: The folder holds none, or one of another shape.
    """
    folder = config.model.other_expert
    if not folder:
        return None
    other = load_transformer(
        config.model.family,
        Path(folder),
        dtype=dtype,
        text_tokens=model.shape.text_tokens,
        setting="model.other_expert",
    )
    for name in ("latent_channels", "condition_channels", "text_size", "image_size"):
        found, needed = getattr(other.shape, name), getattr(model.shape, name)
        if found != needed:
            raise ConfigError(
                f"model.other_expert {folder!r} has {name} = {found}, and this run's model "
                f"{needed}; name the other expert of the same model"
            )
    keeps = model.shape.keeps_first_frame
    other = replace(other, shape=replace(other.shape, keeps_first_frame=keeps))
    other.module.to(device)
    other.module.requires_grad_(False).eval()
    return other


def picture(path: Path, bucket: Bucket) -> NDArray[np.uint8]:
    """A picture, or the first frame of a video, cut to a bucket's sides as clips are: [H, W, 3].

    Raises:
        DataError: It cannot be read.
    """
    if not path.is_file():
        raise DataError(f"there is no picture {str(path)!r}; name a file")
    return decode_clip(path, None, replace(bucket, frames=1), fps=1.0)[0]


def text_states(
    encoder: TextEncoder, prompt: str, frame: NDArray[np.uint8] | None
) -> NDArray[np.float32]:
    """Token states [L, D] of a prompt, for a video that begins with a picture [H, W, 3]."""
    if frame is not None and isinstance(encoder, PictureReader):
        return encoder.encode_seeing(prompt, frame)
    return encoder.encode(prompt)


def prompt_states(
    settings: ValidationSettings, encoder: TextEncoder
) -> Iterator[NDArray[np.float32]]:
    """Token states [L, D] of what a run draws while it trains.

    Raises:
        DataError: A picture cannot be read that the text encoder is to see.
    """
    for number, prompt in enumerate(settings.drawn_prompts):
        frame = None
        if isinstance(encoder, PictureReader):
            frame = picture(Path(settings.images[number]), settings.sample_bucket)
        yield text_states(encoder, prompt, frame)


def first_frames(
    encoder: VideoEncoder, frame: np.ndarray, num_frames: int, *, dtype: torch.dtype
) -> FirstFrames:
    """What an image-to-video model gets of one picture uint8 [H, W, 3], as a batch of one clip."""
    if not isinstance(encoder, FirstFrameEncoder):  # the frame is kept, and all that is needed
        return FirstFrames(latents=torch.from_numpy(encoder.encode(frame[None]))[None].to(dtype))
    states = encoder.states(frame)
    return FirstFrames(
        latents=torch.from_numpy(encoder.encode_first(frame, num_frames))[None].to(dtype),
        states=None if states is None else torch.from_numpy(states)[None].to(dtype),
    )


def sampling_predict(
    config: RunConfig,
    model: VideoModel,
    *,
    other: VideoModel | None = None,
    first: FirstFrames | None = None,
    tell: Callable[[], None] = lambda: None,
) -> Predict:
    """What predicts at every level.

    Args:
        config: The run; its `objective.timestep_range` says which levels its model knows.
        model: The run's.
        other: For all other levels; None leaves them to `model` as well.
        first: The first frame of the one clip that is drawn, for image to video.
        tell: Called at every step.
    """
    low, high = config.objective.timestep_range

    def predict(
        latents_BCFHW: torch.Tensor, level_B: torch.Tensor, text_BLD: torch.Tensor
    ) -> torch.Tensor:
        tell()
        level = float(level_B[0])
        # A boundary belongs to the expert of the levels above it.
        knows = low <= level and (level < high or high == 1.0)
        chosen = model if knows or other is None else other
        if first is None:
            return chosen.predict(latents_BCFHW, level_B, text_BLD)
        firsts = first.repeated(len(latents_BCFHW))
        predicted_BCFHW = chosen.predict(latents_BCFHW, level_B, text_BLD, firsts)
        if not chosen.shape.keeps_first_frame:
            return predicted_BCFHW
        return towards_kept(predicted_BCFHW, latents_BCFHW, level, firsts)

    return predict
