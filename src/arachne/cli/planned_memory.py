"""What `arachne plan --memory` says: the memory of one GPU for a run's longest clips."""

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from arachne.cli.modelled_steps import ENCODERS, ModelledSteps
from arachne.cli.whole_names_table import print_line, print_table
from arachne.core.blocks import blocks
from arachne.core.cascade import Cascade, Encoder, Module
from arachne.core.units import bytes_text, count_text

if TYPE_CHECKING:
    from arachne.cost.memory import MemoryUse
    from arachne.cost.model import CostModel

_GRADIENTS = ("float32", "bfloat16", "host")
"""What `--gradients` takes, from what is fastest to what needs least."""


_LEFT_OUT_SHARE = 0.08
"""Of a GPU's memory; `memory_bytes` of cluster files is the rest."""

_COLUMNS = ("total", "fits", "recomputed", "activations", "workspace")
"""Heads of the table's columns, after the launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchMemory:
    """One GPU of a launch, in the mode that is fastest among those that fit.

    Attributes:
        module: What the launch does.
        degree: GPUs of the launch.
        all_kept_bytes: Activations if no block is recomputed.
        recomputed_blocks: Blocks that keep no activations.
        use: Bytes by what they are for.
        fits: Whether the launch can run.
    """

    module: Module
    degree: int
    all_kept_bytes: float
    recomputed_blocks: int
    use: "MemoryUse"
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMemory:
    """Memory for one of the clips that need most.

    Attributes:
        shape: Its bucket.
        num_tokens: Of the clip.
        num_blocks: Of the model.
        memory_bytes: What training may use of each GPU.
        launches: Training on each allowed degree, then encoders on one GPU if nothing is cached.
        communicator_bytes: NCCL's, for all groups of a rank; `memory_bytes` leaves them out.
        encoders: Which encoders are counted; empty if all is cached.
        advice: What would fit, if no degree trains or an encoder does not fit; else empty.
    """

    shape: str
    num_tokens: int
    num_blocks: int
    memory_bytes: float
    launches: tuple[LaunchMemory, ...]
    communicator_bytes: float
    encoders: str
    advice: str


def planned_memory(modelled: ModelledSteps, *, max_groups: int = 0) -> PlannedMemory:
    """The memory of launches of a clip with most tokens.

    `max_groups` is the run's limit for the groups that a rank is in besides the world; 0 is none.
    """
    from arachne.cost.training_state import COMMUNICATOR_BYTES, num_communicators

    costs = modelled.first.costs
    num_gpus = costs.cluster.num_gpus
    degrees = modelled.first.problem.degrees
    num_groups = num_communicators(degrees, num_gpus)
    if max_groups:
        num_groups = min(num_groups, max_groups + 1)
    if modelled.cluster.startswith("cpu"):  # gloo's need no memory to speak of
        num_groups = 0
    row = max(modelled.clips.rows, key=lambda row: row.num_tokens)
    assert row.bucket is not None, row
    training = Cascade(module="dit", slots=(0,), bucket=row.bucket, num_tokens=row.num_tokens)
    encoders = () if modelled.encoding == "cached" else ENCODERS
    launches = _launches(costs, training, degrees, encoders)
    advice = ""
    if problem := _misfit(launches):
        asked = replace(costs, options=replace(costs.options, recompute="auto"))
        if remedy := _remedy(asked, training, degrees, encoders):
            advice = f"{problem}; {remedy}"
        else:
            other = _other_advice(modelled, training, launches)
            advice = f"{problem}, whatever --recompute and --gradients say; {other}"
    return PlannedMemory(
        shape=str(row.bucket),
        num_tokens=row.num_tokens,
        num_blocks=costs.model.num_blocks,
        memory_bytes=costs.memory_bytes,
        launches=launches,
        communicator_bytes=COMMUNICATOR_BYTES * num_groups,
        encoders=modelled.encoders_text,
        advice=advice,
    )


def memory_table(memory: PlannedMemory) -> dict[str, Any]:
    """What `--json` prints: the figures, with each launch's total."""
    rows = [{**asdict(each), "total_bytes": each.use.total} for each in memory.launches]
    return {**asdict(memory), "launches": rows}


def print_memory(memory: PlannedMemory) -> None:
    """Print a table, and what may be done."""
    cap = bytes_text(memory.memory_bytes)
    always = replace(memory.launches[0].use, activations=0.0, workspace=0.0, reserve=0.0)
    clip = f"a clip of {memory.shape} ({memory.num_tokens:,} tokens)"
    print_line(f"one GPU, for {clip}; {cap} may be used")
    print_line(f"all the time: {always.text}")
    rows = {_launch_name(each): _cells(each, memory.num_blocks) for each in memory.launches}
    print_table("launch", _COLUMNS, rows, bold="")
    print_line(
        f"{cap} leave out what the device, NCCL (here {bytes_text(memory.communicator_bytes)}) and "
        "the allocator's reserve take"
    )
    for line in filter(None, (_groups_advice(memory), memory.encoders, memory.advice)):
        print_line(line)


def _groups_advice(memory: PlannedMemory) -> str:
    """What to do where NCCL may take most of what is left out for it and others."""
    from arachne.cost.training_state import COMMUNICATOR_BYTES

    left_out = memory.memory_bytes * _LEFT_OUT_SHARE / (1.0 - _LEFT_OUT_SHARE)
    if memory.communicator_bytes <= left_out / 2.0:
        return ""
    most = max(1, int(left_out / 2.0 / COMMUNICATOR_BYTES) - 1)  # and the world
    return (
        f"NCCL would take much of the {bytes_text(left_out)} that are left out, if plans use all "
        f"groups; set run.max_groups = {most}, or planner.max_degree lower"
    )


def _launch_name(launch: LaunchMemory) -> str:
    work = "train" if launch.module == "dit" else launch.module
    return f"{work} on {count_text(launch.degree, 'GPU')}"


def _cells(launch: LaunchMemory, num_blocks: int) -> tuple[str, ...]:
    """One text for each of `_COLUMNS`."""
    kept = bytes_text(launch.use.activations)
    if launch.recomputed_blocks:
        kept = f"{kept} of {bytes_text(launch.all_kept_bytes)}"
    is_training = launch.module == "dit"
    return (
        bytes_text(launch.use.total),
        "yes" if launch.fits else "no",
        f"{launch.recomputed_blocks} of {num_blocks}" if is_training else "–",
        kept,
        bytes_text(launch.use.workspace),
    )


def _launch_memory(costs: "CostModel", cascade: Cascade, degree: int) -> LaunchMemory:
    gpus = blocks(costs.cluster.num_gpus, degree)[0]
    keeping = replace(costs, options=replace(costs.options, recompute="none"))
    return LaunchMemory(
        module=cascade.module,
        degree=degree,
        all_kept_bytes=keeping.memory(cascade, gpus).activations,
        recomputed_blocks=costs.mode(cascade, gpus).recompute_layers,
        use=costs.memory(cascade, gpus),
        fits=costs.fits(cascade, gpus),
    )


def _launches(
    costs: "CostModel", training: Cascade, degrees: tuple[int, ...], encoders: tuple[Encoder, ...]
) -> tuple[LaunchMemory, ...]:
    trained = [_launch_memory(costs, training, degree) for degree in degrees]
    encoded = [_launch_memory(costs, replace(training, module=module), 1) for module in encoders]
    return (*trained, *encoded)


def _least_degree(launches: tuple[LaunchMemory, ...]) -> int | None:
    """The fewest GPUs that can train the clip; None if no number can."""
    return next((each.degree for each in launches if each.module == "dit" and each.fits), None)


def _misfits(launches: tuple[LaunchMemory, ...]) -> list[str]:
    """The encoders that do not fit."""
    return [each.module for each in launches if each.module != "dit" and not each.fits]


def _misfit(launches: tuple[LaunchMemory, ...]) -> str:
    """What cannot run; empty if all can."""
    found: list[str] = []
    if _least_degree(launches) is None:
        found.append("training fits on no number of GPUs")
    if encoders := _misfits(launches):
        verb = "does" if len(encoders) == 1 else "do"
        found.append(
            f"the {' and '.join(encoders)} encoder{'s' * (len(encoders) > 1)} {verb} not fit"
        )
    return ", and ".join(found)


def _remedy(
    costs: "CostModel", training: Cascade, degrees: tuple[int, ...], encoders: tuple[Encoder, ...]
) -> str:
    """Which options let all of it run, those that cost least time first; empty if none do."""
    for gradients in _GRADIENTS:
        other = replace(costs, state=replace(costs.state, gradients=gradients))
        launches = _launches(other, training, degrees, encoders)
        if not _misfit(launches):
            return (
                f"with --recompute auto --gradients {gradients} training fits on "
                f"{count_text(_least_degree(launches) or 0, 'GPU')}"
                + (", and encoding on one" if encoders else "")
            )
    return ""


def _other_advice(
    modelled: ModelledSteps, training: Cascade, launches: tuple[LaunchMemory, ...]
) -> str:
    """What to change where no type of gradients helps; each problem has its own cure."""
    encoding = "encode before step 1 (leave out --encode and --fill)"
    if _least_degree(launches) is not None:
        return f"{encoding}; or use GPUs with more memory"
    if not _misfits(launches):
        return _training_advice(modelled, training, launches, subject="training")
    ways = _training_advice(modelled, training, launches, subject="it")
    return f"do both: for the encoders: {encoding}; and for training: {ways}"


def _training_advice(
    modelled: ModelledSteps, training: Cascade, launches: tuple[LaunchMemory, ...], *, subject: str
) -> str:
    """What lets the clip train where no number of GPUs can."""
    from arachne.cost.fitting import fitting_text
    from arachne.cost.roomier import roomier_text

    costs = modelled.first.costs
    widest = [each for each in launches if each.module == "dit"][-1]
    gpus = blocks(costs.cluster.num_gpus, widest.degree)[0]
    smaller = f"lower {modelled.clips.shape_settings}"
    roomier = roomier_text(costs, training, gpus, smaller, max_degree=modelled.first.degree_setting)
    if fitting := fitting_text(costs, training, gpus):
        return f"{subject} {fitting}; or {roomier}"
    return roomier
