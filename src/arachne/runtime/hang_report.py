"""The words about a hang: one line that names the culprit, and a report of all ranks."""

from collections.abc import Mapping, Sequence

from arachne.core.units import step_text
from arachne.runtime.hang import Hang
from arachne.runtime.progress import RankProgress

_ACTIVITY_TEXTS = {
    "compute": "computing",
    "communicate": "exchanging data",
    "handoff": "handing results over",
    "load": "waiting for its clips",
    "reduce": "in a collective of all ranks",
    "optimizer": "updating parameters",
    "between": "between two pieces of work",
    "plan": "getting the next plan",
    "checkpoint": "writing a checkpoint",
    "validate": "validating",
    "sample": "drawing samples",
}
GO_ON = "start again with --resume-if-any to go on from the newest checkpoint"
"""What to do after a rank was lost."""


def headline(
    hang: Hang, ranks: Sequence[RankProgress], *, now_s: float, stopped: Sequence[int]
) -> str:
    """Who does not answer, since when, what it was doing, and who waits for it in what."""
    by_rank = {each.rank: each for each in ranks}
    if hang.cause == "elsewhere":
        return (
            f"ranks {span_text(hang.waiting)} wait for ranks {span_text(hang.culprits)} of other "
            f"machines in {_collective_text(by_rank[hang.waiting[0]])}; see the report there"
        )
    if hang.cause == "each other":
        first = by_rank[hang.culprits[0]]
        return (
            f"ranks {span_text(hang.culprits)} wait for each other, rank {first.rank} in "
            f"{_collective_text(first)}"
        )
    first = by_rank[hang.culprits[0]]
    if hang.cause == "inside":
        return (
            f"ranks {span_text(hang.culprits)} do not come out of {_collective_text(first)}, which "
            f"all of them entered {now_s - first.changed_at_s:.1f} s ago"
        )
    parts = [
        f"rank {each.rank} has not answered for {now_s - each.changed_at_s:.1f} s"
        f"{' (its process is stopped)' if each.rank in stopped else ''}, {place_text(each)}"
        for each in (by_rank[rank] for rank in hang.culprits)
    ]
    waiting = _nearest_waiting(hang, by_rank)
    if waiting is not None:
        others = f"ranks {span_text(hang.waiting)} wait: " if len(hang.waiting) > 1 else ""
        parts.append(f"{others}rank {waiting.rank} waits in {_collective_text(waiting)}")
    return "; ".join(parts)


def _nearest_waiting(hang: Hang, by_rank: Mapping[int, RankProgress]) -> RankProgress | None:
    """The rank that waits in the first collective that a culprit did not enter.

    Others may be further on: the source of a broadcast need not wait for those who receive it.
    """
    nearest: tuple[int, int] | None = None
    for rank in hang.waiting:
        group, entered = by_rank[rank].group, by_rank[rank].num_entered
        for culprit in hang.culprits:
            if by_rank[rank].is_waiting and culprit in group:
                ahead = entered[group] - by_rank[culprit].num_entered.get(group, 0)
                nearest = min(nearest or (ahead, rank), (ahead, rank))
    return None if nearest is None else by_rank[nearest[1]]


def report(
    line: str,
    ranks: Sequence[RankProgress],
    stacks: Mapping[int, str],
    *,
    now_s: float,
    stopped: Sequence[int],
) -> str:
    """All that is known of every rank: step, launch, clips, group, last collective, stacks."""
    rows = [f"{line}\n{GO_ON}\n"]
    for each in ranks:
        state = " (its process is stopped)" if each.rank in stopped else ""
        rows.append(f"rank {each.rank}, process {each.pid}{state}")
        rows.append(f"  doing            {place_text(each)}")
        rows.append(f"  silent for       {now_s - each.changed_at_s:.1f} s")
        last = _collective_text(each) if each.group else "none"
        verb = "waits in" if each.is_waiting else "last entered"
        rows.append(f"  {verb:<16} {last}")
        for ranks_of_group, count in sorted(each.num_entered.items()):
            rows.append(f"  entered {count:>8} of ranks {span_text(ranks_of_group)}")
    for each in ranks:
        rows.append(f"\nstacks of rank {each.rank}, the newest call first")
        rows.append(stacks.get(each.rank) or "none: the process did not react to SIGUSR1\n")
    return "\n".join(rows)


def place_text(rank: RankProgress) -> str:
    """Where a rank is in its step: `in launch 3 (…) of step 7, computing`."""
    step = "before the first step" if rank.step is None else step_text(rank.step)
    doing = _ACTIVITY_TEXTS.get(rank.activity, rank.activity)
    if rank.launch is None:
        return f"in {step}, {doing}" if rank.step is not None else f"{step}, {doing}"
    words = rank.launch_texts.get(rank.launch)
    return f"in launch {rank.launch}{f' ({words})' if words else ''} of {step}, {doing}"


def span_text(ranks: Sequence[int]) -> str:
    """Ranks in ascending order, neighbours joined: `0-3, 6`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _collective_text(rank: RankProgress) -> str:
    """`all_to_all, number 17 of the group of ranks 0-3`."""
    number = rank.num_entered.get(rank.group, 0)
    return f"{rank.operation}, number {number} of the group of ranks {span_text(rank.group)}"
