"""Unknown keys are found at every depth, with the nearest name."""

from dataclasses import dataclass

import pytest

from arachne.core.known_keys import unknown_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    width: int
    height: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    leaf: Leaf
    leaves: tuple[Leaf, ...] = ()
    more: list[Leaf] | None = None
    maybe: Leaf | None = None
    free: dict[str, float] | None = None


FITTING = {
    "leaf": {"width": 1},
    "leaves": [{"width": 1}, {"height": 2}],
    "more": [{"width": 1}],
    "maybe": {"width": 2},
    "free": {"anything": 1.0},
}


@pytest.mark.parametrize("table", [FITTING, {}, {"leaf": 3, "leaves": "no", "maybe": None}])
def test_known_keys_pass_whatever_their_values_are(table):
    assert unknown_key(Tree, table) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"leav": 1}, "'leav'; did you mean 'leaves'?"),
        ({"leaf": {"widht": 1}}, "'leaf.widht'; did you mean 'leaf.width'?"),
        (
            {"leaves": [{"width": 1}, {"heigth": 1}]},
            "'leaves[1].heigth'; did you mean 'leaves[1].height'?",
        ),
        ({"more": [{"hight": 1}]}, "'more[0].hight'; did you mean 'more[0].height'?"),
        ({"maybe": {"zzz": 1}}, "'maybe.zzz'; known here: width, height"),
    ],
)
def test_an_unknown_key_is_named_with_its_path_and_the_nearest_name(change, words):
    found = unknown_key(Tree, FITTING | change)
    assert found is not None
    assert found.describe() == words


def test_the_first_unknown_key_is_named():
    found = unknown_key(Leaf, {"width": 1, "b": 1, "a": 1})
    assert found is not None
    assert found.path == "b"
