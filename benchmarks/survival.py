"""Runs that are killed, damaged, starved, stopped and hung; see `durability.py`."""

import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tests.runtime.planted_hangs import (
    COLLECTIVES,
    CULPRIT,
    HANGING_LAUNCH,
    HANGS,
    hang_in_a_launch,
)
from tests.trainer.damaged_checkpoints import chunks_of, damage_newest, write_checkpoints
from tests.trainer.tiny_runs import changed, make_clips, tiny_config, tiny_session, with_manifest

from arachne.cli.demo.settings import demo_config
from arachne.cli.run_dir import has_checkpoints
from arachne.core.errors import ArachneError, CheckpointError, Interrupted, LostRankError
from arachne.runtime.launcher import run_ranks
from arachne.runtime.watched import collective_timeout_s
from arachne.runtime.world import World
from arachne.trainer.checkpoint import write_shard
from arachne.trainer.checkpoint_reader import CheckpointReader, newest
from arachne.trainer.config import RunConfig
from arachne.trainer.loop import train

NUM_RANKS = 2
STEPS = 12
STEP_S = 2.0
"""The step beside which a save is judged."""
TOLERANCE = 1e-9
"""Of weights in float64: plans may differ after a resume, and with them the order of sums."""
STOPPED_WITHIN_S = 25.0
RESUMED_WITHIN = 5
"""Starts after which a run that is killed again and again has to have ended."""


def trained_rank(world: World, config: RunConfig) -> None:
    """One rank of a run that goes on from whatever there is; notes each step in a file."""
    run_dir = Path(config.run.dir)
    with tiny_session(world, config) as (session, heard):

        def on_step(report: Any) -> None:
            if world.rank == 0:
                with (run_dir / "steps").open("a") as file:
                    file.write(f"{report.step}\n")

        listener = replace(heard.listener, on_step=on_step)
        train(session, listener, resume=has_checkpoints(run_dir))


def launch(config: RunConfig) -> Any:
    """A process that starts the ranks of a run, as `arachne train` does."""

    def target() -> None:
        try:
            run_ranks(NUM_RANKS, trained_rank, (config,), timeout_s=30.0)
            code = 0
        except Interrupted as interruption:
            code = 128 + interruption.number
        except ArachneError:
            code = 2
        os._exit(code)

    process = multiprocessing.get_context("fork").Process(target=target)
    process.start()
    return process


def num_steps(run_dir: Path) -> int:
    """Steps that a run has noted; those that were done once more count again."""
    steps = run_dir / "steps"
    return len(steps.read_text().split()) if steps.exists() else 0


def ranks_of(process: Any) -> list[int]:
    """Process numbers of a launcher's ranks that live."""
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    except OSError:
        return []
    return sorted(map(int, children.split()))


def masters(run_dir: Path) -> dict[str, np.ndarray]:
    """The weights of a run's last checkpoint, which has to be whole and of the last step."""
    reader = CheckpointReader(newest(run_dir, on_skip=print))
    assert reader.state.step == STEPS, reader.state.step
    return {
        name: reader.read(name, "master", 0, prod(shape))
        for name, shape in reader.parameters.items()
    }


def agree(found: dict[str, np.ndarray], needed: dict[str, np.ndarray]) -> bool:
    """Whether all weights are the same to rounding."""
    return all(
        np.linalg.norm(found[name] - needed[name]) <= TOLERANCE * np.linalg.norm(needed[name])
        for name in needed
    )


def kills(config: RunConfig, root: Path, cases: int, rng: random.Random) -> dict[str, Any]:
    """Kill a random rank at a random moment, resume, and compare with the undisturbed run."""
    undisturbed = with_manifest(changed(config, "run", dir=str(root / "undisturbed")))
    begin_s = time.monotonic()
    process = launch(undisturbed)
    process.join()
    assert process.exitcode == 0, process.exitcode
    whole_s = time.monotonic() - begin_s
    needed = masters(root / "undisturbed")
    resumed = num_killed = 0
    for case in range(cases):
        run_dir = root / f"kill-{case}"
        own = with_manifest(changed(config, "run", dir=str(run_dir)))
        process = launch(own)
        after_step = rng.randrange(STEPS)
        while process.is_alive() and num_steps(run_dir) < after_step:
            time.sleep(0.005)
        # Before the first step a run takes seconds to begin, and is killed there as well.
        time.sleep(rng.uniform(0.0, whole_s / (STEPS if after_step else 2)))
        ranks = ranks_of(process)
        if ranks:
            os.kill(rng.choice(ranks), signal.SIGKILL)
            num_killed += 1
        process.join()
        for _ in range(RESUMED_WITHIN):
            if process.exitcode == 0:
                break
            process = launch(own)
            process.join()
        resumed += process.exitcode == 0 and agree(masters(run_dir), needed)
        shutil.rmtree(run_dir)
    return {"tried": cases, "killed": num_killed, "resumed": resumed, "run_s": whole_s}


def damaged(root: Path, cases: int, rng: random.Random) -> dict[str, Any]:
    """Damage the newest checkpoint: it must be passed over, with a word."""
    write_checkpoints(root / "whole")
    silent, slowest_s = 0, 0.0
    for case in range(cases):
        run_dir = root / f"damaged-{case}"
        shutil.copytree(root / "whole", run_dir)
        damage_newest(run_dir, rng)
        told: list[str] = []
        begin_s = time.monotonic()
        found = newest(run_dir, told.append)
        slowest_s = max(slowest_s, time.monotonic() - begin_s)
        silent += len(told) != 1 or found.name != "step-000020"
        shutil.rmtree(run_dir)
    return {"tried": cases, "silent": silent, "slowest_s": slowest_s}


def enospc(root: Path, cases: int, rng: random.Random) -> dict[str, Any]:
    """A write of a fourth checkpoint fails at a random byte; the third must stay whole."""
    write_checkpoints(root)
    (shard,) = (root / "checkpoints" / "step-000030").glob("shard-00000.*")
    shard_bytes = shard.stat().st_size
    whole = 0
    for _ in range(cases):
        limit_bytes = rng.randrange(shard_bytes)

        def save(limit_bytes: int = limit_bytes) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
            try:
                write_shard(root, 40, 0, chunks_of(40, NUM_RANKS)[0])
            except CheckpointError as error:
                os._exit(0 if "earlier checkpoints are untouched" in str(error) else 1)
            os._exit(1)

        process = multiprocessing.get_context("fork").Process(target=save)
        process.start()
        process.join()
        told: list[str] = []
        found = newest(root, told.append)
        whole += process.exitcode == 0 and found.name == "step-000030" and not told
    return {"tried": cases, "whole": whole}


def sigterm(config: RunConfig, root: Path, cases: int, rng: random.Random) -> dict[str, Any]:
    """Ask a run to end at a random moment after its first step."""
    committed, slowest_s = 0, 0.0
    endless = changed(config, "run", steps=100_000)
    for case in range(cases):
        run_dir = root / f"sigterm-{case}"
        own = with_manifest(changed(endless, "run", dir=str(run_dir)))
        process = launch(own)
        while not (run_dir / "steps").exists() and process.is_alive():
            time.sleep(0.02)
        time.sleep(rng.uniform(0.0, 2.0))
        begin_s = time.monotonic()
        os.kill(process.pid, signal.SIGTERM)
        process.join()
        seconds = time.monotonic() - begin_s
        slowest_s = max(slowest_s, seconds)
        is_saved = CheckpointReader(newest(run_dir, print)).state.step == num_steps(run_dir)
        committed += process.exitcode == 0 and is_saved and seconds < STOPPED_WITHIN_S
        shutil.rmtree(run_dir)
    return {"tried": cases, "committed": committed, "slowest_s": slowest_s}


def hangs(root: Path, cases: int, timeout_s: float) -> dict[str, Any]:
    """A rank of four that stops answering in a known launch has to be named, with the launch."""
    named, slowest_s = 0, 0.0
    planted = [(operation, hang) for hang in sorted(HANGS) for operation in sorted(COLLECTIVES)]
    for case in range(cases):
        operation, hang = planted[case * len(planted) // cases % len(planted)]
        folder = root / f"hang-{case}"
        folder.mkdir()
        message = ""
        try:
            run_ranks(
                4,
                hang_in_a_launch,
                (folder, timeout_s, operation, hang),
                timeout_s=collective_timeout_s(timeout_s),
            )
        except LostRankError as error:
            message = str(error)
        seconds = time.monotonic() - float((folder / "hangs since").read_text())
        slowest_s = max(slowest_s, seconds)
        culprit = f"rank {CULPRIT} has not answered"
        named += culprit in message and f"in launch {HANGING_LAUNCH} " in message
    return {"tried": cases, "named": named, "timeout_s": timeout_s, "slowest_s": slowest_s}


def stalls_of_rank(world: World, config: RunConfig) -> tuple[float, ...]:
    """How long each save of a run held up this rank; steps last long enough for a save to end."""
    with tiny_session(world, config) as (session, heard):
        listener = replace(heard.listener, on_step=lambda report: time.sleep(0.5))
        return train(session, listener, resume=False).save_stalls_s


def save_stall(config: RunConfig, root: Path, saves: int) -> dict[str, Any]:
    """Seconds that training waits for a save of the demo's model."""
    demo = demo_config(root / "stall", steps=1, ranks=NUM_RANKS)
    own = replace(config, model=demo.model, run=replace(config.run, dir=str(root / "stall")))
    own = changed(own, "run", steps=3 * saves)
    own = with_manifest(changed(own, "checkpoint", every=3))
    stalls_s = [each for rank in run_ranks(NUM_RANKS, stalls_of_rank, (own,)) for each in rank]
    state = CheckpointReader(newest(root / "stall", print))
    return {
        "saves": saves,
        "parameters": sum(map(prod, state.parameters.values())),
        "median_s": median(stalls_s),
        "worst_s": max(stalls_s),
    }


def measured(counts: dict[str, int], root: Path, seed: int) -> dict[str, Any]:
    """All figures."""
    rng = random.Random(seed)
    clips = make_clips(root / "clips")
    config = changed(tiny_config(clips, root / "run", steps=STEPS), "checkpoint", every=2, keep=2)
    config = changed(config, "logging", trace_every=0)
    parts: dict[str, Callable[[Path], dict[str, Any]]] = {
        "kills": lambda folder: kills(config, folder, counts["kills"], rng),
        "damaged": lambda folder: damaged(folder, counts["damaged"], rng),
        "enospc": lambda folder: enospc(folder, counts["enospc"], rng),
        "sigterm": lambda folder: sigterm(config, folder, counts["sigterm"], rng),
        "hangs": lambda folder: hangs(folder, counts["hangs"], 1.5),
        "save_stall": lambda folder: save_stall(config, folder, counts["saves"]),
    }
    figures: dict[str, Any] = {}
    for name, part in parts.items():
        folder = root / name
        folder.mkdir()
        begin_s = time.monotonic()
        figures[name] = part(folder)
        print(f"{name}: {figures[name]}, {time.monotonic() - begin_s:.0f} s", file=sys.stderr)
    figures["save_stall_share"] = figures["save_stall"]["median_s"] / STEP_S
    return figures
