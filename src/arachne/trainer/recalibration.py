"""Feeds what launches took back to the cost model that plans are made with."""

from collections.abc import Sequence

from arachne.core.cluster import Cluster
from arachne.core.strict_json import from_json, to_json
from arachne.core.units import percent_text, step_text
from arachne.cost.measured_launch import MeasuredLaunch
from arachne.cost.online_calibration import OnlineCalibration, Recalibration
from arachne.runtime.messages import text_of_first
from arachne.trainer.session import Session

_WORTH_SAYING = 0.05
"""A correction of the median error by less than this is not news."""


class Recalibrator:
    """The cluster that a run plans for; rank 0, which plans, corrects it as the run goes on.

    Plans travel from rank 0, so that the other ranks' clusters may stay as they were at the start.
    """

    def __init__(self, session: Session, cluster: Cluster) -> None:
        self._session = session
        self._calibration = OnlineCalibration(session.costs(cluster))

    @property
    def cluster(self) -> Cluster:
        """What this rank would plan for."""
        return self._calibration.cluster

    @property
    def scores(self) -> dict[int, float]:
        """Straggler scores at the newest correction, by rank; none on other ranks than rank 0."""
        return self._calibration.scores

    def after_step(self, step: int, launches: Sequence[MeasuredLaunch]) -> None:
        """Take in a step's launches; every `planner.recalibrate_every` steps, correct the model."""
        every = self._session.config.planner.recalibrate_every
        if every == 0 or self._session.world.rank != 0:
            return
        self._calibration.observe(launches)
        if (step + 1) % every == 0 and (found := self._calibration.recalibrate()) is not None:
            self._tell(step, found)

    def shared_cluster(self) -> Cluster:
        """Rank 0's cluster, on every rank; all call it together."""
        world = self._session.world
        text = to_json(self.cluster) if world.rank == 0 else ""
        shared = text_of_first(text, self._session.groups.world, world.device)
        self._session.recorder.finish(step=0, planner="")
        return from_json(shared, Cluster, what="calibrated cluster")

    def _tell(self, step: int, found: Recalibration) -> None:
        say = self._session.say
        if found.is_taken and found.error_before - found.error_after > _WORTH_SAYING:
            say(
                f"{step_text(step)}: cost model corrected; median error over the newest launches "
                f"{percent_text(found.error_before)} before, {percent_text(found.error_after)} now"
            )
        for rank in found.slowed:
            score = self._calibration.scores[rank]
            say(
                f"{step_text(step)}: rank {rank} takes {score:.2f} × as long as usual; plans allow "
                "for it"
            )
        for rank in found.recovered:
            say(f"{step_text(step)}: rank {rank} is no longer slow")
