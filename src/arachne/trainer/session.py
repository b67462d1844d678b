"""Everything that one rank holds while it trains."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from arachne.core.cluster import Cluster
from arachne.core.errors import ConfigError
from arachne.cost.model import CostModel
from arachne.models.diffusers_module import VideoTransformer, build_transformer, load_transformer
from arachne.models.encoders import text_encoder_named, video_encoder_named
from arachne.models.families import transformer_named
from arachne.models.interface import TextEncoder, VideoEncoder, VideoModel
from arachne.runtime.clock import clock_for
from arachne.runtime.process_groups import ProcessGroups
from arachne.runtime.recorder import Recorder
from arachne.runtime.sequence_parallel import install
from arachne.runtime.sharded_optimizer import AdamWOptions, ShardedOptimizer
from arachne.runtime.world import World
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset import StepBatch
from arachne.trainer.planning import PlanRequest, run_costs, run_degrees, run_request
from arachne.trainer.preparation import Prepared, Progress, prepare
from arachne.trainer.settings.model import ModelSettings

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}

Say = Callable[[str], None]
"""Told one line of text; only rank 0 says something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One rank's model, data, groups and optimizer; all ranks open theirs together.

    Attributes:
        null_text: Token states [L, D] of the empty caption.
    """

    world: World
    config: RunConfig
    run_dir: Path
    prepared: Prepared
    model: VideoModel
    null_text: Tensor
    recorder: Recorder
    groups: ProcessGroups
    optimizer: ShardedOptimizer
    say: Say

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return DTYPES[self.config.model.dtype]

    @property
    def degrees(self) -> tuple[int, ...]:
        """Degrees that plans may use in this world."""
        return run_degrees(
            self.config, self.model.shape, self.world.size, needs_heads=needs_heads(self.world)
        )

    def costs(self, cluster: Cluster) -> CostModel:
        """The cost model of this model on a cluster."""
        return run_costs(
            self.config, self.model.shape, cluster, needs_heads=needs_heads(self.world)
        )

    def step_batch(self, step: int) -> StepBatch:
        """The clips that this run trains in a step."""
        return self.prepared.train.step_batch(
            seed=self.config.run.seed, step=step, num_clips=self.config.batch.clips
        )

    def plan_request(self, step: int, cluster: Cluster, planner: str | None = None) -> PlanRequest:
        """What the plan of a step depends on; by the run's planner unless another is named."""
        return run_request(self.config, self.step_batch(step).batch, self.costs(cluster), planner)


def needs_heads(world: World) -> bool:
    """Whether no rank may be left without an attention head: on GPUs."""
    return world.device.type == "cuda"


def open_session(world: World, config: RunConfig, *, say: Say, progress: Progress) -> Session:
    """Prepare the data, build the model and all groups; every rank calls it at the same moment.

    Raises:
        ConfigError: The encoders and the model do not fit each other.
        DataError: No clip can be used.
    """
    run_dir = Path(config.run.dir)
    device = str(world.device)
    video_encoder = video_encoder_named(
        config.model.video_encoder, family=config.model.family, device=device
    )
    text_encoder = text_encoder_named(
        config.model.text_encoder, config.model.num_text_tokens, device=device
    )
    prepared = prepare(
        world,
        config,
        manifest=run_dir / "ledger.parquet",
        video_encoder=video_encoder,
        text_encoder=text_encoder,
        progress=progress,
    )
    model = built_model(config.model, config.run.seed, video_encoder, text_encoder)
    model.module.to(world.device)
    install(model.module, model.layout)
    recorder = Recorder(rank=world.rank, world_size=world.size, clock=clock_for(world.device))
    degrees = run_degrees(config, model.shape, world.size, needs_heads=needs_heads(world))
    groups = ProcessGroups(world, degrees, recorder)
    options = AdamWOptions(
        betas=config.optimizer.betas,
        eps=config.optimizer.eps,
        weight_decay=config.optimizer.weight_decay,
    )
    optimizer = ShardedOptimizer(model.module, groups.world, options)
    optimizer.share()  # whatever each rank built or loaded, all start from the same parameters
    recorder.finish(step=0, planner="start")
    return Session(
        world=world,
        config=config,
        run_dir=run_dir,
        prepared=prepared,
        model=model,
        null_text=torch.from_numpy(prepared.null_text),
        recorder=recorder,
        groups=groups,
        optimizer=optimizer,
        say=say,
    )


def built_model(
    settings: ModelSettings, seed: int, video_encoder: VideoEncoder, text_encoder: TextEncoder
) -> VideoTransformer:
    """The model on the CPU: random weights of the run's seed, or pretrained ones.

    Raises:
        ConfigError: The family cannot be trained, or not from these weights, or the encoders do
            not fit the pretrained model.
    """
    family = transformer_named(settings.family)
    if family.not_trained or (settings.pretrained and family.not_pretrained):
        setting = "pretrained" if not family.not_trained else "family"
        raise ConfigError(
            f"model.{setting} {getattr(settings, setting)!r} cannot be trained: "
            f"{family.not_trained or family.not_pretrained}"
        )
    dtype = DTYPES[settings.dtype]
    if not settings.pretrained:
        shape = settings.shape(
            latent_channels=video_encoder.latent_channels, text_size=text_encoder.text_size
        )
        return build_transformer(shape, dtype=dtype, seed=seed)
    model = load_transformer(
        family.name, settings.pretrained, dtype=dtype, text_tokens=settings.num_text_tokens
    )
    for what, found, needed in (
        ("latent channels", video_encoder.latent_channels, model.shape.latent_channels),
        ("text width", text_encoder.text_size, model.shape.text_size),
    ):
        if found != needed:
            raise ConfigError(
                f"model.pretrained {settings.pretrained!r} has {needed} {what}, the encoder gives "
                f"{found}; name the encoders that the model was trained with"
            )
    return model
