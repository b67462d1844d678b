"""What verbs that model steps of a run have in common: clips and cluster to planning requests."""

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from arachne.cli.clip_source import ModelledClips, add_clip_source, modelled_clips
from arachne.cli.counts import check_count
from arachne.cli.run_file import add_run_file, loaded_config, missing_folders
from arachne.core.batch import Batch
from arachne.core.cascade import Encoder
from arachne.core.cluster import Cluster
from arachne.core.errors import ConfigError
from arachne.trainer.settings.batch import BatchSettings

Encoding = Literal["cached", "same", "ahead"]

ENCODERS: tuple[Encoder, ...] = ("text", "vae")
"""What has to run before a clip of which nothing is cached."""

_SETTING_OF_OPTION = {
    "gradients": "optimizer.gradients",
    "recompute": "planner.recompute",
    "ring": "planner.ring",
}

_STEPS = 8
"""Steps that are modelled where `--steps` says nothing."""

_MOST_STEPS = 100_000
_MOST_CLIPS = 100_000

if TYPE_CHECKING:
    from arachne.trainer.clip_order import ClipOrder
    from arachne.trainer.config import RunConfig
    from arachne.trainer.dataset import TrainingData
    from arachne.trainer.planning import PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledSteps:
    """Steps of a run on a cluster, ready to be planned.

    Attributes:
        cluster: The cluster's name, NAMExGPUS.
        clips: What steps are drawn from.
        first: Request of step 0; those of other steps differ in their batches alone.
        data: The clips that train.
        order: Which of them each step trains.
        batch_text: How much a step trains, in words.
        encoding: Whether latents and text states are `cached`, made in the `same` step, or one step
            `ahead`, where they fill the idle ends of the step before.
    """

    cluster: str
    clips: ModelledClips
    first: "PlanRequest"
    data: "TrainingData"
    order: "ClipOrder"
    batch_text: str
    encoding: Encoding = "cached"

    @property
    def encoders_text(self) -> str:
        """One line: which encoders are counted, and whose they are; empty if all is cached."""
        from arachne.cost.encoder_costs import published_encoders

        if self.encoding == "cached":
            return ""
        costs = self.first.costs
        encoders = costs.encoders or published_encoders(costs.model, costs.element_bytes)
        names = ", ".join([encoders.video.name, *(text.name for text in encoders.texts)])
        if costs.encoders:
            return f"encoders: the run's own, which trains with data.encode=online: {names}"
        return f"encoders: those that the family was published with: {names}"

    def steps(self, num_steps: int | None) -> "tuple[PlanRequest, ...]":
        """The run's first steps; as many as is usual where no number is given."""
        return tuple(map(self._step, range(_STEPS if num_steps is None else num_steps)))

    def epoch(self, num_clips: int) -> "tuple[PlanRequest, ...]":
        """Steps that together hold the sampler's first `num_clips` clips; the last may be smaller.

        Their latents and text states are taken to be cached.
        """
        cached = replace(self, encoding="cached")
        requests: list[PlanRequest] = []
        num_left = num_clips
        while num_left > 0:
            request = cached._step(len(requests))
            clips = request.batch.clips[:num_left]
            requests.append(replace(request, batch=replace(request.batch, clips=clips)))
            num_left -= len(clips)
        return tuple(requests)

    def _step(self, step: int) -> "PlanRequest":
        batch = _batch(self.data, self.order, step)
        if self.encoding == "cached":
            return replace(self.first, batch=batch)
        if self.encoding == "same":
            return replace(self.first, batch=_uncached(batch))
        following = _batch(self.data, self.order, step + 1)
        return replace(self.first, batch=batch, next_batch=_uncached(following))


def add_modelled_steps(parser: argparse.ArgumentParser, *, steps_help: str) -> None:
    """Add RUN.toml, `--set`, `--cluster`, and what says which steps are modelled, to a verb."""
    add_run_file(parser)
    parser.add_argument("--cluster", help="NAMExGPUS, or `list` (default: the run file's)")
    parser.add_argument("--steps", type=int, help=f"{steps_help} (default: {_STEPS})")
    parser.add_argument(
        "--batch", type=int, metavar="CLIPS", help="clips of a step (default: what [batch] says)"
    )
    add_clip_source(parser)
    group = parser.add_argument_group("launches and memory")
    group.add_argument(
        "--recompute",
        choices=("auto", "none", "all"),
        help="compute activations twice: only where memory asks for it, never, or everywhere "
        "(default: planner.recompute)",
    )
    group.add_argument(
        "--ring",
        choices=("auto", "none"),
        help="let launches pass keys and values in a ring of Ulysses groups where that is faster "
        "(default: planner.ring)",
    )
    encoders = group.add_mutually_exclusive_group()
    encoders.add_argument(
        "--encode",
        action="store_true",
        help="nothing is cached: text and video of each step's clips are encoded in that step, by "
        "the run's own encoders if data.encode is online, else by those that the family was "
        "published with",
    )
    encoders.add_argument(
        "--fill",
        action="store_true",
        help="likewise, but one step ahead, so that encoding fills the idle ends of a step",
    )
    group.add_argument(
        "--gradients",
        choices=("float32", "bfloat16", "host"),
        help="type of the gradient buffer, or that it lies in the host's memory (default: "
        "optimizer.gradients)",
    )


def modelled_config(arguments: argparse.Namespace) -> "RunConfig":
    """The run file, with what the options change of it.

    Raises:
        ConfigError: The run file or an option cannot work.
    """
    config = loaded_config(arguments, needs_data=arguments.clips is None, needs_model=False)
    _refuse_second_settings(arguments)
    if arguments.steps is not None:
        check_count("--steps", arguments.steps, most=_MOST_STEPS)
    batch = config.batch
    if arguments.batch is not None:
        check_count("--batch", arguments.batch, most=_MOST_CLIPS)
        batch = BatchSettings(clips=arguments.batch)
    elif batch.unit == "clips":
        check_count("batch.clips", batch.clips, most=_MOST_CLIPS)
    if missing := missing_folders(config.model):
        what = "the sizes" if "model.pretrained" in missing else "the encoders"
        print(
            f"arachne: not here: {', '.join(missing)}; planned with {what} of preset "
            f"{config.model.preset!r}",
            file=sys.stderr,
        )
    planner, optimizer = config.planner, config.optimizer
    return replace(
        config,
        batch=batch,
        planner=replace(
            planner,
            recompute=arguments.recompute or planner.recompute,
            ring=arguments.ring or planner.ring,
        ),
        optimizer=replace(optimizer, gradients=arguments.gradients or optimizer.gradients),
    )


def _refuse_second_settings(arguments: argparse.Namespace) -> None:
    """Refuse `--set` of what an option sets: messages name settings, and the option would win."""
    changed = {override.partition("=")[0].strip() for override in arguments.overrides}
    for option, setting in _SETTING_OF_OPTION.items():
        if setting in changed and getattr(arguments, option) is not None:
            raise ConfigError(f"--{option} sets {setting}, as --set does; leave one of them out")


def modelled_steps(arguments: argparse.Namespace, config: "RunConfig") -> ModelledSteps:
    """Find the cluster and the clips.

    Raises:
        ArachneError: The options, the dataset or the cluster cannot work.
    """
    from arachne.cost.cluster_files import cluster_names, load_cluster
    from arachne.trainer.clip_order import clip_order
    from arachne.trainer.dataset import TrainingData
    from arachne.trainer.planning_shape import planning_shape

    name = config.cluster.name if arguments.cluster is None else arguments.cluster
    if name == "auto":
        raise ConfigError(
            "which cluster? add --cluster NAMExGPUS, for example h100x16; known: "
            + ", ".join(cluster_names())
        )
    if arguments.cluster is None and name in cluster_names():  # as a run that is started has it
        raise ConfigError(f"how many GPUs? add --cluster, for example --cluster {name}x16")
    cluster = load_cluster(name)
    clips = modelled_clips(arguments, config)
    data = TrainingData(
        rows=clips.rows,
        cache_dir=Path(config.data.cache),
        fps=config.data.fps,
        video_fingerprint="",
        text_fingerprint="",
    )
    order = clip_order(
        clips.rows,
        config,
        planning_shape(config.model),
        shape_settings=clips.shape_settings,
    )
    return ModelledSteps(
        cluster=name,
        clips=clips,
        first=replace(
            _first_request(config, data, order, cluster), shape_settings=clips.shape_settings
        ),
        data=data,
        order=order,
        batch_text=config.batch.text,
        encoding="ahead" if arguments.fill else "same" if arguments.encode else "cached",
    )


def prints_list(arguments: argparse.Namespace) -> bool:
    """Whether `--cluster list` or `--clips list` was asked for; if so, the list is printed."""
    from arachne.cost.cluster_files import cluster_names
    from arachne.data.length_distributions import DISTRIBUTIONS

    if arguments.cluster == "list":
        print("\n".join(cluster_names()))
    elif arguments.clips == "list":
        print("\n".join(f"{name}: {each.origin}" for name, each in DISTRIBUTIONS.items()))
    else:
        return False
    return True


def _first_request(
    config: "RunConfig", data: "TrainingData", order: "ClipOrder", cluster: Cluster
) -> "PlanRequest":
    from arachne.trainer.planning import run_costs, run_request
    from arachne.trainer.planning_shape import planning_shape
    from arachne.trainer.trained_parameters import planned_part

    costs = run_costs(
        config,
        planning_shape(config.model),
        cluster,
        on_gpus=cluster.device.name != "CPU core",
        trained=planned_part(config.model),
    )
    return run_request(config, _batch(data, order, 0), costs)


def _batch(data: "TrainingData", order: "ClipOrder", step: int) -> Batch:
    return data.step_batch(step, order.draws(step)).batch


def _uncached(batch: Batch) -> Batch:
    """The batch with everything to encode."""
    return replace(batch, clips=tuple(replace(c, to_encode=ENCODERS) for c in batch.clips))
