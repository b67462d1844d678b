"""What bucket systems share: how many clips fit in a batch, and batches dealt to equal groups."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from typing import TypeVar

from arachne.core.batch import BatchClip
from arachne.core.blocks import blocks
from arachne.core.bucket import Bucket
from arachne.planner.each_degree import at_each_degree
from arachne.planner.epochs.epoch import Epoch, EpochProblem, EpochStep, epoch_step, stack_of
from arachne.planner.infeasible import does_not_fit

T = TypeVar("T")

BatchSizes = Mapping[Bucket, int]
"""Clips of a full batch, by bucket."""

Buckets = Mapping[Bucket, Sequence[BatchClip]]
"""Clips by bucket."""


def by_bucket(clips: Sequence[BatchClip]) -> Buckets:
    """Clips by bucket, in their order; buckets in order of their first clip."""
    found: dict[Bucket, list[BatchClip]] = defaultdict(list)
    for clip in clips:
        found[clip.bucket].append(clip)
    return found


def sizes_that_fill_memory(problem: EpochProblem, buckets: Buckets, degree: int) -> BatchSizes:
    """The largest batch of each bucket that fits on `degree` GPUs, up to `share_of_a_group`.

    Raises:
        InfeasibleError: One clip of some bucket does not fit.
    """
    sizes: dict[Bucket, int] = {}
    for bucket, clips in buckets.items():
        limit = share_of_a_group(problem, clips, degree)
        sizes[bucket] = most_clips_that_fit(problem, clips[0], degree, limit)
        if not sizes[bucket]:
            alone, gpus = problem.step(0, clips[:1]), tuple(range(degree))
            raise does_not_fit(alone, stack_of(clips[0], 1), gpus)
    return sizes


def sizes_by_degree(problem: EpochProblem, buckets: Buckets) -> list[tuple[int, BatchSizes]]:
    """Each degree on which all clips fit, with the sizes that fill its memory.

    Raises:
        InfeasibleError: Some clip does not fit at each degree; says so for the largest one.
    """
    return at_each_degree(
        problem.degrees, lambda degree: (degree, sizes_that_fill_memory(problem, buckets, degree))
    )


def share_of_a_group(problem: EpochProblem, clips: Sequence[BatchClip], degree: int) -> int:
    """Most clips of a bucket that a batch on `degree` GPUs may hold, at least one.

    That is the group's share of a step's tokens, since all groups together are to train about as
    many as the sampler's steps do. A batch is no larger than its bucket either: an epoch is short
    beside a real one.
    """
    share_tokens = problem.tokens_per_step * degree / problem.num_gpus
    return max(1, min(len(clips), int(share_tokens / clips[0].num_tokens + 1e-9)))


def most_clips_that_fit(problem: EpochProblem, clip: BatchClip, degree: int, limit: int) -> int:
    """The most clips like `clip`, at most `limit`, that one launch can train; 0 if none fits.

    By bisection: memory grows with the number of clips.
    """
    costs, gpus = problem.sampled[0].costs, tuple(range(degree))
    fitting, failing = 0, limit + 1
    while failing - fitting > 1:
        middle = (fitting + failing) // 2
        if costs.fits(stack_of(clip, middle), gpus):
            fitting = middle
        else:
            failing = middle
    return fitting


def drawn_epoch(
    problem: EpochProblem, planner: str, buckets: Buckets, sizes: BatchSizes, degree: int
) -> Epoch:
    """Full batches in random order, one for each group of `degree` GPUs and round.

    What is left of a bucket beside its full batches is dropped, and so are batches that are too few
    for one more round.
    """
    batches = [
        batch for bucket in buckets for batch in full_batches(buckets[bucket], sizes[bucket])
    ]
    Random(problem.seed).shuffle(batches)
    groups = blocks(problem.num_gpus, degree)
    rounds = full_batches(batches, len(groups))
    if not rounds:
        return Epoch(planner=planner, steps=())
    num_tokens = sum(clip.num_tokens for drawn in rounds for batch in drawn for clip in batch)
    per_step = problem.num_rounds(num_tokens / len(rounds))
    steps: list[EpochStep] = []
    for first in range(0, len(rounds), per_step):
        work = [
            placed
            for drawn in rounds[first : first + per_step]
            for placed in zip(groups, drawn, strict=True)
        ]
        steps.append(epoch_step(problem, planner, len(steps), work))
    return Epoch(planner=planner, steps=tuple(steps))


def full_batches(items: Sequence[T], size: int) -> list[tuple[T, ...]]:
    """Items in order, `size` at a time; what is left beside full batches is left out."""
    return [tuple(items[first : first + size]) for first in range(0, len(items) - size + 1, size)]
