"""The promise, measured: the gradient of one step under several plans and in one process."""

from collections.abc import Sequence

import torch
from torch import Tensor

from arachne.core.placed_plan import PlacedPlan
from arachne.runtime import collectives
from arachne.trainer.dataset import StepBatch
from arachne.trainer.objective import ClipSample
from arachne.trainer.session import Session
from arachne.trainer.step import accumulate, batch_weights, sample_of_slot, slot_losses


def gradient_errors(
    session: Session, chosen: StepBatch, plans: Sequence[PlacedPlan]
) -> tuple[float, ...]:
    """For each plan the norm of its gradient's difference to one process's, over the norm.

    "One process" is rank 0 by itself: every clip alone, no launch, no group. Every rank calls it;
    nothing is updated.
    """
    samples = {
        slot: sample_of_slot(session, chosen, slot, session.prepared.train.read(item))
        for slot, item in enumerate(chosen.items)
    }
    _accumulate_alone(session, chosen, samples)
    reference = _summed_shards(session)
    everything = tuple(True for _ in chosen.items)
    errors: list[float] = []
    for plan in plans:
        accumulate(session, chosen, plan, samples, everything)
        shards = _summed_shards(session)
        pairs = zip(shards, reference, strict=True)
        squares = torch.stack(
            [
                torch.stack([((a - b).double() ** 2).sum(), (b.double() ** 2).sum()])
                for a, b in pairs
            ]
        ).sum(dim=0)
        collectives.all_reduce_sum(squares, session.groups.world)
        errors.append(float((squares[0] / squares[1]).sqrt()))
    session.recorder.finish(step=chosen.batch.step, planner="gradient check")
    return tuple(errors)


def _accumulate_alone(session: Session, chosen: StepBatch, samples: dict[int, ClipSample]) -> None:
    if session.world.rank != 0:
        return
    weights = batch_weights(session, chosen, tuple(True for _ in chosen.items))
    for slot, sample in samples.items():
        (slot_losses(session, [sample])[0] * weights[slot]).backward()


def _summed_shards(session: Session) -> list[Tensor]:
    """Reduce what was accumulated; this rank's part of the sum. The buffers are empty again."""
    session.optimizer.reduce()
    shards = session.optimizer.gradient_shards()
    session.optimizer.clear_gradients()
    return shards
