"""A pipeline over layers, for reference: its steps are no plans of cascades, so it stands apart."""

from dataclasses import dataclass

from arachne.core.units import count_text, seconds_text
from arachne.reporting.tables import share_text


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFigures:
    """Pipelines on all batches of a comparison; None where they cannot hold some batch.

    Attributes:
        name: The system's.
        step_s: Mean of the steps, their ends included.
        ratio: That over the mean step of `arachne`; None too where `arachne` did not take part.
        num_stages: GPUs of one pipeline.
        bubble_ratio: Mean share of the time before the step's end in which GPUs do not compute.
        ideal_bubble_ratio: The mean of what equal micro-batches would leave.
        recomputed_steps: Steps in which activations are computed again.
        failure: Why there is none; empty if there is.
    """

    name: str
    step_s: float | None = None
    ratio: float | None = None
    num_stages: int | None = None
    bubble_ratio: float | None = None
    ideal_bubble_ratio: float | None = None
    recomputed_steps: int | None = None
    failure: str = ""

    @property
    def text(self) -> str:
        """One line."""
        if self.step_s is None or self.bubble_ratio is None or self.ideal_bubble_ratio is None:
            return f"{self.name} (for reference): {self.failure}"
        beside = "" if self.ratio is None else f", {self.ratio:.3f} × arachne"
        return (
            f"{self.name} (for reference: layers over GPUs, no cascades): mean step "
            f"{seconds_text(self.step_s)}{beside}; {count_text(self.num_stages or 0, 'stage')}, "
            f"idle {share_text(self.bubble_ratio)} before the step's end, "
            f"{share_text(self.ideal_bubble_ratio)} if its micro-batches were equal; "
            f"activations computed again in {count_text(self.recomputed_steps or 0, 'step')}"
        )
