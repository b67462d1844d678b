"""Everything that one rank holds while it trains."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from arachne.core.cluster import Cluster
from arachne.core.families import family_named
from arachne.cost.model import CostModel
from arachne.cost.trained_part import TrainedPart
from arachne.models.interface import VideoModel
from arachne.runtime.clock import clock_for
from arachne.runtime.host_blocks import move_to_device
from arachne.runtime.local_attention import prefer_kernel, ring_note
from arachne.runtime.process_groups import ProcessGroups
from arachne.runtime.recorder import Recorder
from arachne.runtime.sequence_parallel import install
from arachne.runtime.sharded_optimizer import ShardedOptimizer
from arachne.runtime.world import World
from arachne.trainer.built_model import DTYPES, training_model
from arachne.trainer.clip_order import ClipOrder, clip_order
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset import StepBatch
from arachne.trainer.frozen_base import agree_on_base, frozen_base
from arachne.trainer.memory_reports import RaisedReserves, reserves_of_run
from arachne.trainer.online_encoders import OnlineEncoders, check_online, online_encoders
from arachne.trainer.optimizer_choice import check_muon_applies, optimizer_choice
from arachne.trainer.planning import (
    PlanRequest,
    run_costs,
    run_degrees,
    run_options,
    run_request,
)
from arachne.trainer.preparation import Prepared, Progress, begun_ledger, prepare
from arachne.trainer.run_encoders import run_text_encoder, run_video_encoder
from arachne.trainer.sampling_model import prompt_states
from arachne.trainer.trained_parameters import trained_part

Say = Callable[[str], None]
"""Told one line of text; only rank 0 says something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One rank's model, data, groups and optimizer; all ranks open theirs together.

    Attributes:
        order: Which clips each step trains.
        encoders: What encodes within steps; None if all is encoded before the first.
        trained: The part of the model that is trained, where the run freezes some of it.
        raised_reserves: What is planned with for shapes that ran out of memory.
        base: What the frozen parameters are; empty if every parameter is trained.
        null_text: Token states [L, D] of the empty caption.
        prompt_texts: The same of the prompts of sample videos; none if the run draws none.
    """

    world: World
    config: RunConfig
    run_dir: Path
    prepared: Prepared
    order: ClipOrder
    model: VideoModel
    base: str
    null_text: Tensor
    prompt_texts: tuple[Tensor, ...]
    recorder: Recorder
    groups: ProcessGroups
    optimizer: ShardedOptimizer
    say: Say
    encoders: OnlineEncoders | None = None
    trained: TrainedPart | None = None
    raised_reserves: RaisedReserves = field(default_factory=lambda: RaisedReserves({}))

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return DTYPES[self.config.model.dtype]

    @property
    def degrees(self) -> tuple[int, ...]:
        """Degrees that plans may use in this world."""
        return run_degrees(
            self.config, self.model.shape, self.world.size, on_gpus=is_on_gpus(self.world)
        )

    def costs(self, cluster: Cluster) -> CostModel:
        """The cost model of this model on a cluster."""
        return run_costs(
            self.config,
            self.model.shape,
            cluster,
            on_gpus=is_on_gpus(self.world),
            trained=self.trained,
            raised_reserves=self.raised_reserves.pairs,
        )

    def step_batch(self, step: int) -> StepBatch:
        """The clips that this run trains in a step."""
        return self.prepared.train.step_batch(step, self.order.draws(step))

    def plan_request(self, step: int, cluster: Cluster, planner: str | None = None) -> PlanRequest:
        """What the plan of a step depends on; by the run's planner unless another is named."""
        return run_request(self.config, self.step_batch(step).batch, self.costs(cluster), planner)


def array_bytes(session: Session, item: int) -> int:
    """What an item's cached arrays take up on the host, in float32."""
    model, bucket = session.model.shape, session.prepared.train.row(item).bucket
    assert bucket is not None, item
    num_latents = prod(family_named(model.family).geometry.latent_grid(bucket))
    num_values = model.latent_channels * num_latents + model.text_rows * model.text_size
    if session.prepared.train.packing is not None:
        num_values += model.latent_channels * num_latents + model.image_tokens * model.image_size
    return 4 * num_values


def is_on_gpus(world: World) -> bool:
    """Whether ranks compute on GPUs."""
    return world.device.type == "cuda"


def open_session(world: World, config: RunConfig, *, say: Say, progress: Progress) -> Session:
    """Prepare the data, build the model and all groups; every rank calls it at the same moment.

    Raises:
        ConfigError: The encoders and the model do not fit each other.
        DataError: No clip can be used.
    """
    run_dir = Path(config.run.dir)
    check_online(config)
    # Before any model is loaded: whether there is a clip to train.
    begun = begun_ledger(world, config, manifest=run_dir / "ledger.parquet", progress=progress)
    device = str(world.device)
    video_encoder = run_video_encoder(config.model, device=device)
    text_encoder = run_text_encoder(config.model, device=device)
    # Before any clip is encoded: what cannot be built or updated is refused now.
    model = training_model(config, video_encoder, text_encoder)
    if config.validation.sample_every:
        model.shape.check_bucket(config.validation.sample_bucket)
    kernel = prefer_kernel(
        config.model.attention,
        world.device,
        dtype=DTYPES[config.model.dtype],
        head_size=model.shape.head_size,
    )
    base = frozen_base(config, model.module)
    check_muon_applies(config.optimizer, model.module)
    chosen = optimizer_choice(config.optimizer)
    chosen.rules(DTYPES[config.model.dtype], world.device)
    prepared = prepare(
        world,
        config,
        begun,
        video_encoder=video_encoder,
        text_encoder=text_encoder,
        progress=progress,
    )
    order = clip_order(prepared.train.rows, config, model.shape)
    prompt_texts = tuple(map(torch.from_numpy, prompt_states(config.validation, text_encoder)))
    encoders = online_encoders(config, model.shape, video_encoder, text_encoder, world.device)
    del video_encoder, text_encoder  # plans count on them only where steps encode
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
    move_to_device(
        model.module,
        model.layout,
        world.device,
        swapped_blocks=config.memory.swapped_blocks,
    )
    install(
        model.module,
        model.layout,
        kernel,
        "inductor" if config.model.compile else None,
        inputs_on_host=config.memory.inputs_on_host,
    )
    recorder = Recorder(rank=world.rank, world_size=world.size, clock=clock_for(world.device))
    degrees = run_degrees(config, model.shape, world.size, on_gpus=is_on_gpus(world))
    note = ring_note(config.model.attention, world.device)
    options = run_options(config, model.shape, on_gpus=is_on_gpus(world))
    if note and options.has_rings and degrees[-1] > 1:
        say(note)
    groups = ProcessGroups(world, degrees, recorder, most_per_rank=config.run.max_groups)
    agree_on_base(base, groups.world, world.device)
    optimizer = ShardedOptimizer(
        model.module,
        groups.world,
        chosen,
        gradients=config.optimizer.gradients,
        average_decay=config.optimizer.ema_decay,
        unrounded=model.unrounded,
    )
    model = replace(model, unrounded={})
    optimizer.share()  # whatever each rank built or loaded, all start from the same parameters
    raised_reserves = reserves_of_run(world, groups.world, run_dir, model.shape)
    recorder.finish(step=0, planner="start")
    return Session(
        world=world,
        config=config,
        run_dir=run_dir,
        prepared=prepared,
        order=order,
        model=model,
        base=base,
        null_text=torch.from_numpy(prepared.null_text),
        prompt_texts=prompt_texts,
        recorder=recorder,
        groups=groups,
        optimizer=optimizer,
        say=say,
        encoders=encoders,
        trained=trained_part(model.module, model.layout) if config.model.is_partly_frozen else None,
        raised_reserves=raised_reserves,
    )
