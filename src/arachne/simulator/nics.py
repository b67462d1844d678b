"""Messages that leave a node share its NICs."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from arachne.core.cluster import Cluster
from arachne.simulator.events import EventQueue

_SLACK = 1e-9
"""Rounding that counts as no overload, so that undisturbed times stay as planned to the bit."""


def nics_used(cluster: Cluster, ranks: tuple[int, ...]) -> dict[int, float]:
    """NICs of each node that a group keeps busy while it communicates; none inside one node.

    The g members in a node send at the pace of the group's fullest node, g_max:

        NICs = g · min(1, n / g_max)

    That is the pace at which `Cluster.link_within` prices the group.
    """
    members = Counter(cluster.node_of(rank) for rank in ranks)
    if len(members) == 1:
        return {}
    share = cluster.nic_share(max(members.values()))
    return {node: count * share for node, count in members.items()}


@dataclass(slots=True, kw_only=True, eq=False)
class Transfer:
    """One launch's communication on its way.

    Attributes:
        nics: NICs of each node that it keeps busy.
        end_s: When it ends, if nothing changes.
        on_end: Called then.
        slowness: How many times longer than alone it takes at present.
    """

    nics: dict[int, float]
    end_s: float
    on_end: Callable[[], None]
    slowness: float = 1.0


class SharedNics:
    """NICs as shared processors: what is asked for beyond their number slows all who ask.

    On a node with n NICs on which transfers ask for a in all, each gets n / a of its pace if a > n.
    A transfer is as slow as on its slowest node. What it then leaves free elsewhere is given to
    nobody (no max-min fairness): with it, others would be a little faster.
    """

    def __init__(self, events: EventQueue, num_nics: int) -> None:
        self._events = events
        self._num_nics = num_nics
        self._on_node: defaultdict[int, list[Transfer]] = defaultdict(list)
        self._under_way: set[Transfer] = set()
        self._changed: set[int] = set()

    def send(self, transfer: Transfer) -> None:
        """Start a transfer now; its `end_s` is when it would end alone."""
        self._under_way.add(transfer)
        for node in transfer.nics:
            self._on_node[node].append(transfer)
        self._expect(transfer)
        self._change(transfer)

    def _expect(self, transfer: Transfer) -> None:
        self._events.at(transfer.end_s, partial(self._arrive, transfer, transfer.end_s))

    def _arrive(self, transfer: Transfer, expected_s: float) -> None:
        if transfer not in self._under_way or transfer.end_s != expected_s:
            return  # arrived already, or its pace has changed since
        self._under_way.remove(transfer)
        for node in transfer.nics:
            self._on_node[node].remove(transfer)
        self._change(transfer)
        transfer.on_end()

    def _change(self, transfer: Transfer) -> None:
        if not self._changed:  # one settlement for all that starts and ends at this moment
            self._events.at(self._events.now_s, self._settle, is_last=True)
        self._changed.update(transfer.nics)

    def _settle(self) -> None:
        now_s = self._events.now_s
        touched = dict.fromkeys(t for node in sorted(self._changed) for t in self._on_node[node])
        self._changed.clear()
        for transfer in touched:
            slowness = max(self._overload(node) for node in transfer.nics)
            if slowness != transfer.slowness:
                left_s = (transfer.end_s - now_s) * (slowness / transfer.slowness)
                transfer.end_s, transfer.slowness = now_s + left_s, slowness
                self._expect(transfer)

    def _overload(self, node: int) -> float:
        asked = sum(transfer.nics[node] for transfer in self._on_node[node])
        overload = asked / self._num_nics
        return overload if overload > 1.0 + _SLACK else 1.0
