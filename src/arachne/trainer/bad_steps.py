"""Steps that could not train: what is said of them, and when there are too many."""

from math import isfinite

from arachne.core.batch import Batch
from arachne.core.errors import DataError
from arachne.core.placed_plan import PlacedPlan
from arachne.core.units import step_text
from arachne.trainer.session import Session
from arachne.trainer.step import StepOutcome, sigma_of_slot


def why_skipped(session: Session, batch: Batch, plan: PlacedPlan, outcome: StepOutcome) -> str:
    """Why a step changed nothing, with the clips that are to blame."""
    if outcome.given_up:
        return _no_memory(session, batch, plan, outcome)
    if not any(outcome.vote.is_kept):
        return "none of its clips can be read"
    bad = [
        f"{clip.name!r} ({clip.bucket}, noise level {sigma_of_slot(session, batch, slot):.3f}, "
        f"ranks {_ranks_of(plan, slot)})"
        for slot, clip in enumerate(batch.clips)
        if not isfinite(outcome.clip_losses[slot])
    ]
    return f"no finite gradient ({'clips ' + ', '.join(bad) if bad else 'all losses finite'})"


def _no_memory(session: Session, batch: Batch, plan: PlacedPlan, outcome: StepOutcome) -> str:
    launches = [plan.launches[index] for index in outcome.given_up]
    clips = [
        f"{batch.clips[slot].name!r} ({batch.clips[slot].bucket}, noise level "
        f"{sigma_of_slot(session, batch, slot):.3f}, ranks {', '.join(map(str, launch.ranks))})"
        for launch in launches
        for slot in launch.cascade.slots
    ]
    return f"out of memory (clips {', '.join(clips)}); such launches are planned with more"


def too_many_bad_steps(session: Session, count: int, step: int, reason: str) -> DataError:
    """The error that ends the run."""
    return DataError(
        f"{count} steps in a row could not be trained; in the last, {step_text(step)}: {reason}; "
        "lower optimizer.lr, remove the clips, or, if they cannot be read, delete "
        f"{session.config.data.cache!r} to encode them again"
    )


def _ranks_of(plan: PlacedPlan, slot: int) -> str:
    ranks = next(
        launch.ranks
        for launch in plan.launches
        if launch.cascade.module == "dit" and slot in launch.cascade.slots
    )
    return ", ".join(map(str, ranks))
