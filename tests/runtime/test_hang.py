"""Who hangs, and who is only slow, follows from what the ranks were doing."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from arachne.runtime.hang import Hang, hang_of
from arachne.runtime.hang_report import headline, report, span_text
from arachne.runtime.progress import RankProgress

NOW_S, TIMEOUT_S = 100.0, 10.0
LONG_AGO_S, JUST_NOW_S = NOW_S - TIMEOUT_S, NOW_S - 1.0
EVERYONE = (0, 1, 2, 3)


def working(rank: int, since_s: float = LONG_AGO_S, entered: int = 0) -> RankProgress:
    """In a launch of its own."""
    return RankProgress(
        rank=rank,
        step=7,
        launch=rank,
        activity="compute",
        changed_at_s=since_s,
        num_entered={EVERYONE: entered},
        launch_texts={rank: f"dit of 832x480x81, 'clip {rank}', on rank {rank}"},
    )


def waiting(
    rank: int, since_s: float = LONG_AGO_S, group: tuple[int, ...] = EVERYONE, entered: int = 1
) -> RankProgress:
    return RankProgress(
        rank=rank,
        step=7,
        activity="reduce",
        is_waiting=True,
        changed_at_s=since_s,
        operation="all_to_all",
        group=group,
        num_entered={group: entered},
    )


def found(*ranks: RankProgress, **options) -> Hang | None:
    return hang_of(ranks, now_s=NOW_S, timeout_s=TIMEOUT_S, **options)


def test_the_rank_that_did_not_enter_is_the_culprit_and_not_those_who_wait_for_it():
    hang = found(waiting(0), waiting(1), working(2), waiting(3))
    assert hang == Hang(culprits=(2,), waiting=(0, 1, 3), cause="silent")


def test_who_waits_for_one_that_still_works_is_only_slow():
    assert found(waiting(0), waiting(1), working(2, JUST_NOW_S), waiting(3)) is None


def test_who_waits_for_what_another_rank_encodes_is_not_judged_but_that_rank_is():
    receiver = replace(working(0), activity="handoff")
    assert found(receiver, working(1, JUST_NOW_S)) is None
    assert found(receiver, working(1)) == Hang(culprits=(1,), waiting=(), cause="silent")


def test_before_the_first_step_ranks_may_be_silent_for_longer():
    begun_s = NOW_S - 5.0 * TIMEOUT_S

    def measured(since_s: float) -> list[RankProgress]:
        return [replace(each, step=None) for each in (working(0, since_s), waiting(1, since_s))]

    assert found(*measured(begun_s + 0.1)) is None
    assert found(*measured(begun_s)) == Hang(culprits=(0,), waiting=(1,), cause="silent")


def test_a_silent_rank_hangs_although_all_others_work():
    hang = found(working(0, JUST_NOW_S), working(1))
    assert hang == Hang(culprits=(1,), waiting=(), cause="silent")


def test_the_culprit_is_found_behind_a_chain_of_groups():
    ranks = (
        waiting(0, group=(0, 1)),
        replace(waiting(1, group=(1, 2)), num_entered={(1, 2): 1, (0, 1): 0}),
        replace(working(2), num_entered={(1, 2): 0}),
    )
    assert found(*ranks) == Hang(culprits=(2,), waiting=(0, 1), cause="silent")
    ranks = (*ranks[:2], replace(ranks[2], changed_at_s=JUST_NOW_S))
    assert found(*ranks) is None


def test_a_member_that_has_passed_the_collective_is_no_culprit():
    # Case: the source of a broadcast goes on at once, and then computes for long.
    passed = working(0, JUST_NOW_S, entered=1)
    assert found(passed, waiting(1), working(2), waiting(3)) == Hang(
        culprits=(2,), waiting=(1, 3), cause="silent"
    )


def test_a_stopped_member_is_the_culprit_even_inside_the_collective():
    hang = found(waiting(0), waiting(1), waiting(2), waiting(3), stopped=[2])
    assert hang == Hang(culprits=(2,), waiting=(0, 1, 3), cause="silent")


def test_who_has_waited_for_long_may_leave_once_the_last_one_has_come():
    assert found(waiting(0), waiting(1), waiting(2, JUST_NOW_S), waiting(3)) is None
    assert found(waiting(0), waiting(1, JUST_NOW_S)) is None, "others may come from elsewhere"


def test_a_collective_that_all_entered_and_nobody_leaves():
    hang = found(*(waiting(rank) for rank in EVERYONE))
    assert hang == Hang(culprits=EVERYONE, waiting=(), cause="inside")


def test_ranks_that_wait_for_each_other():
    ranks = (
        replace(waiting(0, group=(0, 1)), num_entered={(0, 1): 1, (0, 1, 2): 0}),
        replace(waiting(1, group=(0, 1, 2)), num_entered={(0, 1): 0, (0, 1, 2): 1}),
    )
    assert found(*ranks) == Hang(culprits=(0, 1), waiting=(), cause="each other")


def test_ranks_of_other_machines_are_named_where_all_here_have_entered():
    hang = found(waiting(0), waiting(1))
    assert hang == Hang(culprits=(2, 3), waiting=(0, 1), cause="elsewhere")


def test_a_rank_that_does_not_block_in_collectives_waits_for_those_that_entered_fewer():
    ahead = [replace(working(rank, entered=3), is_async=True) for rank in (0, 1, 3)]
    hang = found(*ahead, replace(working(2, entered=2), is_async=True))
    assert hang == Hang(culprits=(2,), waiting=(0, 1, 3), cause="silent")


@pytest.mark.parametrize("activity", ["start", "plan", "over"])
def test_before_and_after_training_nobody_hangs(activity):
    idle = replace(working(1), activity=activity)
    assert found(idle) is None
    assert found(waiting(0), idle, waiting(2), waiting(3)) is None


def test_silence_from_before_the_watch_does_not_count():
    assert found(working(0, 0.0), watched_since_s=NOW_S - TIMEOUT_S + 0.1) is None
    assert found(working(0, 0.0), watched_since_s=NOW_S - TIMEOUT_S) is not None


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[RankProgress], int]:
    """Where the ranks of a world come to rest if one of them hangs at some point of its program.

    All follow one global order of collectives over random groups, as launches do.
    """
    size = draw(st.integers(2, 6))
    group = st.sets(st.integers(0, size - 1), min_size=2).map(lambda g: tuple(sorted(g)))
    order = [*draw(st.lists(group, max_size=8)), tuple(range(size))]
    culprit = draw(st.integers(0, size - 1))
    mine = [index for index, ranks in enumerate(order) if culprit in ranks]
    stuck_before = draw(st.sampled_from(mine))
    blocked_at: dict[int, int] = {culprit: stuck_before}
    for index, ranks in enumerate(order):
        if any(blocked_at.get(rank, len(order)) <= index for rank in ranks):
            for rank in ranks:
                blocked_at.setdefault(rank, index)
    found: list[RankProgress] = []
    for rank in range(size):
        is_inside = rank != culprit
        last = blocked_at[rank] + is_inside
        counts: dict[tuple[int, ...], int] = {}
        for ranks in order[:last]:
            if rank in ranks:
                counts[ranks] = counts.get(ranks, 0) + 1
        found.append(
            RankProgress(
                rank=rank,
                step=7,
                activity="communicate" if is_inside else "compute",
                is_waiting=is_inside,
                changed_at_s=draw(st.floats(0.0, LONG_AGO_S)),
                group=order[blocked_at[rank]] if is_inside else (),
                num_entered=counts,
            )
        )
    return found, culprit


@given(programs())
def test_in_any_program_of_one_order_the_culprit_is_named_alone(program):
    ranks, culprit = program
    others = tuple(each.rank for each in ranks if each.rank != culprit)
    assert found(*ranks) == Hang(culprits=(culprit,), waiting=others, cause="silent")


@given(programs(), st.floats(LONG_AGO_S + 0.1, NOW_S))
def test_in_any_program_a_rank_that_works_excuses_all_who_wait_for_it(program, since_s):
    ranks, slow = program
    seen = [replace(e, changed_at_s=since_s) if e.rank == slow else e for e in ranks]
    assert found(*seen) is None


@given(programs(), st.floats(LONG_AGO_S + 0.1, NOW_S))
def test_in_any_program_the_last_to_enter_a_collective_excuses_all_who_waited(program, since_s):
    ranks, slow = program
    seen: list[RankProgress] = []
    for each in ranks:
        if each.rank == slow:
            reached = [e for e in ranks if slow in e.group and _is_ahead(e, each)]
            if not reached:
                assume(False)  # all others wait for ranks that wait for it
            group = min(reached, key=lambda e: sum(e.num_entered.values())).group
            entered = {**each.num_entered, group: each.num_entered.get(group, 0) + 1}
            seen.append(
                replace(
                    each, is_waiting=True, group=group, num_entered=entered, changed_at_s=since_s
                )
            )
        else:
            seen.append(each)
    assert found(*seen) is None


def _is_ahead(rank: RankProgress, other: RankProgress) -> bool:
    return rank.num_entered[rank.group] > other.num_entered.get(rank.group, 0)


def test_the_headline_names_rank_silence_launch_clip_step_and_who_waits_in_what():
    ranks = [waiting(0), waiting(1), working(2, 62.5), waiting(3)]
    hang = found(*ranks)
    assert hang is not None
    assert headline(hang, ranks, now_s=NOW_S, stopped=[]) == (
        "rank 2 has not answered for 37.5 s, in launch 2 (dit of 832x480x81, 'clip 2', on rank 2) "
        "of step 8, computing; ranks 0-1, 3 wait: rank 0 waits in all_to_all, number 1 of the "
        "group of ranks 0-3"
    )


@pytest.mark.parametrize(
    ("ranks", "stopped", "words"),
    [
        ([waiting(0), working(1)], [1], "rank 1 has not answered for 10.0 s (its process is stopp"),
        ([waiting(0), waiting(1)], [], "ranks 0-1 wait for ranks 2-3 of other machines in all_to_"),
        ([waiting(r) for r in EVERYONE], [], "ranks 0-3 do not come out of all_to_all, number 1 "),
    ],
)
def test_the_headline_says_what_kind_of_hang_it_is(ranks, stopped, words):
    hang = found(*ranks, stopped=stopped)
    assert hang is not None
    assert headline(hang, ranks, now_s=NOW_S, stopped=stopped).startswith(words)


def test_the_report_holds_every_rank_with_its_stack_or_says_that_there_is_none():
    ranks = [waiting(0), working(1)]
    text = report("The line", ranks, {0: "File here"}, now_s=NOW_S, stopped=[])
    assert text.startswith("The line\nstart again with --resume-if-any")
    assert "in launch 1 (dit of 832x480x81, 'clip 1', on rank 1) of step 8" in text
    assert "waits in         all_to_all, number 1 of the group of ranks 0-3" in text
    assert "stacks of rank 0, the newest call first\nFile here" in text
    assert "stacks of rank 1, the newest call first\nnone: the process did not react" in text


def test_neighbouring_ranks_are_joined():
    assert span_text((0, 1, 2, 5, 7, 8)) == "0-2, 5, 7-8"
