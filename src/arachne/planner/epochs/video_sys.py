"""Peer `videosys_dcp`: VideoSys' data-centric parallelism, by its description.

Degree (a power of two) and batch are profiled for each bucket: what costs fewest GPU-seconds per
clip, recomputed where that is cheaper. In each step groups of GPUs draw buckets, in random order,
until all GPUs have work; a group whose batch is short accumulates several, so that groups end
together. Synchronization: all groups meet at the end of each step. Ignored: what forming other
groups costs; that losses are averaged over groups, whatever they hold.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from arachne.core.batch import BatchClip
from arachne.core.bucket import Bucket
from arachne.planner.epochs.bucket_batches import (
    by_bucket,
    full_batches,
    most_clips_that_fit,
    share_of_a_group,
)
from arachne.planner.epochs.epoch import Epoch, EpochProblem, EpochStep, Work, epoch_step, stack_of
from arachne.planner.group_costs import powers_of_two
from arachne.planner.infeasible import does_not_fit

NAME = "videosys_dcp"

_ROUNDING = 1e-9
"""Batches; a group that ends exactly with the longest one counts as ending in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Profile:
    """How one bucket trains best: GPUs, clips of a batch, and the seconds that they take."""

    degree: int
    num_clips: int
    duration_s: float


_Waiting = Mapping[Bucket, deque[tuple[BatchClip, ...]]]
"""Full batches of each bucket that no step has drawn yet."""


def videosys_epoch(problem: EpochProblem) -> Epoch:
    """Steps until the waiting batches cannot give every GPU work; the rest is dropped.

    Raises:
        InfeasibleError: Some clip fits at no degree.
    """
    buckets = by_bucket(problem.clips)
    profiles = {bucket: _profile(problem, clips) for bucket, clips in buckets.items()}
    waiting: _Waiting = {
        bucket: deque(full_batches(clips, profiles[bucket].num_clips))
        for bucket, clips in buckets.items()
    }
    rng = Random(problem.seed)
    steps: list[EpochStep] = []
    while (drawn := _drawn_groups(waiting, profiles, problem.num_gpus, rng)) is not None:
        work = _accumulated(problem, drawn, waiting, profiles)
        steps.append(epoch_step(problem, NAME, len(steps), work))
    return Epoch(planner=NAME, steps=tuple(steps))


def _profile(problem: EpochProblem, clips: Sequence[BatchClip]) -> _Profile:
    """Fewest GPU-seconds per clip over degrees and batches of 1, 2, 4, … and all that fit."""
    costs = problem.sampled[0]
    found: list[tuple[float, _Profile]] = []
    degrees = powers_of_two(problem.degrees)  # groups side by side then lie on blocks
    for degree in degrees:
        limit = share_of_a_group(problem, clips, degree)
        most = most_clips_that_fit(problem, clips[0], degree, limit)
        for size in sorted({2**k for k in range(most.bit_length())} | {most} if most else ()):
            duration_s = costs.duration_s(stack_of(clips[0], size), tuple(range(degree)))
            profile = _Profile(degree=degree, num_clips=size, duration_s=duration_s)
            found.append((degree * duration_s / size, profile))
    if not found:
        alone, widest = problem.step(0, clips[:1]), tuple(range(degrees[-1]))
        raise does_not_fit(alone, stack_of(clips[0], 1), widest, planner=NAME)
    return min(found, key=lambda entry: entry[0])[1]


def _drawn_groups(
    waiting: _Waiting, profiles: Mapping[Bucket, _Profile], num_gpus: int, rng: Random
) -> list[Bucket] | None:
    """Buckets whose groups fill the GPUs as far as degrees allow; None if batches run out first.

    A bucket is drawn with a chance in proportion to its waiting batches.
    """
    left = {bucket: len(batches) for bucket, batches in waiting.items() if batches}
    drawn: list[Bucket] = []
    free = num_gpus
    while free:
        fitting = [bucket for bucket, count in left.items() if count]
        if not fitting:
            return None
        fitting = [bucket for bucket in fitting if profiles[bucket].degree <= free]
        if not fitting:
            break
        (bucket,) = rng.choices(fitting, weights=[left[bucket] for bucket in fitting])
        left[bucket] -= 1
        free -= profiles[bucket].degree
        drawn.append(bucket)
    return drawn


def _accumulated(
    problem: EpochProblem,
    drawn: Sequence[Bucket],
    waiting: _Waiting,
    profiles: Mapping[Bucket, _Profile],
) -> list[Work]:
    """Neighbouring GPUs for each group, the widest first, and batches until all end together.

    The longest group accumulates as many as bring the step nearest to the sampler's tokens; the
    others as many as they can in that time, and as still wait.
    """
    ordered = sorted(drawn, key=lambda bucket: -profiles[bucket].degree)
    firsts = [waiting[bucket].popleft() for bucket in ordered]  # every group has one at least
    longest_s = max(profiles[bucket].duration_s for bucket in ordered)
    round_tokens = sum(
        int(longest_s / profiles[bucket].duration_s + _ROUNDING) * len(batch) * batch[0].num_tokens
        for bucket, batch in zip(ordered, firsts, strict=True)
    )
    end_s = longest_s * problem.num_rounds(round_tokens)
    work: list[Work] = []
    first_gpu = 0
    for bucket, first_batch in zip(ordered, firsts, strict=True):
        profile = profiles[bucket]
        gpus = tuple(range(first_gpu, first_gpu + profile.degree))
        first_gpu += profile.degree
        more = min(len(waiting[bucket]), int(end_s / profile.duration_s + _ROUNDING) - 1)
        batches = [first_batch, *(waiting[bucket].popleft() for _ in range(more))]
        work += [(gpus, batch) for batch in batches]
    return work
