"""Loss at noise that training never draws: the same numbers at every call, on any world."""

from dataclasses import replace

import torch

from arachne.core.errors import DataError
from arachne.data.split import first_by_content
from arachne.runtime import collectives
from arachne.trainer.dataset import ClipArrays, TrainingData
from arachne.trainer.objective import ClipSample
from arachne.trainer.randomness import draw_clip
from arachne.trainer.sampling import shifted_sigma
from arachne.trainer.session import Session
from arachne.trainer.step import slot_losses

_STEP = 2**63
"""Counter of validation noise; no training step reaches it."""


def validation_loss(session: Session) -> float:
    """Mean over noise levels and the held-out clips, or the training clips if none are held out.

    Every rank calls it; each takes a share of the clips, so that the sum is the same on any world.
    A clip that cannot be read from the cache is named and left out of the mean.

    Raises:
        DataError: No clip can be read.
    """
    data = _validated(session)
    losses = torch.zeros(len(data.rows), dtype=torch.float64)
    is_lost = torch.zeros(len(data.rows), dtype=torch.float64)
    for item in _items_of_rank(session, [row.num_tokens for row in data.rows]):
        session.recorder.progress.change("validate")
        try:
            arrays = data.read(item)
        except DataError:
            is_lost[item] = 1.0
            continue
        with torch.no_grad():
            for sample in _samples(session, item, arrays):
                losses[item] += slot_losses(session, [sample]).double().cpu()[0]
    on_device = torch.cat([losses, is_lost]).to(session.world.device)
    collectives.all_reduce_sum(on_device, session.groups.world)
    session.recorder.finish(step=0, planner="validation")
    losses, is_lost = on_device.cpu().chunk(2)
    lost = [row.clip.name for row, lost in zip(data.rows, is_lost.tolist(), strict=True) if lost]
    for name in lost:
        session.say(f"validation: clip {name!r} cannot be read; left out")
    num_read = len(data.rows) - len(lost)
    if not num_read:
        raise DataError(
            f"validation: none of its {len(lost)} clips can be read from the cache; delete "
            f"{session.config.data.cache!r} to encode the clips again"
        )
    return float(losses.sum()) / num_read / session.config.validation.noises


def _validated(session: Session) -> TrainingData:
    """At most `validation.clips` clips, those whose content hashes lowest."""
    data = session.prepared.held_out
    if not data.rows:
        data = session.prepared.train
    limit = session.config.validation.clips
    return replace(data, rows=first_by_content(data.rows, limit)) if limit else data


def _samples(session: Session, item: int, arrays: ClipArrays) -> list[ClipSample]:
    """One clip at evenly spread noise levels."""
    num_noises = session.config.validation.noises
    draw = draw_clip(
        seed=session.config.run.seed,
        step=_STEP,
        slot=item,
        shape=arrays.latents.shape,
        purpose="validation",
    )
    first = ClipSample(
        arrays=arrays, noise=torch.from_numpy(draw.noise), sigma=0.0, has_caption=True
    )
    levels = [(index + 0.5) / num_noises for index in range(num_noises)]
    shift = session.config.objective.shift
    return [replace(first, sigma=shifted_sigma(level, shift)) for level in levels]


def _items_of_rank(session: Session, num_tokens: list[int]) -> list[int]:
    """Items dealt longest first to the rank with least tokens so far."""
    loads = [0] * session.world.size
    mine: list[int] = []
    for item in sorted(range(len(num_tokens)), key=lambda item: (-num_tokens[item], item)):
        rank = loads.index(min(loads))
        loads[rank] += num_tokens[item]
        if rank == session.world.rank:
            mine.append(item)
    return mine
