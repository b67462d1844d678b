"""How well the cost model knows a GPU: fitted to half of the shapes, it predicts the others."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from statistics import median
from typing import Any

from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.launch_mode import LaunchMode
from arachne.core.model_shape import ModelShape
from arachne.core.placed_plan import PlacedLaunch
from arachne.cost.activations import launch_activations
from arachne.cost.calibration import fit_device, predicted_s
from arachne.cost.cluster_files import load_cluster
from arachne.cost.measured_launch import MeasuredLaunch
from arachne.cost.memory import launch_use, resident_use
from arachne.cost.model import CostModel
from arachne.cost.training_state import FULL_TRAINING

_PARTS = ("length", "share", "recompute", "stack")
"""Rows that training would run: torch's own kernel, blocks that are not compiled."""

_LATENT_CHANNELS = 16
_BUCKET = Bucket(width=16, height=16, frames=1)
"""Costs of training look at tokens alone."""


def fitted(found: dict[str, Any]) -> dict[str, Any]:
    """Errors of seconds on shapes that the fit has not seen, and of peak memory.

    Memory is compared with what a rank holds without optimizer, which this benchmark has not.
    """
    costs = _costs(found)
    rows = [row for row in found["rows"] if "seconds" in row]
    shapes = {_shape(row): row for row in rows if row["part"] in _PARTS}
    launches = [_launch(row) for _, row in sorted(shapes.items())]
    seen, unseen = launches[::2], launches[1::2]
    calibration = fit_device(costs, seen)
    fit = replace(costs, cluster=calibration.cluster)
    errors = sorted(
        abs(predicted_s(fit, each.launch)[0] / each.total_s - 1.0) for each in unseen
    )  # of computing alone: one GPU exchanges nothing
    device = calibration.cluster.device
    return {
        "fitted_shapes": len(seen),
        "predicted_shapes": len(unseen),
        "seconds_error_median": median(errors),
        "seconds_error_p95": _p95(errors),
        "matmul_flops_per_s": device.matmul_flops_per_s,
        "attention_flops_per_s": device.attention_flops_per_s,
        "layer_s": device.layer_s,
        **_memory(costs, rows),
    }


def _memory(costs: CostModel, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    with_peak = [row for row in rows if "peak_bytes" in row and not row["is_compiled"]]
    mixed = [row for row in with_peak if row["part"] == "mixed"]
    if not with_peak:
        return {}
    errors = {
        name: sorted(abs(_predicted_bytes(costs, row) / row["peak_bytes"] - 1.0) for row in chosen)
        for name, chosen in (("memory", with_peak), ("mixed_memory", mixed))
        if chosen
    }
    told: dict[str, Any] = {}
    for name, of_part in errors.items():
        told |= {f"{name}_error_median": median(of_part), f"{name}_error_p95": _p95(of_part)}
    if mixed:
        told["mixed_most_unused_bytes"] = max(row["unused_bytes"] for row in mixed)
    return told


def _costs(found: dict[str, Any]) -> CostModel:
    size = dict(found["size"])
    return CostModel(
        model=ModelShape(family="wan", latent_channels=_LATENT_CHANNELS, **size),
        cluster=load_cluster("h200x16"),
        element_bytes=2 if found["device"] != "cpu" else 4,
    )


def _shape(row: dict[str, Any]) -> tuple[int, int, int, int]:
    return row["num_tokens"], row["num_clips"], row["degree"], row["recompute_layers"]


def _launch(row: dict[str, Any]) -> MeasuredLaunch:
    """A launch of which every rank took what one took, exchanges aside."""
    degree = row["degree"]
    cascade = Cascade(
        module="dit",
        slots=tuple(range(row["num_clips"])),
        bucket=_BUCKET,
        num_tokens=row["num_tokens"],
    )
    return MeasuredLaunch(
        launch=PlacedLaunch(
            cascade=cascade,
            ranks=tuple(range(degree)),
            start_s=0.0,
            duration_s=row["seconds"],
            mode=LaunchMode(recompute_layers=row["recompute_layers"]),
        ),
        rank_compute_s=(row["seconds"],) * degree,
        total_s=row["seconds"],
    )


def _predicted_bytes(costs: CostModel, row: dict[str, Any]) -> float:
    tokens, clips, degree, level = _shape(row)
    made = launch_activations(costs.model, tokens, clips, degree, costs.element_bytes)
    resident = resident_use(costs.model, 1, costs.element_bytes, FULL_TRAINING)
    return launch_use(replace(resident, optimizer=0.0), made, level).total


def _p95(ascending: Sequence[float]) -> float:
    return ascending[ceil(0.95 * len(ascending)) - 1]
