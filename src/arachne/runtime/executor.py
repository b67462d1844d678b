"""Run the launches of a placed plan that belong to one rank, in the plan's one global order."""

from collections.abc import Callable

from arachne.core.errors import ConfigError
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.runtime.out_of_memory import (
    GivenUpError,
    LaunchGate,
    StrandedError,
    is_out_of_memory,
)
from arachne.runtime.process_groups import ProcessGroups
from arachne.runtime.recorder import Recorder
from arachne.runtime.sequence_parallel import sequence_parallel

Encode = Callable[[int, PlacedLaunch], None]
"""Runs an encoder's launch, given its index in the plan, and sends what it made."""

Work = Callable[[PlacedLaunch], None]
"""Trains a launch."""


def run_launches(
    plan: PlacedPlan,
    *,
    rank: int,
    groups: ProcessGroups,
    recorder: Recorder,
    work: Work,
    encode: Encode | None = None,
    give_up: Callable[[int], None] | None = None,
) -> None:
    """Call `work(launch)` for every launch of this rank that trains, inside its group and mode.

    `work` runs forward and backward, adding to the rank's gradient buffers. It meets exactly the
    ranks of its launch; ranks with more, fewer or no launches need not know of it. Encoders'
    launches go to `encode`, which meets the ranks of its launch at most.

    Nothing can wait for ever. A launch waits for its members, for its rank's launches before it,
    and for what its encoders make, whose launches come before it in the plan. All ranks follow this
    one order, and a result leaves as soon as it is made, whatever its receivers are at. So of all
    launches that have not ended the first in the order waits only for those that have: it ends.

    With `give_up` a training launch in which a member runs out of memory, before the launch's first
    collective or alone, is given up: it is called with the launch's index on every member, and the
    rank's gradients are then to be thrown away. Without it such an error ends the rank.

    Raises:
        StrandedError: This rank ran out of memory where the others of its launch wait for it; only
            with `give_up`.
        ConfigError: The plan has barriers between its launches, which only the simulator knows,
            launches of an encoder without `encode`, or captions that several ranks encode.
    """
    _refuse_unbuilt(plan, can_encode=encode is not None)
    groups.prepare(launch.ranks for launch in plan.launches)
    for index, launch in plan.on_rank(rank):
        with recorder.launch(index):
            if launch.cascade.module != "dit":
                assert encode is not None
                encode(index, launch)
            elif give_up is None:
                with sequence_parallel(groups.of(launch.ranks), launch.mode):
                    work(launch)
            elif not _has_trained(index, launch, groups, work):
                give_up(index)


def _has_trained(index: int, launch: PlacedLaunch, groups: ProcessGroups, work: Work) -> bool:
    """Train a launch; false on all its ranks if one had no memory for it."""
    gate = LaunchGate(groups.of(launch.ranks), groups.device)
    try:
        with sequence_parallel(gate.group, launch.mode):
            work(launch)
        return True
    except GivenUpError:
        return False
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        if gate.is_open:
            raise StrandedError(index, gate.num_entered) from error
    gate.refuse()  # out here the error is gone, and with it what the launch had in memory
    return False


def _refuse_unbuilt(plan: PlacedPlan, *, can_encode: bool) -> None:
    last_phase = max((launch.phase for launch in plan.launches), default=0)
    if last_phase > 0:
        raise ConfigError(
            f"the plan of step {plan.step} by {plan.planner!r} has barriers (phases 0 to "
            f"{last_phase}), which are for comparison only; train with planner.name 'arachne'"
        )
    for index, launch in enumerate(plan.launches):
        if launch.cascade.module == "dit":
            continue
        what = f"launch {index} of the plan of step {plan.step} is {launch.cascade.module!r}"
        if not can_encode:
            raise ConfigError(f"{what}; without encoders only 'dit' launches run")
        if launch.cascade.module == "text" and launch.degree > 1:
            raise ConfigError(f"{what} on {launch.degree} ranks; captions are encoded on one rank")
