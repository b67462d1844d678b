"""What became of the cases of one part, written down after each of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

_FAILURES_KEPT = 50


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts cases.

    Attributes:
        on_change: Called after each case, so that a long part that is interrupted has its figures.
        tried: Cases so far.
        good: Those that went as they have to.
        slowest_s: The longest of the times that are judged.
        failures: What went wrong, in words.
        others: Further figures of the part.
    """

    on_change: Callable[[], None] = lambda: None
    tried: int = 0
    good: int = 0
    slowest_s: float = 0.0
    failures: list[str] = field(default_factory=list[str])
    others: dict[str, Any] = field(default_factory=dict[str, Any])

    def count(self, what: str, faults: Sequence[str], *, seconds: float = 0.0) -> None:
        """One case, and what is wrong with how it went; nothing if it is good."""
        self.tried += 1
        self.good += not faults
        self.slowest_s = max(self.slowest_s, seconds)
        self.failures += [f"{what}: {fault}" for fault in faults]
        del self.failures[_FAILURES_KEPT:]
        self.on_change()

    def add(self, name: str, number: float = 1) -> None:
        """Add to a further figure."""
        self.others[name] = self.others.get(name, 0) + number

    @property
    def is_good(self) -> bool:
        """Whether something was tried, and all of it is good."""
        return self.tried > 0 and self.good == self.tried

    @property
    def figures(self) -> dict[str, Any]:
        """For the results."""
        slowest = {"slowest_s": round(self.slowest_s, 3)} if self.slowest_s else {}
        return {
            "tried": self.tried,
            "good": self.good,
            **slowest,
            **self.others,
            "failures": self.failures,
        }


def tally_of(figures: dict[str, Any]) -> Tally:
    """A tally that goes on from figures of before."""
    known = dict(figures)
    return Tally(
        tried=known.pop("tried"),
        good=known.pop("good"),
        slowest_s=known.pop("slowest_s", 0.0),
        failures=list(known.pop("failures")),
        others=known,
    )
