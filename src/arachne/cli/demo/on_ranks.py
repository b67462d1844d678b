"""What the demo runs on its ranks: the training itself, then the promise checked on the result."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from arachne.cli.training import listening
from arachne.cli.training_display import TrainingDisplay
from arachne.runtime.watched import watched
from arachne.runtime.world import World
from arachne.trainer.config import RunConfig
from arachne.trainer.gradient_check import gradient_errors
from arachne.trainer.loop import Finished, train
from arachne.trainer.memory_reports import LESS_STATE, told_if_full
from arachne.trainer.planning import plan_batch
from arachne.trainer.race import RaceResult, heterogeneous_steps, race
from arachne.trainer.session import Session, open_session

STRATEGIES = ("arachne", "static_dp", "static_dp_longest_first", "static_sp")
TOKEN_SPAN = 20.0
"""The raced steps hold clips whose tokens differ at least by this factor."""

_FIRST_RACED_STEP = 10_000
"""The race takes batches that no training of the demo reaches, the same for every `--steps`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What the ranks found.

    Attributes:
        finished: How the training ended.
        gradient_errors: By planner, the error of its gradient against one process's.
        race: Step times of the strategies; None if the training was stopped.
        num_parameters: Of the model.
    """

    finished: Finished
    gradient_errors: dict[str, float]
    race: RaceResult | None
    num_groups: int
    world_size: int
    num_parameters: int


def train_and_check(world: World, config: RunConfig, num_raced: int) -> DemoResult:
    """Train as `arachne train` does, then compare gradients and strategies on the same ranks."""
    with (
        told_if_full(world, "demo", LESS_STATE),
        TrainingDisplay(config, is_shown=world.rank == 0) as display,
    ):
        session = open_session(world, config, say=display.say, progress=display.progress)
        display.started(session.prepared.ledger, world.size)
        with watching(session), listening(session, display) as listener:
            finished = train(session, listener, resume=False)
        errors: dict[str, float] = {}
        result = None
        if not finished.was_stopped:
            steps = heterogeneous_steps(
                session, first=_FIRST_RACED_STEP, count=num_raced, span=TOKEN_SPAN
            )
            errors = _gradient_errors(session, finished, steps[0])
            result = race(session, finished.cluster, STRATEGIES, steps, display.progress)
    return DemoResult(
        finished=finished,
        gradient_errors=errors,
        race=result,
        num_groups=session.groups.num_groups,
        world_size=world.size,
        num_parameters=sum(p.numel() for p in session.model.module.parameters()),
    )


def resumed_losses(world: World, config: RunConfig) -> tuple[float, ...] | None:
    """Go on from the newest checkpoint, on this world; the losses of all steps of the run.

    None if a signal ended it before the last step.
    """
    with (
        told_if_full(world, "demo", LESS_STATE),
        TrainingDisplay(config, is_shown=world.rank == 0) as display,
    ):
        session = open_session(world, config, say=display.say, progress=display.progress)
        with watching(session), listening(session, display) as listener:
            finished = train(session, listener, resume=True)
    return None if finished.was_stopped else finished.losses


@contextmanager
def watching(session: Session) -> Iterator[None]:
    """A context in which a rank that stops answering ends the demo, with a report."""
    run = session.config.run
    with watched(session.world, timeout_s=run.timeout_s, report_dir=session.run_dir) as progress:
        session.recorder.progress = progress
        yield


def _gradient_errors(session: Session, finished: Finished, step: int) -> dict[str, float]:
    planners = ("arachne", "static_sp")
    requests = [session.plan_request(step, finished.cluster, planner) for planner in planners]
    errors = gradient_errors(session, session.step_batch(step), list(map(plan_batch, requests)))
    return dict(zip(planners, errors, strict=True))
