"""Values to JSON and back."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arachne.core import strict_json
from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.errors import DataError
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.strict_json import from_json, to_json

BUCKET = Bucket(width=16, height=32, frames=5)

cascades = st.builds(
    lambda slots, tokens: Cascade(
        module="dit", slots=tuple(sorted(slots)), bucket=BUCKET, num_tokens=tokens
    ),
    st.sets(st.integers(0, 50), min_size=1, max_size=4),
    st.integers(1, 10**6),
)
launches = st.builds(
    PlacedLaunch,
    cascade=cascades,
    ranks=st.tuples(st.integers(0, 8)),
    start_s=st.floats(0, 1e4),
    duration_s=st.floats(0, 1e4),
)
plans = st.builds(
    PlacedPlan,
    step=st.integers(0, 10**9),
    planner=st.text(max_size=8),
    world_size=st.integers(1, 4096),
    launches=st.lists(launches, max_size=4).map(tuple),
)


@given(plan=plans)
def test_a_plan_comes_back_bit_for_bit_from_both_its_forms(plan):
    assert PlacedPlan.from_json(plan.to_json()) == plan
    assert from_json(to_json(plan), PlacedPlan, what="plan") == plan
    assert "\n" not in to_json(plan)


@given(plan=plans, data=st.data())
def test_a_damaged_plan_is_a_data_error_or_another_plan_but_never_a_crash(plan, data):
    text = plan.to_json().encode()
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + bytes([data.draw(st.integers(0, 255))]) + text[at + 1 :]
    with suppress(DataError):
        from_json(damaged, PlacedPlan, what="plan")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "bucket cannot be read: "),
        ("[1]", "bucket cannot be read: Expected `object`, got `array`"),
        ('{"width":16,"height":16,"frames":1,"frame":2}', "did you mean 'frames'?"),
        ('{"width":16,"height":16}', "missing required field `frames`"),
        ('{"width":16,"height":16,"frames":"1"}', "Expected `int`, got `str` - at `$.frames`"),
        ('{"width":16,"height":16,"frames":0}', "must each be at least 1"),
        (b'{"width":\xff}', "bucket cannot be read: "),
        ("[" * 100_000, "bucket cannot be read: "),
    ],
)
def test_what_does_not_fit_is_a_data_error_that_says_why(text, words):
    with pytest.raises(DataError) as caught:
        from_json(text, Bucket, what="bucket")
    assert words in str(caught.value)


def test_a_value_whose_own_rule_is_broken_is_a_data_error():
    text = '{"module":"dit","slots":[],"bucket":{"width":1,"height":1,"frames":1},"num_tokens":1}'
    with pytest.raises(DataError, match=r"cascade cannot be read: .*at least one clip"):
        from_json(text, Cascade, what="cascade")


def test_a_text_as_it_is_written_is_not_searched_for_unknown_keys(monkeypatch):
    plan = PlacedPlan(step=3, planner="→", world_size=2, launches=())
    searched: list[object] = []
    monkeypatch.setattr(strict_json, "unknown_key", lambda kind, table: searched.append(table))
    assert PlacedPlan.from_json(plan.to_json()) == plan
    assert from_json(to_json(plan).encode(), PlacedPlan, what="plan") == plan
    assert not searched
    PlacedPlan.from_json(plan.to_json().replace(" ", ""))
    assert len(searched) == 1, "somebody else wrote it"


@pytest.mark.parametrize(
    "text",
    [
        '{"width": 16, "height": 32, "width": 16, "frames": 5}',
        '{"frames": 5, "width": 16, "height": 32, "\\u0077idth": 32}',
    ],
)
def test_a_key_that_is_there_twice_is_refused(text):
    with pytest.raises(DataError, match=r"^x cannot be read: key 'width' is there twice; leave"):
        from_json(text, Bucket, what="x")


def test_half_a_character_is_a_data_error_on_both_ways():
    with pytest.raises(DataError, match="half a character"):
        to_json({"caption": "cut \ud83d"})
    with pytest.raises(DataError, match="bucket cannot be read"):
        from_json('{"width": "\ud83d"}', Bucket, what="bucket")


def test_a_key_that_nobody_knows_is_still_found():
    text = PlacedPlan(step=3, planner="p", world_size=2, launches=()).to_json()
    with pytest.raises(DataError, match="unknown key 'stepp'; did you mean 'step'"):
        PlacedPlan.from_json(text.replace('"step"', '"stepp": 3, "step"'))
