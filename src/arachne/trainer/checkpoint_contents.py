"""Whether a whole checkpoint can also be gone on from: its ledger's settings, plan and clusters."""

from pathlib import Path

from arachne.core.cluster import Cluster
from arachne.core.errors import CheckpointError, DataError
from arachne.core.placed_plan import PlacedPlan
from arachne.core.strict_json import from_json
from arachne.trainer.checkpoint_files import CheckpointIndex, TrainState
from arachne.trainer.checkpoint_reader import read_index, verified
from arachne.trainer.config import RunConfig

_COUNTING = ("adamw", "muon")
"""Optimizers whose `step` is the number of updates; others count as they like."""


def loadable(path: Path) -> CheckpointIndex:
    """The index of a checkpoint that is whole, and whose state can be read to the last word.

    Raises:
        CheckpointError: Names the first file that is missing or damaged, or what cannot be read.
    """
    verified(path)
    return readable(path)


def readable(path: Path) -> CheckpointIndex:
    """The same, but its shards are not looked at.

    Raises:
        CheckpointError: The index is damaged, or something of its state cannot be read.
    """
    index = read_index(path)
    try:
        _read(index.state)
    except DataError as error:
        raise CheckpointError(f"checkpoint {path.name}: {error}") from error
    return index


def _read(state: TrainState) -> None:
    config = from_json(state.config_json, RunConfig, what="its settings")
    if config.run.seed != state.seed:
        raise DataError(f"its seed is {state.seed}, but {config.run.seed} in its settings")
    step = state.numbers.get("step", state.num_updates)
    if config.optimizer.name in _COUNTING and step != state.num_updates:
        raise DataError(f"its optimizer counts {step} updates, and it has {state.num_updates}")
    for what, text in (
        ("its cluster", state.cluster_json),
        ("the cluster of its plans", state.requested_cluster_json),
    ):
        if text is not None:
            from_json(text, Cluster, what=what)
    if state.next_plan_json is not None:
        plan = PlacedPlan.from_json(state.next_plan_json)
        if (plan.step, plan.world_size) != (state.step, state.world_size):
            raise DataError(
                f"its plan is for step {plan.step} on {plan.world_size} ranks, needed step "
                f"{state.step} on {state.world_size}"
            )
