"""The bounded set of modes that a launch may run in, and what a group of ranks costs like."""

from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Literal

from arachne.core.cluster import Cluster, Link
from arachne.core.hashed_once import HashedOnce, hashed_once

_LEVELS = 4
"""Recompute levels step by a quarter of the blocks: kernels and plans see few different ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions:
    """Which modes launches may run in.

    Attributes:
        recompute: `auto` recomputes no more than memory asks for, in quarters of the blocks.
        ring: `auto` also splits a degree into Ulysses groups on a ring where that is faster.
        needs_heads: No rank may be left without an attention head, as on GPUs: NCCL was reported
            to hang where a rank sends nothing.
        can_ring: Whether the run's attention kernel computes rings of this model at all.
    """

    recompute: Literal["auto", "none", "all"] = "none"
    ring: Literal["auto", "none"] = "none"
    needs_heads: bool = False
    can_ring: bool = True

    def recompute_levels(self, num_blocks: int) -> tuple[int, ...]:
        """Numbers of recomputed blocks, ascending."""
        if self.recompute == "none":
            return (0,)
        if self.recompute == "all":
            return (num_blocks,)
        return tuple(sorted({-(-num_blocks * i // _LEVELS) for i in range(_LEVELS + 1)}))

    @property
    def has_rings(self) -> bool:
        """Whether launches may run on rings."""
        return self.ring == "auto" and self.can_ring

    @property
    def is_limited_by_heads(self) -> bool:
        """Whether no launch may have more GPUs than the model has heads."""
        return self.needs_heads and not self.has_rings

    def rings(self, degree: int, num_heads: int) -> tuple[int, ...]:
        """Rings that a degree may be split into, ascending; none if heads do not suffice."""
        most = degree if self.has_rings else 1
        return tuple(
            ring
            for ring in range(1, most + 1)
            if degree % ring == 0 and not (self.needs_heads and degree // ring > num_heads)
        )


ONE_MODE = CostOptions()
"""All of a degree is Ulysses, and nothing is computed twice."""


@hashed_once
@dataclass(frozen=True, slots=True, kw_only=True)
class GpuGroup(HashedOnce):
    """Some ranks, as far as costs depend on them: groups that are equal cost the same.

    Attributes:
        degree: How many ranks.
        speed: Of the slowest one.
        link: Between them, while all of them send.
        node_link: Between those of one node.
        inside: Neighbouring ranks form Ulysses groups that stay inside nodes where their number
            divides this.
    """

    degree: int
    speed: float
    link: Link
    node_link: Link
    inside: int

    def ulysses_link(self, ulysses: int) -> Link:
        """Link of Ulysses groups of `ulysses` neighbouring ranks, all of which send at once."""
        return self.node_link if self.inside % ulysses == 0 else self.link


@lru_cache(maxsize=65536)
def gpu_group(cluster: Cluster, gpus: tuple[int, ...], /) -> GpuGroup:
    """What ranks, ascending, cost like."""
    degree = len(gpus)
    nodes = [cluster.node_of(gpu) for gpu in gpus]
    changes = [place for place in range(1, degree) if nodes[place] != nodes[place - 1]]
    return GpuGroup(
        degree=degree,
        speed=min(cluster.speed_of(gpu) for gpu in gpus),
        link=cluster.link_within(gpus),
        node_link=cluster.intra_node,
        inside=gcd(degree, *changes),
    )
