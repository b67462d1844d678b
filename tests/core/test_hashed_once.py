"""Values whose hash is kept stay values."""

import pickle
from dataclasses import dataclass, replace

from arachne.core.hashed_once import HashedOnce, hashed_once


class _Counted:
    """Counts how often it is hashed."""

    def __init__(self) -> None:
        self.num_hashed = 0

    def __hash__(self) -> int:
        self.num_hashed += 1
        return 1


@hashed_once
@dataclass(frozen=True, slots=True)
class _Key(HashedOnce):
    name: object
    size: int


def test_what_a_key_holds_is_hashed_once() -> None:
    counted = _Counted()
    key = _Key(counted, 3)
    found = {key: "here"}
    assert [found[key] for _ in range(3)] == ["here"] * 3
    assert counted.num_hashed == 1


def test_equal_keys_find_each_other_and_changed_ones_do_not() -> None:
    key = _Key("a", 3)
    found = {key: "here"}
    assert found[_Key("a", 3)] == "here"
    assert replace(key, size=4) not in found
    assert hash(replace(key, size=4)) != hash(key)


def test_a_kept_hash_does_not_travel() -> None:
    """Texts hash otherwise in another process."""
    key = _Key("a", 3)
    hash(key)
    arrived = pickle.loads(pickle.dumps(key))
    assert arrived == key
    assert not hasattr(arrived, "_hash")
