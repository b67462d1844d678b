"""GPipe's schedule against what its paper says, and against a slow simulation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.planner.pipeline_schedule import MicroBatch, ideal_bubble_ratio, pipeline_run


def alike(seconds: float, num_stages: int, send_s: float = 0.0) -> MicroBatch:
    """A micro-batch whose stages are equal; the backward takes twice as long."""
    return MicroBatch(
        forward_s=(seconds,) * num_stages,
        backward_s=(2 * seconds,) * num_stages,
        send_s=(send_s,) * (num_stages - 1),
    )


def events_s(micro_batches: list[MicroBatch], num_stages: int) -> float:
    """The makespan by asking again and again what may start; slow and plain."""
    num = len(micro_batches)
    order = [("f", j) for j in range(num)] + [("b", j) for j in reversed(range(num))]
    end_s: dict[tuple[str, int, int], float] = {}
    done = [0] * num_stages
    while any(count < len(order) for count in done):
        for stage in range(num_stages):
            if done[stage] == len(order):
                continue
            kind, j = order[done[stage]]
            made = micro_batches[j]
            if kind == "f":
                before = (kind, j, stage - 1) if stage else None
                send_s = made.send_s[stage - 1] if stage else 0.0
                work_s = made.forward_s[stage]
            else:
                is_last = stage == num_stages - 1
                before = ("f", j, stage) if is_last else (kind, j, stage + 1)
                send_s = 0.0 if is_last else made.send_s[stage]
                work_s = made.backward_s[stage]
            if before is not None and before not in end_s:
                continue
            own = order[done[stage] - 1] if done[stage] else None
            free_s = end_s[(*own, stage)] if own else 0.0
            ready_s = end_s[before] + send_s if before is not None else 0.0
            end_s[(kind, j, stage)] = max(free_s, ready_s) + work_s
            done[stage] += 1
    return max(end_s.values(), default=0.0)


@given(num_stages=st.integers(1, 12), num=st.integers(1, 20), seconds=st.floats(1e-3, 1e3))
def test_equal_micro_batches_leave_the_bubble_of_the_paper(num_stages, num, seconds):
    run = pipeline_run([alike(seconds, num_stages)] * num, num_stages)

    expected = (num_stages - 1) / (num + num_stages - 1)
    assert run.bubble_ratio == pytest.approx(expected, abs=1e-9)
    assert ideal_bubble_ratio(num_stages, num) == expected


@given(
    times_s=st.lists(st.floats(0.01, 10.0), min_size=1, max_size=10), num_stages=st.integers(1, 8)
)
def test_unequal_micro_batches_lose_the_longest_ones_time_at_each_further_stage(
    times_s, num_stages
):
    run = pipeline_run([alike(seconds, num_stages) for seconds in times_s], num_stages)

    forward_s = sum(times_s) + (num_stages - 1) * max(times_s)
    assert run.makespan_s == pytest.approx(3 * forward_s)
    assert run.bubble_ratio >= ideal_bubble_ratio(num_stages, len(times_s)) - 1e-9


@st.composite
def micro_batches(draw: st.DrawFn) -> list[MicroBatch]:
    num_stages = draw(st.integers(1, 5))
    seconds = st.floats(0.0, 5.0)
    stages = st.lists(seconds, min_size=num_stages, max_size=num_stages).map(tuple)
    borders = st.lists(seconds, min_size=num_stages - 1, max_size=num_stages - 1).map(tuple)
    made = st.builds(MicroBatch, forward_s=stages, backward_s=stages, send_s=borders)
    return draw(st.lists(made, min_size=1, max_size=6))


@given(made=micro_batches())
def test_any_micro_batches_take_what_a_plain_simulation_says(made: list[MicroBatch]):
    num_stages = len(made[0].forward_s)
    run = pipeline_run(made, num_stages)

    assert run.makespan_s == pytest.approx(events_s(made, num_stages))
    assert run.busy_s == pytest.approx(
        sum(sum(one.forward_s) + sum(one.backward_s) for one in made)
    )


def test_sending_lengthens_the_way_through_the_stages_and_nothing_else():
    run = pipeline_run([alike(1.0, 3, send_s=0.25)], 3)
    assert run.makespan_s == pytest.approx(3 * 1.0 + 2 * 0.25 + 3 * 2.0 + 2 * 0.25)
    many = pipeline_run([alike(1.0, 3, send_s=0.25)] * 9, 3)
    assert many.makespan_s == pytest.approx(3 * (9 + 2) + 4 * 0.25)


def test_a_pipeline_without_work_takes_no_time():
    run = pipeline_run([], 4)
    assert (run.makespan_s, run.bubble_ratio) == (0.0, 0.0)
