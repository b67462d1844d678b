"""Runs of `arachne train` on a few tiny clips, in processes that are forked with all imports made.

A tiny Wan in float64. The cost model is fixed, so that a run makes the same plans whenever it is
resumed on the same number of ranks: then its weights have to be those of an undisturbed run, bit
for bit.
"""

import ctypes
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.trainer.tiny_runs import changed, make_clips, tiny_config, with_manifest

from arachne.cli import run_dir as run_dirs
from arachne.cli.main import main
from arachne.cli.run_dir import write_resolved
from arachne.cli.training import train_on_ranks  # noqa: F401  imported before launchers are forked
from arachne.core.errors import CheckpointError
from arachne.models.diffusers_module import import_transformer
from arachne.reporting.json_lines import read_json_lines, steps_in
from arachne.reporting.run_files import MANIFEST, METRICS, StepMetrics
from arachne.trainer.checkpoint_reader import CheckpointReader, newest
from arachne.trainer.config import RunConfig

_PR_SET_CHILD_SUBREAPER = 36
"""From <linux/prctl.h>: orphans of our runs become our children, so that none is overlooked."""

STARTS_WITHIN_S = 120.0
"""How long a run may take to its first step; only a broken one takes longer."""
ENDS_WITHIN_S = 300.0
"""When a benchmark gives up waiting for a run to end."""

Plant = Callable[[], None]
"""Called in the process of the launcher before it starts its ranks."""


def base_config(root: Path, *, steps: int, every: int = 2) -> RunConfig:
    """Settings that all runs share; the clips are made in `root` on the first call."""
    clips = root / "clips"
    config = tiny_config(clips, root / "run", steps=steps)
    if not clips.exists():
        make_clips(clips)
        with_manifest(config)
    config = changed(config, "checkpoint", every=every, keep=2)
    config = changed(config, "logging", trace_every=5, tensorboard=False)
    config = changed(config, "run", timeout_s=60.0)
    # A plan that is late because the machine is busy must not be replaced.
    return changed(config, "planner", recalibrate_every=0, timeout_s=300.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How `arachne train` ended: its exit code and what it printed."""

    code: int
    said: str

    @property
    def errors(self) -> list[str]:
        """The lines that it says an error in."""
        return [line for line in self.said.splitlines() if line.startswith("arachne: ")]

    @property
    def is_bug(self) -> bool:
        """Whether it met a bug of ours."""
        return "Traceback" in self.said


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A launcher that trains, and where its words go."""

    process: Any
    said: Path
    run_dir: Path

    @property
    def ranks(self) -> list[int]:
        """Process numbers of its ranks that live, in the order of their start."""
        return sorted(pid for pid in children_of(self.process.pid) if not _is_tracker(pid))

    @property
    def is_alive(self) -> bool:
        """Whether the launcher runs."""
        return self.process.is_alive()

    def waited_for(self, condition: Callable[[], bool], within_s: float = STARTS_WITHIN_S) -> bool:
        """Whether something became true before the run ended, and in time."""
        deadline_s = time.monotonic() + within_s
        while self.is_alive and time.monotonic() < deadline_s:
            if condition():
                return True
            time.sleep(0.005)
        return condition()

    def end(self, within_s: float = ENDS_WITHIN_S) -> Ended:
        """Wait for its end; one that never ends is killed, and says so."""
        self.process.join(within_s)
        if self.is_alive:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.join()
        said = self.said.read_text(errors="replace")
        return Ended(code=self.process.exitcode, said=said)


def launch(
    config: RunConfig,
    *,
    ranks: int,
    plant: Plant | None = None,
    like: Path | None = None,
    said: Path | None = None,
) -> Running:
    """Start `arachne train --resume-if-any` on so many ranks; the dataset's ledger stands.

    It is copied from `like`, or from the folder `run` beside the run's. What it prints goes to
    `said`, or to a file beside the run's folder.
    """
    run_dir = Path(config.run.dir)
    said = said or run_dir.with_suffix(".txt")
    target = command(config, ranks=ranks, said=said, plant=plant, like=like)
    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    return Running(process=process, said=said, run_dir=run_dir)


def command(
    config: RunConfig,
    *,
    ranks: int,
    said: Path,
    plant: Plant | None = None,
    like: Path | None = None,
) -> Callable[[], None]:
    """What the launcher's process does; it ends there. The run's folder is made here."""
    run_dir = Path(config.run.dir)
    run_file = run_dir.with_suffix(".toml")
    if not run_dir.exists():
        run_dir.mkdir()
        shutil.copyfile((like or run_dir.parent / "run") / MANIFEST, run_dir / MANIFEST)
    write_resolved(config, run_file)
    import_transformer(config.model.family)
    words = ["train", str(run_file), "--resume-if-any", "--ranks", str(ranks)]

    def target() -> None:
        descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        sys.stdout = sys.stderr = os.fdopen(descriptor, "w", buffering=1)
        tempfile.tempdir = None  # it may have been chosen anew
        # A run that begins would read the dataset again, in processes that take seconds to start.
        run_dirs._STALE = ()
        # Wan casts norms and modulation to float32 itself; let these islands be float64 too.
        torch.Tensor.float = torch.Tensor.double  # pyright: ignore[reportAttributeAccessIssue]
        if plant is not None:
            plant()
        code = 1
        try:
            code = main(words)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    return target


def finished(config: RunConfig, *, ranks: int, plant: Plant | None = None) -> Ended:
    """Train to the end, from whatever there is."""
    return launch(config, ranks=ranks, plant=plant).end()


def moved(config: RunConfig, run_dir: Path) -> RunConfig:
    """The same run in another folder."""
    return changed(config, "run", dir=str(run_dir))


def steps_done(run_dir: Path) -> int:
    """Steps that a run has told of."""
    known = steps_in(run_dir / METRICS)
    return known[-1] + 1 if known else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to: its newest checkpoint, and the losses of all its steps."""

    step: int
    weights: dict[str, np.ndarray]
    losses: dict[int, float | None]
    num_rows: int


def outcome_of(run_dir: Path) -> Outcome:
    """Of a run that has ended; every byte of its newest checkpoint is compared with its hash.

    Raises:
        CheckpointError: No checkpoint is whole.
    """
    reader = CheckpointReader(newest(run_dir, on_skip=_never))
    weights = {
        f"{kind}/{name}": reader.read(name, kind, 0, prod(shape))
        for name, shape in reader.parameters.items()
        for kind in ("master", "exp_avg", "exp_avg_sq")
    }
    rows = [
        row for row in read_json_lines(run_dir / METRICS, StepMetrics).values if row.kind == "train"
    ]
    return Outcome(
        step=reader.state.step,
        weights=weights,
        losses={row.step: row.loss for row in rows},
        num_rows=len(rows),
    )


def _never(line: str) -> None:
    raise CheckpointError(line)


def difference(found: Outcome, needed: Outcome) -> str:
    """In what a run differs from an undisturbed one; empty if all is the same, bit for bit."""
    if found.step != needed.step:
        return f"its checkpoint is of step {found.step}, not {needed.step}"
    if list(found.losses) != list(range(needed.step)) or found.num_rows != needed.step:
        return f"its metrics have the steps {list(found.losses)} in {found.num_rows} rows"
    if found.losses != needed.losses:
        return "its losses are others"
    others = [
        name
        for name, values in needed.weights.items()
        if not np.array_equal(found.weights[name], values)
    ]
    return f"its {', '.join(others[:3])} are others" if others else ""


def largest_loss_error(found: Outcome, needed: Outcome) -> float:
    """The largest relative difference of two runs' losses of one step."""
    return max(
        abs(found.losses[step] - loss) / abs(loss)  # pyright: ignore[reportOptionalOperand]
        for step, loss in needed.losses.items()
        if loss is not None
    )


def adopt_orphans() -> None:
    """From now on what a run leaves running becomes a child of this process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_of(pid: int) -> list[int]:
    """Process numbers of a process's children; also those of its threads."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except OSError:
            continue  # it ended meanwhile
    return found


def left_running(within_s: float = 10.0) -> list[str]:
    """Command lines of processes that outlive their run; those that end in time are reaped."""
    deadline_s = time.monotonic() + within_s
    while True:
        _reap()
        left = [pid for pid in children_of(os.getpid()) if not _is_tracker(pid)]
        if not left or time.monotonic() > deadline_s:
            return [f"{pid}: {_command_of(pid)}" for pid in left]
        time.sleep(0.05)


def _reap() -> None:
    known = {process.pid for process in multiprocessing.active_children()}
    for pid in children_of(os.getpid()):
        if pid not in known and not _is_tracker(pid):
            os.waitpid(pid, os.WNOHANG)


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "(gone)"


def _is_tracker(pid: int) -> bool:
    """Python's own helper, one a process, which ends with it."""
    return re.search(r"resource_tracker|forkserver", _command_of(pid)) is not None
