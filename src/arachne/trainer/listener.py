"""Who is told what of a run: the command line shows it, and writes the run's files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from arachne.core.batch import Batch
from arachne.core.placed_plan import PlacedPlan
from arachne.core.rank_log import RankLog
from arachne.core.trace import Trace
from arachne.cost.measured_launch import MeasuredLaunch
from arachne.trainer.interval_samples import SampleVideo
from arachne.trainer.step import StepOutcome
from arachne.trainer.step_figures import StepFigures
from arachne.trainer.validation import ValidationLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What is known of a step once it is over.

    Attributes:
        trace: Spans of all ranks, for steps that are traced.
        launches: What each launch took; those that had to do without a clip are left out.
        lr: Learning rate.
        modelled_step_s: Seconds that the cost model promised, reduction and optimizer counted.
        figures: FLOPs, waiting for data, memory and noise levels, over all ranks.
        utilisation: Model FLOPs utilisation, against the matmul rate of the run's first cluster.
        num_skipped: Steps of the run so far that changed nothing.
        num_left_out: Clips that some step so far had to do without.
        rank_scores: Of each rank, measured over predicted computing, beside what is usual, at the
            newest correction of the cost model; known to rank 0.
        rank_speeds: What plans count on, beside the fastest rank; empty if all are alike; known to
            rank 0.
    """

    step: int
    batch: Batch
    plan: PlacedPlan
    outcome: StepOutcome
    trace: Trace | None
    launches: tuple[MeasuredLaunch, ...]
    lr: float
    modelled_step_s: float
    figures: StepFigures
    utilisation: float
    num_skipped: int = 0
    num_left_out: int = 0
    rank_scores: Mapping[int, float] = field(default_factory=dict[int, float])
    rank_speeds: tuple[float, ...] = ()

    @property
    def launch_error(self) -> float | None:
        """Median over the launches of |promised / measured − 1|; None if there was none."""
        return median(each.plan_error for each in self.launches) if self.launches else None

    @property
    def left_out(self) -> frozenset[str]:
        """Names of the clips that the step had to do without."""
        kept = zip(self.batch.clips, self.outcome.vote.is_kept, strict=True)
        return frozenset(clip.name for clip, is_kept in kept if not is_kept)


def _is_never(done: int) -> bool:
    return False


def _tell_nobody(*_: object) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Is told of a run, on every rank unless an attribute says otherwise.

    Steps that are `done` are counted from 1; before the first step 0 are done.

    Attributes:
        on_step: A step is over.
        on_validation: The validation loss after so many steps.
        on_rank_log: This rank's log of a traced step.
        on_begin: Training goes on, or starts, after so many steps; what was told of later ones
            will be told again.
        is_validated: On rank 0: whether the validation loss after so many steps is known already.
        on_samples: This rank's own videos, drawn after so many steps.
        on_sampled: On rank 0: all ranks have been told of their videos.
        is_sampled: On rank 0: whether the videos after so many steps are there already.
    """

    on_step: Callable[[StepReport], None]
    on_validation: Callable[[int, ValidationLoss], None]
    on_rank_log: Callable[[RankLog], None]
    on_begin: Callable[[int], None] = _tell_nobody
    is_validated: Callable[[int], bool] = _is_never
    on_samples: Callable[[int, tuple[SampleVideo, ...]], None] = _tell_nobody
    on_sampled: Callable[[int], None] = _tell_nobody
    is_sampled: Callable[[int], bool] = _is_never
