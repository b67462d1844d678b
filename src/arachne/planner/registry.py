"""Planners by the name that a run file gives; a new planner is one file and one line here."""

from difflib import get_close_matches

from arachne.core.errors import ConfigError
from arachne.planner import (
    fcp,
    flexsp,
    gpipe,
    hotspa,
    knapformer,
    lb_mini,
    megatron_dynamic_cp,
    megatron_hybrid_cp,
    static_degree_longest_first,
    static_dp,
    static_dp_longest_first,
    static_lockstep,
    static_sp,
    tree,
)
from arachne.planner.epochs import adaptive_load, open_sora, video_sys
from arachne.planner.epochs.epoch import EpochPlanner
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
"""Those that a run may use: their plans have no barriers, and keep the memory cap."""

PEERS: dict[str, Planner] = {
    static_lockstep.ZERO1: static_lockstep.plan_static_lockstep_zero1,
    static_lockstep.ZERO1_LEAST: static_lockstep.plan_static_lockstep_zero1_least,
    static_lockstep.ZERO3: static_lockstep.plan_static_lockstep_zero3,
    static_lockstep.ZERO3_LEAST: static_lockstep.plan_static_lockstep_zero3_least,
    megatron_hybrid_cp.NAME: megatron_hybrid_cp.plan_megatron_hybrid_cp,
    megatron_dynamic_cp.NAME: megatron_dynamic_cp.plan_megatron_dynamic_cp,
    flexsp.NAME: flexsp.plan_flexsp,
    knapformer.NAME: knapformer.plan_knapformer,
    lb_mini.NAME: lb_mini.plan_lb_mini,
    hotspa.NAME: hotspa.plan_hotspa,
    fcp.NAME: fcp.plan_fcp,
}
"""Models of other systems, with their own synchronization; for comparison in the simulator only."""

EPOCH_PEERS: dict[str, EpochPlanner] = {
    open_sora.NAME: open_sora.opensora_epoch,
    adaptive_load.NAME: adaptive_load.adaptiveload_epoch,
    video_sys.NAME: video_sys.videosys_epoch,
}
"""Models of systems that train other clips in a step than the sampler draws, and drop some."""

PACKING_PEERS = frozenset({flexsp.NAME, knapformer.NAME})
"""Peers that hold all clips of a group in memory at once; see `memory_cap`."""


def planner_named(name: str) -> Planner:
    """Look up a planner that a run may use.

    Raises:
        ConfigError: No planner has this name, or only `arachne compare` knows it.
    """
    others = {**dict.fromkeys([*PEERS, gpipe.NAME], ""), **dict.fromkeys(EPOCH_PEERS, " --epoch")}
    if name in others:
        raise ConfigError(
            f"planner.name {name!r} is a model of another system, for `arachne compare"
            f"{others[name]}` only; planners of runs: {', '.join(PLANNERS)}"
        )
    return _looked_up(name, PLANNERS, "planner.name")


def compared_planner_named(name: str) -> Planner:
    """Look up a planner or a peer that plans the sampler's steps.

    Raises:
        ConfigError: Neither has this name, or only `arachne compare --epoch` knows it.
    """
    if name in EPOCH_PEERS:
        raise ConfigError(
            f"planner {name!r} draws its batches from buckets, and is compared over an epoch; "
            "leave it out here, and add --epoch CLIPS"
        )
    return _looked_up(name, PLANNERS | PEERS, "planner", others=(gpipe.NAME,))


def _looked_up(
    name: str, known: dict[str, Planner], what: str, others: tuple[str, ...] = ()
) -> Planner:
    """Look a planner up; a refusal also names `others`, which are known elsewhere."""
    if name not in known:
        names = [*known, *others]
        close = get_close_matches(name, names, n=1)
        nearest = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"{what} {name!r} is not known{nearest}; known planners: {', '.join(names)}"
        )
    return known[name]
