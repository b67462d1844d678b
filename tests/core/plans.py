"""A small batch and a valid plan for it."""

from arachne.core.batch import Batch, BatchClip
from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan

IMAGE = Bucket(width=96, height=64, frames=1)
VIDEO = Bucket(width=96, height=64, frames=33)


def batch() -> Batch:
    return Batch(
        step=7,
        clips=(
            BatchClip(name="a.mp4", bucket=VIDEO, num_tokens=216),
            BatchClip(name="b.png", bucket=IMAGE, num_tokens=24),
            BatchClip(name="c.png", bucket=IMAGE, num_tokens=24),
        ),
    )


def launch(
    *slots: int, ranks: tuple[int, ...], start_s: float, duration_s: float = 1.0, phase: int = 0
) -> PlacedLaunch:
    bucket, num_tokens = (VIDEO, 216) if slots[0] == 0 else (IMAGE, 24)
    return PlacedLaunch(
        cascade=Cascade(module="dit", slots=slots, bucket=bucket, num_tokens=num_tokens),
        ranks=ranks,
        start_s=start_s,
        duration_s=duration_s,
        phase=phase,
    )


def plan_of(*launches: PlacedLaunch, step: int = 7, world_size: int = 2) -> PlacedPlan:
    return PlacedPlan(step=step, planner="test", world_size=world_size, launches=launches)


def valid_plan() -> PlacedPlan:
    return plan_of(
        launch(0, ranks=(0, 1), start_s=0.0, duration_s=2.5),
        launch(1, ranks=(0,), start_s=2.5),
        launch(2, ranks=(1,), start_s=2.5),
    )
