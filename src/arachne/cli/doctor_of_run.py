"""What `arachne doctor --run RUN.toml` looks at besides: whether this machine can do that run."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from arachne.cli.finding import Finding, Verdict
from arachne.cli.run_file import check_config
from arachne.core.errors import ArachneError
from arachne.core.units import bytes_text
from arachne.cost.cluster_files import load_cluster, says_its_gpus
from arachne.cost.memory import resident_use
from arachne.data.remote_path import dataset_path
from arachne.reporting.wandb_log import check_installed
from arachne.trainer.config import RunConfig
from arachne.trainer.ignored_settings import ignored_settings
from arachne.trainer.planning import run_costs
from arachne.trainer.planning_shape import planning_shape
from arachne.trainer.trained_parameters import planned_part

_MEMORY_TOLERANCE = 0.1
"""What a training may use of a GPU's memory is less than all of it."""


def findings_of_run(config: RunConfig, gpu_bytes: list[int]) -> Iterator[Finding]:
    """Its folders, models and packages, room for checkpoints, its cluster file, and its memory.

    Args:
        config: The run.
        gpu_bytes: Memory of each GPU that is there.
    """
    yield from _folders(config)
    yield from _needs(config)
    for line in ignored_settings(config):
        yield _finding("run file", "warning", line)
    try:
        state, per_checkpoint = _state_bytes(config)
    except ArachneError as error:
        yield _finding("model", "fault", str(error), fix="change the run file")
    else:
        yield _checkpoint_room(config, per_checkpoint)
        if gpu_bytes:
            yield _memory(state, min(gpu_bytes))
    if gpu_bytes and config.cluster.name != "auto":
        yield from _cluster(config, gpu_bytes)


def _finding(what: str, verdict: Verdict, line: str, fix: str = "") -> Finding:
    """A line that says what is found and what helps; `fix` where it says nothing of that."""
    found, _, helps = line.partition("; ")
    return Finding(what=what, verdict=verdict, found=found, fix=helps or fix)


def _needs(config: RunConfig) -> Iterator[Finding]:
    """What `train` would refuse at once: models and packages that are not there."""
    for check in (
        partial(check_config, config, needs_data=False, needs_model=True),
        partial(check_installed, config.logging.wandb),
    ):
        try:
            check()
        except ArachneError as error:
            yield _finding("run file", "fault", str(error))


def _folders(config: RunConfig) -> Iterator[Finding]:
    others = [("data.others.path", other.path) for other in config.data.others]
    for setting, path in (("data.path", config.data.path), *others):
        fault = f"there is no {path!r} on this machine"
        try:
            is_there = dataset_path(path).exists()
        except ArachneError as error:
            is_there, fault = False, str(error)
        if not is_there:
            fix = f"mount the disk, or change {setting}"
            yield Finding(what=setting, verdict="fault", found=fault, fix=fix)
    for setting, folder in (("run.dir", config.run.dir), ("data.cache", config.data.cache)):
        place = _standing(Path(folder))
        yield Finding(
            what=setting,
            verdict="good",
            found=f"{bytes_text(shutil.disk_usage(place).free)} free under {str(place)!r}",
        )


def _standing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    absolute = folder.absolute()
    return next(each for each in (absolute, *absolute.parents) if each.exists())


def _state_bytes(config: RunConfig) -> tuple[float, float]:
    """Bytes that one GPU holds all the time if it is alone; and those of one checkpoint."""
    shape = planning_shape(config.model)
    cluster = load_cluster("cpux1")
    trained = planned_part(config.model)
    costs = run_costs(config, shape, cluster, on_gpus=False, trained=trained)
    per_checkpoint = costs.state.num_trainable(shape) * costs.state.owned_bytes(costs.element_bytes)
    use = resident_use(shape, cluster.num_gpus, costs.element_bytes, costs.state)
    return use.total, per_checkpoint


def _checkpoint_room(config: RunConfig, per_checkpoint: float) -> Finding:
    """Whether as many checkpoints fit as stand at once: those that are kept, and the next."""
    num_kept = config.checkpoint.keep or 1
    needed = per_checkpoint * (num_kept + 1)
    free = shutil.disk_usage(_standing(Path(config.run.dir))).free
    is_enough = free >= needed
    return Finding(
        what="checkpoints",
        verdict="good" if is_enough else "warning",
        found=f"{bytes_text(per_checkpoint)} each, {num_kept + 1} at once; {bytes_text(free)} free",
        fix="" if is_enough else "free space, lower checkpoint.keep, or choose another run.dir",
    )


def _memory(state_bytes: float, gpu_bytes: int) -> Finding:
    fits = state_bytes <= gpu_bytes
    return Finding(
        what="state",
        verdict="good" if fits else "warning",
        found=f"weights, gradients and optimizer take {bytes_text(state_bytes)} on one GPU alone, "
        f"of {bytes_text(gpu_bytes)}",
        fix="" if fits else "ask `arachne plan --memory` with the number of GPUs that you have",
    )


def _cluster(config: RunConfig, gpu_bytes: list[int]) -> Iterator[Finding]:
    name = config.cluster.name
    try:
        cluster = load_cluster(name if says_its_gpus(name) else f"{name}x1")
    except ArachneError as error:
        yield _finding("cluster", "fault", str(error), fix="change cluster.name")
        return
    expected, found = cluster.device.memory_bytes, min(gpu_bytes)
    is_alike = (1.0 - _MEMORY_TOLERANCE) * expected <= found
    yield Finding(
        what="cluster",
        verdict="good" if is_alike else "fault",
        found=f"{name!r} plans with {bytes_text(expected)} of memory, the GPU has "
        f"{bytes_text(found)}",
        fix="" if is_alike else "set cluster.name to what this machine is, or to 'auto'",
    )
