"""GPipe's schedule: when each micro-batch passes each stage, forward and then back.

All forwards run before the first backward. A stage takes the micro-batches in their order on the
way forward and in the opposite order on the way back. m equal micro-batches on p stages leave them
idle for (p − 1) / (m + p − 1) of the time (Huang et al., 2019). With unequal ones of t seconds a
stage, equal stages take Σ t + (p − 1)·max t, so that more is lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Seconds of one micro-batch.

    Attributes:
        forward_s: On each stage.
        backward_s: On each stage, with what is computed again.
        send_s: From a stage to the next one or back, at each of the p - 1 borders.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    send_s: tuple[float, ...]

    def __post_init__(self) -> None:
        num_stages = len(self.forward_s)
        assert num_stages == len(self.backward_s) == len(self.send_s) + 1, self


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """One pipeline over all its micro-batches.

    Attributes:
        makespan_s: From the first forward to the end of the last backward.
        busy_s: Seconds of computing, all stages together.
        num_stages: Stages.
    """

    makespan_s: float
    busy_s: float
    num_stages: int

    @property
    def bubble_ratio(self) -> float:
        """Share of the stages' time in which they do not compute."""
        available_s = self.num_stages * self.makespan_s
        return 1.0 - self.busy_s / available_s if available_s else 0.0


def pipeline_run(micro_batches: Sequence[MicroBatch], num_stages: int) -> PipelineRun:
    """Run the micro-batches, in the given order; a stage sends while it computes the next one."""
    free_s = [0.0] * num_stages
    for micro_batch in micro_batches:
        arrival_s = 0.0
        for stage in range(num_stages):
            end_s = max(free_s[stage], arrival_s) + micro_batch.forward_s[stage]
            free_s[stage] = end_s
            if stage < num_stages - 1:
                arrival_s = end_s + micro_batch.send_s[stage]
    for micro_batch in reversed(micro_batches):
        arrival_s = 0.0
        for stage in reversed(range(num_stages)):
            end_s = max(free_s[stage], arrival_s) + micro_batch.backward_s[stage]
            free_s[stage] = end_s
            if stage:
                arrival_s = end_s + micro_batch.send_s[stage - 1]
    return PipelineRun(
        makespan_s=max(free_s, default=0.0),
        busy_s=sum(sum(made.forward_s) + sum(made.backward_s) for made in micro_batches),
        num_stages=num_stages,
    )


def ideal_bubble_ratio(num_stages: int, num_micro_batches: int) -> float:
    """(p − 1) / (m + p − 1): the bubble of equal micro-batches whose sending costs nothing."""
    return (num_stages - 1) / (num_micro_batches + num_stages - 1)
