"""Between a live session and a checkpoint on disk, on any world size."""

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch

from arachne.core.cluster import Cluster
from arachne.core.errors import CheckpointError
from arachne.core.placed_plan import PlacedPlan
from arachne.core.plan_rules import check_placed_plan
from arachne.core.strict_json import from_json, to_json
from arachne.core.units import count_text
from arachne.runtime.sharded_optimizer import AVERAGE
from arachne.trainer.agreement import do_together
from arachne.trainer.checkpoint_contents import loadable, readable
from arachne.trainer.checkpoint_files import LOSSES_KEPT, Clips, TrainState, known_best
from arachne.trainer.checkpoint_reader import CheckpointReader, newest
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset_changes import check_moved, dataset_changes_text
from arachne.trainer.environment import changes_text, environment
from arachne.trainer.frozen_base import check_same_base
from arachne.trainer.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcoming:
    """Plans that were made, or asked for, before a checkpoint.

    Attributes:
        plan: Of the next step.
        requested_with: The cluster that the plan of the step after it was asked for with; None if
            it was not asked for.
    """

    plan: PlacedPlan
    requested_with: Cluster | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """How far a run is.

    Attributes:
        step: Optimizer steps done; also the next step's index.
        num_updates: Steps that changed the parameters; others had no finite gradient.
        losses: Losses of the newest updates, at most LOSSES_KEPT.
        cluster: What plans are made for.
        left_out: Names of clips that some step had to do without.
        upcoming: What was planned ahead; None at the end, and on another world than before.
    """

    step: int
    num_updates: int
    losses: tuple[float, ...]
    cluster: Cluster | None
    left_out: frozenset[str] = frozenset()
    upcoming: Upcoming | None = None

    def after(self, loss: float | None, left_out: frozenset[str]) -> "Progressed":
        """One step later, which had this loss, or changed nothing if it is None."""
        return Progressed(
            step=self.step + 1,
            num_updates=self.num_updates + (loss is not None),
            losses=self.losses if loss is None else (*self.losses[1 - LOSSES_KEPT :], loss),
            cluster=self.cluster,
            left_out=self.left_out | left_out,
        )


def train_state(session: Session, progressed: Progressed) -> TrainState:
    """What a checkpoint has to say beside the optimizer's arrays."""
    upcoming = progressed.upcoming
    requested_with = upcoming.requested_with if upcoming else None
    return TrainState(
        step=progressed.step,
        num_updates=progressed.num_updates,
        seed=session.config.run.seed,
        world_size=session.world.size,
        config_json=to_json(session.config),
        base=session.base,
        video_fingerprint=session.prepared.train.video_fingerprint,
        text_fingerprint=session.prepared.train.text_fingerprint,
        losses=progressed.losses,
        cluster_json=to_json(progressed.cluster) if progressed.cluster else None,
        numbers=session.optimizer.numbers(),
        left_out=tuple(sorted(progressed.left_out)),
        clips=trained_clips(session),
        next_plan_json=upcoming.plan.to_json() if upcoming else None,
        requested_cluster_json=to_json(requested_with) if requested_with else None,
        environment=environment(session.world.device),
    )


def trained_clips(session: Session) -> Clips:
    """The clips that train, in their order: what decides, with the seed, which a step takes."""
    digest = hashlib.sha256()
    for row in session.prepared.train.rows:
        digest.update(f"{row.clip.name}\0{row.bucket}\0{row.num_tokens}\n".encode())
    return Clips(num_clips=len(session.prepared.train.rows), sha256=digest.hexdigest())


def load_newest(session: Session, *, takes_other_clips: bool = False) -> Progressed:
    """Take over the newest whole checkpoint; all ranks call it together.

    Raises:
        CheckpointError: There is none, `best.json` is damaged, or it is of another model, or was
            trained on other clips and `takes_other_clips` is not set; on every rank.
        ConfigError: The datasets were moved, and their clips are not there.
    """
    world, everyone = session.world, session.groups.world

    def find_on_rank_0() -> None:
        if world.rank == 0:
            path = newest(session.run_dir, on_skip=session.say, check=loadable)
            known_best(path.parent)  # found damaged now, and not when it shall be pruned
            world.store.set("resume from", str(path))
            if not takes_other_clips:
                before = from_json(
                    readable(path).state.config_json, RunConfig, what="the checkpoint's settings"
                )
                _say_dataset_changes(session, before)

    do_together(world, everyone, find_on_rank_0)
    path = Path(world.store.get("resume from").decode())

    def take_over() -> Progressed:
        reader = CheckpointReader(path)
        _check_clips(session, reader.state, takes_other_clips=takes_other_clips)
        _take_over(session, reader)
        session.say(f"going on from {path.name}")
        _say_changes(session, reader.state)
        if not session.config.optimizer.ema_decay and _has_average(session, reader):
            session.say(
                "optimizer.ema_decay is 0: the moving average of the weights in "
                f"{path.name} is left behind, and is in no later checkpoint"
            )
        return _progressed(session, reader.state)

    progressed = do_together(world, everyone, take_over)
    session.optimizer.share()
    session.recorder.finish(step=progressed.step, planner="checkpoint")
    return progressed


def _say_dataset_changes(session: Session, before: RunConfig) -> None:
    prepared = session.prepared
    check_moved(before.data, session.config.data, prepared.ledger, prepared.replaced)
    changes = dataset_changes_text(session.config.data, prepared.ledger, prepared.replaced)
    if changes:
        session.say(changes)


def _say_changes(session: Session, state: TrainState) -> None:
    changes = changes_text(state.environment, environment(session.world.device))
    if changes:
        session.say(
            f"since the checkpoint of step {state.step}: {changes}; losses may differ in rounding"
        )


def _progressed(session: Session, state: TrainState) -> Progressed:
    before = from_json(state.config_json, RunConfig, what="the checkpoint's settings")
    cluster = state.cluster_json if before.cluster == session.config.cluster else None
    return Progressed(
        step=state.step,
        num_updates=state.num_updates,
        losses=state.losses,
        cluster=from_json(cluster, Cluster, what="calibrated cluster") if cluster else None,
        left_out=frozenset(state.left_out),
        upcoming=_upcoming(session, state, before),
    )


def _upcoming(session: Session, state: TrainState, before: RunConfig) -> Upcoming | None:
    """Plans serve the world and the clips that they were made for, under the same settings."""
    now = session.config
    if (
        state.next_plan_json is None
        or state.world_size != session.world.size
        or state.clips != trained_clips(session)
        or (before.planner, before.cluster) != (now.planner, now.cluster)
    ):
        return None
    plan = PlacedPlan.from_json(state.next_plan_json)
    if session.encoders is None:  # otherwise the plan is made anew, since nothing is encoded ahead
        check_placed_plan(plan, session.step_batch(state.step).batch, session.world.size)
    cluster = state.requested_cluster_json
    return Upcoming(
        plan=plan,
        requested_with=from_json(cluster, Cluster, what="cluster") if cluster else None,
    )


def _check_clips(session: Session, state: TrainState, *, takes_other_clips: bool) -> None:
    """The order of clips is a function of the seed and of all clips together."""
    before, now = state.clips, trained_clips(session)
    if before is None or before == now:
        return
    change = (
        f"the run trained on {count_text(before.num_clips, 'clip')} until step {state.step}, the "
        f"ledger now has {now.num_clips}"
        + (", others or in another order" if before.num_clips == now.num_clips else "")
    )
    if not takes_other_clips:
        raise CheckpointError(
            f"{change}; restore the dataset and its ledger, or add --rescan to go on with the "
            "clips as they are now"
        )
    session.say(f"{change}; it goes on with those, in a new order")


def _take_over(session: Session, reader: CheckpointReader) -> None:
    """Read what this rank owns of the optimizer's state."""
    check_same_model(reader, session.optimizer.shapes)
    check_same_base(reader, session.base, session.config)
    state: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for piece in session.optimizer.pieces():
        if piece.kind == AVERAGE and not reader.holds(piece.name, AVERAGE):
            continue  # averages may be asked for later in a run; they begin at the weights
        stop = piece.offset + len(piece.values)
        values = reader.read(piece.name, piece.kind, piece.offset, stop)
        state[piece.kind][piece.name] = torch.from_numpy(values)
    lacking = session.optimizer.numbers().keys() - reader.state.numbers.keys() - {"step"}
    if lacking and reader.state.num_updates:
        raise CheckpointError(
            f"the checkpoint of step {reader.state.step} has no {min(lacking)!r}, which the "
            "optimizer remembers; resume with the optimizer that it was trained with"
        )
    session.optimizer.load(state, reader.state.num_updates, reader.state.numbers)


def _has_average(session: Session, reader: CheckpointReader) -> bool:
    return any(reader.holds(name, AVERAGE) for name in session.optimizer.shapes)


def check_same_model(reader: CheckpointReader, shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuse a checkpoint whose parameters have other names or shapes.

    Raises:
        CheckpointError: Names the first difference.
    """
    if reader.parameters == shapes:
        return
    for name in sorted(set(shapes) | set(reader.parameters)):
        found, needed = reader.parameters.get(name), shapes.get(name)
        if found != needed:
            raise CheckpointError(
                f"the checkpoint of step {reader.state.step} has {name} with shape {found}, the "
                f"run file's model has {needed}; resume with the [model] it was trained with"
            )
