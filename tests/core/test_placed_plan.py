import pytest

from arachne.core.errors import DataError
from arachne.core.placed_plan import PlacedPlan
from tests.core.plans import launch, plan_of, valid_plan


def test_json_keeps_every_value():
    assert PlacedPlan.from_json(valid_plan().to_json()) == valid_plan()
    assert PlacedPlan.from_json(plan_of().to_json()) == plan_of()


def test_json_has_one_launch_a_line():
    lines = valid_plan().to_json().splitlines()

    assert sum('"ranks"' in line for line in lines) == len(valid_plan().launches)


def test_the_digest_changes_with_any_launch():
    other = plan_of(*valid_plan().launches[:2], launch(2, ranks=(1,), start_s=2.75))

    assert valid_plan().digest == PlacedPlan.from_json(valid_plan().to_json()).digest
    assert valid_plan().digest != other.digest


def test_a_received_plan_is_the_plan_that_was_sent_and_has_its_digest():
    for plan in (valid_plan(), plan_of()):
        received = PlacedPlan.received(plan.to_json())
        assert received == plan
        assert received.digest == plan.digest


def test_the_digest_of_a_received_plan_is_that_of_what_came():
    text = valid_plan().to_json()
    assert PlacedPlan.received(text + " ").digest != PlacedPlan.received(text).digest


@pytest.mark.parametrize("text", ["", "[]", '{"step": 1}', "{"])
def test_text_that_is_no_plan_is_not_received(text: str):
    with pytest.raises(DataError, match="plan cannot be read"):
        PlacedPlan.received(text)


def test_each_rank_sees_its_launches_with_their_place_in_the_plan():
    plan = valid_plan()

    assert plan.on_rank(1) == ((0, plan.launches[0]), (2, plan.launches[2]))


def test_makespan_is_the_last_end():
    assert valid_plan().makespan_s == 3.5
    assert plan_of().makespan_s == 0.0


@pytest.mark.parametrize("text", ["", "[]", '{"step": 1}', "{", '{"setp": 1}'])
def test_text_that_is_no_plan_is_refused(text: str):
    with pytest.raises(DataError, match="plan"):
        PlacedPlan.from_json(text)
