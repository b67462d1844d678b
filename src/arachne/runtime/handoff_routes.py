"""Who hands what to whom: a function of two steps' plans, and so the same on every rank."""

from collections.abc import Sequence
from dataclasses import dataclass

from arachne.core.bucket import Bucket
from arachne.core.cascade import Encoder
from arachne.core.placed_plan import PlacedPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One clip's latents or token states, from the rank that makes them to those that train on it.

    Attributes:
        step: The step whose batch the clip is in.
        module: Which encoder made it.
        slot: The clip.
        bucket: Its shape.
        encoder: Index of the launch that makes it, in the plan of the step that makes it.
        trainer: Index of the launch that trains on it, in the plan of `step`.
        makers: The ranks that make it, all of which have it whole; the first one sends it.
        targets: All ranks that train on it, perhaps makers too; ascending.
    """

    step: int
    module: Encoder
    slot: int
    bucket: Bucket
    encoder: int
    trainer: int
    makers: tuple[int, ...]
    targets: tuple[int, ...]

    @property
    def receivers(self) -> tuple[int, ...]:
        """Ranks to which the result travels: in place it is there already."""
        return tuple(rank for rank in self.targets if rank not in self.makers)

    @property
    def source(self) -> int:
        """The rank that sends it."""
        return self.makers[0]


def routes_of(plan: PlacedPlan, next_plan: PlacedPlan | None) -> tuple[Route, ...]:
    """The route of every result that the encoders of `plan` make, in the plan's order.

    `next_plan` says where clips of the next step train; a plan that encodes some needs it.
    """
    plans: Sequence[PlacedPlan | None] = (plan, next_plan)
    trained = [_trained_by(each) if each is not None else {} for each in plans]
    routes: list[Route] = []
    for index, launch in enumerate(plan.launches):
        cascade = launch.cascade
        if cascade.module == "dit":
            continue
        for slot in cascade.slots:
            trainer, ranks = trained[cascade.steps_ahead][slot]
            routes.append(
                Route(
                    step=plan.step + cascade.steps_ahead,
                    module=cascade.module,
                    slot=slot,
                    bucket=cascade.bucket,
                    encoder=index,
                    trainer=trainer,
                    makers=launch.ranks,
                    targets=ranks,
                )
            )
    return tuple(routes)


def _trained_by(plan: PlacedPlan) -> dict[int, tuple[int, tuple[int, ...]]]:
    """By slot the index and the ranks of the launch that trains it."""
    return {
        slot: (index, launch.ranks)
        for index, launch in enumerate(plan.launches)
        if launch.cascade.module == "dit"
        for slot in launch.cascade.slots
    }
