from dataclasses import replace

import pytest

from arachne.cost.cluster_files import load_cluster
from arachne.cost.model import CostModel
from arachne.cost.rank_speeds import RankSpeeds
from tests.cost.made_launches import measured
from tests.planner.problems import SMALL

EIGHT = CostModel(model=SMALL, cluster=load_cluster("cpux8"), element_bytes=4)
ALIKE = (1.0,) * 8


def observe(ranks: RankSpeeds, slowness: tuple[float, ...], count: int = 32) -> None:
    for turn in range(count):
        for rank in range(8):
            tokens = (48, 216, 1080)[(turn + rank) % 3]
            ranks.observe(measured(EIGHT, tokens, 1, (rank,), slowness=slowness))


def slow(rank: int, factor: float) -> tuple[float, ...]:
    return tuple(factor if r == rank else 1.0 for r in range(8))


def test_scores_are_beside_what_is_usual_however_wrong_the_model_is():
    device = replace(EIGHT.cluster.device, matmul_flops_per_s=1e9, attention_flops_per_s=1e9)
    wrong = replace(EIGHT, cluster=replace(EIGHT.cluster, device=device))
    ranks = RankSpeeds(ALIKE)
    observe(ranks, slow(5, 2.0))

    ranks.judge(wrong, ALIKE)

    assert ranks.scores[5] == pytest.approx(2.0, rel=1e-3)
    assert all(ranks.scores[rank] == pytest.approx(1.0, rel=1e-3) for rank in range(5))


def test_one_bad_spell_makes_no_rank_slow():
    ranks = RankSpeeds(ALIKE)
    for slowness in (slow(2, 2.0), ALIKE, slow(2, 2.0)):
        observe(ranks, slowness)
        assert ranks.judge(EIGHT, ALIKE) == ((), ())
    assert ranks.speeds == ALIKE


def test_between_the_limits_a_rank_stays_what_it_was():
    ranks = RankSpeeds(ALIKE)
    told = []
    for factor in (1.12, 1.12, 1.2, 1.2, 1.1, 1.1, 1.05, 1.1, 1.1):
        observe(ranks, slow(2, factor))
        told.append((*ranks.judge(EIGHT, ranks.speeds), ranks.speeds[2]))
    nothing, speed = ((), ()), pytest.approx
    assert told == [
        (*nothing, 1.0),
        (*nothing, 1.0),
        (*nothing, 1.0),
        ((2,), (), speed(1 / 1.2)),
        (*nothing, speed(1 / 1.1)),
        (*nothing, speed(1 / 1.1)),
        ((), (2,), 1.0),
        (*nothing, 1.0),
        (*nothing, 1.0),
    ]


def test_known_speeds_of_most_ranks_stay_as_they_are():
    known = (1.0, 1.0, *(0.5,) * 6)
    ranks = RankSpeeds(known)
    observe(ranks, (1.0, 1.0, *(2.0,) * 6))

    assert ranks.judge(EIGHT, known) == ((), ())
    assert ranks.speeds == pytest.approx(known)


def test_a_rank_with_few_launches_is_not_judged():
    ranks = RankSpeeds(ALIKE)
    observe(ranks, ALIKE)
    alone = RankSpeeds(ALIKE)
    for _ in range(3):
        alone.observe(measured(EIGHT, 48, 1, (1,), factor=3.0))

    ranks.judge(EIGHT, ALIKE)
    alone.judge(EIGHT, ALIKE)

    assert sorted(ranks.scores) == list(range(8))
    assert alone.scores == {}


def test_members_of_one_launch_are_told_apart():
    ranks = RankSpeeds(ALIKE)
    for _ in range(8):
        ranks.observe(measured(EIGHT, 1080, 1, (0, 1, 2, 3), slowness=slow(3, 1.4)))

    ranks.judge(EIGHT, ALIKE)

    assert ranks.scores == {r: pytest.approx(1.4 if r == 3 else 1.0) for r in range(4)}


def test_if_all_ranks_become_slow_one_after_the_other_the_fastest_has_speed_1_again():
    two = replace(EIGHT, cluster=load_cluster("cpux2"))
    ranks = RankSpeeds((1.0, 1.0))
    for slowness in ((1.0, 1.5), (1.0, 1.5), (2.0, 1.5), (2.0, 1.5), (2.0, 1.5)):
        for _ in range(32):
            for rank in (0, 1):
                ranks.observe(measured(two, 216, 1, (rank,), slowness=slowness))
        ranks.judge(two, ranks.speeds)

    assert ranks.speeds == pytest.approx((0.75, 1.0))
