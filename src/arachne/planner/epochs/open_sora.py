"""Peer `opensora_buckets`: Open-Sora's bucket batches, by its description.

Clips wait in buckets. In each round every data-parallel group draws one bucket's batch, which fills
the memory of its GPUs or is the group's share of a step. One degree for all groups, the best one; a
launch is recomputed where that makes a larger batch fit. Synchronization: all groups meet at the
end of each step. Ignored: that a user may balance batch sizes by hand; that losses are averaged
over groups, whatever they hold.
"""

from arachne.planner.epochs.bucket_batches import by_bucket, drawn_epoch, sizes_by_degree
from arachne.planner.epochs.epoch import Epoch, EpochProblem, cheapest

NAME = "opensora_buckets"


def opensora_epoch(problem: EpochProblem) -> Epoch:
    """The epoch at the degree that costs least; ties to the smaller one.

    Raises:
        InfeasibleError: Some clip does not fit at each degree; says so for the largest one.
    """
    buckets = by_bucket(problem.clips)
    tried = [
        drawn_epoch(problem, NAME, buckets, sizes, degree)
        for degree, sizes in sizes_by_degree(problem, buckets)
    ]
    return cheapest(tried, problem)
