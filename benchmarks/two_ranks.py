"""Step times of five strategies on two CPU ranks, beside the least that the work can cost.

A Wan of 4.6 million parameters trains steps of 8 clips between 48 and 3,120 tokens, on two ranks of
one thread each. The ideal of a step is the sum of its clips' own seconds at degree 1 over two,
measured in the same run with both ranks at work: no reduction, no optimizer, no waiting. Printed is
the sum of the steps' seconds, reduction and optimizer counted, over the sum of the ideals.

    python benchmarks/two_ranks.py --quick --json out.json
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import diffusers.models.transformers.transformer_wan  # noqa: F401  once, before ranks are forked
import numpy as np
import torch
from machine import about

from arachne.core.bucket import Bucket
from arachne.core.clip import Clip
from arachne.core.families import family_named
from arachne.core.ledger import Ledger, LedgerRow
from arachne.models.diffusers_module import build_transformer
from arachne.models.hashed_text import HASHED_TEXT_SIZE
from arachne.runtime import collectives
from arachne.runtime.clock import clock_for
from arachne.runtime.launcher import run_ranks
from arachne.runtime.optimizers import AdamWOptions
from arachne.runtime.process_groups import ProcessGroups
from arachne.runtime.recorder import Recorder
from arachne.runtime.sequence_parallel import install
from arachne.runtime.sharded_optimizer import ShardedOptimizer
from arachne.runtime.world import World
from arachne.trainer.clip_order import clip_order
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset import ClipArrays, StepBatch, TrainingData
from arachne.trainer.measure import calibrated, shared_trace
from arachne.trainer.planning import plan_batch
from arachne.trainer.preparation import Prepared
from arachne.trainer.session import Session
from arachne.trainer.settings.batch import BatchSettings
from arachne.trainer.settings.data import DataSettings
from arachne.trainer.settings.model import ModelSettings
from arachne.trainer.settings.planner import PlannerSettings
from arachne.trainer.settings.run import RunSettings
from arachne.trainer.step import batch_weights, run_step, sample_of_slot, slot_losses

PLANNERS = ("arachne", "static_dp", "static_sp", "static_dp_longest_first")
LOCKSTEP = "static_dp_lockstep"
STRATEGIES = (*PLANNERS, LOCKSTEP)

MIX = {
    "128x96x1": 0.2,  # 48 tokens
    "240x208x1": 0.2,  # 195
    "192x144x5": 0.15,  # 216
    "192x144x37": 0.2,  # 1,080
    "192x176x61": 0.15,  # 2,112
    "240x208x61": 0.1,  # 3,120
}
"""Shapes and how often a clip has each."""

WAN_GEOMETRY = family_named("wan").geometry
NUM_CLIPS = 240
CLIPS_PER_STEP = 8
TEXT_TOKENS = 16
LEARNING_RATE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeClips(TrainingData):
    """Clips of made latents: the benchmark times training, not data."""

    def read(self, item: int) -> ClipArrays:
        """Noise of the clip's shape, the same in every run."""
        generator = np.random.default_rng(item)
        grid = WAN_GEOMETRY.latent_grid(bucket_of(self.rows[item]))
        return ClipArrays(
            latents=generator.standard_normal((48, *grid), dtype=np.float32),
            text=generator.standard_normal((TEXT_TOKENS, HASHED_TEXT_SIZE), dtype=np.float32),
        )


def bucket_of(row: LedgerRow) -> Bucket:
    """The shape of a made clip."""
    assert row.bucket is not None
    return row.bucket


def made_clips(mix: Mapping[str, float]) -> MadeClips:
    """Clips in a fixed random order of shapes."""
    drawn = random.Random(0).choices(list(mix), list(mix.values()), k=NUM_CLIPS)
    rows: list[LedgerRow] = []
    for number, text in enumerate(drawn):
        bucket = Bucket.parse(text)
        rows.append(
            LedgerRow(
                clip=Clip(path=f"{number}.mp4", caption=""),
                status="kept",
                arithmetic="",
                reason="",
                bucket=bucket,
                num_tokens=WAN_GEOMETRY.num_tokens(bucket),
                content="",
            )
        )
    return MadeClips(
        rows=tuple(rows),
        cache_dir=Path(),
        fps=16.0,
        video_fingerprint="",
        text_fingerprint="",
    )


def opened(world: World, folder: str, mix: Mapping[str, float] = MIX) -> Session:
    """A session on made clips."""
    config = RunConfig(
        run=RunSettings(dir=folder, steps=1),
        data=DataSettings(path=folder, cache=folder),
        model=ModelSettings(
            num_layers=3, num_heads=4, head_size=64, ffn_size=1536, text_tokens=TEXT_TOKENS
        ),
        batch=BatchSettings(clips=CLIPS_PER_STEP),
        planner=PlannerSettings(iterations=2000),
    )
    shape = config.model.shape(latent_channels=48, text_size=HASHED_TEXT_SIZE)
    model = build_transformer(shape, dtype=torch.float32, seed=0)
    install(model.module, model.layout)
    recorder = Recorder(rank=world.rank, world_size=world.size, clock=clock_for(world.device))
    groups = ProcessGroups(world, tuple(range(1, world.size + 1)), recorder)
    clips = made_clips(mix)
    null_text = np.zeros((TEXT_TOKENS, HASHED_TEXT_SIZE), dtype=np.float32)
    return Session(
        world=world,
        config=config,
        run_dir=Path(folder),
        prepared=Prepared(
            ledger=Ledger(rows=clips.rows), train=clips, held_out=clips, null_text=null_text
        ),
        order=clip_order(clips.rows, config, shape),
        model=model,
        base="",
        null_text=torch.from_numpy(null_text),
        prompt_texts=(),
        recorder=recorder,
        groups=groups,
        optimizer=ShardedOptimizer(model.module, groups.world, AdamWOptions()),
        say=print if world.rank == 0 else lambda _: None,
    )


def lockstep_s(session: Session, chosen: StepBatch, arrays: dict[int, ClipArrays]) -> float:
    """Seconds of a step of data parallelism whose ranks meet after each of their clips."""
    world = session.world
    meeting = torch.zeros(1)
    weights = batch_weights(session, chosen, (True,) * len(chosen.items))
    collectives.all_reduce_sum(meeting, session.groups.world)
    began_s = time.perf_counter()
    for first in range(0, len(chosen.items), world.size):
        slot = first + world.rank
        if slot < len(chosen.items):
            sample = sample_of_slot(session, chosen, slot, arrays[chosen.items[slot]])
            (weights[slot] * slot_losses(session, [sample]).sum()).backward()
        collectives.all_reduce_sum(meeting, session.groups.world)
    session.optimizer.reduce()
    norm = session.optimizer.squared_norm_of_shard().reshape(1)
    collectives.all_reduce_sum(norm, session.groups.world)
    session.optimizer.step(lr=LEARNING_RATE, gradient_scale=min(1.0, 1.0 / float(norm.sqrt())))
    session.optimizer.share()
    session.optimizer.clear_gradients()
    took_s = time.perf_counter() - began_s
    session.recorder.finish(step=chosen.batch.step, planner=LOCKSTEP)
    return took_s


def clip_s(session: Session, item: int) -> float:
    """Seconds of one clip alone on each rank, forward and backward, both ranks at work."""
    chosen = StepBatch(batch=session.prepared.train.batch_of((item,), 0), items=(item,))
    sample = sample_of_slot(session, chosen, 0, session.prepared.train.read(item))
    collectives.all_reduce_sum(torch.zeros(1), session.groups.world)
    began_s = time.perf_counter()
    slot_losses(session, [sample]).sum().backward()
    took_s = time.perf_counter() - began_s
    session.optimizer.clear_gradients()
    session.recorder.finish(step=0, planner="clip")
    return took_s


def raced(world: World, folder: str, num_steps: int) -> dict[str, Any]:
    """All strategies on the same steps, in turn; their seconds and the ideals, on every rank."""
    torch.set_num_threads(1)
    session = opened(world, folder)
    cluster = calibrated(session).cluster
    clips = session.prepared.train
    first_of_shape = {bucket_of(row): item for item, row in reversed(list(enumerate(clips.rows)))}
    alone_s: dict[Bucket, list[float]] = defaultdict(list)
    seconds: dict[str, list[float]] = defaultdict(list)
    for turn in range(num_steps):
        for bucket, item in first_of_shape.items():  # beside the steps: the machine may drift
            alone_s[bucket].append(clip_s(session, item))
        chosen = session.step_batch(turn)
        arrays = {item: clips.read(item) for item in set(chosen.items)}
        shift = turn % len(STRATEGIES)
        for name in (*STRATEGIES[shift:], *STRATEGIES[:shift]):
            if name == LOCKSTEP:
                seconds[name].append(lockstep_s(session, chosen, arrays))
                continue
            plan = plan_batch(session.plan_request(turn, cluster, name))
            outcome = run_step(session, chosen, plan, read=arrays.__getitem__, lr=LEARNING_RATE)
            seconds[name].append(shared_trace(session, outcome.log).iteration_s)
    ideal_s = [
        sum(median(alone_s[clip.bucket]) for clip in session.step_batch(turn).batch.clips) / 2
        for turn in range(num_steps)
    ]
    return {"seconds": dict(seconds), "ideal_s": ideal_s}


def summary(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Ratios to the ideal: sums over the steps, and each step's own."""
    # Each rank timed its own clips; a step is over when the slower rank is done.
    ideal_s = [
        sum(of_ranks) / len(ranks) for of_ranks in zip(*(r["ideal_s"] for r in ranks), strict=True)
    ]
    ratios: dict[str, float] = {}
    by_step: dict[str, list[float]] = {}
    for name in STRATEGIES:
        step_s = [
            max(of_ranks) for of_ranks in zip(*(r["seconds"][name] for r in ranks), strict=True)
        ]
        ratios[name] = sum(step_s) / sum(ideal_s)
        by_step[name] = [s / ideal for s, ideal in zip(step_s, ideal_s, strict=True)]
    return {"ratio_to_ideal": ratios, "ratio_by_step": by_step, "ideal_s": ideal_s}


def main(argv: Sequence[str]) -> int:
    """Run, print, and write the JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="4 steps instead of 16")
    arguments = parser.parse_args(argv)
    num_steps = 4 if arguments.quick else 16
    with tempfile.TemporaryDirectory() as folder:
        ranks = run_ranks(2, raced, (folder, num_steps), timeout_s=120.0)
    result = {"about": about(quick=arguments.quick), "steps": num_steps, **summary(ranks)}
    for name, ratio in sorted(result["ratio_to_ideal"].items(), key=lambda row: row[1]):
        print(f"{name:26}{ratio:6.3f} x ideal")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
