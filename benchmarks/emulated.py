"""Plans for 16 to 64 ranks, run by real processes with real groups on a few CPU cores.

Every rank is a process that sleeps where a GPU would compute, and meets the others in real
collectives on small tensors (`arachne.runtime.emulation`). Measured steps are set against the
simulator's prediction, in which collectives take what they were measured to take on this host, and
against what the step's own coordination costs: sending the plan, comparing digests, voting.

    python benchmarks/emulated.py --quick --json out.json
"""

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from emulated_rank import CLIPS_PER_RANK, MAX_DEGREE, STEP_S, Emulator
from machine import about

from arachne.core.batch import Batch, BatchClip
from arachne.core.bucket import Bucket
from arachne.core.families import family_named
from arachne.core.placed_plan import PlacedPlan
from arachne.cost.cluster_files import load_cluster
from arachne.cost.model import CostModel
from arachne.runtime import collectives
from arachne.runtime.emulation import EmulatedRank
from arachne.runtime.launcher import run_ranks
from arachne.runtime.world import World
from arachne.simulator.perturbation import UNDISTURBED, Perturbation
from arachne.simulator.simulate import simulate
from arachne.trainer.planning import PlanRequest, plan_batch

FRAMES = (1, 17, 33, 49, 65, 81)
"""Panda-like at a cap of 81 frames: most clips are longer, a few are short, some are images."""

FRAME_WEIGHTS = (0.1, 0.05, 0.1, 0.15, 0.1, 0.5)
DISTURBANCES = {
    "none": UNDISTURBED,
    "jitter": Perturbation(seed=1, jitter=0.05),
    "slow rank": Perturbation(slow_ranks=((1, 1.3),)),
}


def batch_of(step: int, num_clips: int) -> Batch:
    """Clips of 832x480 and 480x272 with Panda-like lengths; of (step, number) alone."""
    rng = random.Random(f"emulated/{step}/{num_clips}")
    geometry = family_named("wan").geometry
    clips: list[BatchClip] = []
    for slot in range(num_clips):
        width, height = rng.choice(((832, 480), (480, 272)))
        frames = rng.choices(FRAMES, FRAME_WEIGHTS)[0]
        bucket = Bucket(width=width, height=height, frames=frames)
        clips.append(
            BatchClip(name=f"{slot}.mp4", bucket=bucket, num_tokens=geometry.num_tokens(bucket))
        )
    return Batch(step=step, clips=tuple(clips))


def cost_model(num_ranks: int) -> CostModel:
    """Wan 1.3B on H100 nodes."""
    return CostModel(
        model=family_named("wan").presets["wan-1.3b"],
        cluster=load_cluster(f"h100x{num_ranks}"),
        element_bytes=2,
    )


def plan_of(step: int, costs: CostModel) -> PlacedPlan:
    """Arachne's plan of a few clips a rank."""
    batch = batch_of(step, CLIPS_PER_RANK * costs.cluster.num_gpus)
    request = PlanRequest(batch=batch, costs=costs, max_degree=MAX_DEGREE, iterations=1000)
    return plan_batch(request)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one world showed, on rank 0.

    Attributes:
        measured_s: By disturbance, seconds of each step.
        predicted_s: By disturbance, what the simulator said.
        send_s: Seconds to send one plan from rank 0 and read it.
        vote_s: Seconds to compare digests.
        floor_s: Seconds of the bare collectives of both, on as many bytes.
        plan_bytes: Bytes of the largest plan.
    """

    measured_s: dict[str, list[float]]
    predicted_s: dict[str, list[float]]
    send_s: float
    vote_s: float
    floor_s: float
    plan_bytes: int


def measured(
    world: World, texts: Sequence[str], scales: Sequence[float], num_disturbed: int
) -> Measured:
    """Run every plan undisturbed, and the first ones under every disturbance.

    `texts` are known to rank 0 alone in real runs.
    """
    emulator = Emulator.on(world)
    plans = [PlacedPlan.from_json(text) for text in texts]
    costs = cost_model(world.size)
    longest = max(texts, key=len)
    ballot = torch.zeros(2, dtype=torch.int64)

    def send() -> PlacedPlan:
        return PlacedPlan.received(emulator.sent(longest if world.rank == 0 else ""))

    def vote() -> None:
        digest = int(plans[0].digest[:15], 16)
        ballot.copy_(torch.tensor([digest, -digest]))
        collectives.all_reduce_max(ballot, emulator.groups.world)

    def bare() -> None:
        emulator.sent(longest if world.rank == 0 else "")
        collectives.all_reduce_max(ballot, emulator.groups.world)

    repeats = max(3, len(plans))
    send_s, vote_s, floor_s = (emulator.timed(work, repeats) for work in (send, vote, bare))
    host = emulator.host_costs(costs, repeats)
    measured_s: dict[str, list[float]] = {name: [] for name in DISTURBANCES}
    predicted_s: dict[str, list[float]] = {name: [] for name in DISTURBANCES}
    for number, (plan, scale) in enumerate(zip(plans, scales, strict=True)):
        scaled = replace(host, scale=scale)
        for name, disturbance in DISTURBANCES.items():
            if disturbance != UNDISTURBED and number >= num_disturbed:
                continue
            emulator.barrier()
            emulator.recorder.finish(step=0, planner="barrier")
            log = emulator.emulated(scaled, disturbance).run_step(plan)
            measured_s[name].append(emulator.trace_s(log))
            if world.rank == 0:
                predicted_s[name].append(simulate(plan, scaled, disturbance).iteration_s + vote_s)
    return Measured(
        measured_s=measured_s,
        predicted_s=predicted_s,
        send_s=send_s,
        vote_s=vote_s,
        floor_s=floor_s,
        plan_bytes=len(longest),
    )


def run_world(num_ranks: int, num_steps: int, num_disturbed: int) -> dict[str, Any]:
    """One world's figures."""
    costs = cost_model(num_ranks)
    plans = [plan_of(step, costs) for step in range(num_steps)]
    scales = [STEP_S / plan.makespan_s for plan in plans]
    texts = [plan.to_json() for plan in plans]
    arguments = (texts, scales, num_disturbed)
    found: Measured = run_ranks(num_ranks, measured, arguments, timeout_s=300.0)[0]
    ratios = {
        name: [m / p for m, p in zip(found.measured_s[name], found.predicted_s[name], strict=True)]
        for name in DISTURBANCES
    }
    coordination_s = found.send_s + found.vote_s
    return {
        "measured_over_predicted": median(ratios["none"]),
        "measured_over_predicted_by_disturbance": ratios,
        "coordination_share": coordination_s / median(found.measured_s["none"]),
        "coordination_over_floor": coordination_s / found.floor_s,
        "coordination_s": {"send": found.send_s, "vote": found.vote_s, "floor": found.floor_s},
        "plan_bytes": found.plan_bytes,
        "step_s": median(found.measured_s["none"]),
    }


def many_plans(world: World, texts: Sequence[str], num_plans: int) -> dict[str, int]:
    """Plans whose launches compute for no time, one after another; what grew on this rank."""
    emulator = Emulator.on(world)
    plans = [PlacedPlan.from_json(text) for text in texts]
    rank = EmulatedRank(
        rank=world.rank,
        groups=emulator.groups,
        recorder=emulator.recorder,
        compute_s=lambda launch: 0.0,
        optimizer_s=0.0,
    )
    before: dict[str, int] = {}
    for number in range(num_plans):
        if number == num_plans // 10:
            before = held(emulator)
        rank.run_step(plans[number % len(plans)])
    after = held(emulator)
    return {what: after[what] - before[what] for what in before}


def held(emulator: Emulator) -> dict[str, int]:
    """Groups, open files and resident pages of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {
        "groups": emulator.groups.num_groups,
        "file_descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "memory_kib": pages * resource.getpagesize() // 1024,
    }


def run_many(num_ranks: int, num_plans: int) -> dict[str, Any]:
    """Many plans; the largest growth of any rank after the first tenth."""
    costs = cost_model(num_ranks)
    texts = [plan_of(step, costs).to_json() for step in range(20)]
    began_s = time.perf_counter()
    grown = run_ranks(num_ranks, many_plans, (texts, num_plans), timeout_s=300.0)
    took_s = time.perf_counter() - began_s
    growth = {what: max(of_rank[what] for of_rank in grown) for what in grown[0]}
    return {"ranks": num_ranks, "plans": num_plans, "growth": growth, "seconds": took_s}


def main(argv: Sequence[str]) -> int:
    """Run, print, and write the JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="few steps and plans")
    arguments = parser.parse_args(argv)
    num_steps, num_disturbed, num_plans = (3, 1, 500) if arguments.quick else (8, 8, 10_000)
    result = {
        "about": about(quick=arguments.quick),
        "ranks": {str(num): run_world(num, num_steps, num_disturbed) for num in (16, 32, 64)},
        "many": run_many(4, num_plans),
    }
    for num, row in result["ranks"].items():
        print(
            f"{num:>3} ranks: measured / predicted {row['measured_over_predicted']:.3f}, "
            f"coordination {row['coordination_share']:.2%} of a step of {row['step_s']:.2f} s, "
            f"{row['coordination_over_floor']:.2f} x its bare collectives"
        )
    print(f"many plans: {json.dumps(result['many'])}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
