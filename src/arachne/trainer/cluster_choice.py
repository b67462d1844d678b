"""What a run plans for: a named cluster, the one of its checkpoint, or this machine, measured."""

from dataclasses import replace

from arachne.core.cluster import Cluster
from arachne.core.errors import ConfigError, InfeasibleError
from arachne.core.placed_plan import PlacedPlan
from arachne.core.units import count_text, percent_text
from arachne.cost.cluster_files import cluster_on_machines, load_cluster, says_its_gpus
from arachne.runtime.machines import Machines
from arachne.trainer.dry_run import dry_run
from arachne.trainer.measure import calibrated, check_measurable, guessed_cluster
from arachne.trainer.memory_reports import raised_by_reports
from arachne.trainer.online_encoders import with_everything_missing
from arachne.trainer.planning import PlanRequest, plan_batch
from arachne.trainer.session import Session

FALLBACK_PLANNER = "static_degree_longest_first"


def chosen_cluster(session: Session, known: Cluster | None) -> Cluster:
    """The run's cluster; `known` is a checkpoint's, which serves as long as the ranks are as many.

    Beside a named cluster it counts only where the run corrects its cost model. All ranks call it
    together.

    Raises:
        ConfigError: See `check_cluster`.
        InfeasibleError: A clip of the dataset fits nowhere; told before anything is measured.
        RankMemoryError: In the dry run a rank ran out of memory where others wait for it.
    """
    cluster = _known_cluster(session, known)
    is_measured = cluster is None
    machines = session.world.machines
    if cluster is None:
        cluster = guessed_cluster(session)
    if not machines.are_alike:
        session.say(f"{machines.text} are planned for as {_nodes_text(cluster)}")
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
    name, machines = session.config.cluster.name, session.world.machines
    if name == "auto":
        is_as_before = known is not None and _has_nodes(known, machines.sizes)
        return known if is_as_before else None
    named = _named_cluster(name, machines)
    is_corrected = session.config.planner.recalibrate_every > 0
    nodes = (named.gpus_per_node,) * named.num_nodes
    return known if known is not None and is_corrected and _has_nodes(known, nodes) else named


def _has_nodes(cluster: Cluster, sizes: tuple[int, ...]) -> bool:
    return (cluster.gpus_per_node,) * cluster.num_nodes == sizes


def check_cluster(name: str, machines: Machines) -> None:
    """Refuse a `cluster.name` that a run on these machines cannot be planned for.

    Raises:
        ConfigError: The named cluster does not exist, has other GPUs than the run has ranks or
            nodes that go over machines, or machines that cannot be measured should be.
    """
    if name == "auto":
        check_measurable(machines)
    else:
        _named_cluster(name, machines)


def fallback_plan(request: PlanRequest) -> PlacedPlan:
    """A static plan, made in milliseconds: what replaces a planner that fails or is late."""
    return plan_batch(replace(request, planner=FALLBACK_PLANNER))


def _named_cluster(name: str, machines: Machines) -> Cluster:
    """A cluster file with this run's ranks: `h100`, or `h100x16` where the run has 16.

    Several nodes may be tried out on one machine. Several machines have nodes of their own, so that
    plans know which ranks are near each other.
    """
    num_ranks, is_one = sum(machines.sizes), len(machines.sizes) == 1
    if not says_its_gpus(name):
        if is_one:
            return load_cluster(f"{name}x{num_ranks}")
        return cluster_on_machines(name, machines.sizes)
    cluster = load_cluster(name)
    shorter = "" if "+" in name else f"leave out x{cluster.num_gpus}, or "
    if cluster.num_gpus != num_ranks:
        raise ConfigError(
            f"cluster.name {name!r} has {cluster.num_gpus} GPUs, but the run has "
            f"{count_text(num_ranks, 'rank')}; {shorter}start as many ranks"
        )
    if not is_one and any(size % cluster.gpus_per_node for size in machines.sizes):
        raise ConfigError(
            f"cluster.name {name!r} has {_nodes_text(cluster)}, but the run has {machines.text}; "
            f"{shorter}start {count_text(cluster.gpus_per_node, 'rank')} on each machine"
        )
    return cluster


def _nodes_text(cluster: Cluster) -> str:
    gpus = count_text(cluster.gpus_per_node, "GPU")
    return f"{count_text(cluster.num_nodes, 'node')} of {gpus}"


def _check_every_shape_fits(session: Session, cluster: Cluster) -> None:
    """Plan one clip of every shape, so that one that fits nowhere is named before step 1."""
    rows = session.prepared.train.rows
    first_of_shape = {row.bucket: item for item, row in reversed(tuple(enumerate(rows)))}
    items = tuple(sorted(first_of_shape.values()))
    batch = session.prepared.train.batch_of(items, 0)
    if session.encoders is not None:
        batch = with_everything_missing(batch)
    try:
        fallback_plan(replace(session.plan_request(0, cluster), batch=batch))
    except InfeasibleError as error:
        if not session.raised_reserves.pairs:
            raise
        raise InfeasibleError(f"{error}; {raised_by_reports(session.run_dir)}") from error
