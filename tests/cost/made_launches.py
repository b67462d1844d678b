"""Measured launches of a known machine."""

from collections.abc import Sequence

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.launch_mode import WHOLE, LaunchMode
from arachne.core.placed_plan import PlacedLaunch
from arachne.cost.measured_launch import MeasuredLaunch
from arachne.cost.model import CostModel


def cascade(num_tokens: int, num_clips: int) -> Cascade:
    bucket = Bucket(width=1, height=1, frames=1)
    slots = tuple(range(num_clips))
    return Cascade(module="dit", slots=slots, bucket=bucket, num_tokens=num_tokens)


def measured(
    costs: CostModel,
    num_tokens: int,
    num_clips: int,
    ranks: tuple[int, ...],
    *,
    factor: float = 1.0,
    slowness: Sequence[float] = (),
    mode: LaunchMode = WHOLE,
) -> MeasuredLaunch:
    """A launch that took `factor` times what `costs` say; `slowness` is that of every rank."""
    what = cascade(num_tokens, num_clips)
    compute_s, communicate_s = costs.seconds_in(mode, what, ranks)
    each_s = tuple(compute_s * factor * (slowness[rank] if slowness else 1.0) for rank in ranks)
    return MeasuredLaunch(
        launch=PlacedLaunch(cascade=what, ranks=ranks, start_s=0.0, duration_s=1.0, mode=mode),
        rank_compute_s=each_s,
        total_s=max(each_s) + communicate_s * factor,
    )
