"""A long run that is killed, signalled and resized again and again, with a clip nobody can read.

In the end it has to be what a run over the same files is that nobody disturbed: the same ledger,
batches, and clips left out; the same losses. On one world, whose plans are stored or made anew from
the same fixed cost model, its weights are the same bit for bit. Nothing may be left over.
"""

import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed
from survival_kills import ENDED_WITHIN_S, STOPPED_WITHIN_S
from survival_runs import (
    Ended,
    Plant,
    Running,
    adopt_orphans,
    base_config,
    difference,
    finished,
    largest_loss_error,
    launch,
    left_running,
    moved,
    outcome_of,
    steps_done,
)
from survival_tally import Tally
from tests.trainer.tiny_runs import changed

from arachne.core.errors import DataError
from arachne.data.manifest import read_manifest
from arachne.reporting.run_files import BATCHES, MANIFEST
from arachne.trainer.checkpoint_reader import CheckpointReader, newest
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset import ClipArrays, TrainingData
from arachne.trainer.recalibration import Recalibrator

WORLD_SIZES = (1, 2, 3, 4)
LOSS_TOLERANCE = 1e-4
STEP_S = 0.15
"""Slept in each step of the run that is disturbed, so that the undisturbed one takes less long."""
LAST_STEPS = 60
"""Done at the end without disturbance, so that ranks live long enough to be seen leaking."""
_HELD_EVERY = 10
_ENDLESS = 1_000_000
BAD_CLIP = "c.mp4"

DISTURBANCES = ("kill a rank", "kill the launcher", "SIGTERM", "SIGINT", "SIGTERM twice")


def soak(root: Path, cases: int, rng: random.Random, tally: Tally) -> None:
    """For `cases` seconds, on another number of ranks after each disturbance."""
    _soaked(root, cases, rng, tally, world_sizes=WORLD_SIZES)


def exact_soak(root: Path, cases: int, rng: random.Random, tally: Tally) -> None:
    """For `cases` seconds, always on two ranks: the weights come out the same bit for bit."""
    _soaked(root, cases, rng, tally, world_sizes=(2,))


def _soaked(
    root: Path, length_s: int, rng: random.Random, tally: Tally, *, world_sizes: tuple[int, ...]
) -> None:
    adopt_orphans()
    with own_temporary_folder(root / "tmp") as temporary:
        _disturbed_and_compared(root, length_s, rng, tally, world_sizes)
        left = sorted(path.name for path in temporary.iterdir())
    left += leftovers(root / "soaked") + leftovers(root / "cache")
    tally.count("temporary files", [f"left: {left}"] if left else [])
    tally.count("descriptors, threads and groups of ranks", grown_ranks(root / "held"))


@contextmanager
def own_temporary_folder(folder: Path) -> Iterator[Path]:
    """A context in which temporary files of this process and its children lie in a new folder."""
    before = os.environ.get("TMPDIR")
    folder.mkdir()
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None
    try:
        yield folder
    finally:
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before
        tempfile.tempdir = None


def _disturbed_and_compared(
    root: Path, length_s: int, rng: random.Random, tally: Tally, world_sizes: tuple[int, ...]
) -> None:
    config = moved(base_config(root, steps=_ENDLESS, every=3), root / "soaked")
    deadline_s = time.monotonic() + length_s
    round_number = 0
    while time.monotonic() < deadline_s:
        ranks = rng.choice(world_sizes)
        what = rng.choice(DISTURBANCES)
        running = launch(config, ranks=ranks, plant=held_noted(root / "held", STEP_S))
        begin_s = wait_for_a_moment(running, rng)
        ended = disturbed(running, what, rng)
        seconds = time.monotonic() - begin_s
        faults = faults_of_end(what, ended, seconds)
        faults += [f"left running: {each}" for each in left_running()]
        tally.count(f"round {round_number}, {what} of {ranks} ranks", faults, seconds=seconds)
        tally.add(what)
        round_number += 1
    compared(root, config, tally, world_sizes=world_sizes)


def without_a_clip() -> None:
    """Have one clip unreadable for good: every step that takes it has to do without."""
    real = TrainingData.read

    def read(self: TrainingData, item: int) -> ClipArrays:
        if self.rows[item % len(self.rows)].clip.name == BAD_CLIP:
            raise DataError(f"{BAD_CLIP} cannot be read")
        return real(self, item)

    TrainingData.read = read


def wait_for_a_moment(running: Running, rng: random.Random) -> float:
    """In one of five cases while the run begins, else in some step; gives the time."""
    if rng.random() < 0.2:
        time.sleep(rng.uniform(0.3, 3.0))
    else:
        done = steps_done(running.run_dir)
        running.waited_for(lambda: steps_done(running.run_dir) > done)
        time.sleep(rng.uniform(0.0, 6.0))
    return time.monotonic()


def disturbed(running: Running, what: str, rng: random.Random) -> Ended:
    """Do it, and wait for the end."""
    ranks = running.ranks
    launcher = running.process.pid
    if what == "kill a rank":
        _signal(rng.choice(ranks) if ranks else launcher, signal.SIGKILL)
    elif what == "kill the launcher":
        _signal(launcher, signal.SIGKILL)
    else:
        number = signal.SIGINT if what == "SIGINT" else signal.SIGTERM
        _signal(launcher, number)
        if what == "SIGTERM twice":
            time.sleep(2.2)  # within two seconds both count as one
            _signal(launcher, number)
    return running.end()


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it has ended by itself, which `faults_of_end` sees


def faults_of_end(what: str, ended: Ended, seconds: float) -> list[str]:
    """What is wrong with how a round ended."""
    by_signal = {"SIGINT": 130, "SIGTERM": 143, "SIGTERM twice": 143}
    codes = {
        "kill a rank": (2, -signal.SIGKILL),
        "kill the launcher": (-signal.SIGKILL,),
        # Before the launcher has begun, it ends by the signal itself.
        **{name: (code, 128 - code) for name, code in by_signal.items()},
    }[what]
    faults: list[str] = []
    if ended.code not in codes or ended.is_bug:
        faults.append(f"ended with {ended.code}: {ended.said[-600:]!r}")
    within_s = ENDED_WITHIN_S if what.startswith("kill") else STOPPED_WITHIN_S
    if seconds > within_s:
        faults.append(f"took {seconds:.1f} s to end")
    return faults


def compared(root: Path, config: RunConfig, tally: Tally, *, world_sizes: tuple[int, ...]) -> None:
    """End the disturbed run some steps on, do the same undisturbed, and compare all they left."""
    soaked_dir = Path(config.run.dir)
    steps = CheckpointReader(newest(soaked_dir, _never)).state.step + LAST_STEPS
    last = changed(config, "run", steps=steps)
    clean = moved(last, root / "clean")
    for own, ranks, plant in (
        (last, world_sizes[-1], held_noted(root / "held", step_s=0.0)),
        (clean, world_sizes[0], without_a_clip),
    ):
        ended = finished(own, ranks=ranks, plant=plant)
        assert ended.code in (0, 3), ended.said  # 3: done, with a clip left out
    tally.others["steps"] = steps
    found, needed = outcome_of(soaked_dir), outcome_of(Path(clean.run.dir))
    error = largest_loss_error(found, needed)
    tally.others["largest_loss_error"] = error
    tally.count("losses", [] if error <= LOSS_TOLERANCE else [f"differ by {error}"])
    tally.count("steps", [] if list(found.losses) == list(needed.losses) else ["others"])
    if len(world_sizes) == 1:
        other = difference(found, needed)
        tally.count("weights and losses, bit for bit", [other] if other else [])
    tally.count("ledger, sampler position and clips left out", others_of(soaked_dir, clean))


def others_of(soaked_dir: Path, clean: RunConfig) -> list[str]:
    """In what the two runs' records differ."""
    clean_dir = Path(clean.run.dir)
    ledgers = [read_manifest(path / MANIFEST) for path in (soaked_dir, clean_dir)]
    states = [CheckpointReader(newest(path, _never)).state for path in (soaked_dir, clean_dir)]
    faults = [] if ledgers[0] == ledgers[1] else ["the ledgers differ"]
    for field in ("step", "num_updates", "clips", "left_out"):
        found, needed = (getattr(state, field) for state in states)
        if found != needed:
            faults.append(f"{field} is {found!r}, not {needed!r}")
    if not states[1].left_out:
        faults.append("no bad sample was met")
    if (soaked_dir / BATCHES).read_bytes() != (clean_dir / BATCHES).read_bytes():
        faults.append("the batches differ")
    return faults


def leftovers(folder: Path) -> list[str]:
    """Names of files and folders that something was to be made of."""
    marks = (".partial", ".part", ".tmp", ".deleting", ".replaced")
    return [path.name for path in folder.rglob("*") if path.name.endswith(marks)]


def held_noted(folder: Path, step_s: float) -> Plant:
    """Each rank notes now and then how many descriptors, threads and groups it holds."""
    folder.mkdir(exist_ok=True)

    def plant() -> None:
        without_a_clip()
        real = Recalibrator.after_step
        held: list[dict[str, int]] = []

        def after_step(self: Any, step: int, launches: Any) -> None:
            real(self, step, launches)
            time.sleep(step_s)
            groups: dict[Any, Any] = torch.distributed.distributed_c10d._world.pg_map  # pyright: ignore
            held.append(
                {
                    "descriptors": len(os.listdir("/proc/self/fd")),
                    "threads": threading.active_count(),
                    "groups": len(groups),
                }
            )
            if len(held) % _HELD_EVERY == 0:
                part = folder / f"{os.getpid()}.part"  # it may be killed in the middle
                part.write_text(json.dumps(held))
                part.rename(part.with_suffix(".json"))

        Recalibrator.after_step = after_step

    return plant


def grown_ranks(folder: Path) -> list[str]:
    """Ranks that hold more at their end than at their beginning; the least of ten steps counts."""
    grown: list[str] = []
    num_judged = 0
    for path in sorted(folder.glob("*.json")):
        held = json.loads(path.read_text())[_HELD_EVERY // 2 :]
        if len(held) < 2 * _HELD_EVERY:
            continue
        num_judged += 1
        for name in held[0]:
            first = min(each[name] for each in held[:_HELD_EVERY])
            last = min(each[name] for each in held[-_HELD_EVERY:])
            if last > first:
                grown.append(f"{name}: {first}, then {last} after {len(held)} steps")
    return grown if num_judged else ["no rank lived long enough to be judged"]


def _never(line: str) -> None:
    raise AssertionError(line)
