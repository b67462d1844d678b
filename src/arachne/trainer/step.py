"""One optimizer step on one rank: load, vote, launch, reduce, update.

All ranks call `run_step` with the same plan. Ranks meet four times outside of launches: a vote
before the first launch, the reduction after the last, the sum of losses and norms, and the
gathering of updated parameters.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, nan, sqrt

import torch

from arachne.core.batch import Batch
from arachne.core.errors import DataError
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.rank_log import RankLog
from arachne.runtime import collectives
from arachne.runtime.engine import Engine
from arachne.runtime.executor import run_launches
from arachne.trainer.dataset import ClipArrays, StepBatch
from arachne.trainer.objective import (
    ClipSample,
    clip_losses,
    clip_weights,
    objective_of,
    training_sample,
)
from arachne.trainer.online_steps import OnlineStep
from arachne.trainer.randomness import ClipDraw, draw_clip
from arachne.trainer.session import Session

Read = Callable[[int], ClipArrays]
"""Arrays of an item; raises DataError where they cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """What all ranks agreed on before the first launch.

    Attributes:
        is_kept: By slot: whether every rank that needs the clip could read it.
    """

    is_kept: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What one step did; the same on every rank but for `log`.

    Attributes:
        loss: Mean of the clips' losses by their weights, as it was optimized; NaN if no clip
            could be read, or some had no memory.
        clip_losses: Loss by slot; 0 for a slot that was voted out, NaN for one without memory.
        grad_norm: Global norm before clipping.
        vote: What was agreed before the first launch.
        wants_stop: Whether some rank was asked to stop before the step's end.
        is_updated: False if the gradient was not finite, no clip could be read, or a launch ran
            out of memory: then nothing changed.
        step_s: This rank's seconds, from before loading until the parameters were shared.
        log: This rank's events.
        given_up: Launches, by their index in the plan, for which a rank had no memory.
    """

    loss: float
    clip_losses: tuple[float, ...]
    grad_norm: float
    vote: Vote
    wants_stop: bool
    is_updated: bool
    step_s: float
    log: RankLog
    given_up: tuple[int, ...] = ()


def run_step(
    session: Session,
    chosen: StepBatch,
    plan: PlacedPlan,
    *,
    read: Read,
    lr: float,
    wants_stop: Callable[[], bool] = lambda: False,
    online: OnlineStep | None = None,
    settles: bool = True,
) -> StepOutcome:
    """Train one step; every rank calls it with the same batch, plan and learning rate.

    A clip that some rank cannot read or decode is left out on all ranks; the others then count
    more. `online` encodes what the plan says; without it the plan may name no encoder. Unless it
    `settles`, updated parameters may still be on their way afterwards, see
    `ShardedOptimizer.step_and_share`; the next step awaits them before its first launch.

    Raises:
        RuntimeError: Ranks hold different plans; nothing was trained.
        StrandedError: This rank ran out of memory where others wait for it.
    """
    assert plan.step == chosen.batch.step, (plan.step, chosen.batch.step)
    begin_s = time.perf_counter()
    samples, unreadable = _loaded(session, chosen, plan, read, online)
    engine: Engine = session.optimizer
    engine.settle()  # the step before may have left parameters on their way
    vote = _voted(session, plan, unreadable, len(chosen.items))
    given_up: list[int] = []
    losses = accumulate(
        session, chosen, plan, samples, vote.is_kept, online, give_up=given_up.append
    )
    engine.reduce()
    weights = batch_weights(session, chosen, vote.is_kept)
    totals = _summed(session, losses, _ballot(plan, given_up), wants_stop())
    clip_losses = _without(totals, plan)
    weighted = [w * value for w, value in zip(weights, clip_losses, strict=True) if w]
    loss = sum(weighted) if weighted else float("nan")
    grad_norm = sqrt(totals.squared_norm) if totals.squared_norm >= 0.0 else float("nan")
    is_updated = isfinite(loss) and isfinite(grad_norm)
    if is_updated:
        limit = session.config.optimizer.max_grad_norm
        scale = limit / grad_norm if 0.0 < limit < grad_norm else 1.0
        engine.step_and_share(lr=lr, gradient_scale=scale)
    with session.recorder.doing("optimizer"):
        engine.clear_gradients()
    if settles:
        engine.settle()
    # The log first: on a GPU it waits for the work that is still queued.
    log = session.recorder.finish(step=plan.step, planner=plan.planner)
    return StepOutcome(
        loss=loss,
        clip_losses=clip_losses,
        grad_norm=grad_norm,
        vote=vote,
        wants_stop=totals.wants_stop,
        is_updated=is_updated,
        step_s=time.perf_counter() - begin_s,
        log=log,
        given_up=totals.given_up,
    )


def accumulate(
    session: Session,
    chosen: StepBatch,
    plan: PlacedPlan,
    samples: dict[int, ClipSample],
    is_kept: tuple[bool, ...],
    online: OnlineStep | None = None,
    give_up: Callable[[int], None] | None = None,
) -> torch.Tensor:
    """Run this rank's launches, adding to its gradients; its share of each slot's loss, float64.

    Shares sum over the ranks to the losses. A clip without a sample is made within the step.
    `give_up` is told which launches a rank had no memory for, see `run_launches`.
    """
    weights = batch_weights(session, chosen, is_kept)
    losses = torch.zeros(len(chosen.items), dtype=torch.float64, device=session.world.device)

    def sample(slot: int) -> ClipSample:
        if slot in samples or online is None:
            return samples[slot]
        return sample_of_slot(session, chosen, slot, online.arrays(slot))

    def work(launch: PlacedLaunch) -> None:
        slots = [slot for slot in launch.cascade.slots if is_kept[slot]]
        if not slots:
            return
        of_clips = slot_losses(session, [sample(slot) for slot in slots])
        weight = of_clips.new_tensor([weights[slot] for slot in slots])
        ((weight * of_clips).sum() / launch.degree).backward()
        losses[slots] += of_clips.detach().double() / launch.degree

    if online is not None:
        online.begin(is_kept)
    run_launches(
        plan,
        rank=session.world.rank,
        groups=session.groups,
        recorder=session.recorder,
        work=work,
        encode=online.encode if online is not None else None,
        give_up=give_up,
    )
    if online is not None:
        online.end()
    return losses


def slot_losses(session: Session, samples: list[ClipSample]) -> torch.Tensor:
    """Losses [B] of clips of one shape under the session's model."""
    return clip_losses(
        session.model,
        samples,
        objective=objective_of(session.config),
        null_text=session.null_text,
        device=session.world.device,
        dtype=session.dtype,
    )


def batch_weights(
    session: Session, chosen: StepBatch, is_kept: tuple[bool, ...]
) -> tuple[float, ...]:
    """What each slot counts; kept slots sum to 1 over all ranks."""
    num_tokens = [clip.num_tokens for clip in chosen.batch.clips]
    return clip_weights(num_tokens, is_kept, session.config.objective.weighting)


def sample_of_slot(
    session: Session, chosen: StepBatch, slot: int, arrays: ClipArrays
) -> ClipSample:
    """A slot's clip with its noise, noise level and caption dropout: of (seed, step, slot)."""
    return training_sample(
        arrays,
        _draw_of_slot(session, chosen.batch, slot, arrays.latents.shape),
        objective_of(session.config),
        num_tokens=chosen.batch.clips[slot].num_tokens,
        caption_dropout=session.config.objective.caption_dropout,
    )


def sigma_of_slot(session: Session, batch: Batch, slot: int) -> float:
    """The noise level at which a slot trains, from 0 (clean) to 1 (noise)."""
    draw = _draw_of_slot(session, batch, slot, ())
    return objective_of(session.config).level(draw, batch.clips[slot].num_tokens)


def _draw_of_slot(session: Session, batch: Batch, slot: int, shape: tuple[int, ...]) -> ClipDraw:
    return draw_clip(
        seed=session.config.run.seed,
        step=batch.step,
        slot=slot,
        shape=shape,
        num_strata=len(batch.clips) if session.config.objective.stratified else 1,
    )


def _loaded(
    session: Session,
    chosen: StepBatch,
    plan: PlacedPlan,
    read: Read,
    online: OnlineStep | None,
) -> tuple[dict[int, ClipSample], list[int]]:
    """This rank's clips by slot, without those that this step makes, and the slots that cannot be
    read, or be decoded for encoding."""
    samples: dict[int, ClipSample] = {}
    unreadable: list[int] = []
    with session.recorder.doing("load"):
        for slot in slots_of_rank(plan, session.world.rank):
            try:
                if online is None or online.is_cached(slot):
                    arrays = read(chosen.items[slot])
                else:
                    arrays = online.load(slot)
            except DataError:
                unreadable.append(slot)
            else:
                if arrays is not None:
                    samples[slot] = sample_of_slot(session, chosen, slot, arrays)
        if online is not None:
            unreadable += online.decode()
    return samples, unreadable


def slots_of_rank(plan: PlacedPlan, rank: int) -> list[int]:
    """Slots that a rank trains, in the order of its launches."""
    return [
        slot
        for _, launch in plan.on_rank(rank)
        if launch.cascade.module == "dit"
        for slot in launch.cascade.slots
    ]


def _voted(session: Session, plan: PlacedPlan, unreadable: list[int], num_slots: int) -> Vote:
    """Agree on the plan and the clips; one collective."""
    digest = int(plan.digest[:15], 16)
    ballot = torch.zeros(num_slots + 2, dtype=torch.int64)
    ballot[unreadable] = 1
    ballot[-2:] = torch.tensor([digest, -digest])
    ballot = ballot.to(session.world.device)
    collectives.all_reduce_max(ballot, session.groups.world)
    *is_lost, highest, minus_lowest = ballot.tolist()
    if highest != -minus_lowest:
        raise RuntimeError(f"ranks hold different plans of step {plan.step}; nothing was trained")
    return Vote(is_kept=tuple(not lost for lost in is_lost))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    clip_losses: tuple[float, ...]
    squared_norm: float
    given_up: tuple[int, ...]
    wants_stop: bool


def _without(totals: _Totals, plan: PlacedPlan) -> tuple[float, ...]:
    """Losses by slot; NaN in launches that were given up, so that the step changes nothing."""
    lost = {slot for index in totals.given_up for slot in plan.launches[index].cascade.slots}
    return tuple(nan if slot in lost else x for slot, x in enumerate(totals.clip_losses))


def _ballot(plan: PlacedPlan, given_up: list[int]) -> torch.Tensor:
    """Which launches this rank gave up, as one number for each launch of the plan."""
    ballot = torch.zeros(len(plan.launches), dtype=torch.float64)
    ballot[given_up] = 1.0
    return ballot


def _summed(
    session: Session, losses: torch.Tensor, given_up: torch.Tensor, wants_stop: bool
) -> _Totals:
    """Losses by slot, squared gradient norm, launches without memory and stopping, over all ranks;
    one collective."""
    engine: Engine = session.optimizer
    norm = engine.squared_norm_of_shard().reshape(1)
    stop = torch.full_like(norm, float(wants_stop))
    totals = torch.cat([norm, stop, losses, given_up.to(norm.device)])
    collectives.all_reduce_sum(totals, session.groups.world)
    squared_norm, stop_votes, *rest = totals.tolist()
    clip_losses, ballots = rest[: len(losses)], rest[len(losses) :]
    return _Totals(
        clip_losses=tuple(clip_losses),
        squared_norm=squared_norm,
        given_up=tuple(index for index, votes in enumerate(ballots) if votes),
        wants_stop=stop_votes > 0.0,
    )
