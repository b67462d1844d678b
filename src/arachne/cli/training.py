"""Train on ranks: what runs in each of them, and what rank 0 shows and writes."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from arachne.cli.run_dir import opened_run_dir
from arachne.cli.training_display import TrainingDisplay
from arachne.core.errors import ConfigError
from arachne.core.rank_log import RankLog
from arachne.models.diffusers_module import import_transformer
from arachne.reporting.run_files import RunWriter, StepMetrics
from arachne.runtime.launcher import run_ranks
from arachne.runtime.watched import collective_timeout_s, watched
from arachne.runtime.world import World, default_num_ranks, join_world, leave_world
from arachne.trainer.config import RunConfig
from arachne.trainer.loop import Listener, StepReport, train
from arachne.trainer.session import open_session


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """How a run ended.

    Attributes:
        step: Optimizer steps done.
        was_stopped: True if a signal ended it before the last step.
        num_rejected: Clips that did not train, or that some step had to do without.
        num_groups: Process groups of the world.
        world_size: Ranks.
    """

    step: int
    was_stopped: bool
    num_rejected: int
    num_groups: int
    world_size: int


def train_on_ranks(config: RunConfig, *, resume: bool) -> TrainingResult:
    """Start the ranks on this machine, and train.

    Raises:
        ArachneError: See `core.errors`; a rank's own error arrives as itself.
    """
    import_transformer(config.model.family)  # before the fork: once for all ranks
    return run_ranks(
        config.run.ranks or default_num_ranks(config.run.device),
        train_rank,
        (config, resume),
        device=config.run.device,
        timeout_s=collective_timeout_s(config.run.timeout_s),
    )[0]


def train_here(config: RunConfig, *, resume: bool) -> TrainingResult:
    """Train as the rank that torchrun started."""
    world = join_world(config.run.device, collective_timeout_s(config.run.timeout_s))
    with opened_run_dir(config, resume=resume) if world.rank == 0 else nullcontext():
        result = train_rank(world, config, resume)
    leave_world()  # not after an error: peers may still wait in a collective
    return result


def train_rank(world: World, config: RunConfig, resume: bool) -> TrainingResult:
    """What every rank runs."""
    with (
        TrainingDisplay(config, is_shown=world.rank == 0) as display,
        watched(world, timeout_s=config.run.timeout_s, report_dir=Path(config.run.dir)) as progress,
    ):
        session = open_session(world, config, say=display.say, progress=display.progress)
        session.recorder.progress = progress
        counts = session.prepared.ledger.counts
        display.started(session.prepared.ledger, world.size)
        finished = train(session, listener_of(config, world, display), resume=resume)
        display.finished(finished.step, finished.was_stopped)
    return TrainingResult(
        step=finished.step,
        was_stopped=finished.was_stopped,
        num_rejected=counts["rejected"] + len(finished.left_out),
        num_groups=session.groups.num_groups,
        world_size=world.size,
    )


def listener_of(config: RunConfig, world: World, display: TrainingDisplay) -> Listener:
    """Shows a run on rank 0, and writes its files.

    Its functions raise ConfigError when the disk is full or cannot be written.
    """
    writer = RunWriter(run_dir=Path(config.run.dir))

    def on_step(report: StepReport) -> None:
        metrics = metrics_of(report)
        display.step(metrics)
        if world.rank == 0:
            with _disk_errors_named(config):
                writer.write_metrics(metrics)
                writer.write_plan(report.plan)
                writer.write_batch(report.batch)

    def on_validation(step: int, loss: float) -> None:
        display.validation(step, loss)
        if world.rank == 0:
            with _disk_errors_named(config):
                writer.write_metrics(StepMetrics(step=step, loss=loss, kind="validation"))

    def on_rank_log(log: RankLog) -> None:
        with _disk_errors_named(config):
            writer.write_rank_log(log)

    return Listener(on_step=on_step, on_validation=on_validation, on_rank_log=on_rank_log)


@contextmanager
def _disk_errors_named(config: RunConfig) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"run.dir {config.run.dir!r} cannot be written: {error.strerror or error}; free some "
            "space, and go on with --resume"
        ) from error


def metrics_of(report: StepReport) -> StepMetrics:
    """A step's line of `metrics.jsonl`."""
    kept = zip(report.batch.clips, report.outcome.vote.is_kept, strict=True)
    return StepMetrics(
        step=report.step,
        loss=report.outcome.loss,
        grad_norm=report.outcome.grad_norm,
        lr=report.lr,
        step_s=report.outcome.step_s,
        idle_ratio=None if report.trace is None else report.trace.idle_ratio,
        tokens=sum(clip.num_tokens for clip, is_kept in kept if is_kept),
        modelled_step_s=report.modelled_step_s,
        launch_error=report.launch_error,
        planner=report.plan.planner,
    )
