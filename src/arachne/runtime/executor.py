"""Run the launches of a placed plan that belong to one rank, in the plan's one global order."""

from collections.abc import Callable

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
    """Call `work(launch)` for every launch of this rank, inside that launch's group.

    `work` runs forward and backward, adding to the rank's gradient buffers. It meets exactly the
    ranks of its launch; ranks with more, fewer or no launches need not know of it. Since every
    rank follows the same total order, no two launches can wait for each other.
    """
    for index, launch in plan.on_rank(rank):
        group = groups.of(launch.ranks)
        with recorder.launch(index), sequence_parallel(group):
            work(launch)
