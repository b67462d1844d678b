"""Train on ranks: what runs in each of them, and what rank 0 shows and writes."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from arachne.cli.pace import Pace
from arachne.cli.run_dir import Resume, is_same_job, note_job, opened_run_dir, resumes
from arachne.cli.run_logs import RunLogs
from arachne.cli.training_display import TrainingDisplay
from arachne.core.errors import DataError
from arachne.core.units import count_text
from arachne.models.diffusers_module import import_transformer
from arachne.reporting.run_files import MANIFEST, StepMetrics
from arachne.runtime.launcher import run_ranks
from arachne.runtime.lost_peer import lost_peers_named
from arachne.runtime.torchrun import is_restarted, torchrun_id
from arachne.runtime.watched import collective_timeout_s, watched
from arachne.runtime.world import World, default_num_ranks, join_world, leave_world
from arachne.trainer.cluster_choice import check_cluster
from arachne.trainer.config import RunConfig
from arachne.trainer.kept_ledger import accept_ledger
from arachne.trainer.listener import Listener, StepReport
from arachne.trainer.loop import train
from arachne.trainer.loss_means import LossMeans
from arachne.trainer.memory_reports import LESS_STATE, told_if_full
from arachne.trainer.session import Session, open_session
from arachne.trainer.validation import ValidationLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """How a run ended.

    Attributes:
        step: Optimizer steps done.
        stopped_by: Number of the signal that ended it before the last step; None if none did.
        num_rejected: Clips that did not train, or that some step had to do without.
        num_groups: Process groups of the world.
        world_size: Ranks.
    """

    step: int
    stopped_by: int | None
    num_rejected: int
    num_groups: int
    world_size: int


_RESTART_PATIENCE_S = 10.0
"""How long the processes of a torchrun attempt may still hold the folder after the next began."""


def train_on_ranks(config: RunConfig, *, resume: bool, rescan: bool = False) -> TrainingResult:
    """Start the ranks on this machine, and train.

    Raises:
        ArachneError: See `core.errors`; a rank's own error arrives as itself.
    """
    import_transformer(config.model.family)  # before the fork: once for all ranks
    return run_ranks(
        config.run.ranks or default_num_ranks(config.run.device),
        train_rank,
        (config, resume, rescan),
        device=config.run.device,
        timeout_s=collective_timeout_s(config.run.timeout_s),
    )[0]


def train_here(config: RunConfig, *, resume: Resume, rescan: bool = False) -> TrainingResult:
    """Train as the rank that torchrun started; ranks that it starts again resume by themselves.

    Raises:
        ArachneError: See `core.errors`; LostRankError on the ranks that another one leaves alone.
    """
    with lost_peers_named(int(os.environ["RANK"])):
        return _train_here(config, resume, rescan)


def _train_here(config: RunConfig, resume: Resume, rescan: bool) -> TrainingResult:
    world = join_world(config.run.device, collective_timeout_s(config.run.timeout_s))
    run_dir, patience_s = Path(config.run.dir), 0.0
    if world.rank == 0:
        if is_restarted() or is_same_job(run_dir, torchrun_id()):
            patience_s = _RESTART_PATIENCE_S
            resume = "if-any" if resume == "no" else resume
        world.store.set("resumes", str(resumes(run_dir, resume)))
    does_resume = world.store.get("resumes") == b"True"
    opened = nullcontext()
    if world.rank == 0:
        opened = opened_run_dir(config, resume=does_resume, rescan=rescan, patience_s=patience_s)
    with opened:
        if world.rank == 0:
            note_job(run_dir, torchrun_id())
        result = train_rank(world, config, does_resume, rescan)
    leave_world()  # not after an error: peers may still wait in a collective
    return result


def train_rank(
    world: World, config: RunConfig, resume: bool, rescan: bool = False
) -> TrainingResult:
    """What every rank runs."""
    check_cluster(config.cluster.name, world.machines)
    with (
        TrainingDisplay(config, is_shown=world.rank == 0) as display,
        watched(world, timeout_s=config.run.timeout_s, report_dir=Path(config.run.dir)) as progress,
    ):
        with told_if_full(world, "before the first step", LESS_STATE):
            session = open_session(world, config, say=display.say, progress=display.progress)
        session.recorder.progress = progress
        counts = session.prepared.ledger.counts
        display.started(session.prepared.ledger, world.size)
        display.say(session.order.text(config.run.steps))
        with listening(session, display) as listener:
            finished = train(session, listener, resume=resume, takes_other_clips=rescan)
        display.finished(finished.step, finished.num_skipped, finished.was_stopped)
    if finished.num_skipped == finished.step > 0 and not finished.was_stopped:
        raise DataError(
            f"none of {count_text(finished.step, 'step')} changed the weights: each was skipped, "
            "for the reason that its line tells"
        )
    return TrainingResult(
        step=finished.step,
        stopped_by=finished.stopped_by,
        num_rejected=counts["rejected"] + len(finished.left_out),
        num_groups=session.groups.num_groups,
        world_size=world.size,
    )


@contextmanager
def listening(session: Session, display: TrainingDisplay) -> Iterator[Listener]:
    """A listener that shows a run on rank 0, and writes its files until the context ends.

    Its functions raise ConfigError when the disk is full or cannot be written.
    """
    config, world, counts = session.config, session.world, session.prepared.ledger.counts
    logs = RunLogs(config, world, display.say)
    means, pace = LossMeans(), Pace()

    def on_step(report: StepReport) -> None:
        if world.rank != 0:
            return
        outcome = report.outcome
        means.take(report.batch, report.figures.sigmas, outcome.clip_losses, outcome.vote.is_kept)
        num_left = config.run.steps - report.step - 1
        time_left_s = pace.time_left_s(num_left, time.monotonic(), outcome.step_s)
        row = metrics_of(report, means=means, time_left_s=time_left_s)
        row = replace(row, trimmed=counts["trimmed"], rejected=counts["rejected"])
        display.step(row)
        logs.write(row)
        logs.write_plan(report.plan, report.batch)

    def on_validation(done: int, found: ValidationLoss) -> None:
        if world.rank == 0:
            row = validation_row(done, found)
            display.validation(row)
            logs.write(row)

    def on_begin(done: int) -> None:
        logs.begin(done)
        if world.rank == 0:
            accept_ledger(Path(config.run.dir) / MANIFEST)

    listener = Listener(
        on_step=on_step,
        on_validation=on_validation,
        on_rank_log=logs.write_rank_log,
        on_begin=on_begin,
        is_validated=logs.is_validated,
        on_samples=logs.write_samples,
        on_sampled=logs.join_samples,
        is_sampled=logs.is_sampled,
    )
    try:
        yield listener
    finally:
        logs.close()


def metrics_of(report: StepReport, *, means: LossMeans, time_left_s: float) -> StepMetrics:
    """A step's line of `metrics.jsonl`."""
    outcome, figures = report.outcome, report.figures
    kept = [
        clip
        for clip, is_kept in zip(report.batch.clips, outcome.vote.is_kept, strict=True)
        if is_kept
    ]
    tokens = sum(clip.num_tokens for clip in kept)
    return StepMetrics(
        step=report.step,
        loss=outcome.loss,
        grad_norm=outcome.grad_norm,
        lr=report.lr,
        step_s=outcome.step_s,
        period_s=figures.period_s,
        idle_ratio=None if report.trace is None else report.trace.idle_ratio,
        tokens=tokens,
        clips=len(kept),
        tokens_per_s=tokens / figures.period_s,
        clips_per_s=len(kept) / figures.period_s,
        mfu=report.utilisation,
        flop_rate_cv=figures.flop_rate_variation,
        load_share=figures.load_share,
        peak_memory_bytes=figures.peak_memory_bytes,
        time_left_s=time_left_s,
        bucket_losses=means.by_bucket,
        sigma_losses=means.by_sigma,
        modelled_step_s=report.modelled_step_s,
        launch_error=report.launch_error,
        planner=report.plan.planner,
        skipped_steps=report.num_skipped,
        left_out=report.num_left_out,
        rank_scores={str(rank): score for rank, score in report.rank_scores.items()} or None,
        rank_speeds=report.rank_speeds or None,
    )


def validation_row(done: int, found: ValidationLoss) -> StepMetrics:
    """A validation's line of `metrics.jsonl`; a loss that is not finite has no breakdown."""
    levels = {f"q{number}": loss for number, loss in enumerate(found.by_level, start=1)}
    is_whole = isfinite(found.loss)
    return StepMetrics(
        step=done,
        loss=found.loss,
        kind="validation",
        bucket_losses=found.by_bucket if is_whole else None,
        sigma_losses=levels if is_whole else None,
    )
