"""FlexSP's integer programme and micro-batches, on cases that were worked out by hand."""

from itertools import product
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from arachne.core.cascade import Cascade
from arachne.planner import flexsp
from arachne.planner.flexsp import plan_flexsp
from arachne.planner.flexsp_milp import Kind, fewest_seconds
from arachne.planner.memory_cap import num_cap_violations
from arachne.planner.problem import PlanningProblem
from tests.planner.problems import TableCosts, batch_of


class PackedCosts(TableCosts):
    """Costs in which what fits is what `launch_bytes` says: 1 GB a token and GPU, 80 GB a GPU."""

    def fits(self, cascade: Cascade, gpus: tuple[int, ...]) -> bool:
        return self.launch_bytes(cascade, gpus) <= self.memory_bytes


def kind(count: int, seconds: list[float], share: float = 0.01) -> Kind:
    return Kind(count=count, seconds=seconds, shares=[share] * len(seconds))


def longest_s(dealt: list[tuple[int, list[int]]], kinds: list[Kind], degrees: list[int]) -> float:
    return max(
        sum(n * k.seconds[degrees.index(d)] for n, k in zip(counts, kinds, strict=True) if n)
        for d, counts in dealt
    )


def test_a_long_clip_gets_two_gpus_and_short_ones_share_the_others():
    # On 4 GPUs: the long clip takes 10 s on one, 6 on two, 4 on four; a short one 3 s on one GPU.
    # Two GPUs for the long clip (6 s) leave two, with two short ones each (6 s); with one GPU it
    # takes 10 s, with all four the short ones come after it.
    kinds = [kind(1, [10.0, 6.0, 4.0]), kind(4, [3.0, 2.5, 2.0])]

    dealt = fewest_seconds(kinds, (1, 2, 4), 4, limit_s=10.0)

    assert sorted(dealt) == [(1, [0, 2]), (1, [0, 2]), (2, [1, 0])]


def test_memory_of_a_whole_pack_is_kept():
    # Without memory one clip of each kind a group is best; a pack of two would be 2 s shorter here.
    kinds = [kind(3, [2.0, 1.0], share=0.6)]

    assert fewest_seconds(kinds, (1, 2), 2, limit_s=10.0) == []  # three packs, two GPUs
    assert longest_s(fewest_seconds(kinds, (1, 2), 3, limit_s=10.0), kinds, [1, 2]) == 2.0


def test_a_degree_on_which_a_kind_does_not_fit_is_not_used():
    kinds = [kind(1, [inf, 5.0])]

    assert fewest_seconds(kinds, (1, 2), 2, limit_s=10.0) == [(2, [1])]
    assert fewest_seconds(kinds, (1,), 2, limit_s=10.0) == []


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 9)), min_size=1, max_size=3))
@settings(max_examples=25, deadline=None)
def test_no_way_to_deal_clips_to_two_gpus_is_shorter(counts_and_seconds: list[tuple[int, int]]):
    kinds = [kind(n, [float(s), s / 2 + 1.0]) for n, s in counts_and_seconds]
    together_s = sum(n * (s / 2 + 1.0) for n, s in counts_and_seconds)
    total_s = sum(n * s for n, s in counts_and_seconds)
    on_first_s = [
        sum(m * s for m, (_, s) in zip(dealt, counts_and_seconds, strict=True))
        for dealt in product(*(range(n + 1) for n, _ in counts_and_seconds))
    ]
    best_s = min(together_s, *(max(s, total_s - s) for s in on_first_s))

    found = fewest_seconds(kinds, (1, 2), 2, limit_s=10.0)

    assert best_s <= longest_s(found, kinds, [1, 2]) <= 1.0101 * best_s


def test_clips_that_do_not_fit_together_are_cut_into_micro_batches_with_barriers():
    # 24 GB each and 80 GB a GPU: three clips a pack, so eight on one GPU are three micro-batches.
    problem = PlanningProblem(
        batch=batch_of(*["96x64x1"] * 8), num_gpus=1, degrees=(1,), costs=PackedCosts()
    )

    plan = plan_flexsp(problem)

    assert [launch.phase for launch in plan.launches] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert num_cap_violations(plan, problem, is_packed=True) == 0


def test_a_plan_is_found_where_the_solver_has_no_time(monkeypatch):
    monkeypatch.setattr(flexsp, "SOLVER_LIMIT_S", 0.0)
    problem = PlanningProblem(
        batch=batch_of(*["96x64x1"] * 5, "96x64x33"),
        num_gpus=4,
        degrees=(1, 2, 4),
        costs=PackedCosts(),
    )

    assert len(plan_flexsp(problem).launches) == 6


def test_packs_that_only_together_would_fit_are_not_forced_on_single_gpus():
    # Three stacks of 48 GB on two GPUs of 80 GB: 144 of 160 GB, but two stacks share a GPU.
    problem = PlanningProblem(
        batch=batch_of(*["96x64x1"] * 6),
        num_gpus=2,
        degrees=(1,),
        costs=PackedCosts(),
        stack_tokens=48,
    )

    plan = plan_flexsp(problem)

    assert num_cap_violations(plan, problem, is_packed=True) == 0
    assert [launch.phase for launch in plan.launches] == [0, 0, 1]
