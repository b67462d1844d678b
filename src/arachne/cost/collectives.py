"""Seconds that collectives take: the latency-bandwidth model of Hockney (1994).

All formulas ignore contention between groups that share a wire; a group of one costs nothing.
"""

from arachne.core.cluster import Link


def all_to_all_s(message_bytes: float, group_size: int, link: Link) -> float:
    """Seconds for one all-to-all in which each rank starts with `message_bytes`.

    Every rank keeps 1/p of its message and sends the rest to p - 1 peers:

        t = (p - 1) * latency + (p - 1) / p * message / bandwidth
    """
    return _ring_s(message_bytes, group_size, link)


def all_gather_s(message_bytes: float, group_size: int, link: Link) -> float:
    """Seconds after which every rank holds `message_bytes`, of which it started with 1/p.

    Ring: p - 1 steps, each passing on one part of message / p:

        t = (p - 1) * latency + (p - 1) / p * message / bandwidth
    """
    return _ring_s(message_bytes, group_size, link)


def reduce_scatter_s(message_bytes: float, group_size: int, link: Link) -> float:
    """Seconds in which ranks that hold `message_bytes` each sum them and keep 1/p of the sum.

    Ring, the all-gather run backwards; the additions are ignored.
    """
    return _ring_s(message_bytes, group_size, link)


def all_reduce_s(message_bytes: float, group_size: int, link: Link) -> float:
    """Seconds to sum `message_bytes` on all ranks: reduce-scatter, then all-gather."""
    return 2.0 * _ring_s(message_bytes, group_size, link)


def transfer_s(message_bytes: float, link: Link) -> float:
    """Seconds in which each rank sends `message_bytes` to one other and receives as much."""
    return link.latency_s + message_bytes / link.bandwidth_bytes_per_s


def _ring_s(message_bytes: float, group_size: int, link: Link) -> float:
    peers = group_size - 1
    return peers * link.latency_s + peers / group_size * message_bytes / link.bandwidth_bytes_per_s
