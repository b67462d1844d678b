"""The section `[cluster]` of a run file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """`[cluster]`.

    Attributes:
        name: `auto` measures this machine in the first seconds; otherwise a file of `clusters/`,
            whose figures the run's own machines get, or that with GPUs (`h100x16`), as it is.
    """

    name: str = "auto"
