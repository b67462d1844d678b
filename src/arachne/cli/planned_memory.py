"""What `arachne plan --memory` says: the memory of one GPU for a run's longest clips."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from arachne.cli.modelled_steps import ENCODERS, ModelledSteps
from arachne.core.blocks import blocks
from arachne.core.cascade import Cascade, Module
from arachne.core.units import bytes_text, count_text

if TYPE_CHECKING:
    from arachne.cost.memory import MemoryUse
    from arachne.cost.model import CostModel

_GRADIENTS = ("float32", "bfloat16", "host")
"""What `--gradients` takes, from what is fastest to what needs least."""


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
        advice: What would fit, if no degree does; else empty.
    """

    shape: str
    num_tokens: int
    num_blocks: int
    memory_bytes: float
    launches: tuple[LaunchMemory, ...]
    communicator_bytes: float
    advice: str


def planned_memory(modelled: ModelledSteps) -> PlannedMemory:
    """The memory of launches of a clip with most tokens."""
    from arachne.cost.training_state import COMMUNICATOR_BYTES, num_communicators

    costs = modelled.first.costs
    num_gpus = costs.cluster.num_gpus
    degrees = modelled.first.problem.degrees
    row = max(modelled.clips.rows, key=lambda row: row.num_tokens)
    assert row.bucket is not None, row
    training = Cascade(module="dit", slots=(0,), bucket=row.bucket, num_tokens=row.num_tokens)
    found = [_launch_memory(costs, training, degree) for degree in degrees]
    advice = "" if any(each.fits for each in found) else _advice(costs, training, degrees)
    if modelled.encoding != "cached":
        found += [_launch_memory(costs, replace(training, module=m), 1) for m in ENCODERS]
    return PlannedMemory(
        shape=str(row.bucket),
        num_tokens=row.num_tokens,
        num_blocks=costs.model.num_blocks,
        memory_bytes=costs.memory_bytes,
        launches=tuple(found),
        communicator_bytes=COMMUNICATOR_BYTES * num_communicators(degrees, num_gpus),
        advice=advice,
    )


def print_memory(memory: PlannedMemory) -> None:
    """Print a table, and what may be done."""
    from rich.console import Console
    from rich.table import Table

    cap = bytes_text(memory.memory_bytes)
    always = replace(memory.launches[0].use, activations=0.0, workspace=0.0, reserve=0.0)
    console = Console(highlight=False)
    console.print(
        f"one GPU, for a clip of {memory.shape} ({memory.num_tokens:,} tokens); {cap} may be used",
        markup=False,
    )
    console.print(f"all the time: {always.text}", markup=False)
    table = Table()
    for column in ("", "GPUs", "recomputed", "activations", "workspace", "total", "fits"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in memory.launches:
        kept = bytes_text(each.use.activations)
        if each.recomputed_blocks:
            kept = f"{kept} of {bytes_text(each.all_kept_bytes)}"
        is_training = each.module == "dit"
        table.add_row(
            "train" if is_training else each.module,
            str(each.degree),
            f"{each.recomputed_blocks} of {memory.num_blocks}" if is_training else "–",
            kept,
            bytes_text(each.use.workspace),
            bytes_text(each.use.total),
            "yes" if each.fits else "no",
        )
    console.print(table)
    console.print(
        f"{cap} leave out what the device, NCCL (here {bytes_text(memory.communicator_bytes)}) and "
        "the allocator's reserve take",
        markup=False,
    )
    if memory.advice:
        console.print(memory.advice, markup=False)


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


def _advice(costs: "CostModel", cascade: Cascade, degrees: tuple[int, ...]) -> str:
    """Which options let the clip fit, those that cost least time first."""
    options = replace(costs.options, recompute="auto")
    for gradients in _GRADIENTS:
        state = replace(costs.state, gradients=gradients)
        other = replace(costs, state=state, options=options)
        fitting = [degree for degree in degrees if _launch_memory(other, cascade, degree).fits]
        if fitting:
            return (
                f"fits on no number of GPUs; with --recompute auto --gradients {gradients} it fits "
                f"on {count_text(fitting[0], 'GPU')}"
            )
    return (
        "fits on no number of GPUs, whatever --recompute and --gradients say; lower "
        "data.resolution or data.frame_buckets, or use more GPUs or GPUs with more memory"
    )
