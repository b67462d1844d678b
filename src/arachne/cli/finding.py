"""One thing that `arachne doctor` looked at."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["good", "warning", "fault"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: Its name.
        verdict: A `fault` stops trainings; a `warning` slows or limits them.
        found: What is there.
        fix: What to change; empty when good.
    """

    what: str
    verdict: Verdict
    found: str
    fix: str = ""
