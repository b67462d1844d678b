"""Run the launches of a placed plan that belong to one rank, in the plan's one global order."""

from collections.abc import Callable

from arachne.core.errors import ConfigError
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.runtime.process_groups import ProcessGroups
from arachne.runtime.recorder import Recorder
from arachne.runtime.sequence_parallel import sequence_parallel


def run_launches(
    plan: PlacedPlan,
    *,
    rank: int,
    groups: ProcessGroups,
    recorder: Recorder,
    work: Callable[[PlacedLaunch], None],
) -> None:
    """Call `work(launch)` for every launch of this rank, inside that launch's group and mode.

    `work` runs forward and backward, adding to the rank's gradient buffers. It meets exactly the
    ranks of its launch; ranks with more, fewer or no launches need not know of it. Since every
    rank follows the same total order, no two launches can wait for each other.

    Raises:
        ConfigError: The plan has barriers between its launches, which only the simulator knows, or
            launches of an encoder.
    """
    _refuse_unbuilt(plan)
    for index, launch in plan.on_rank(rank):
        group = groups.of(launch.ranks)
        with recorder.launch(index), sequence_parallel(group, launch.mode):
            work(launch)


def _refuse_unbuilt(plan: PlacedPlan) -> None:
    last_phase = max((launch.phase for launch in plan.launches), default=0)
    if last_phase > 0:
        raise ConfigError(
            f"the plan of step {plan.step} by {plan.planner!r} has barriers (phases 0 to "
            f"{last_phase}), which are for comparison only; train with planner.name 'arachne'"
        )
    for index, launch in enumerate(plan.launches):
        if launch.cascade.module != "dit":
            raise ConfigError(
                f"launch {index} of the plan of step {plan.step} is {launch.cascade.module!r}; the "
                "runtime runs 'dit' launches only, so encode all clips before training"
            )
