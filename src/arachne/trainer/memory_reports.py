"""Launches that ran out of memory: what is written of them, and planned with from then on.

Each leaves a report in the run's folder, which also carries the raised estimate of its shape over
the end of the run. Deleting the reports forgets it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from arachne.core.batch import Batch
from arachne.core.errors import DataError, RankMemoryError
from arachne.core.launch_mode import LaunchMode
from arachne.core.model_shape import ModelShape
from arachne.core.placed_plan import PlacedPlan
from arachne.core.refused_write import fix_of, refusal_at
from arachne.core.strict_json import from_json, to_json
from arachne.core.units import bytes_text, step_text
from arachne.cost.memory import raised_reserve
from arachne.cost.model import CostModel
from arachne.data.atomic_file import write_whole
from arachne.runtime.hang_report import GO_ON, span_text
from arachne.runtime.messages import text_of_first
from arachne.runtime.out_of_memory import StrandedError, is_out_of_memory
from arachne.runtime.process_groups import RankGroup
from arachne.runtime.world import World
from arachne.trainer.agreement import do_together

MEMORY_REPORTS = "out-of-memory-*.json"

_STORE_KEY = "out of memory"

_PATIENCE = timedelta(seconds=10)
"""How long the report of another rank may take to be written."""

LESS_VALIDATION = "set validation.clips lower, or draw smaller samples (validation.sample_shape)"

_FORGET = "delete it, and plans count on what the model predicts"

LESS_STATE = "set optimizer.gradients = 'bfloat16' or 'host', or use more GPUs"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """A launch that ran out of memory, as it stands in its file.

    Attributes:
        step: When, counted from 0; messages and the file's name count from 1. None: in the dry run
            before the first step.
        launch: Index in the step's plan.
        clips: Names of its clips.
        bucket: Their shape, printed.
        num_tokens: Tokens of one of them.
        ranks: Of the launch.
        mode: How it was split and recomputed.
        rank: Who ran out while the others waited in a collective; None if the launch was given up.
        num_entered: Collectives of the launch that this rank had entered.
        expected_bytes: What the plan counted with on each rank.
        raised_bytes: What plans count with from now on for the same.
        reserve_share: Which reserve makes it so.
        model: Whose launch it was.
    """

    step: int | None
    launch: int
    clips: tuple[str, ...]
    bucket: str
    num_tokens: int
    ranks: tuple[int, ...]
    mode: LaunchMode
    rank: int | None
    num_entered: int
    expected_bytes: float
    raised_bytes: float
    reserve_share: float
    model: ModelShape

    @property
    def text(self) -> str:
        """The launch, and what is planned with from now on."""
        names = ", ".join(map(repr, self.clips))
        on = "rank" if len(self.ranks) == 1 else "ranks"
        return (
            f"out of memory in launch {self.launch} (dit of {self.bucket}, {names}, on {on} "
            f"{span_text(self.ranks)}), planned with {bytes_text(self.expected_bytes)} on each, "
            f"from now on with {bytes_text(self.raised_bytes)}"
        )


class RaisedReserves:
    """By tokens of a clip, the reserve that its launches are planned with after all.

    Grows while a run goes on; the same on all ranks.
    """

    def __init__(self, shares: Mapping[int, float]) -> None:
        self._shares = dict(shares)

    @property
    def pairs(self) -> tuple[tuple[int, float], ...]:
        """(tokens, share), ascending."""
        return tuple(sorted(self._shares.items()))

    def take(self, report: MemoryReport) -> None:
        """Count a report in; the larger of two shares stands."""
        before = self._shares.get(report.num_tokens, 0.0)
        self._shares[report.num_tokens] = max(before, report.reserve_share)


def reserves_of_run(
    world: World, everyone: RankGroup, run_dir: Path, model: ModelShape
) -> RaisedReserves:
    """What the reports in a run's folder say of its model; all ranks call it together.

    Raises:
        DataError: A report cannot be read.
    """
    found = RaisedReserves({})

    def read() -> None:
        if world.rank == 0:
            for path in sorted(run_dir.glob(MEMORY_REPORTS)):
                report = _read(path)
                if report.model == model:
                    found.take(report)

    do_together(world, everyone, read)
    text = text_of_first(to_json(found.pairs), everyone, world.device)
    return RaisedReserves(dict(from_json(text, tuple[tuple[int, float], ...], what="reserves")))


def _read(path: Path) -> MemoryReport:
    what = f"report {str(path)!r}"
    try:
        if not path.is_file():
            raise DataError(f"{what} is no file; move it away")
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{what} cannot be read: {refusal_at(error, path)}; {fix_of(error)}, or {_FORGET}"
        ) from error
    try:
        return from_json(content, MemoryReport, what=what)
    except DataError as error:
        raise DataError(f"{error}; {_FORGET}") from error


def memory_report(
    costs: CostModel,
    batch: Batch,
    plan: PlacedPlan,
    index: int,
    *,
    rank: int | None = None,
    num_entered: int = 0,
    is_dry_run: bool = False,
) -> MemoryReport:
    """What is to be said of one launch of a plan; `costs` are what it was planned with."""
    launch = plan.launches[index]
    use = costs.memory_in(launch.mode, launch.cascade, launch.degree)
    share = raised_reserve(use, costs.memory_bytes)
    return MemoryReport(
        step=None if is_dry_run else plan.step,
        launch=index,
        clips=tuple(batch.clips[slot].name for slot in launch.cascade.slots),
        bucket=str(launch.cascade.bucket),
        num_tokens=launch.cascade.num_tokens,
        ranks=launch.ranks,
        mode=launch.mode,
        rank=rank,
        num_entered=num_entered,
        expected_bytes=use.total,
        raised_bytes=use.total - use.reserve + share * (use.activations + use.workspace),
        reserve_share=share,
        model=costs.model,
    )


def raised_by_reports(run_dir: Path) -> str:
    """Why plans count on more than the model predicts, and what to do if that is wrong by now."""
    return (
        f"launches ran out of memory, whose reports {str(run_dir / MEMORY_REPORTS)!r} raised what "
        "plans count with; if something else took the memory then, delete them"
    )


def still_fits(costs: CostModel, plan: PlacedPlan) -> bool:
    """Whether the launches of shapes that ran out of memory keep the cap as they are planned."""
    raised = {num_tokens for num_tokens, _ in costs.state.raised_reserves}
    return all(
        costs.memory_in(launch.mode, launch.cascade, launch.degree).total <= costs.memory_bytes
        for launch in plan.launches
        if launch.cascade.module == "dit" and launch.cascade.num_tokens in raised
    )


def write_report(report: MemoryReport, run_dir: Path) -> Path:
    """Put it into the run's folder.

    Raises:
        DataError: That cannot be written.
    """
    which = f"dry-run-{report.num_tokens}-tokens" if report.step is None else f"{report.step + 1}"
    path = run_dir / f"out-of-memory-{which}-launch-{report.launch}.json"
    write_whole(path, to_json(report).encode())
    return path


@contextmanager
def told_if_stranded(
    world: World,
    run_dir: Path,
    costs: CostModel,
    batch: Batch,
    plan: PlacedPlan,
    *,
    is_dry_run: bool = False,
) -> Iterator[None]:
    """A step, or the dry run before the first one, inside of which a rank may run out of memory
    where others wait for it.

    It writes the report and puts one line into the store. The others cannot go on either; whoever
    of them can still read the store ends with the same line, also those that ran out too.

    Raises:
        RankMemoryError: It happened, here or elsewhere.
    """
    try:
        when = _when(None if is_dry_run else plan.step)
        with told_if_full(world, f"{when}, outside of its launches", LESS_STATE):
            yield
    except StrandedError as error:
        line = None if _is_first(world, error.launch) else _told(world, patience=_PATIENCE)
        if line is None:
            report = memory_report(
                costs,
                batch,
                plan,
                error.launch,
                rank=world.rank,
                num_entered=error.num_entered,
                is_dry_run=is_dry_run,
            )
            line = _tell(world, _reported(report, run_dir))
        raise RankMemoryError(line) from error


def _when(step: int | None) -> str:
    return "dry run" if step is None else step_text(step)


def _is_first(world: World, launch: int) -> bool:
    """Whether no other rank ran out of memory in this launch before; it reports for all of them."""
    own = str(world.rank)
    try:
        return world.store.compare_set(f"{_STORE_KEY} in launch {launch}", "", own) == own.encode()
    except RuntimeError:
        return True


def _reported(report: MemoryReport, run_dir: Path) -> str:
    """What a stranded rank has to say, once its report is written."""
    try:
        where = f"report: {write_report(report, run_dir)}"
    except DataError as unwritten:
        where = f"no report: {unwritten}"
    return (
        f"{_when(report.step)}: rank {report.rank} is {report.text}; it was in collective "
        f"{report.num_entered} of the launch, where the others wait; {where}; {GO_ON}"
    )


@contextmanager
def told_if_full(world: World, when: str, remedy: str) -> Iterator[None]:
    """Work in which ranks meet, none of which can go on without the others.

    A rank that runs out of memory puts one line into the store, and whoever of the others can still
    read it ends with the same.

    Raises:
        RankMemoryError: It happened, here or elsewhere.
    """
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            line = _tell(world, f"{when}: rank {world.rank} is out of memory; {remedy}; {GO_ON}")
        else:
            line = _told(world) if isinstance(error, RuntimeError) else None
        if line is None:
            raise
        raise RankMemoryError(line) from error


def _tell(world: World, line: str) -> str:
    """Put a line into the store; the one that all end with, which is the first one there."""
    try:
        return world.store.compare_set(_STORE_KEY, "", line).decode()
    except RuntimeError:
        return line


def _told(world: World, *, patience: timedelta | None = None) -> str | None:
    """What a rank that ran out of memory put into the store; None if nobody did, or it is gone."""
    try:
        if patience is not None:
            world.store.wait([_STORE_KEY], patience)
        if not world.store.check([_STORE_KEY]):
            return None
        return world.store.get(_STORE_KEY).decode()
    except RuntimeError:
        return None
