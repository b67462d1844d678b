"""What training waits for a save, with the demo's model, beside a step of two seconds."""

import random
import time
from dataclasses import replace
from math import prod
from pathlib import Path
from statistics import median

from survival_tally import Tally
from tests.trainer.tiny_runs import changed, make_clips, tiny_config, tiny_session, with_manifest

from arachne.cli.demo.settings import demo_config
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer.checkpoint_reader import CheckpointReader, newest
from arachne.trainer.config import RunConfig
from arachne.trainer.loop import train

NUM_RANKS = 2
STEP_S = 2.0
MOST_SHARE = 0.05


def stalls_of_rank(world: World, config: RunConfig) -> tuple[float, ...]:
    """How long each save of a run held up this rank; steps last long enough for a save to end."""
    with tiny_session(world, config) as (session, heard):
        listener = replace(heard.listener, on_step=lambda report: time.sleep(0.5))
        return train(session, listener, resume=False).save_stalls_s


def saves(root: Path, cases: int, _rng: random.Random, tally: Tally) -> None:
    """Seconds that training waits for a save; every rank's saves count."""
    demo = demo_config(root / "stall", steps=1, ranks=NUM_RANKS)
    config = tiny_config(make_clips(root / "clips"), root / "stall", steps=3 * cases)
    config = with_manifest(replace(config, model=demo.model))
    config = changed(config, "checkpoint", every=3, keep=2)
    stalls_s = [each for rank in run_ranks(NUM_RANKS, stalls_of_rank, (config,)) for each in rank]
    state = CheckpointReader(newest(root / "stall", print))
    tally.others |= {
        "parameters": sum(map(prod, state.parameters.values())),
        "median_s": median(stalls_s),
        "median_share_of_a_step": median(stalls_s) / STEP_S,
    }
    for stall_s in stalls_s:
        fault = [] if stall_s <= MOST_SHARE * STEP_S else [f"took {stall_s:.3f} s"]
        tally.count("a save", fault, seconds=stall_s)
