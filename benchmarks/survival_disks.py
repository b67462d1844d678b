"""Disks that fill up, and writers of a run that are refused: nothing that was committed is lost.

The full disk is a tmpfs of our own, in a mount namespace of our own, which ends with the process.
"""

import ctypes
import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from survival_runs import (
    Ended,
    base_config,
    command,
    difference,
    finished,
    launch,
    moved,
    outcome_of,
    steps_done,
)
from survival_saves import NUM_RANKS, SAVED_STEPS, faults_after, save
from survival_tally import Tally
from tests.trainer.damaged_checkpoints import write_checkpoints
from tests.trainer.tiny_runs import changed
from traced import traced, why_no_strace

from arachne.core.errors import CheckpointError
from arachne.trainer.checkpoint_reader import newest

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_PRIVATE, _MS_REC = 1 << 18, 1 << 14
"""From <linux/sched.h> and <linux/mount.h>."""

_PAGE_BYTES = 4096
DISK_BYTES = 16 * 2**20
BALLAST = "ballast"

Tell = Callable[[str, Sequence[str]], None]
"""Told each case, and what is wrong with how it went."""


def on_own_disk(disk: Path, work: Callable[[Tell], None], tally: Tally) -> None:
    """Do some work in a process that alone sees an empty tmpfs at `disk`; its cases are counted.

    Raises:
        SystemExit: This machine allows no such mount.
    """
    disk.mkdir()
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(readable)
        os._exit(_work_on(disk, work, writable))
    os.close(writable)
    with os.fdopen(readable) as lines:
        for line in lines:
            what, faults = json.loads(line)
            tally.count(what, faults)
    _, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit("the work on a tmpfs of our own failed, or none can be mounted here")


def _work_on(disk: Path, work: Callable[[Tell], None], writable: int) -> int:
    try:
        mount_own_disk(disk)

        def tell(what: str, faults: Sequence[str]) -> None:
            os.write(writable, json.dumps([what, list(faults)]).encode() + b"\n")

        work(tell)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        return 1
    return 0


def mount_own_disk(disk: Path, num_bytes: int = DISK_BYTES) -> None:
    """Mount an empty tmpfs for this process and its children; the process has one thread.

    Raises:
        OSError: It is not allowed here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user = 0 if os.geteuid() == 0 else _CLONE_NEWUSER
    uid = os.geteuid()
    _check(libc.unshare(_CLONE_NEWNS | user), "unshare")
    if user:
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    _check(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "mount")
    options = f"size={num_bytes}".encode()
    _check(libc.mount(b"tmpfs", os.fsencode(disk), b"tmpfs", 0, options), "mount")


def _check(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def why_no_own_disk(folder: Path) -> str:
    """Why no tmpfs can be mounted here; empty if one can."""
    pid = os.fork()
    if pid == 0:
        try:
            mount_own_disk(folder)
        except OSError:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return "this machine allows no mount namespace of our own" if status else ""


def fill(disk: Path, pages_left: int) -> None:
    """Leave so many free pages, or as many as a run that goes on meanwhile has left."""
    descriptor = os.open(disk / BALLAST, os.O_WRONLY | os.O_CREAT)
    try:
        while (num_bytes := shutil.disk_usage(disk).free - pages_left * _PAGE_BYTES) > 0:
            with suppress(OSError):  # the run was faster
                os.posix_fallocate(descriptor, 0, num_bytes)
                return
    finally:
        os.close(descriptor)


def full_saves(root: Path, cases: int, rng: random.Random, tally: Tally) -> None:
    """The disk is full after each page that a save needs; a fair sample if `cases` is smaller."""
    disk = root / "disk"

    def work(tell: Tell) -> None:
        write_checkpoints(disk / "whole", NUM_RANKS)
        every = [(step, pages) for step in SAVED_STEPS for pages in range(_pages_of_a_save(disk))]
        tried = every if cases >= len(every) else rng.sample(every, cases)
        for step, pages in tried:
            run_dir = disk / "run"
            shutil.copytree(disk / "whole", run_dir)
            fill(disk, pages)
            said, is_saved = "", True
            try:
                save(run_dir, step)
            except CheckpointError as error:
                said, is_saved = str(error), False
            (disk / BALLAST).unlink()
            faults = faults_after(run_dir, step, is_saved=is_saved)
            if not is_saved and "No space left on device" not in said:
                faults.append(f"said {said!r}")
            tell(f"step {step}, {pages} pages free, saved: {is_saved}", faults)
            shutil.rmtree(run_dir)

    on_own_disk(disk, work, tally)


def _pages_of_a_save(disk: Path) -> int:
    run_dir = disk / "run"
    shutil.copytree(disk / "whole", run_dir)
    before = shutil.disk_usage(disk).free
    write_checkpoints(run_dir / "more", NUM_RANKS)
    pages = (before - shutil.disk_usage(disk).free) // _PAGE_BYTES // 3
    shutil.rmtree(run_dir)
    return pages + 2


def full_runs(root: Path, cases: int, rng: random.Random, tally: Tally) -> None:
    """The disk of a run's folder fills up in the middle; once there is room the run goes on."""
    disk = root / "disk"
    base = base_config(root, steps=100_000)
    base = changed(changed(base, "logging", trace_every=1), "checkpoint", every=3, keep=2)

    def work(tell: Tell) -> None:
        for case in range(cases):
            config = moved(base, disk / f"run-{case}")
            running = launch(config, ranks=1, like=root / "run", said=root / "said.txt")
            after_step = rng.randrange(4, 12)
            is_begun = running.waited_for(lambda: steps_done(running.run_dir) >= after_step)  # noqa: B023
            assert is_begun, running.end().said
            pages = rng.randrange(8)
            fill(disk, pages)
            ended = running.end()
            (disk / BALLAST).unlink()
            longer = changed(config, "run", steps=steps_done(running.run_dir) + 2)
            tell(f"{pages} pages free after step {after_step}", faults_of_refused(ended, longer))
            shutil.rmtree(running.run_dir)

    on_own_disk(disk, work, tally)


def faults_of_refused(ended: Ended, config: Any) -> list[str]:
    """What is wrong with a run of which a write was refused, and how it goes on with `config`."""
    run_dir = Path(config.run.dir)
    faults: list[str] = []
    if ended.code != 2 or len(ended.errors) != 1 or ended.is_bug:
        faults.append(f"ended with {ended.code}: {ended.said[-400:]!r}")
    elif "cannot be written" not in ended.errors[0] and " free, " not in ended.errors[0]:
        faults.append(f"said {ended.errors[0]!r}")
    skipped: list[str] = []
    if any((run_dir / "checkpoints").glob("step-??????")):
        newest(run_dir, skipped.append)
    faults += skipped
    again = finished(config, ranks=1)
    if again.code != 0:
        faults.append(f"was not resumed: {again.said[-400:]!r}")
    elif list(outcome_of(run_dir).losses) != list(range(config.run.steps)):
        faults.append("its metrics have not all steps")
    return faults


STEPS = 6
WRITTEN = (
    "run.resolved.toml",
    "metrics.jsonl",
    "plans.jsonl",
    "batches.jsonl",
    "traces/rank-00000.jsonl",
    "checkpoints/step-000004.partial/shard-00000.safetensors",
    "checkpoints/step-000004.partial/shard-00000.json",
    "checkpoints/step-000004.partial/index.json",
    "checkpoints/step-000004.partial/index.json.sha256",
    "checkpoints/best.json.partial",
    "samples/step-000004/0.mp4",
    "samples/step-000004/sheet.png",
)
"""Every file that a run writes; each is refused in turn, from its first write or from a later."""


def refused_writers(root: Path, cases: int, rng: random.Random, tally: Tally) -> None:
    """Each writer of a run meets ENOSPC, by strace; a fair sample if `cases` is smaller."""
    reason = why_no_strace()
    if reason:
        raise SystemExit(f"a run's writes cannot be refused: {reason}")
    config = changed(base_config(root, steps=STEPS), "logging", trace_every=1)
    config = changed(config, "data", held_out=0.3)
    config = changed(
        config,
        "validation",
        every=2,
        keep_best=True,
        clips=1,
        noises=1,
        sample_every=4,
        sample_steps=1,
        prompts=("a",),
        sample_shape="64x48x5",
    )
    needed = moved(config, root / "undisturbed")
    ended = finished(needed, ranks=1)
    assert ended.code == 0, ended.said
    every = [(name, first) for name in WRITTEN for first in (1, 2)]
    for name, first in every if cases >= len(every) else rng.sample(every, cases):
        own = moved(config, root / f"refused-{name.replace('/', '-')}-{first}")
        path = Path(own.run.dir) / name
        said = Path(own.run.dir).with_suffix(".txt")
        inject = f"inject=write,writev,pwrite64:error=ENOSPC:when={first}+"
        result = traced(command(own, ranks=1, said=said), "-P", str(path), "-e", inject)
        ended = Ended(code=result.code, said=said.read_text(errors="replace"))
        is_met = result.calls["write"] + result.calls["writev"] + result.calls["pwrite64"] >= first
        if not is_met:
            tally.add("writers_that_never_wrote_so_often")
            continue
        faults = faults_of_refused(ended, own)
        other = difference(outcome_of(Path(own.run.dir)), outcome_of(Path(needed.run.dir)))
        tally.count(f"{name}, from write {first}", [*faults, *([other] if other else [])])
        if not faults:
            shutil.rmtree(own.run.dir)
