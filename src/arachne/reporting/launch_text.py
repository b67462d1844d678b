"""What a launch is called in timelines, charts and trace files."""

from arachne.core.placed_plan import PlacedLaunch, PlacedPlan


def launch_name(launch: PlacedLaunch) -> str:
    """Module, shape, clips and degree: `dit 208x112x81 ×2 @2`."""
    cascade = launch.cascade
    return f"{cascade.module} {cascade.bucket} ×{cascade.num_clips} @{launch.degree}"


def planned_launch(plan: PlacedPlan | None, index: int | None) -> PlacedLaunch | None:
    """The launch that a span belongs to; None outside launches and where no plan tells."""
    if plan is None or index is None or not 0 <= index < len(plan.launches):
        return None
    return plan.launches[index]


def span_launch_name(plan: PlacedPlan | None, index: int) -> str:
    """A launch's name, or its number where no plan tells."""
    launch = planned_launch(plan, index)
    return f"launch {index}" if launch is None else launch_name(launch)
