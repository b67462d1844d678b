"""A save that is killed or refused at each of its system calls, and checkpoints that are damaged.

What stands before is three whole checkpoints of two ranks, of which two are to be kept. The save
that is disturbed is of the fourth step, or of the third once more, which replaces a checkpoint.
"""

import random
import shutil
import time
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from survival_tally import Tally
from tests.trainer.damaged_checkpoints import (
    SHAPES,
    STEPS,
    chunks_of,
    damage_newest,
    write_checkpoint,
    write_checkpoints,
)
from traced import Traced, traced, why_no_strace

from arachne.trainer.checkpoint import Keep
from arachne.trainer.checkpoint_files import step_name
from arachne.trainer.checkpoint_reader import CheckpointReader, newest

NUM_RANKS = 2
KEEP = Keep(newest=2)
SAVED_STEPS = (STEPS[-1] + 10, STEPS[-1])
"""A new step, and one that has a checkpoint already."""

FOUND_WITHIN_S = 5.0

REFUSABLE = ("openat", "mkdir", "write", "fsync", "rename", "unlink", "rmdir", "unlinkat")
"""Calls that a full disk, or a failing one, refuses."""


def save(run_dir: Path, step: int) -> None:
    """A whole save, as all ranks do it together."""
    write_checkpoint(run_dir, step, NUM_RANKS, KEEP)


def disturbed(
    whole: Path, root: Path, step: int, options: tuple[str, ...]
) -> tuple[Traced, list[str]]:
    """How a save under `strace OPTIONS` ended, and what is wrong with what it left behind."""
    run_dir = root / "run"
    shutil.copytree(whole, run_dir)
    ended = traced(lambda: save(run_dir, step), *options)
    faults = faults_after(run_dir, step, is_saved=ended.code == 0)
    shutil.rmtree(run_dir)
    return ended, faults


def faults_after(run_dir: Path, step: int, *, is_saved: bool) -> list[str]:
    """What is wrong after a save was disturbed; the next save has to succeed, and clear it up."""
    skipped: list[str] = []
    found = newest(run_dir, skipped.append)
    faults = [f"passed over a checkpoint: {line}" for line in skipped]
    state = CheckpointReader(found).state
    if state.step not in (STEPS[-1], step) or (is_saved and state.step != step):
        faults.append(f"the newest is of step {state.step}")
    if not holds(found, state.step):
        faults.append(f"{found.name} holds other values than were written")
    save(run_dir, step)
    names = sorted(path.name for path in found.parent.iterdir())
    others = [known for known in STEPS if known != step]
    if names != sorted(step_name(kept) for kept in (step, others[-1])):
        faults.append(f"after the next save there is {names}")
    return faults


def holds(path: Path, step: int) -> bool:
    """Whether a checkpoint has, bit for bit, what was written in that step."""
    reader = CheckpointReader(path)
    return all(
        np.array_equal(
            reader.read(chunk.name, chunk.kind, 0, prod(SHAPES[chunk.name]))[
                chunk.offset : chunk.offset + len(chunk.values)
            ],
            chunk.values,
        )
        for chunks in chunks_of(step, NUM_RANKS)
        for chunk in chunks
    )


def calls_of_a_save(whole: Path, root: Path) -> Iterator[tuple[int, str, int]]:
    """Every system call of both saves: the step that is saved, the call's name and its number."""
    for step in SAVED_STEPS:
        undisturbed, faults = disturbed(whole, root, step, ())
        assert undisturbed.code == 0, undisturbed.said
        assert not faults, faults
        for name, count in sorted(undisturbed.calls.items()):
            if name != "exit_group":
                yield from ((step, name, number) for number in range(1, count + 1))


def chosen(calls: list[Any], cases: int, rng: random.Random) -> list[Any]:
    """All of them, or a fair sample."""
    return calls if cases >= len(calls) else rng.sample(calls, cases)


def prepared(root: Path) -> Path:
    """The checkpoints that stand before; refuses where nothing can be traced."""
    reason = why_no_strace()
    if reason:
        raise SystemExit(f"a save cannot be disturbed at its system calls: {reason}")
    write_checkpoints(root / "whole", NUM_RANKS)
    save(root / "warm", STEPS[0])  # what numpy imports late belongs to no save
    return root / "whole"


def syscalls(root: Path, cases: int, rng: random.Random, tally: Tally) -> None:
    """SIGKILL at system calls of a save, all of them if `cases` suffices."""
    whole = prepared(root)
    calls = list(calls_of_a_save(whole, root))
    tally.others["calls"] = len(calls)
    for step, name, number in chosen(calls, cases, rng):
        options = ("-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={number}")
        ended, faults = disturbed(whole, root, step, options)
        if not ended.is_killed:
            faults = [*faults, f"it was not killed, but ended with {ended.code}: {ended.said}"]
        tally.count(f"step {step}, {name} {number}", faults)


def refused_calls(root: Path, cases: int, rng: random.Random, tally: Tally) -> None:
    """ENOSPC from calls of a save that touch the disk, all of them if `cases` suffices."""
    whole = prepared(root)
    calls = [call for call in calls_of_a_save(whole, root) if call[1] in REFUSABLE]
    tally.others["calls"] = len(calls)
    for step, name, number in chosen(calls, cases, rng):
        options = ("-e", f"trace={name}", "-e", f"inject={name}:error=ENOSPC:when={number}")
        ended, faults = disturbed(whole, root, step, options)
        is_told = ended.said.startswith("CheckpointError: ") and "\n" not in ended.said
        # The folder that is there already need not be made.
        if ended.code != 0 and not (is_told and "No space left on device" in ended.said):
            faults = [*faults, f"it ended with {ended.code}: {ended.said or 'nothing said'}"]
        tally.count(f"step {step}, {name} {number}", faults)


def damaged(root: Path, cases: int, rng: random.Random, tally: Tally) -> None:
    """Damage the newest checkpoint: it must be passed over, with a word, and in time."""
    write_checkpoints(root / "whole")
    for case in range(cases):
        run_dir = root / f"damaged-{case}"
        shutil.copytree(root / "whole", run_dir)
        what = damage_newest(run_dir, rng)
        told: list[str] = []
        begin_s = time.monotonic()
        found = newest(run_dir, told.append)
        seconds = time.monotonic() - begin_s
        faults: list[str] = []
        if len(told) != 1 or found.name != step_name(STEPS[-2]):
            faults.append(f"{found.name} was loaded, {told}")
        if seconds >= FOUND_WITHIN_S:
            faults.append(f"found after {seconds:.1f} s")
        tally.count(what, faults, seconds=seconds)
        shutil.rmtree(run_dir)
