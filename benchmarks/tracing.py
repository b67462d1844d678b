"""What recording a step costs, beside the step: spans, collectives, the watchdog's file, the log.

Two ranks train the steps of `two_ranks.py` as planned. A rank's overhead is the number of events in
its log times what one costs, over its step; what one costs is timed in the same process, on a
recorder of its own with a progress file, and includes making the log. The writing of the trace's
files, every `logging.trace_every` steps, is not in it.

    python benchmarks/tracing.py --json out.json
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import diffusers.models.transformers.transformer_wan  # noqa: F401  once, before ranks are forked
import torch
from machine import about
from two_ranks import LEARNING_RATE, opened

from arachne.runtime.clock import HostClock
from arachne.runtime.launcher import run_ranks
from arachne.runtime.progress import ProgressFile
from arachne.runtime.recorder import Recorder
from arachne.runtime.world import World
from arachne.trainer.measure import calibrated
from arachne.trainer.planning import plan_batch
from arachne.trainer.step import run_step

NUM_STEPS = 4
NUM_COLLECTIVES = 20_000
"""That are timed; each is two events of the log."""


def event_us(folder: str) -> float:
    """Microseconds of one event, recorded as a launch's collectives are, and put into the log."""
    recorder = Recorder(rank=0, world_size=2, clock=HostClock())
    recorder.progress = ProgressFile(Path(folder) / "progress", is_async=False)
    began_s = time.perf_counter()
    with recorder.launch(0):
        for _ in range(NUM_COLLECTIVES):
            with recorder.collective("all_to_all", (0, 1), 1, "float32"):
                pass
    log = recorder.finish(step=0, planner="timed")
    return 1e6 * (time.perf_counter() - began_s) / len(log.events)


def traced_steps(world: World, folder: str) -> dict[str, Any]:
    """Of one rank: events and seconds of each step, and what an event costs."""
    torch.set_num_threads(1)
    session = opened(world, folder)
    cluster = calibrated(session).cluster
    events: list[int] = []
    step_s: list[float] = []
    for step in range(NUM_STEPS):
        chosen = session.step_batch(step)
        plan = plan_batch(session.plan_request(step, cluster, "arachne"))
        read = session.prepared.train.read
        outcome = run_step(session, chosen, plan, read=read, lr=LEARNING_RATE)
        events.append(len(outcome.log.events))
        step_s.append(outcome.step_s)
    with tempfile.TemporaryDirectory() as progress:
        each_us = event_us(progress)
    shares = [1e-6 * each_us * n / s for n, s in zip(events, step_s, strict=True)]
    return {
        "event_us": each_us,
        "events_per_step": median(events),
        "step_s": median(step_s),
        "overhead": max(shares),
    }


def main(argv: Sequence[str]) -> int:
    """Run, print, and write the JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        ranks = run_ranks(2, traced_steps, (folder,), timeout_s=120.0)
    for rank, found in enumerate(ranks):
        print(
            f"rank {rank}: {found['events_per_step']:g} events of {found['event_us']:.1f} us in "
            f"steps of {found['step_s']:.2f} s, {found['overhead']:.4%} of a step at most"
        )
    result = {"about": about(quick=False), "ranks": ranks}
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
