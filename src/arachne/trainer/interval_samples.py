"""Sample videos while a run trains, from the weights as they are at that moment.

They are planned as a step's clips are, and drawn in launches: ranks share a video's tokens where
that is sooner, or where its memory asks for it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from arachne.core.batch import Batch, BatchClip
from arachne.core.cluster import Cluster
from arachne.core.families import family_named
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.cost.model import CostModel
from arachne.models.interface import FirstFrames, VideoEncoder, VideoModel
from arachne.runtime.executor import run_launches
from arachne.runtime.local_attention import prefer_kernel
from arachne.runtime.sequence_parallel import install
from arachne.runtime.watched import launch_texts
from arachne.trainer.agreement import do_together, largest
from arachne.trainer.config import RunConfig
from arachne.trainer.forward_plan import forward_plan
from arachne.trainer.objective import objective_of
from arachne.trainer.run_encoders import run_video_encoder
from arachne.trainer.sampling import SamplerStep, noise_of, walk
from arachne.trainer.sampling_model import first_frames, other_expert, picture, sampling_predict
from arachne.trainer.session import Session
from arachne.trainer.step import slots_of_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleVideo:
    """One video: which of `validation.prompts` it was drawn for, and its frames [F, H, W, 3]."""

    number: int
    prompt: str
    frames: NDArray[np.uint8]


class _StopAskedError(Exception):
    """Ends the drawing of a video in its midst, on all ranks of its launch."""


def sample_videos(
    session: Session, cluster: Cluster, step: int, wants_stop: Callable[[], bool]
) -> tuple[SampleVideo, ...] | None:
    """This rank's share of the videos; every rank calls it. None if it ended before all were drawn.

    A prompt's noise depends on its number and the run's seed alone: videos of two steps differ by
    what was learned between them.

    Args:
        session: This rank's.
        cluster: What launches are planned for; rank 0's counts.
        step: Steps done, for those who watch the ranks.
        wants_stop: Whether this rank was asked to stop; the ranks of a launch ask each other.

    Raises:
        DataError: A picture that a video begins with cannot be read; on every rank.
        InfeasibleError: The videos fit nowhere on the cluster.
    """
    batch = batch_of_prompts(session.config, step)
    plan = forward_plan(session, _drawing_costs(session.costs(cluster)), batch)
    texts = launch_texts(batch, plan, session.world.rank)
    session.recorder.progress.begin_step(max(0, step - 1), texts, "sample")
    return drawn(session, plan, wants_stop)


def drawn(
    session: Session, plan: PlacedPlan, wants_stop: Callable[[], bool]
) -> tuple[SampleVideo, ...] | None:
    """Draw as a plan says, whose slots are prompts; gives what `sample_videos` gives.

    The ranks of a launch hold its latents, all of them; each decodes some of its videos.
    """
    world, rank = session.world, session.world.rank
    studio = do_together(world, session.groups.world, lambda: _studio(session, plan))
    videos: list[SampleVideo] = []
    is_ended = False

    def work(launch: PlacedLaunch) -> None:
        nonlocal is_ended

        def go_on() -> None:
            session.recorder.progress.change("sample")
            ends = is_ended or wants_stop()
            if largest(world, session.groups.of(launch.ranks), int(ends)):
                raise _StopAskedError

        assert studio is not None
        try:
            for place, number in enumerate(launch.cascade.slots):
                latents = studio.latents(number, go_on)
                if rank == launch.ranks[place % launch.degree]:
                    videos.append(studio.video(number, latents))
        except _StopAskedError:
            is_ended = True  # other launches' ranks still wait to be told

    run_launches(plan, rank=rank, groups=session.groups, recorder=session.recorder, work=work)
    return None if is_ended else tuple(videos)


def batch_of_prompts(config: RunConfig, step: int) -> Batch:
    """The videos as clips of a step."""
    bucket = config.validation.sample_bucket
    num_tokens = family_named(config.model.family).geometry.num_tokens(bucket)
    return Batch(
        step=step,
        clips=tuple(
            BatchClip(name=f"validation.prompts[{number}]", bucket=bucket, num_tokens=num_tokens)
            for number in range(len(config.validation.prompts))
        ),
    )


def _drawing_costs(costs: CostModel) -> CostModel:
    """Costs under which a launch needs the memory of one block at work, and keeps nothing.

    One block's backward, as it is counted, is about its forward for two clips, as guidance wants.
    """
    return replace(
        costs,
        state=replace(costs.state, are_inputs_on_host=True),
        options=replace(costs.options, recompute="all"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Studio:
    """What one rank draws with.

    Attributes:
        encoder: Decodes; made for this moment, since its weights would stand in training's way.
        other: The other expert, if the run names one.
        firsts: What its videos begin with, by their numbers, for image to video.
        steps: Denoising steps.
    """

    session: Session
    encoder: VideoEncoder
    other: VideoModel | None
    firsts: dict[int, FirstFrames]
    steps: tuple[SamplerStep, ...]

    def latents(self, number: int, tell: Callable[[], None]) -> torch.Tensor:
        """Latents [C, F, H, W] of one video; `tell` is called before each step."""
        session, config = self.session, self.session.config
        device, wide = session.world.device, _wide(session)
        geometry = family_named(config.model.family).geometry
        grid = geometry.latent_grid(config.validation.sample_bucket)
        shape = (1, self.encoder.latent_channels, *grid)
        return walk(
            sampling_predict(
                config,
                session.model,
                other=self.other,
                first=self.firsts.get(number),
                tell=tell,
            ),
            noise_of(shape, config.run.seed + number, wide).to(device),
            session.prompt_texts[number][None].to(device=device, dtype=wide),
            null_text_LD=session.null_text.to(device=device, dtype=wide),
            steps=self.steps,
            guidance=config.validation.guidance,
        )[0]

    def video(self, number: int, latents: torch.Tensor) -> SampleVideo:
        """A video out of its latents."""
        return SampleVideo(
            number=number,
            prompt=self.session.config.validation.prompts[number],
            frames=self.encoder.decode(latents.float().cpu().numpy()),
        )


def _wide(session: Session) -> torch.dtype:
    return torch.promote_types(session.dtype, torch.float32)


def _studio(session: Session, plan: PlacedPlan) -> _Studio | None:
    """What this rank draws its launches with; None if it has none."""
    config, device = session.config, session.world.device
    numbers = slots_of_rank(plan, session.world.rank)
    if not numbers:
        return None
    settings = config.validation
    encoder = run_video_encoder(config.model, device=str(device))
    firsts: dict[int, FirstFrames] = {}
    for number in numbers if config.model.image_to_video else ():
        frame = picture(Path(settings.images[number]), settings.sample_bucket)
        frames = settings.sample_bucket.frames
        firsts[number] = first_frames(encoder, frame, frames, dtype=_wide(session)).to(device)
    other = other_expert(config, session.model, dtype=session.dtype, device=device)
    if other is not None:
        kernel = prefer_kernel(
            config.model.attention,
            device,
            dtype=session.dtype,
            head_size=other.shape.head_size,
        )
        install(other.module, other.layout, kernel)
    num_tokens = family_named(config.model.family).geometry.num_tokens(settings.sample_bucket)
    return _Studio(
        session=session,
        encoder=encoder,
        other=other,
        firsts=firsts,
        steps=objective_of(config).sampler_steps(settings.sample_steps, num_tokens),
    )
