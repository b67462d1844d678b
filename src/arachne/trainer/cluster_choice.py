"""What a run plans for: a named cluster, the one of its checkpoint, or this machine, measured."""

from dataclasses import replace

from arachne.core.cluster import Cluster
from arachne.core.errors import ConfigError
from arachne.core.placed_plan import PlacedPlan
from arachne.core.units import count_text, percent_text
from arachne.cost.cluster_files import load_cluster
from arachne.trainer.dry_run import dry_run
from arachne.trainer.measure import calibrated, guessed_cluster
from arachne.trainer.online_encoders import with_everything_missing
from arachne.trainer.planning import PlanRequest, plan_batch
from arachne.trainer.session import Session

FALLBACK_PLANNER = "static_degree_longest_first"


def chosen_cluster(session: Session, known: Cluster | None) -> Cluster:
    """The run's cluster; `known` is a checkpoint's, which serves as long as the ranks are as many.

    Beside a named cluster it counts only where the run corrects its cost model. All ranks call it
    together.

    Raises:
        ConfigError: The named cluster does not exist, or has other GPUs than the run has ranks.
        InfeasibleError: A clip of the dataset fits nowhere; told before anything is measured.
        RankMemoryError: In the dry run a rank ran out of memory where others wait for it.
    """
    cluster = _known_cluster(session, known)
    is_measured = cluster is None
    if cluster is None:
        cluster = guessed_cluster(session)
    _check_every_shape_fits(session, cluster)
    dry_run(session, cluster)
    if is_measured:
        calibration = calibrated(session)
        session.say(
            f"calibrated on {count_text(session.world.size, 'rank')}; the cost model is off by "
            f"{percent_text(calibration.median_error, 1)} (median) and "
            f"{percent_text(calibration.p95_error, 1)} (p95) over "
            f"{calibration.num_launches} launches, {calibration.num_outliers} of them outliers"
        )
        cluster = calibration.cluster
    _check_every_shape_fits(session, cluster)  # the dry run may have raised an estimate
    return cluster


def _known_cluster(session: Session, known: Cluster | None) -> Cluster | None:
    """The checkpoint's or the named one; None: to be measured."""
    name, world_size = session.config.cluster.name, session.world.size
    is_corrected = session.config.planner.recalibrate_every > 0
    if known is not None and known.num_gpus == world_size and (name == "auto" or is_corrected):
        return known
    return None if name == "auto" else _named_cluster(name, world_size)


def fallback_plan(request: PlanRequest) -> PlacedPlan:
    """A static plan, made in milliseconds: what replaces a planner that fails or is late."""
    return plan_batch(replace(request, planner=FALLBACK_PLANNER))


def _named_cluster(name: str, world_size: int) -> Cluster:
    """A cluster file with this run's ranks: `h100`, or `h100x16` where the run has 16."""
    _, x, gpus = name.rpartition("x")
    if x and gpus.isdecimal():
        if int(gpus) != world_size:
            raise ConfigError(
                f"cluster.name {name!r} has {gpus} GPUs, but the run has "
                f"{count_text(world_size, 'rank')}; leave out x{gpus}, or start as many ranks"
            )
        return load_cluster(name)
    return load_cluster(f"{name}x{world_size}")


def _check_every_shape_fits(session: Session, cluster: Cluster) -> None:
    """Plan one clip of every shape, so that one that fits nowhere is named before step 1."""
    rows = session.prepared.train.rows
    first_of_shape = {row.bucket: item for item, row in reversed(tuple(enumerate(rows)))}
    items = tuple(sorted(first_of_shape.values()))
    batch = session.prepared.train.batch_of(items, 0)
    if session.encoders is not None:
        batch = with_everything_missing(batch)
    fallback_plan(replace(session.plan_request(0, cluster), batch=batch))
