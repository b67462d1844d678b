"""The loss curves: those of an earlier call are added if they are of the same commit."""

import curves
import pytest

ALL = {way.name: [2.0, 1.0] for way in curves.WAYS}
ONE = curves.WAYS[-1].name


def figures_of(commit: str, **losses: list[float]):
    return {"about": {"commit": commit}, "losses": losses}


def test_a_curve_that_was_made_now_replaces_the_earlier_one():
    earlier = figures_of("abc", **{**ALL, ONE: [2.0]})
    losses = curves.joined(earlier, {ONE: [2.0, 1.5]}, "abc-dirty")
    assert list(losses) == [way.name for way in curves.WAYS]
    assert losses[ONE] == [2.0, 1.5]
    assert curves.errors_of(losses)[ONE] == [0.0, 0.5]


def test_curves_that_are_missing_or_of_another_commit_are_refused():
    with pytest.raises(ValueError, match=f"no curve of {ONE}"):
        curves.joined(None, {name: values for name, values in ALL.items() if name != ONE}, "abc")
    with pytest.raises(ValueError, match="of abc cannot be compared with those of abd"):
        curves.joined(figures_of("abc", **ALL), {ONE: [2.0]}, "abd")


def test_the_page_says_which_curve_is_shorter():
    losses = {**ALL, ONE: [2.0]}
    page = curves.page(losses, curves.errors_of(losses))
    assert f" in float32 ({ONE} ended after 1); losses of a step differ" in page
    assert "ended after" not in curves.page(ALL, curves.errors_of(ALL))
