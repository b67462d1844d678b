"""The files of a run directory: their names in one place, and how they are written and read.

RUN_DIR/
├── run.resolved.toml       every setting of the run
├── metrics.jsonl           one StepMetrics a line
├── plans.jsonl             one PlacedPlan a line
├── batches.jsonl           one Batch a line: which clip a plan's slot is
├── traces/rank-00000.jsonl one RankLog a line, a file for each rank
├── ledger.parquet          the manifest: what became of each clip
├── display.txt             what a run showed after its standard output was lost
├── comparison.json         strategies against each other, if they were compared
├── samples/*.png           pictures, if some were drawn
├── samples/step-000100/    videos 0.mp4, 1.mp4 … drawn after so many steps, and their sheet.png
├── tensorboard/            event files
├── report.html             the page
└── trace.perfetto.json     for https://ui.perfetto.dev
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from arachne.core.batch import Batch
from arachne.core.errors import DataError
from arachne.core.placed_plan import PlacedPlan
from arachne.core.rank_log import RankLog
from arachne.core.refused_write import fix_of, refusal_at
from arachne.core.strict_json import to_json
from arachne.reporting.json_lines import append_line, keep_lines, read_json_lines

RESOLVED_CONFIG = "run.resolved.toml"
METRICS = "metrics.jsonl"
PLANS = "plans.jsonl"
BATCHES = "batches.jsonl"
TRACES = "traces"
MANIFEST = "ledger.parquet"
DISPLAY = "display.txt"
COMPARISON = "comparison.json"
SAMPLES = "samples"
REPORT = "report.html"
PERFETTO = "trace.perfetto.json"
TENSORBOARD = "tensorboard"
WANDB_ID = "wandb-id.txt"
SHEET = "sheet.png"
JOB = ".torchrun"
"""Which job of torchrun trained there last."""

_FILES = (
    *(RESOLVED_CONFIG, METRICS, PLANS, BATCHES, MANIFEST, DISPLAY, COMPARISON, REPORT),
    *(PERFETTO, WANDB_ID, JOB, f"{TRACES}/rank-*.jsonl"),
    *(f"{SAMPLES}/*.png", f"{SAMPLES}/step-*/*.png", f"{SAMPLES}/step-*/*.mp4"),
)
_FOLDERS = (TRACES, SAMPLES, TENSORBOARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One line of `metrics.jsonl`.

    A figure that is not finite is written as null and comes back as None.

    Attributes:
        step: The optimizer step.
        loss: Mean over the step's clips by their weights; None if it was not finite.
        kind: `validation` rows hold a validation loss, and nothing else has to be set; their step
            is the number of steps done.
        grad_norm: Global norm before clipping.
        lr: Learning rate of this step.
        step_s: Measured seconds, from before loading until the parameters were shared.
        period_s: Seconds from the end of the step before to the end of this one, which rates are
            over; validation, samples and checkpoints not counted.
        idle_ratio: Measured idle ratio, 0 to 1, on traced steps (`logging.trace_every`), since it
            takes the logs of all ranks to tell waiting from communicating; None on the others.
        tokens: Video tokens that were trained.
        clips: Clips that were trained.
        tokens_per_s: Video tokens per second, over all ranks.
        clips_per_s: Clips per second, over all ranks.
        mfu: Model FLOPs utilisation: the batch's FLOPs, recomputation not counted, over ranks,
            seconds, and the matmul rate of the run's cluster as it was at the start.
        flop_rate_cv: Coefficient of variation of the ranks' FLOP rates; 0 is an even step.
        load_share: Part of the ranks' time that went into waiting for clips.
        peak_memory_bytes: Of the rank that needed most.
        time_left_s: Seconds to the last step at the pace of the newest steps.
        bucket_losses: Mean loss by bucket: of training the newest clips, of validation all.
        sigma_losses: Mean loss by noise level. Training: quarters of the level, q1 the least noise.
            Validation: its levels in order, q1 the least noise.
        modelled_step_s: Seconds that the cost model promised, reduction and optimizer counted.
        launch_error: Median over the step's launches of |promised / measured − 1|.
        planner: Who made the step's plan.
        skipped_steps: Steps of the run so far that changed nothing.
        left_out: Clips that some step so far had to do without.
        trimmed: Clips that the ledger cuts to a legal length.
        rejected: Clips that the ledger leaves out.
        rank_scores: Measured over predicted computing of each rank, beside what is usual, at the
            newest correction of the cost model; None before the first.
        rank_speeds: What plans count on, beside the fastest rank; None if all are alike.
    """

    step: int
    loss: float | None
    kind: Literal["train", "validation"] = "train"
    grad_norm: float | None = None
    lr: float | None = None
    step_s: float | None = None
    period_s: float | None = None
    idle_ratio: float | None = None
    tokens: int | None = None
    clips: int | None = None
    tokens_per_s: float | None = None
    clips_per_s: float | None = None
    mfu: float | None = None
    flop_rate_cv: float | None = None
    load_share: float | None = None
    peak_memory_bytes: float | None = None
    time_left_s: float | None = None
    bucket_losses: dict[str, float] | None = None
    sigma_losses: dict[str, float] | None = None
    modelled_step_s: float | None = None
    launch_error: float | None = None
    planner: str | None = None
    skipped_steps: int | None = None
    left_out: int | None = None
    trimmed: int | None = None
    rejected: int | None = None
    rank_scores: dict[str, float] | None = None
    rank_speeds: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """`metrics.jsonl` in order of step, each step once; notes say what was skipped."""

    train: tuple[StepMetrics, ...] = ()
    validation: tuple[StepMetrics, ...] = ()
    notes: tuple[str, ...] = ()


def check_kinds(run_dir: Path, *more: str) -> None:
    """Refuse a folder where something else has the name of a run's file: a pipe would never answer.

    `more` are names of further files.

    Raises:
        DataError: Such a thing is there, or this user may not look.
    """
    try:
        _check_kinds(run_dir, (*_FILES, *more, *_FOLDERS))
    except OSError as error:
        raise DataError(
            f"{str(run_dir)!r} cannot be read: {refusal_at(error, run_dir)}; {fix_of(error)}"
        ) from error


def _check_kinds(run_dir: Path, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        what = "folder" if pattern in _FOLDERS else "file"
        for path in run_dir.glob(pattern) if "*" in pattern else [run_dir / pattern]:
            is_right = path.is_dir() if what == "folder" else path.is_file()
            if not is_right and (path.exists() or path.is_symlink()):
                raise DataError(f"{str(path)!r} is no {what}; move it away")


def samples_dir(run_dir: Path, step: int) -> Path:
    """Where the videos lie that were drawn after so many steps."""
    return run_dir / SAMPLES / f"step-{step:06d}"


def rank_log_path(run_dir: Path, rank: int) -> Path:
    """Where one rank writes its logs."""
    return run_dir / TRACES / f"rank-{rank:05d}.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWriter:
    """Appends to the files of one run directory; holds no open file, so it can be pickled.

    Rank 0 writes metrics, plans and batches; every rank writes its own log.
    """

    run_dir: Path

    def go_on_from(self, step: int, rank: int) -> None:
        """Drop what was written of this step and later ones, which are about to be done again.

        Every rank drops its own log's lines, rank 0 those of the shared files. A validation loss
        that was measured after `step` steps stays: it is of the weights that the run goes on with.
        """

        def is_kept(of: int, kind: str) -> bool:
            return of < step or (kind == "validation" and of == step)

        keep_lines(rank_log_path(self.run_dir, rank), is_kept)
        if rank == 0:
            for name in (METRICS, PLANS, BATCHES):
                keep_lines(self.run_dir / name, is_kept)

    def write_metrics(self, metrics: StepMetrics) -> None:
        """Append one row to `metrics.jsonl`."""
        append_line(self.run_dir / METRICS, to_json(metrics))

    def write_plan(self, plan: PlacedPlan) -> None:
        """Append one plan to `plans.jsonl`."""
        append_line(self.run_dir / PLANS, to_json(plan))

    def write_batch(self, batch: Batch) -> None:
        """Append one batch to `batches.jsonl`; it gives the plan's slots their clips' names."""
        append_line(self.run_dir / BATCHES, to_json(batch))

    def write_rank_log(self, log: RankLog) -> None:
        """Append one step's log to the file of its rank."""
        append_line(rank_log_path(self.run_dir, log.rank), to_json(log))


def read_metrics(run_dir: Path) -> Metrics:
    """The run's metrics; where a resumed run repeated a step, the later row counts.

    Raises:
        DataError: A row has another shape.
    """
    lines = read_json_lines(run_dir / METRICS, StepMetrics)
    latest = {(row.kind, row.step): row for row in lines.values}
    ordered = sorted(latest.values(), key=lambda row: row.step)
    return Metrics(
        train=tuple(row for row in ordered if row.kind == "train"),
        validation=tuple(row for row in ordered if row.kind == "validation"),
        notes=lines.notes,
    )


def read_plans(run_dir: Path) -> tuple[dict[int, PlacedPlan], tuple[str, ...]]:
    """Plans by step, the latest of each, and notes on skipped lines.

    Raises:
        DataError: A row has another shape.
    """
    lines = read_json_lines(run_dir / PLANS, PlacedPlan)
    return {plan.step: plan for plan in lines.values}, lines.notes


def read_batches(run_dir: Path) -> tuple[dict[int, Batch], tuple[str, ...]]:
    """Batches by step, the latest of each, and notes on skipped lines.

    Raises:
        DataError: A row has another shape.
    """
    lines = read_json_lines(run_dir / BATCHES, Batch)
    return {batch.step: batch for batch in lines.values}, lines.notes
