"""Values that key many lookups: their hash is computed once."""

from typing import TypeVar

_Made = TypeVar("_Made", bound="HashedOnce")


class HashedOnce:
    """Where a value keeps its hash; the first base of a class that `hashed_once` decorates."""

    __slots__ = ("_hash",)

    _hash: int


def hashed_once(made: type[_Made]) -> type[_Made]:
    """Keep the hash of each value of a frozen dataclass.

    A nested dataclass hashes all that it holds at each lookup. Equality, copies and pickles are as
    before: a hash stays in the process that computed it.
    """
    of_fields = made.__hash__

    def once(self: _Made) -> int:
        try:
            return self._hash  # pyright: ignore[reportPrivateUsage]
        except AttributeError:
            found = of_fields(self)
            object.__setattr__(self, "_hash", found)
            return found

    made.__hash__ = once  # pyright: ignore[reportAttributeAccessIssue]
    return made
