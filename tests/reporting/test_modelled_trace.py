"""A plan's promise as a trace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.reporting.modelled_trace import modelled_trace
from tests.reporting.made_runs import made_batch, made_plan


@given(step=st.integers(0, 50), num_clips=st.integers(1, 12), overhead_s=st.floats(0, 0.1))
def test_every_rank_is_accounted_for_from_start_to_end(step, num_clips, overhead_s):
    plan = made_plan(made_batch(step, num_clips))
    trace = modelled_trace(plan, plan.makespan_s + overhead_s)
    assert not trace.is_measured
    assert trace.iteration_s == pytest.approx(plan.makespan_s + overhead_s)
    for rank in range(plan.world_size):
        spans = [span for span in trace.spans if span.rank == rank]
        now_s = 0.0
        for span in spans:
            assert span.start_s == pytest.approx(now_s)
            now_s = span.end_s
        assert now_s == pytest.approx(trace.iteration_s)
        worked = {span.launch for span in spans if span.launch is not None}
        assert worked == {index for index, _ in plan.on_rank(rank)}


def test_without_a_step_time_the_trace_ends_with_the_last_launch():
    plan = made_plan(made_batch(0))
    trace = modelled_trace(plan)
    assert trace.iteration_s == plan.makespan_s
    assert {span.kind for span in trace.spans} == {"compute", "wait"}
