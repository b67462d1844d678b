"""Peer `adaptiveload_buckets`: AdaptiveLoad's bucket batches, by its description.

As Open-Sora's buckets, but a bucket's batch of B clips of S tokens is limited twice: by memory
(B·S, here what fits) and by computing, B·S^p ≤ budget, so that batches of all buckets take about as
long. The exponent p is fitted to the costs of single clips; degree and budget are the best ones.
Synchronization: all groups meet at the end of each step. Ignored: that losses are averaged over
groups, whatever they hold.
"""

from collections.abc import Iterable
from math import log

from arachne.core.batch import BatchClip
from arachne.planner.epochs.bucket_batches import (
    BatchSizes,
    Buckets,
    by_bucket,
    drawn_epoch,
    sizes_by_degree,
)
from arachne.planner.epochs.epoch import Epoch, EpochProblem, cheapest, stack_of

NAME = "adaptiveload_buckets"


def adaptiveload_epoch(problem: EpochProblem) -> Epoch:
    """The epoch at the degree and budget that cost least; ties to the smaller ones.

    Raises:
        InfeasibleError: Some clip does not fit at each degree; says so for the largest one.
    """
    buckets = by_bucket(problem.clips)
    tried = [
        drawn_epoch(problem, NAME, buckets, sizes, degree)
        for degree, limits in sizes_by_degree(problem, buckets)
        for sizes in _balanced_sizes(problem, buckets, limits, degree)
    ]
    return cheapest(tried, problem)


def _balanced_sizes(
    problem: EpochProblem, buckets: Buckets, limits: BatchSizes, degree: int
) -> Iterable[BatchSizes]:
    """Batch sizes for budgets of 1, 2, 4, … of the longest clips, as far as those fit."""
    exponent = compute_exponent(problem, [clips[0] for clips in buckets.values()], degree)
    longest = max(buckets, key=lambda bucket: buckets[bucket][0].num_tokens)
    loads = {bucket: clips[0].num_tokens ** exponent for bucket, clips in buckets.items()}
    num_longest = 1
    while num_longest <= limits[longest]:
        budget = num_longest * loads[longest]
        yield {
            bucket: min(limit, max(1, int(budget / loads[bucket] + 1e-9)))
            for bucket, limit in limits.items()
        }
        num_longest *= 2


def compute_exponent(problem: EpochProblem, clips: list[BatchClip], degree: int) -> float:
    """p of seconds ∝ tokens^p, least squares of the logarithms of single clips; 1 for one length.

    At least 1: what a launch costs whatever is in it would make short clips look too dear.
    """
    gpus = tuple(range(degree))
    points = [
        (log(clip.num_tokens), log(problem.sampled[0].duration_s(stack_of(clip, 1), gpus)))
        for clip in clips
    ]
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0.0:
        return 1.0
    return max(1.0, sum((x - mean_x) * (y - mean_y) for x, y in points) / spread)
