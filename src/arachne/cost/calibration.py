"""A cluster whose figures reproduce measured launches of one model.

The seconds of a launch are linear in its fixed cost, in the seconds of a FLOP in matrix products
and in attention, and in latency and seconds per byte of each kind of link. A robust fit of relative
errors finds these.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from statistics import median

from arachne.core.cluster import Cluster, Device, Link
from arachne.core.errors import ConfigError
from arachne.core.placed_plan import PlacedLaunch
from arachne.cost.measured_launch import MeasuredLaunch, ShapeKey
from arachne.cost.model import CostModel
from arachne.cost.rank_work import RankWork, rank_work
from arachne.cost.robust_fit import Prior, outlier_limit, robust_fit

_FASTEST_S = 1e-18
"""Seconds per FLOP or byte that stand for "too fast to measure"; rates stay finite."""

_LEAST_SHARE = 0.1
"""Of a launch's time that FLOPs and fixed cost have at least, whatever else is modelled."""

_TRUST_IN_GUESS = 1e-6
"""Launches that the guess before the first measurement is worth. *Assumption*: it settles what
launches of few shapes leave open, and nothing else."""

_NUM_COEFFICIENTS = 5
"""Fixed cost, two rates, latency and bandwidth."""

_STEP = Link(latency_s=1.0, bandwidth_bytes_per_s=inf)
_BYTE = Link(latency_s=0.0, bandwidth_bytes_per_s=1.0)
_NOTHING = Link(latency_s=0.0, bandwidth_bytes_per_s=inf)
"""Links on which a launch exchanges for as many seconds as it has steps, bytes, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A fitted cluster and how well it reproduces what was measured.

    Attributes:
        cluster: The cluster with fitted `device` and links.
        median_error: Median of |predicted / measured − 1| over all launches, outliers included.
        p95_error: 95th percentile of the same (nearest rank).
        num_launches: Launches that were measured.
        num_outliers: How many of them lie far from the fit, beside what is usual.
    """

    cluster: Cluster
    median_error: float
    p95_error: float
    num_launches: int
    num_outliers: int


def fit_device(costs: CostModel, launches: Sequence[MeasuredLaunch]) -> Calibration:
    """Fit the device's rates and overheads, and the links that launches used.

    Repeats of one shape count by their lower quartile: other work on the machine only ever adds
    time, and at a run's start it is a matter of seconds. One model cannot tell fixed costs apart:
    all of them end up in `layer_s`, with `launch_s` and `half_rate_tokens` 0. A link that no launch
    used stays as it is.

    Args:
        costs: The cost model before; ranks are taken for equally fast.
        launches: What was measured.

    Raises:
        ConfigError: There is no launch.
    """
    if not launches:
        raise ConfigError("calibration got 0 launches and needs at least one; measure again")
    even = replace(costs, cluster=replace(costs.cluster, speeds=()))
    cluster = fitted_cluster(even, undisturbed(launches), trust=_TRUST_IN_GUESS)
    errors = sorted(prediction_errors(replace(even, cluster=cluster), launches))
    limit = outlier_limit(errors, num_coefficients=_NUM_COEFFICIENTS)
    return Calibration(
        cluster=cluster,
        median_error=median(errors),
        p95_error=errors[ceil(0.95 * len(errors)) - 1],
        num_launches=len(errors),
        num_outliers=sum(error > limit for error in errors),
    )


def undisturbed(launches: Sequence[MeasuredLaunch]) -> list[MeasuredLaunch]:
    """Of each shape the launch at the lower quartile of total time: of up to 4 the fastest."""
    of_shape: dict[ShapeKey, list[MeasuredLaunch]] = defaultdict(list)
    for launch in launches:
        of_shape[launch.shape].append(launch)
    return [
        sorted(repeats, key=lambda launch: launch.total_s)[ceil(len(repeats) / 4) - 1]
        for repeats in of_shape.values()
    ]


def fitted_cluster(
    costs: CostModel,
    launches: Sequence[MeasuredLaunch],
    *,
    trust: float,
    speeds: tuple[float, ...] = (),
) -> Cluster:
    """The cluster of `costs` with the device and the links that reproduce the launches best.

    Args:
        costs: The present model; its cluster has no `speeds`.
        launches: What was measured.
        trust: How many launches the proportions of the present figures are worth: what the
            launches do not tell apart keeps them.
        speeds: Of every rank; what a slow rank computed counts as what a fast one would have.
    """
    intra_node, inter_node = _fitted_links(costs, launches, trust)
    return replace(
        costs.cluster,
        device=_fitted_device(costs, launches, speeds, trust),
        intra_node=intra_node,
        inter_node=inter_node,
    )


def predicted_s(costs: CostModel, launch: PlacedLaunch) -> tuple[float, float]:
    """Seconds computing and exchanging of a launch in the mode that it has.

    On ranks that are all as fast as the fastest, where the cluster of `costs` has no `speeds`.
    """
    return costs.seconds_in(launch.mode, launch.cascade, launch.ranks)


def prediction_errors(
    costs: CostModel, launches: Sequence[MeasuredLaunch], speeds: tuple[float, ...] = ()
) -> list[float]:
    """|predicted / measured − 1| of each launch, as if all ranks were as fast as the fastest.

    The cluster of `costs` has no `speeds`.
    """
    measured_s = [each.compute_s(speeds) + each.communicate_s for each in launches]
    return [
        abs(sum(predicted_s(costs, each.launch)) / seconds - 1.0)
        for each, seconds in zip(launches, measured_s, strict=True)
    ]


def _fitted_device(
    costs: CostModel, launches: Sequence[MeasuredLaunch], speeds: tuple[float, ...], trust: float
) -> Device:
    device = costs.cluster.device
    works = [_work(costs, each.launch) for each in launches]
    measured_s = [each.compute_s(speeds) for each in launches]
    times_s = [
        max(seconds - _extra_s(costs, each.launch), _LEAST_SHARE * seconds)
        for each, seconds in zip(launches, measured_s, strict=True)
    ]
    lost_flops = device.half_rate_tokens * works[0].flops_per_half_rate_token
    present_s = (
        costs.launch_overhead_s + lost_flops / device.matmul_flops_per_s,
        1.0 / device.matmul_flops_per_s,
        1.0 / device.attention_flops_per_s,
    )
    columns = [(1.0, work.matmul_flops, work.attention_flops) for work in works]
    prior = Prior(coefficients=_scaled(present_s, columns, times_s), weight=trust)
    fixed_s, matmul_s, attention_s = robust_fit(columns, times_s, prior).coefficients
    if not (matmul_s > 0.0 and attention_s > 0.0):
        # Noise has taken one for the other: one rate for both kinds of product is still sound.
        fixed_s, matmul_s = robust_fit(
            [(1.0, work.matmul_flops + work.attention_flops) for work in works], times_s
        ).coefficients
        attention_s = matmul_s
    fitted = replace(
        device,
        matmul_flops_per_s=1.0 / max(matmul_s, _FASTEST_S),
        attention_flops_per_s=1.0 / max(attention_s, _FASTEST_S),
        half_rate_tokens=0.0,
        launch_s=0.0,
        layer_s=0.0,
    )
    return _with_fixed_cost(costs, fitted, fixed_s)


def _work(costs: CostModel, launch: PlacedLaunch) -> RankWork:
    cascade = launch.cascade
    return rank_work(
        costs.model,
        cascade.num_tokens,
        cascade.num_clips,
        launch.degree,
        launch.mode,
        costs.state,
    )


def _extra_s(costs: CostModel, launch: PlacedLaunch) -> float:
    """What the present model counts for the launch's mode besides FLOPs and the fixed cost."""
    device = replace(
        costs.cluster.device,
        matmul_flops_per_s=inf,
        attention_flops_per_s=inf,
        half_rate_tokens=0.0,
    )
    return predicted_s(_with(costs, device=device), launch)[0] - costs.launch_overhead_s


def _with_fixed_cost(costs: CostModel, device: Device, fixed_s: float) -> Device:
    """Let a launch cost `fixed_s`, whatever is in it."""

    def overhead_s(layer_s: float) -> float:
        return _with(costs, device=replace(device, layer_s=layer_s)).launch_overhead_s

    least_s = overhead_s(0.0)
    if fixed_s >= least_s:
        return replace(device, layer_s=(fixed_s - least_s) / (overhead_s(1.0) - least_s))
    # Even adding the gradients was modelled slower than the whole fixed cost: memory is faster.
    moved_bytes = least_s * device.memory_bytes_per_s
    return replace(device, memory_bytes_per_s=moved_bytes / max(fixed_s, moved_bytes * _FASTEST_S))


def _fitted_links(
    costs: CostModel, launches: Sequence[MeasuredLaunch], trust: float
) -> tuple[Link, Link]:
    """The connections inside a node and between nodes; one that no launch used stays."""
    links = costs.cluster.intra_node, costs.cluster.inter_node
    split = [each for each in launches if each.communicate_s > 0.0]
    if not split:
        return links
    probes = [
        _with(costs, intra_node=intra, inter_node=inter)
        for intra, inter in (
            (_STEP, _NOTHING),
            (_BYTE, _NOTHING),
            (_NOTHING, _STEP),
            (_NOTHING, _BYTE),
        )
    ]
    columns = [tuple(predicted_s(probe, each.launch)[1] for probe in probes) for each in split]
    times_s = [each.communicate_s for each in split]
    present_s: list[float] = []
    for first, link in zip((0, 2), links, strict=True):
        figures = link.latency_s, 1.0 / link.bandwidth_bytes_per_s
        present_s += _scaled(figures, [row[first : first + 2] for row in columns], times_s)
    prior = Prior(coefficients=tuple(present_s), weight=trust)
    found_s = robust_fit(columns, times_s, prior).coefficients
    intra_node, inter_node = (
        Link(
            latency_s=found_s[first],
            bandwidth_bytes_per_s=1.0 / max(found_s[first + 1], _FASTEST_S),
        )
        if any(row[first] for row in columns)
        else link
        for first, link in zip((0, 2), links, strict=True)
    )
    return intra_node, inter_node


def _scaled(
    present_s: tuple[float, ...], columns: Sequence[tuple[float, ...]], times_s: Sequence[float]
) -> tuple[float, ...]:
    """Present figures, all changed by the one factor that suits the launches that use them."""
    predicted = [sum(x * s for x, s in zip(row, present_s, strict=True)) for row in columns]
    factors = [t / p for t, p in zip(times_s, predicted, strict=True) if p > 0.0]
    factor = median(factors) if factors else 1.0
    return tuple(factor * s for s in present_s)


def _with(costs: CostModel, **figures: Device | Link) -> CostModel:
    """The same model on a cluster of other figures."""
    return replace(costs, cluster=replace(costs.cluster, **figures))
