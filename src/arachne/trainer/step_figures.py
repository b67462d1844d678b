"""What a step came to over all ranks: FLOPs, waiting for data, memory, and the clips' noise levels.

One small exchange after the step; whole logs travel on traced steps only.
"""

import resource
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, pstdev

import torch

from arachne.core.batch import Batch
from arachne.core.placed_plan import PlacedPlan
from arachne.core.rank_log import RankLog
from arachne.cost.model import CostModel
from arachne.cost.rank_work import rank_work
from arachne.runtime import collectives
from arachne.runtime.world import World
from arachne.trainer.session import Session
from arachne.trainer.step import StepOutcome, sigma_of_slot

_KIBIBYTE = 1024
"""Unit of `ru_maxrss` on Linux (getrusage(2))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """Figures of one step; the same on every rank.

    Attributes:
        rank_flops: By rank, model FLOPs of what it trained: forward and backward, recomputation
            not counted.
        load_s: By rank, seconds that it waited for its clips.
        step_s: Seconds of the rank that took longest.
        period_s: Seconds from the end of the step before to the end of this one, of the rank that
            took longest; validation, samples and checkpoints not counted.
        peak_memory_bytes: Of the rank that needed most: on a GPU what the allocator held at most
            in this step, on a CPU the process's largest resident size so far.
        sigmas: Noise level by slot, from 0 (clean) to 1 (noise).
    """

    rank_flops: tuple[float, ...]
    load_s: tuple[float, ...]
    step_s: float
    period_s: float
    peak_memory_bytes: float
    sigmas: tuple[float, ...]

    def utilisation(self, flops_per_s: float) -> float:
        """Model FLOPs utilisation against a rate of one rank.

            Σ model FLOPs of the batch / (seconds from step to step · ranks · rate)

        Source: Chowdhery et al. 2022 (PaLM, arXiv 2204.02311), appendix B.
        """
        return sum(self.rank_flops) / (self.period_s * len(self.rank_flops) * flops_per_s)

    @property
    def flop_rate_variation(self) -> float:
        """Coefficient of variation of the ranks' FLOP rates: standard deviation over mean.

        A rank's rate is its FLOPs over the step's seconds, which are the same for all; 0 is a
        perfectly even step.
        """
        average = mean(self.rank_flops)
        return pstdev(self.rank_flops) / average if average else 0.0

    @property
    def load_share(self) -> float:
        """Part of the ranks' time that went into waiting for clips."""
        return mean(self.load_s) / self.step_s


def step_figures(
    session: Session,
    costs: CostModel,
    batch: Batch,
    plan: PlacedPlan,
    outcome: StepOutcome,
    *,
    period_s: float,
) -> StepFigures:
    """The figures of a step that is over; all ranks call it together."""
    peak_bytes = _peak_memory_bytes(session.world)
    mine = [outcome.step_s, period_s, _load_s(outcome.log), peak_bytes]
    gathered = _gathered(session, mine)
    return StepFigures(
        rank_flops=rank_flops(costs, plan, outcome.vote.is_kept),
        load_s=tuple(load_s for *_, load_s, _ in gathered),
        step_s=max(step_s for step_s, *_ in gathered),
        period_s=max(lap_s for _, lap_s, *_ in gathered),
        peak_memory_bytes=max(peak for *_, peak in gathered),
        sigmas=tuple(sigma_of_slot(session, batch, slot) for slot in range(len(batch.clips))),
    )


def rank_flops(costs: CostModel, plan: PlacedPlan, is_kept: Sequence[bool]) -> tuple[float, ...]:
    """Model FLOPs by rank: each launch's, shared out evenly among its ranks."""
    flops = [0.0] * plan.world_size
    for launch in plan.launches:
        num_clips = sum(is_kept[slot] for slot in launch.cascade.slots)
        if launch.cascade.module != "dit" or not num_clips:
            continue
        work = rank_work(
            costs.model,
            launch.cascade.num_tokens,
            num_clips,
            degree=1,
            state=costs.state,
        )
        for rank in launch.ranks:
            flops[rank] += (work.matmul_flops + work.attention_flops) / launch.degree
    return tuple(flops)


def _load_s(log: RankLog) -> float:
    return sum(event.span.duration_s for event in log.events if event.span.kind == "load")


def _peak_memory_bytes(world: World) -> float:
    if world.device.type != "cuda":
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBIBYTE)
    peak = float(torch.cuda.max_memory_allocated(world.device))
    torch.cuda.reset_peak_memory_stats(world.device)
    return peak


def _gathered(session: Session, mine: list[float]) -> list[list[float]]:
    """Everybody's numbers, by rank; the exchange belongs to no step."""
    world = session.world
    sent = torch.tensor(mine, dtype=torch.float64, device=world.device)
    gathered = torch.empty(world.size * len(mine), dtype=torch.float64, device=world.device)
    collectives.all_gather(gathered, sent, session.groups.world)
    session.recorder.finish(step=0, planner="")
    return gathered.cpu().view(world.size, len(mine)).tolist()
