"""An epoch: which clips each of its steps trains under one system, and on which GPUs.

Planners of one step are given its batch. Systems that draw their batches from buckets train other
clips in a step, and drop some; they compare by GPU-seconds per token over an epoch. A step of
theirs holds about as many tokens as the sampler's, by the size of batches and by accumulation, so
that all pay for about as many ends of steps.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from arachne.core.batch import Batch, BatchClip
from arachne.core.cascade import Cascade
from arachne.core.plan import Plan
from arachne.planner.problem import Planner, PlanningProblem
from arachne.planner.schedule import scheduled

Gpus = tuple[int, ...]

Work = tuple[Gpus, tuple[BatchClip, ...]]
"""Clips of one shape, stacked in one launch, and the GPUs that run it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochProblem:
    """The clips of an epoch and where they may run.

    Attributes:
        sampled: The sampler's steps; together they hold the epoch's clips.
        step_end_s: Seconds from a step's last launch to the next step, the same for all systems.
    """

    sampled: tuple[PlanningProblem, ...]
    step_end_s: float

    def __post_init__(self) -> None:
        assert self.sampled, "an epoch has at least one step"

    @property
    def clips(self) -> tuple[BatchClip, ...]:
        """All clips, in the sampler's order."""
        return tuple(clip for problem in self.sampled for clip in problem.batch.clips)

    @property
    def num_gpus(self) -> int:
        """GPUs of the cluster."""
        return self.sampled[0].num_gpus

    @property
    def degrees(self) -> tuple[int, ...]:
        """Degrees that may be used."""
        return self.sampled[0].degrees

    @property
    def seed(self) -> int:
        """Of the order in which batches are drawn."""
        return self.sampled[0].seed

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens of the sampler's steps: about what a step of every system is to hold."""
        return sum(clip.num_tokens for clip in self.clips) / len(self.sampled)

    def num_rounds(self, round_tokens: float) -> int:
        """Rounds of `round_tokens` tokens that a step accumulates, at least one."""
        return max(1, round(self.tokens_per_step / round_tokens))

    def step(self, index: int, clips: Iterable[BatchClip]) -> PlanningProblem:
        """A step that trains other clips than the sampler's."""
        batch = Batch(step=index, clips=tuple(clips))
        return replace(self.sampled[0], batch=batch, next_batch=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStep:
    """A step's clips, as a problem, and the plan that trains them."""

    problem: PlanningProblem
    plan: Plan

    @property
    def num_tokens(self) -> int:
        """Tokens of all clips of the step."""
        return sum(clip.num_tokens for clip in self.problem.batch.clips)


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """All steps of an epoch under one system; clips that are in none of them are dropped."""

    planner: str
    steps: tuple[EpochStep, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens that are trained."""
        return sum(step.num_tokens for step in self.steps)

    @property
    def num_clips(self) -> int:
        """Clips that are trained."""
        return sum(len(step.problem.batch.clips) for step in self.steps)


EpochPlanner = Callable[[EpochProblem], Epoch]
"""Raises InfeasibleError if some clip fits nowhere."""


def gpu_seconds_per_token(epoch: Epoch, problem: EpochProblem) -> float:
    """Modelled GPU-seconds of the whole epoch, steps' ends included, over the tokens it trains.

    Infinite for an epoch without a step.
    """
    seconds = sum(step.plan.makespan_s + problem.step_end_s for step in epoch.steps)
    return problem.num_gpus * seconds / epoch.num_tokens if epoch.steps else float("inf")


def cheapest(epochs: Sequence[Epoch], problem: EpochProblem) -> Epoch:
    """The epoch with the fewest GPU-seconds per token; the first of equals."""
    return min(epochs, key=lambda epoch: gpu_seconds_per_token(epoch, problem))


def epoch_step(problem: EpochProblem, planner: str, index: int, work: Sequence[Work]) -> EpochStep:
    """A step whose launches start as soon as their GPUs are free, in the given order."""
    step = problem.step(index, (clip for _, clips in work for clip in clips))
    placements: list[tuple[Cascade, Gpus]] = []
    first = 0
    for gpus, clips in work:
        placements.append((stack_of(clips[0], len(clips), first=first), gpus))
        first += len(clips)
    return EpochStep(problem=step, plan=scheduled(step, planner, placements))


def stack_of(clip: BatchClip, num_clips: int, *, first: int = 0) -> Cascade:
    """The training cascade of `num_clips` clips like `clip`, in slots from `first` on."""
    return Cascade(
        module="dit",
        slots=tuple(range(first, first + num_clips)),
        bucket=clip.bucket,
        num_tokens=clip.num_tokens,
    )


def sampled_epoch(problem: EpochProblem, name: str, planner: Planner) -> Epoch:
    """The sampler's steps as a planner of one step plans them; nothing is dropped.

    Raises:
        InfeasibleError: The planner found no plan for some step.
    """
    steps = tuple(EpochStep(problem=step, plan=planner(step)) for step in problem.sampled)
    return Epoch(planner=name, steps=steps)
