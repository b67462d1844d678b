"""Which ranks a run counted as slow, in words for its report."""

from arachne.core.units import percent_text, step_text
from arachne.reporting.run_files import Metrics


def slow_rank_notes(metrics: Metrics) -> list[str]:
    """A line for each rank that plans allowed for: since when, until when, and its newest speed."""
    steps_of: dict[int, list[tuple[int, float]]] = {}
    for row in metrics.train:
        for rank, speed in enumerate(row.rank_speeds or ()):
            if speed < 1.0:
                steps_of.setdefault(rank, []).append((row.step, speed))
    notes: list[str] = []
    for rank, found in sorted(steps_of.items()):
        (first, _), (last, speed) = found[0], found[-1]
        until = " on" if last == metrics.train[-1].step else f" to {step_text(last)}"
        notes.append(
            f"rank {rank} ran slower than predicted: plans allowed for it from "
            f"{step_text(first)}{until}, at {percent_text(speed)} of the fastest rank's speed"
        )
    return notes
