"""Planners by the name that a run file gives; a new planner is one file and one line here."""

from difflib import get_close_matches

from arachne.core.errors import ConfigError
from arachne.planner import (
    static_degree_longest_first,
    static_dp,
    static_dp_longest_first,
    static_sp,
    tree,
)
from arachne.planner.problem import Planner

PLANNERS: dict[str, Planner] = {
    tree.NAME: tree.plan_arachne,
    static_degree_longest_first.NAME: (
        static_degree_longest_first.plan_static_degree_longest_first
    ),
    static_dp_longest_first.NAME: static_dp_longest_first.plan_static_dp_longest_first,
    static_dp.NAME: static_dp.plan_static_dp,
    static_sp.NAME: static_sp.plan_static_sp,
}


def planner_named(name: str) -> Planner:
    """Look a planner up.

    Raises:
        ConfigError: No planner has this name.
    """
    if name not in PLANNERS:
        close = get_close_matches(name, PLANNERS, n=1)
        nearest = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"planner.name {name!r} is not known{nearest}; known planners: {', '.join(PLANNERS)}"
        )
    return PLANNERS[name]
