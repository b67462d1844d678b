"""Arachne and other libraries' loops on the same steps and two ranks; run by `peers.py`."""

import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import diffusers.models.transformers.transformer_wan  # noqa: F401  once, before ranks are forked
import torch
import torch.distributed as dist
from peer_loops import (
    AccelerateDdp,
    DeepSpeedUlysses,
    DeepSpeedZero1,
    Peer,
    StepClips,
    dealt_in_order,
    dealt_longest_first,
    dealt_to_all,
)
from two_ranks import LEARNING_RATE, MIX, bucket_of, clip_s, opened

from arachne.core.bucket import Bucket
from arachne.models.diffusers_module import build_transformer
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.trainer.measure import calibrated
from arachne.trainer.planning import plan_batch
from arachne.trainer.session import Session
from arachne.trainer.step import run_step, sample_of_slot

ARACHNE = "arachne"
SETS = {"heterogeneous": MIX, "homogeneous": {"192x144x37": 1.0}}


def peers_of(session: Session) -> list[Peer]:
    """Loops with the session's initial weights, each with a model of its own."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555"}  # asked for, never used
    os.environ.setdefault("LOCAL_RANK", os.environ["RANK"])
    kinds = (
        ("ddp", AccelerateDdp, dealt_in_order),
        ("deepspeed", DeepSpeedZero1, dealt_in_order),
        ("deepspeed_ulysses", DeepSpeedUlysses, dealt_to_all),
        ("ddp_packed", AccelerateDdp, dealt_longest_first),
        ("deepspeed_packed", DeepSpeedZero1, dealt_longest_first),
    )
    found: list[Peer] = []
    for name, kind, deal in kinds:
        model = build_transformer(session.model.shape, dtype=torch.float32, seed=0).module
        found.append(kind(name, model, deal, null_text=session.null_text))
    return found


def raced(world: World, folder: str, set_name: str, num_steps: int) -> dict[str, Any]:
    """Seconds and losses of every loop on the same steps, in turns that rotate."""
    torch.set_num_threads(1)
    session = opened(world, folder, SETS[set_name])
    cluster = calibrated(session).cluster
    peers = {peer.name: peer for peer in peers_of(session)}
    clips = session.prepared.train
    first_of_shape = {bucket_of(row): item for item, row in reversed(list(enumerate(clips.rows)))}
    alone_s: dict[Bucket, float] = {}
    for bucket, item in first_of_shape.items():
        of_rank = torch.tensor(median(clip_s(session, item) for _ in range(3)))
        dist.all_reduce(of_rank)  # all ranks deal by the same figures
        alone_s[bucket] = float(of_rank) / world.size
    names = [ARACHNE, *peers]
    seconds: dict[str, list[float]] = defaultdict(list)
    losses: dict[str, list[float]] = defaultdict(list)
    for turn in range(-1, num_steps):  # one step first that is not counted
        step = turn + 1
        chosen = session.step_batch(step)
        arrays = {item: clips.read(item) for item in set(chosen.items)}
        plan = plan_batch(session.plan_request(step, cluster))
        shift = step % len(names)
        for name in (*names[shift:], *names[:shift]):
            dist.barrier()
            began_s = time.perf_counter()
            if name == ARACHNE:
                outcome = run_step(session, chosen, plan, read=arrays.__getitem__, lr=LEARNING_RATE)
                loss = torch.tensor(outcome.loss / world.size)
            else:
                samples = {
                    slot: sample_of_slot(session, chosen, slot, arrays[item])
                    for slot, item in enumerate(chosen.items)
                }
                of_step = StepClips(
                    samples=samples,
                    num_tokens=[clip.num_tokens for clip in chosen.batch.clips],
                    seconds=[alone_s[clip.bucket] for clip in chosen.batch.clips],
                )
                loss = peers[name].step(of_step)
            took_s = torch.tensor(time.perf_counter() - began_s, dtype=torch.float64)
            dist.all_reduce(took_s, dist.ReduceOp.MAX)
            dist.all_reduce(loss)
            if turn >= 0:
                seconds[name].append(float(took_s))
                losses[name].append(float(loss))
    return {"seconds": dict(seconds), "losses": dict(losses)}


def main(argv: Sequence[str]) -> int:
    """Race the sets that are named; write what was measured to the file that is named first."""
    path, num_steps, *set_names = argv
    found: dict[str, Any] = {}
    for set_name in set_names:
        with tempfile.TemporaryDirectory() as folder:
            ranks = run_ranks(2, raced, (folder, set_name, int(num_steps)), timeout_s=300.0)
        found[set_name] = ranks[0]
    Path(path).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
