"""Whether ranks hang, and whom the others wait for: a function of what they were seen doing."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from arachne.runtime.progress import NOT_JUDGED, RankProgress

_FIRST_PATIENCE = 5.0
"""Time-outs that a rank may be silent before the first step: the dry run and the measurements take
longer than any launch that is planned. Less than torch's own time-out, which names nobody."""

Cause = Literal["silent", "elsewhere", "inside", "each other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Ranks that will not go on by themselves.

    Attributes:
        culprits: Whom the others wait for, ascending.
        waiting: Ranks that wait for a culprit, directly or not, ascending.
        cause: `silent`: they do something of their own and do not come to an end. `elsewhere`: they
            run on other machines. `inside`: they wait in a collective that all of its group have
            entered. `each other`: they wait in collectives of different order.
    """

    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    cause: Cause


def hang_of(
    ranks: Sequence[RankProgress],
    *,
    now_s: float,
    timeout_s: float,
    watched_since_s: float = 0.0,
    stopped: Collection[int] = (),
) -> Hang | None:
    """The hang among a machine's ranks, if there is one.

    A rank is silent if it has begun nothing else for `timeout_s`, or for some times that before the
    first step. A silent rank hangs unless, over any number of others, it waits for a rank that is
    not silent: then it is only slow.

    Args:
        ranks: All ranks of this machine.
        now_s: The time, on the clock of `changed_at_s`.
        timeout_s: How long a rank may be silent.
        watched_since_s: Silence before that does not count.
        stopped: Ranks whose process is stopped.
    """
    by_rank = {each.rank: each for each in ranks}
    silent = {
        each.rank
        for each in ranks
        if each.activity not in NOT_JUDGED
        and now_s - max(each.changed_at_s, watched_since_s)
        >= (timeout_s if each.step is not None else _FIRST_PATIENCE * timeout_s)
    }
    awaited = {each.rank: _awaited(each, by_rank, stopped) for each in ranks}
    hanging: set[int] = set()
    involved: set[int] = set()
    for rank in sorted(silent):
        reached = _reached(rank, awaited)
        if all(other in silent or other not in by_rank for other in reached):
            hanging.add(rank)
            involved |= reached
    if not hanging:
        return None
    culprits, cause = _blamed(involved, hanging, by_rank, awaited, stopped)
    return Hang(
        culprits=tuple(sorted(culprits)), waiting=tuple(sorted(hanging - culprits)), cause=cause
    )


def _awaited(
    rank: RankProgress, by_rank: Mapping[int, RankProgress], stopped: Collection[int]
) -> set[int]:
    """Whom a rank waits for: members of its group that have not entered.

    If all here have, it is those elsewhere, who may not have, and all the others: the last of them
    may have come just now, and only if they are all silent does the collective not come to its end.
    """
    behind = _behind(rank, by_rank, stopped)
    if behind or not rank.is_waiting or rank.rank in stopped:
        return behind
    return set(rank.group) - {rank.rank}


def _behind(
    rank: RankProgress, by_rank: Mapping[int, RankProgress], stopped: Collection[int]
) -> set[int]:
    """Ranks of this machine that have not entered what a rank waits in.

    A rank for which collectives do not block may wait in any of its groups; a stopped one waits for
    nobody.
    """
    if rank.rank in stopped:
        return set()
    if rank.is_waiting:
        groups: Collection[tuple[int, ...]] = (rank.group,)
    else:
        groups = rank.num_entered if rank.is_async else ()
    return {
        other
        for group in groups
        for other in group
        if other in by_rank
        and other != rank.rank
        and by_rank[other].num_entered.get(group, 0) < rank.num_entered[group]
    }


def _reached(rank: int, awaited: Mapping[int, set[int]]) -> set[int]:
    """A rank, those that it waits for, those that these wait for, and so on."""
    reached, to_visit = {rank}, [rank]
    while to_visit:
        for other in awaited.get(to_visit.pop(), set()) - reached:
            reached.add(other)
            to_visit.append(other)
    return reached


def _blamed(
    involved: set[int],
    hanging: set[int],
    by_rank: Mapping[int, RankProgress],
    awaited: Mapping[int, set[int]],
    stopped: Collection[int],
) -> tuple[set[int], Cause]:
    ends = {rank for rank in involved if rank in by_rank and not awaited[rank]}
    elsewhere = {rank for rank in involved if rank not in by_rank}
    if ends or elsewhere:
        return (ends, "silent") if ends else (elsewhere, "elsewhere")
    inside = {rank for rank in hanging if not _behind(by_rank[rank], by_rank, stopped)}
    return (inside, "inside") if inside else (hanging, "each other")
