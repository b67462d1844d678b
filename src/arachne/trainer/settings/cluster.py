"""The section `[cluster]` of a run file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """`[cluster]`.

    Attributes:
        name: `auto` measures this machine in the first seconds; otherwise a file of `clusters/`.
    """

    name: str = "auto"
