"""A cluster whose figures reproduce measured launches of one model.

The cost model is linear in 1, matrix FLOPs and attention FLOPs, and in the number and the bytes of
collective steps. Non-negative least squares on rows divided by their measured time finds the
coefficients with the least relative error.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median
from typing import Any

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.cluster import Cluster, Device, Link
from arachne.core.errors import ConfigError
from arachne.core.model_shape import ModelShape
from arachne.cost.model import CostModel, rank_work
from arachne.cost.traffic import launch_traffic

_FASTEST_S = 1e-18
"""Seconds per FLOP or byte that stand for "too fast to measure"; rates stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured launch, forward and backward.

    Attributes:
        num_tokens: Tokens of one clip.
        num_clips: Clips stacked in the launch.
        degree: Ranks, all of one node.
        compute_s: Seconds computing, on the slowest rank.
        communicate_s: Seconds in collectives, waiting for others not counted; 0 at degree 1.
    """

    num_tokens: int
    num_clips: int
    degree: int
    compute_s: float
    communicate_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Both parts."""
        return self.compute_s + self.communicate_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A fitted cluster and how well it reproduces what it was fitted to.

    Attributes:
        cluster: The cluster with fitted `device` and `intra_node`.
        median_error: Median of |predicted / measured − 1| over the measurements.
        p95_error: 95th percentile of the same (nearest rank).
    """

    cluster: Cluster
    median_error: float
    p95_error: float


def fit_device(
    shape: ModelShape,
    cluster: Cluster,
    measurements: Sequence[Measurement],
    *,
    element_bytes: int = 4,
) -> Calibration:
    """Fit the device's rates and overheads, and the link inside a node.

    One shape cannot tell fixed costs apart: all of them end up in `layer_s`, with `launch_s` and
    `half_rate_tokens` 0. Without a launch of degree above 1 the link stays as it is in `cluster`.

    Raises:
        ConfigError: There is no measurement, or one took no time.
    """
    if not measurements or min(m.compute_s for m in measurements) <= 0.0:
        raise ConfigError(
            f"calibration got {len(measurements)} measurements and needs at least one, each longer "
            "than 0 s; measure again"
        )
    device = _fitted_device(shape, cluster.device, measurements, element_bytes)
    link = _fitted_link(shape, cluster.intra_node, measurements, element_bytes)
    fitted = replace(cluster, device=device, intra_node=link)
    costs = CostModel(model=shape, cluster=fitted, element_bytes=element_bytes)
    errors = sorted(abs(_predicted_s(costs, m) / m.total_s - 1.0) for m in measurements)
    return Calibration(
        cluster=fitted,
        median_error=median(errors),
        p95_error=errors[ceil(0.95 * len(errors)) - 1],
    )


def _fitted_device(
    shape: ModelShape, device: Device, measurements: Sequence[Measurement], element_bytes: int
) -> Device:
    works = [rank_work(shape, m.num_tokens, m.num_clips, m.degree) for m in measurements]
    times_s = [m.compute_s for m in measurements]
    fixed_s, matmul_s, attention_s = _non_negative_fit(
        [(1.0, work.matmul_flops, work.attention_flops) for work in works], times_s
    )
    if not (matmul_s > 0.0 and attention_s > 0.0):
        # Too few or too similar sizes: one rate for both kinds of product is still sound.
        fixed_s, matmul_s = _non_negative_fit(
            [(1.0, work.matmul_flops + work.attention_flops) for work in works], times_s
        )
        attention_s = matmul_s
    fitted = replace(
        device,
        matmul_flops_per_s=1.0 / max(matmul_s, _FASTEST_S),
        attention_flops_per_s=1.0 / max(attention_s, _FASTEST_S),
        half_rate_tokens=0.0,
        launch_s=0.0,
        layer_s=0.0,
    )
    return _with_fixed_cost(shape, fitted, fixed_s, element_bytes)


def _with_fixed_cost(
    shape: ModelShape, device: Device, fixed_s: float, element_bytes: int
) -> Device:
    """Let a launch cost `fixed_s`, whatever is in it."""
    single = Cluster(
        name="calibration",
        num_nodes=1,
        gpus_per_node=1,
        device=device,
        intra_node=Link(latency_s=0.0, bandwidth_bytes_per_s=1.0),
        inter_node=Link(latency_s=0.0, bandwidth_bytes_per_s=1.0),
    )
    add_s = CostModel(model=shape, cluster=single, element_bytes=element_bytes).gradient_add_s
    if fixed_s >= add_s:
        return replace(device, layer_s=(fixed_s - add_s) / shape.num_layers)
    # Even adding the gradients was modelled slower than the whole fixed cost: memory is faster.
    moved_bytes = add_s * device.memory_bytes_per_s
    return replace(device, memory_bytes_per_s=moved_bytes / max(fixed_s, moved_bytes * _FASTEST_S))


def _fitted_link(
    shape: ModelShape, link: Link, measurements: Sequence[Measurement], element_bytes: int
) -> Link:
    split = [m for m in measurements if m.degree > 1 and m.communicate_s > 0.0]
    if not split:
        return link
    columns: list[tuple[float, ...]] = []
    for m in split:
        traffic = launch_traffic(shape, m.num_tokens, m.num_clips, m.degree, element_bytes)
        num_steps = traffic.seconds(Link(latency_s=1.0, bandwidth_bytes_per_s=float("inf")))
        num_bytes = traffic.seconds(Link(latency_s=0.0, bandwidth_bytes_per_s=1.0))
        columns.append((num_steps, num_bytes))
    latency_s, byte_s = _non_negative_fit(columns, [m.communicate_s for m in split])
    return Link(latency_s=latency_s, bandwidth_bytes_per_s=1.0 / max(byte_s, _FASTEST_S))


def _non_negative_fit(
    columns: Sequence[tuple[float, ...]], times_s: Sequence[float]
) -> tuple[float, ...]:
    """Coefficients ≥ 0 that minimise Σ (predicted / measured − 1)².

    Columns differ by many orders of magnitude, so each is scaled to a largest entry of 1.
    """
    from scipy import optimize  # half a second to import  # pyright: ignore[reportMissingTypeStubs]

    rows = [[x / t for x in row] for row, t in zip(columns, times_s, strict=True)]
    scales = [max(row[i] for row in rows) or 1.0 for i in range(len(rows[0]))]
    scaled = [[x / scale for x, scale in zip(row, scales, strict=True)] for row in rows]
    nnls: Any = getattr(optimize, "nnls")  # noqa: B009 - scipy has no complete types
    solution = nnls(scaled, [1.0] * len(rows))[0]
    return tuple(float(x) / scale for x, scale in zip(solution, scales, strict=True))


def _predicted_s(costs: CostModel, measurement: Measurement) -> float:
    cascade = Cascade(
        module="dit",
        slots=tuple(range(measurement.num_clips)),
        bucket=Bucket(width=1, height=1, frames=1),
        num_tokens=measurement.num_tokens,
    )
    # Measured ranks share a node; a larger degree than a node has is predicted as if they did.
    node = replace(costs.cluster, num_nodes=1, gpus_per_node=costs.cluster.num_gpus)
    one_node = replace(costs, cluster=node)
    return one_node.launch_s(cascade, tuple(range(measurement.degree)))
