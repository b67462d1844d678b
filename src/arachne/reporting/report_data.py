"""Everything a report shows, read from a run directory."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from arachne.core.batch import Batch
from arachne.core.errors import DataError
from arachne.core.ledger import Ledger
from arachne.core.placed_plan import PlacedPlan
from arachne.core.refused_write import refusal
from arachne.core.trace import Trace
from arachne.core.units import bytes_text, count_text
from arachne.reporting.comparison import Strategy, read_comparison
from arachne.reporting.headlines import Headlines, headlines
from arachne.reporting.modelled_trace import modelled_trace
from arachne.reporting.planned_figures import PlannedFigures
from arachne.reporting.run_files import (
    COMPARISON,
    MANIFEST,
    METRICS,
    PLANS,
    SAMPLES,
    SHEET,
    TRACES,
    Metrics,
    check_kinds,
    read_batches,
    read_metrics,
    read_plans,
)
from arachne.reporting.slow_ranks import slow_rank_notes
from arachne.reporting.trace_files import joined_traces, read_rank_logs, traced_steps

MAX_TRACED_STEPS = 64
"""Steps whose spans are read; a long run is sampled evenly, its first and last step included."""

_STEP_FOLDER = re.compile(r"step-[0-9]{6,12}")
_MAX_SAMPLES = 24
_MAX_SHEETS = 8
_MAX_SAMPLE_BYTES = 4_000_000
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One picture, a PNG."""

    name: str
    png: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """What a report is made from; every part but the title may be missing.

    Attributes:
        title: Name of the run.
        metrics: Rows of each step.
        traces: Measured traces by step.
        plans: Plans by step.
        planned: Figures of steps that were planned alone, for a page of which nothing was run.
        batches: Clips by step.
        ledger: What became of each clip.
        strategies: Strategies that were compared.
        samples: Pictures.
        num_traced_steps: Steps that were traced; `traces` may hold only some of them.
        notes: What was skipped or could not be read, one sentence each.
    """

    title: str
    metrics: Metrics = field(default_factory=Metrics)
    traces: dict[int, Trace] = field(default_factory=dict[int, Trace])
    plans: dict[int, PlacedPlan] = field(default_factory=dict[int, PlacedPlan])
    planned: tuple[PlannedFigures, ...] = ()
    batches: dict[int, Batch] = field(default_factory=dict[int, Batch])
    ledger: Ledger | None = None
    strategies: tuple[Strategy, ...] = ()
    samples: tuple[Sample, ...] = ()
    num_traced_steps: int = 0
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> int | None:
        """Ranks of the newest step that a trace or a plan tells of."""
        known = self.traces or self.plans
        return known[max(known)].world_size if known else None

    @property
    def modelled_step_s(self) -> dict[int, float | None]:
        """Seconds of whole steps as they were modelled, where that is known."""
        run = {row.step: row.modelled_step_s for row in self.metrics.train}
        return run | {figures.step: figures.step_s for figures in self.planned}

    @property
    def all_traces(self) -> tuple[Trace, ...]:
        """Each measured trace, followed by what its plan promised."""
        modelled_s = self.modelled_step_s
        found: list[Trace] = []
        for step, trace in self.traces.items():
            found.append(trace)
            if step in self.plans:
                found.append(modelled_trace(self.plans[step], modelled_s.get(step)))
        return tuple(found)

    @property
    def headlines(self) -> Headlines:
        """The run in figures."""
        return headlines(self.metrics, self.ledger, self.ranks)


def read_report_data(run_dir: Path) -> ReportData:
    """Read what a run directory holds; parts that are missing or damaged are left out and noted.

    Raises:
        DataError: `run_dir` is not a run directory, or rows of its files have another shape.
    """
    if not run_dir.is_dir():
        raise DataError(
            f"there is no folder {str(run_dir)!r}; name the `dir` of a run file's [run]"
        )
    check_kinds(run_dir)
    if not any((run_dir / name).exists() for name in (METRICS, PLANS, TRACES)):
        raise DataError(
            f"{str(run_dir)!r} is not a run: it has no {METRICS}, {PLANS} or {TRACES}/; "
            "name the folder that `arachne train` wrote"
        )
    metrics = read_metrics(run_dir)
    plans, plan_notes = read_plans(run_dir)
    batches, batch_notes = read_batches(run_dir)
    all_steps = traced_steps(run_dir)
    logs = read_rank_logs(run_dir, steps=frozenset(_evenly(all_steps, MAX_TRACED_STEPS)))
    traces = joined_traces(logs.values)
    notes = [*metrics.notes, *plan_notes, *batch_notes, *logs.notes]
    notes += _incomplete_notes(traces, sorted({log.step for log in logs.values}))
    notes += slow_rank_notes(metrics)
    return ReportData(
        title=run_dir.resolve().name,
        metrics=metrics,
        traces=traces,
        plans=plans,
        batches=batches,
        ledger=_ledger(run_dir, notes),
        strategies=_strategies(run_dir, notes),
        samples=_samples(run_dir, notes),
        num_traced_steps=len(all_steps),
        notes=tuple(notes),
    )


def _evenly(steps: Sequence[int], most: int) -> list[int]:
    """At most `most` of the steps, evenly spread, with the first and the last."""
    if len(steps) <= most:
        return list(steps)
    return [steps[i * (len(steps) - 1) // (most - 1)] for i in range(most)]


def _incomplete_notes(traces: dict[int, Trace], logged: Sequence[int]) -> list[str]:
    missing = [step for step in logged if step not in traces]
    if not missing:
        return []
    listed = ", ".join(str(step) for step in missing[:5]) + (" …" if len(missing) > 5 else "")
    return [f"traces: not every rank logged step {listed}; left out of the timelines"]


def _ledger(run_dir: Path, notes: list[str]) -> Ledger | None:
    path = run_dir / MANIFEST
    if not path.exists():
        return None
    from arachne.data.manifest import read_manifest  # pyarrow takes a third of a second to load

    try:
        return read_manifest(path)
    except DataError as error:
        notes.append(str(error))
        return None


def _strategies(run_dir: Path, notes: list[str]) -> tuple[Strategy, ...]:
    try:
        return read_comparison(run_dir / COMPARISON)
    except DataError as error:
        notes.append(str(error))
        return ()


def _samples(run_dir: Path, notes: list[str]) -> tuple[Sample, ...]:
    folder = run_dir / SAMPLES
    pictures = sorted(folder.glob("*.png"))
    found = sorted(folder.glob(f"step-*/{SHEET}"), reverse=True)
    sheets = [path for path in found if _STEP_FOLDER.fullmatch(path.parent.name)]
    others = (path for path in found if path not in sheets)
    notes += [f"{path.relative_to(run_dir)} is of no step; left out" for path in others]
    shown = {path: path.stem for path in pictures[:_MAX_SAMPLES]}
    shown |= {path: _sheet_name(path) for path in sheets[:_MAX_SHEETS]}
    samples: list[Sample] = []
    for path, name in shown.items():
        try:
            num_bytes = path.stat().st_size
            with path.open("rb") as file:
                png = file.read(_MAX_SAMPLE_BYTES)
        except OSError as error:
            notes.append(f"{path.relative_to(run_dir)}: {refusal(error)}; left out")
            continue
        if not png.startswith(_PNG_SIGNATURE):
            notes.append(f"{path.relative_to(run_dir)} is not a PNG picture; left out")
        elif num_bytes > _MAX_SAMPLE_BYTES:
            notes.append(
                f"{path.relative_to(run_dir)} has {bytes_text(num_bytes)}; pictures above "
                f"{bytes_text(_MAX_SAMPLE_BYTES)} are left out"
            )
        else:
            samples.append(Sample(name=name, png=png))
    if len(pictures) > _MAX_SAMPLES:
        notes.append(f"{SAMPLES}: the first {_MAX_SAMPLES} of {len(pictures)} pictures are shown")
    if len(sheets) > _MAX_SHEETS:
        notes.append(f"{SAMPLES}: the newest {_MAX_SHEETS} of {len(sheets)} sheets are shown")
    return tuple(samples)


def _sheet_name(path: Path) -> str:
    """`after 100 steps` for `step-000100/sheet.png`."""
    step = int(path.parent.name.removeprefix("step-"))
    return f"after {count_text(step, 'step')}" if step else "before the first step"
