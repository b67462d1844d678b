"""What verbs that model steps of a run have in common: dataset and cluster to planning requests."""

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arachne.cli.run_file import add_run_file
from arachne.core.cluster import Cluster
from arachne.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from arachne.core.ledger import Ledger
    from arachne.trainer.config import RunConfig
    from arachne.trainer.planning import PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledSteps:
    """The first steps of a run on a cluster, ready to be planned.

    Attributes:
        cluster: The cluster's name, NAMExGPUS.
        ledger: What became of each clip of the dataset.
        requests: One for each step.
    """

    cluster: str
    ledger: "Ledger"
    requests: "tuple[PlanRequest, ...]"


def add_modelled_steps(parser: argparse.ArgumentParser, *, steps_help: str) -> None:
    """Add RUN.toml, `--set`, `--cluster` and `--steps` to a verb."""
    add_run_file(parser)
    parser.add_argument("--cluster", help="NAMExGPUS, or `list` (default: the run file's)")
    parser.add_argument("--steps", type=int, default=8, help=f"{steps_help} (default: 8)")


def modelled_steps(arguments: argparse.Namespace, config: "RunConfig") -> ModelledSteps:
    """Inspect the dataset and draw the first `--steps` batches.

    Raises:
        ArachneError: The options, the dataset or the cluster cannot work.
    """
    from arachne.cost.cluster_files import cluster_names, load_cluster

    if arguments.steps < 1:
        raise ConfigError(f"--steps is {arguments.steps}; it must be at least 1")
    name = arguments.cluster or config.cluster.name
    if name == "auto":
        raise ConfigError(
            "which cluster? add --cluster NAMExGPUS, for example h100x16; known: "
            + ", ".join(cluster_names())
        )
    cluster = load_cluster(name)
    ledger = _inspected(config)
    requests = _requests(config, ledger, cluster, arguments.steps)
    return ModelledSteps(cluster=name, ledger=ledger, requests=requests)


def print_clusters() -> int:
    """What `--cluster list` does; 0."""
    from arachne.cost.cluster_files import cluster_names

    print("\n".join(cluster_names()))
    return 0


def write_page(path: Path, page: str) -> None:
    """Write an HTML page.

    Raises:
        DataError: The file cannot be written.
    """
    try:
        path.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"cannot write {str(path)!r}: {error.strerror}; choose another") from error


def _inspected(config: "RunConfig") -> "Ledger":
    from arachne.core.families import family_named
    from arachne.data.inspect import inspect_dataset

    ledger = inspect_dataset(
        Path(config.data.path),
        config.data.shape_rules,
        family_named(config.model.family).geometry,
        config.data.missing_caption,
        num_workers=len(os.sched_getaffinity(0)),
    )
    if not ledger.usable:
        raise DataError(
            f"none of the {len(ledger.rows)} clips in {config.data.path!r} is usable; "
            f"see why with: arachne inspect {config.data.path}"
        )
    return ledger


def _requests(
    config: "RunConfig", ledger: "Ledger", cluster: Cluster, num_steps: int
) -> "tuple[PlanRequest, ...]":
    from arachne.cost.model import CostModel
    from arachne.data.split import training_rows
    from arachne.trainer.dataset import TrainingData
    from arachne.trainer.planning import PlanRequest
    from arachne.trainer.planning_shape import planning_shape

    shape = planning_shape(config.model)
    element_bytes = {"float32": 4, "bfloat16": 2, "float64": 8}[config.model.dtype]
    costs = CostModel(model=shape, cluster=cluster, element_bytes=element_bytes)
    data = TrainingData(
        rows=training_rows(ledger.usable, config.data.held_out),
        cache_dir=Path(config.data.cache),
        fps=config.data.fps,
        video_fingerprint="",
        text_fingerprint="",
    )
    max_degree = min(config.planner.max_degree or cluster.num_gpus, cluster.num_gpus)
    if cluster.device.name != "CPU core":
        max_degree = min(max_degree, shape.num_heads)
    return tuple(
        PlanRequest(
            batch=data.step_batch(
                seed=config.run.seed, step=step, num_clips=config.batch.clips
            ).batch,
            costs=costs,
            planner=config.planner.name,
            max_degree=max_degree,
            stack_tokens=config.planner.stack_tokens,
            seed=config.run.seed,
            iterations=config.planner.iterations,
        )
        for step in range(num_steps)
    )
