"""Ranks that are killed, at random moments and in chosen phases, and runs that are asked to end.

A killed run has to end within ten seconds and to name the rank. It is resumed on the same ranks,
and counts if it then comes to what an undisturbed run came to, bit for bit.
"""

import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from survival_runs import (
    Ended,
    Outcome,
    Plant,
    Running,
    base_config,
    difference,
    finished,
    launch,
    moved,
    outcome_of,
    steps_done,
)
from survival_tally import Tally

from arachne.core.errors import ArachneError
from arachne.data.loader import ClipLoader
from arachne.runtime.buckets import Bucket
from arachne.runtime.plan_source import PlanSource
from arachne.runtime.sharded_optimizer import ShardedOptimizer
from arachne.trainer import saver, step
from arachne.trainer.checkpoint_reader import CheckpointReader, newest
from arachne.trainer.config import RunConfig
from arachne.trainer.saver import CheckpointSaver

STEPS = 12
WORLD_SIZES = (2, 3, 4)
ENDED_WITHIN_S = 10.0
STOPPED_WITHIN_S = 25.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How a run ended after one of its ranks was killed."""

    rank: int
    ended: Ended
    seconds: float

    @property
    def is_named(self) -> bool:
        """Whether one line names the rank."""
        errors = self.ended.errors
        return len(errors) == 1 and f"rank {self.rank} was ended by SIGKILL" in errors[0]


class Kills:
    """Resumes killed runs, and judges all that they did."""

    def __init__(self, root: Path, tally: Tally) -> None:
        self._root = root
        self._tally = tally
        self._undisturbed: dict[int, Outcome] = {}
        self.config = base_config(root, steps=STEPS)
        self.run_s = 0.0
        """How long the newest undisturbed run took."""

    def undisturbed(self, ranks: int) -> Outcome:
        """What a run on so many ranks comes to."""
        if ranks not in self._undisturbed:
            config = moved(self.config, self._root / f"undisturbed-{ranks}")
            begin_s = time.monotonic()
            ended = finished(config, ranks=ranks)
            self.run_s = time.monotonic() - begin_s
            assert ended.code == 0, ended.said
            self._undisturbed[ranks] = outcome_of(Path(config.run.dir))
        return self._undisturbed[ranks]

    def count(self, what: str, config: RunConfig, ranks: int, death: Death) -> None:
        """Resume a killed run on its ranks, and compare."""
        faults: list[str] = []
        if not death.is_named:
            faults.append(f"not named: {death.ended.said[-300:]!r}")
        if death.seconds >= ENDED_WITHIN_S:
            faults.append(f"took {death.seconds:.1f} s to end")
        again = finished(config, ranks=ranks)
        if again.code == 0:
            other = self._difference(Path(config.run.dir), ranks)
        else:
            other = f"was not resumed: {again.said[-600:]!r}"
        faults += [other] if other else []
        self._tally.add("resumed", not other)
        self._tally.add("named", death.is_named)
        self._tally.add("ended_in_time", death.seconds < ENDED_WITHIN_S)
        self._tally.count(what, faults, seconds=death.seconds)
        if not faults:
            shutil.rmtree(config.run.dir)

    def _difference(self, run_dir: Path, ranks: int) -> str:
        try:
            return difference(outcome_of(run_dir), self.undisturbed(ranks))
        except ArachneError as error:
            return str(error)


def kills(root: Path, cases: int, rng: random.Random, tally: Tally) -> None:
    """Kill a random rank of two to four at a random moment."""
    judge = Kills(root, tally)
    tried = 0
    while tried < cases:
        ranks = rng.choice(WORLD_SIZES)
        judge.undisturbed(ranks)
        config = moved(judge.config, root / f"kill-{tried}")
        shutil.rmtree(config.run.dir, ignore_errors=True)
        after_step, rank = rng.randrange(STEPS), rng.randrange(ranks)
        running = launch(config, ranks=ranks)
        running.waited_for(lambda: steps_done(running.run_dir) >= after_step)  # noqa: B023
        # Before the first step a run takes seconds to begin, and is killed there as well.
        time.sleep(rng.uniform(0.0, judge.run_s / (STEPS if after_step else 2)))
        death = killed(running, rank)
        if death is not None:
            tried += 1
            judge.count(f"rank {rank} of {ranks} after step {after_step}", config, ranks, death)


def killed(running: Running, rank: int) -> Death | None:
    """Kill a rank; None if it had not begun yet, or the run was over before."""
    ranks = running.ranks
    if rank >= len(ranks):
        running.end()
        return None
    begin_s = time.monotonic()
    try:
        os.kill(ranks[rank], signal.SIGKILL)
    except ProcessLookupError:
        running.end()
        return None
    ended = running.end()
    seconds = time.monotonic() - begin_s
    return None if ended.code == 0 else Death(rank=rank, ended=ended, seconds=seconds)


PHASES: dict[str, tuple[Any, str, int]] = {
    "plan": (PlanSource, "obtain", 5),
    "load": (ClipLoader, "take", 3),
    "launch": (step, "slot_losses", 3),
    "reduce": (ShardedOptimizer, "reduce", 4),
    "update": (ShardedOptimizer, "step_and_share", 4),
    "share": (Bucket, "start_sharing", 5),
    "save": (saver, "write_shard", 2),
    "commit": (CheckpointSaver, "_commit", 2),
}
"""Where a rank dies: on entering a function for the n-th time; after the first checkpoint."""


def dying(phase: str, rank: int, since: Path) -> Plant:
    """Have a rank kill itself in a phase; it notes when."""
    owner, name, number = PHASES[phase]

    def plant() -> None:
        real = getattr(owner, name)
        calls = 0

        def counted(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number and os.environ.get("RANK") == str(rank):
                since.write_text(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        setattr(owner, name, counted)

    return plant


def phases(root: Path, cases: int, rng: random.Random, tally: Tally) -> None:
    """One rank of four dies in each phase; a fair sample of these if `cases` is smaller."""
    judge, ranks = Kills(root, tally), 4
    every = [(phase, rank) for phase in PHASES for rank in range(ranks)]
    for phase, rank in every if cases >= len(every) else rng.sample(every, cases):
        config = moved(judge.config, root / f"{phase}-{rank}")
        since = root / f"{phase}-{rank}.since"
        ended = launch(config, ranks=ranks, plant=dying(phase, rank, since)).end()
        assert since.exists(), (phase, rank, ended)
        seconds = time.monotonic() - float(since.read_text())
        death = Death(rank=rank, ended=ended, seconds=seconds)
        judge.count(f"rank {rank} in {phase}", config, ranks, death)


def sigterm(root: Path, cases: int, rng: random.Random, tally: Tally) -> None:
    """Ask a run, or one of its ranks, to end at a random moment after its first step."""
    config = base_config(root, steps=100_000)
    for case in range(cases):
        running = launch(moved(config, root / f"sigterm-{case}"), ranks=2)
        is_begun = running.waited_for(lambda: steps_done(running.run_dir) > 0)  # noqa: B023
        assert is_begun, running.end().said
        time.sleep(rng.uniform(0.0, 2.0))
        target = rng.choice([running.process.pid, *running.ranks])
        number = rng.choice([signal.SIGTERM, signal.SIGINT])
        begin_s = time.monotonic()
        os.kill(target, number)
        ended = running.end()
        seconds = time.monotonic() - begin_s
        faults = faults_of_stop(running.run_dir, ended, 128 + number)
        if seconds >= STOPPED_WITHIN_S:
            faults.append(f"took {seconds:.1f} s")
        tally.count(signal.Signals(number).name, faults, seconds=seconds)
        if not faults:
            shutil.rmtree(running.run_dir)


def faults_of_stop(run_dir: Path, ended: Ended, code: int) -> list[str]:
    """What is wrong with how a run ended that was asked to."""
    if ended.code != code or ended.errors:
        return [f"ended with {ended.code}, not {code}: {ended.said[-300:]!r}"]
    skipped: list[str] = []
    step_saved = CheckpointReader(newest(run_dir, skipped.append)).state.step
    if skipped or step_saved != steps_done(run_dir):
        return [f"step {steps_done(run_dir)} was done, {step_saved} is saved; {skipped}"]
    return []
