"""Loss at noise that training never draws: the same numbers at every call, on any world.

The held-out clips are planned as one batch and run as training's launches are, forward only: ranks
share long clips, and each clip counts once, whether or not the ranks divide their number.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum
from statistics import fmean

import torch

from arachne.core.batch import Batch
from arachne.core.cluster import Cluster
from arachne.core.errors import DataError
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.data.split import first_by_content
from arachne.runtime import collectives
from arachne.runtime.executor import run_launches
from arachne.runtime.watched import launch_texts
from arachne.trainer.agreement import all_agree
from arachne.trainer.dataset import ClipArrays, TrainingData
from arachne.trainer.forward_plan import forward_plan
from arachne.trainer.objective import ClipSample, objective_of
from arachne.trainer.randomness import draw_clip
from arachne.trainer.session import Session
from arachne.trainer.step import slot_losses, slots_of_rank

_STEP = 2**63
"""Counter of validation noise; no training step reaches it."""


_PART_S = 5.0
"""Modelled seconds after which ranks ask each other whether to stop: of launches that train, so
that it is more for many noise levels and less for one. *Assumption*: a fifth of what a scheduler
leaves a job that it asks to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationLoss:
    """The validation loss; the same on every rank.

    Attributes:
        loss: Mean over clips and noise levels; every clip counts the same, and every level.
        by_level: Mean over the clips at each noise level, the least noise first.
        by_bucket: Mean over the clips of each bucket and over the levels, by its name.
    """

    loss: float
    by_level: tuple[float, ...]
    by_bucket: dict[str, float]


def _never() -> bool:
    return False


def validation_loss(
    session: Session, cluster: Cluster, step: int, wants_stop: Callable[[], bool] = _never
) -> ValidationLoss | None:
    """The loss on the held-out clips, or the training clips if none are held out.

    Every rank calls it. A clip that cannot be read from the cache is named and left out. None if
    some rank wanted to stop before all launches had begun.

    Args:
        session: This rank's.
        cluster: What launches are planned for; rank 0's counts.
        step: Steps done, for those who watch the ranks.
        wants_stop: Whether this rank was asked to stop; ranks ask each other every few seconds.

    Raises:
        DataError: No clip can be read.
        InfeasibleError: A clip fits nowhere on the cluster.
    """
    session.recorder.progress.change("validate")
    data = _validated(session)
    batch = data.batch_of(tuple(range(len(data.rows))), step)
    plan = forward_plan(session, session.costs(cluster), batch)
    arrays, is_lost = _loaded(session, data, plan)
    losses = _losses(session, batch, plan, arrays, is_lost, wants_stop)
    session.recorder.finish(step=0, planner="validation")
    if losses is None:
        return None
    lost = [clip.name for clip, lost in zip(batch.clips, is_lost, strict=True) if lost]
    for name in lost:
        session.say(f"validation: clip {name!r} cannot be read; left out")
    if len(lost) == len(batch.clips):
        raise DataError(
            f"validation: none of its {len(lost)} clips can be read from the cache; delete "
            f"{session.config.data.cache!r} to encode the clips again"
        )
    return _summary(batch, losses, is_lost)


def _validated(session: Session) -> TrainingData:
    """At most `validation.clips` clips, those whose content hashes lowest."""
    data = session.prepared.held_out
    if not data.rows:
        data = session.prepared.train
    limit = session.config.validation.clips
    return replace(data, rows=first_by_content(data.rows, limit)) if limit else data


def _loaded(
    session: Session, data: TrainingData, plan: PlacedPlan
) -> tuple[dict[int, ClipArrays], list[bool]]:
    """This rank's clips by slot, and by slot whether some rank cannot read its clip."""
    arrays: dict[int, ClipArrays] = {}
    ballot = torch.zeros(len(data.rows), dtype=torch.int64)
    with session.recorder.doing("load"):
        for slot in slots_of_rank(plan, session.world.rank):
            try:
                arrays[slot] = data.read(slot)
            except DataError:
                ballot[slot] = 1
    ballot = ballot.to(session.world.device)
    collectives.all_reduce_max(ballot, session.groups.world)
    return arrays, [bool(lost) for lost in ballot.tolist()]


def _losses(
    session: Session,
    batch: Batch,
    plan: PlacedPlan,
    arrays: dict[int, ClipArrays],
    is_lost: Sequence[bool],
    wants_stop: Callable[[], bool],
) -> list[list[float]] | None:
    """Loss by slot and noise level, over all ranks; zeros for a lost clip; None if stopped."""
    world, everyone = session.world, session.groups.world
    num_levels = session.config.validation.noises
    losses = torch.zeros(
        len(batch.clips), num_levels, dtype=torch.float64, device=session.world.device
    )

    def work(launch: PlacedLaunch) -> None:
        slots = [slot for slot in launch.cascade.slots if not is_lost[slot]]
        if not slots:
            return
        num_tokens = launch.cascade.num_tokens
        samples = [_at_no_noise(session, slot, arrays[slot]) for slot in slots]
        for index, level in enumerate(_levels(session, num_tokens)):
            noisy = [replace(sample, sigma=level) for sample in samples]
            losses[slots, index] += slot_losses(session, noisy).double() / launch.degree

    for part in _parts(plan):
        if not all_agree(world, everyone, not wants_stop()):
            return None
        texts = launch_texts(batch, part, world.rank)
        session.recorder.progress.begin_step(max(0, batch.step - 1), texts, "validate")
        with torch.no_grad():
            run_launches(
                part, rank=world.rank, groups=session.groups, recorder=session.recorder, work=work
            )
    collectives.all_reduce_sum(losses, session.groups.world)
    return losses.tolist()


def _parts(plan: PlacedPlan) -> Iterator[PlacedPlan]:
    """Stretches of a plan's launches between which ranks may stop."""
    first, begin_s = 0, 0.0
    for index, launch in enumerate(plan.launches):
        if launch.start_s - begin_s > _PART_S:
            yield replace(plan, launches=plan.launches[first:index])
            first, begin_s = index, launch.start_s
    yield replace(plan, launches=plan.launches[first:])


def _at_no_noise(session: Session, slot: int, arrays: ClipArrays) -> ClipSample:
    """A clip with the noise that it gets at every validation."""
    draw = draw_clip(
        seed=session.config.run.seed,
        step=_STEP,
        slot=slot,
        shape=arrays.latents.shape,
        purpose="validation",
    )
    noise = torch.from_numpy(draw.noise)
    return ClipSample(arrays=arrays, noise=noise, sigma=0.0, has_caption=True)


def _levels(session: Session, num_tokens: int) -> list[float]:
    """Noise levels that are spread evenly over the trained range, the least noise first."""
    objective, count = objective_of(session.config), session.config.validation.noises
    return [objective.even_level((index + 0.5) / count, num_tokens) for index in range(count)]


def _summary(batch: Batch, losses: list[list[float]], is_lost: Sequence[bool]) -> ValidationLoss:
    kept = [slot for slot in range(len(batch.clips)) if not is_lost[slot]]
    of_bucket: dict[str, list[float]] = defaultdict(list)
    for slot in kept:
        of_bucket[str(batch.clips[slot].bucket)].append(fmean(losses[slot]))
    num_levels = len(losses[0])
    return ValidationLoss(
        loss=fsum(fsum(losses[slot]) for slot in kept) / len(kept) / num_levels,
        by_level=tuple(fmean(losses[slot][level] for slot in kept) for level in range(num_levels)),
        by_bucket={bucket: fmean(values) for bucket, values in sorted(of_bucket.items())},
    )
