"""The parts of `durability.py`: what each tries, how often, and what its figures mean."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from survival_disks import full_runs, full_saves, refused_writers
from survival_hangs import hangs, slow_steps
from survival_kills import kills, phases, sigterm
from survival_saves import damaged, refused_calls, syscalls
from survival_soak import exact_soak, soak
from survival_stall import saves
from survival_tally import Tally

Work = Callable[[Path, int, random.Random, Tally], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of disturbance.

    Attributes:
        work: Tries it so often.
        quick: Cases of a quick run; 0 leaves it out.
        full: Cases of a full run; of those that have an end, more than there are.
        figure: The figure of the whole that its cases count in; empty if in none.
    """

    work: Work
    quick: int
    full: int
    figure: str = ""


PARTS: dict[str, Part] = {
    "syscalls": Part(work=syscalls, quick=20, full=10_000, figure="kills"),
    "kills": Part(work=kills, quick=3, full=200, figure="kills"),
    "phases": Part(work=phases, quick=1, full=32, figure="kills"),
    "damaged": Part(work=damaged, quick=50, full=1000, figure="damaged"),
    "refused_calls": Part(work=refused_calls, quick=20, full=10_000, figure="enospc"),
    "full_saves": Part(work=full_saves, quick=5, full=10_000, figure="enospc"),
    "full_runs": Part(work=full_runs, quick=1, full=20, figure="enospc"),
    "refused_writers": Part(work=refused_writers, quick=0, full=24, figure="enospc"),
    "sigterm": Part(work=sigterm, quick=2, full=50, figure="sigterm"),
    "hangs": Part(work=hangs, quick=2, full=30, figure="hangs"),
    "slow_steps": Part(work=slow_steps, quick=0, full=1000),
    "saves": Part(work=saves, quick=2, full=10),
    "soak": Part(work=soak, quick=0, full=1200),
    "exact_soak": Part(work=exact_soak, quick=0, full=1200),
}
"""The cases of a soak are its seconds."""

QUICK_SOAK_S = 60

GOOD_WORDS = {
    "kills": "resumed",
    "damaged": "silent",
    "enospc": "whole",
    "sigterm": "committed",
    "hangs": "named",
}
