"""The executor's waiting, without torch: what each rank does in order, and who may go on when.

A rank is a list of acts. It posts what it will receive, then does its launches: an encoder's ranks
meet if they share a clip, and one sends it; a training launch receives and then meets its members
in collectives of its forward, of what it recomputes, and of its backward; at last all ranks meet in
the reduction. A meeting goes on when all its members have entered their next meeting of that group,
whatever it is: groups are queues, as a communicator is. An adversary chooses who acts next and how
late a message arrives.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from arachne.core.placed_plan import PlacedPlan
from arachne.runtime.handoff_routes import Route, routes_of

Key = tuple[int, str, int, int]
"""Step, encoder, slot and receiver of a message."""


@dataclass(frozen=True, slots=True)
class Send:
    """A message leaves; waits for nobody."""

    key: Key


@dataclass(frozen=True, slots=True)
class Receive:
    """Goes on when the message has arrived."""

    key: Key


@dataclass(frozen=True, slots=True)
class Meet:
    """Goes on when all members have entered a meeting of this group."""

    ranks: tuple[int, ...]
    what: str


Act = Send | Receive | Meet


class DeadlockError(AssertionError):
    """Nobody can go on."""


class WrongMeetingError(AssertionError):
    """Members met in different collectives; real ranks would compute nonsense or hang."""


def acts_of_steps(plans: Sequence[PlacedPlan]) -> list[list[Act]]:
    """By rank, what it does in steps that follow each other; all meet at each one's end."""
    acts: list[list[Act]] = [[] for _ in range(plans[0].world_size)]
    everyone = tuple(range(plans[0].world_size))
    ahead: list[Route] = []
    for place, plan in enumerate(plans):
        following = plans[place + 1] if place + 1 < len(plans) else None
        routes = routes_of(plan, following)
        for route in ahead:  # before the vote
            for rank in route.receivers:
                acts[rank].append(Receive(_key(route, rank)))
        for rank in everyone:
            acts[rank].append(Meet(everyone, f"vote {plan.step}"))
            for index, _ in plan.on_rank(rank):
                acts[rank] += _launch_acts(plan, index, rank, routes)
            acts[rank].append(Meet(everyone, f"reduce {plan.step}"))
        ahead = [route for route in routes if route.step > plan.step]
    return acts


def _launch_acts(plan: PlacedPlan, index: int, rank: int, routes: Sequence[Route]) -> list[Act]:
    launch = plan.launches[index]
    if launch.cascade.module != "dit":
        return _encoder_acts(plan, index, rank, routes)
    received: list[Act] = [
        Receive(_key(route, rank))
        for route in routes
        if route.step == plan.step and route.trainer == index and rank in route.receivers
    ]
    if launch.degree == 1:
        return received
    phases = ("forward", "forward", "recompute", "backward", "backward")
    return [
        *received,
        *(Meet(launch.ranks, f"{phase} of launch {index} of {plan.step}") for phase in phases),
    ]


def _encoder_acts(plan: PlacedPlan, index: int, rank: int, routes: Sequence[Route]) -> list[Act]:
    """Ranks that share a clip meet once for it; one of them sends what they made."""
    launch = plan.launches[index]
    acts: list[Act] = []
    for route in routes:
        if route.encoder == index:
            if launch.degree > 1:
                acts.append(Meet(launch.ranks, f"slot {route.slot}, launch {index} of {plan.step}"))
            if rank == route.source:
                acts += [Send(_key(route, target)) for target in route.receivers]
    return acts


def _key(route: Route, target: int) -> Key:
    return route.step, route.module, route.slot, target


@dataclass(kw_only=True)
class Adversary:
    """Runs acts in an order of its own choosing.

    Attributes:
        acts: By rank.
        rng: Its choices.
        num_turns: Acts that were done.
    """

    acts: list[list[Act]]
    rng: Random
    num_turns: int = 0
    _places: list[int] = field(default_factory=list[int])
    _in_flight: list[Key] = field(default_factory=list[Key])
    _arrived: set[Key] = field(default_factory=set[Key])
    _entered: defaultdict[tuple[int, ...], dict[int, str]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def run(self) -> None:
        """Until all ranks are through.

        Raises:
            DeadlockError: Nobody can go on.
            WrongMeetingError: Members met in different collectives.
        """
        self._places = [0] * len(self.acts)
        favourite = deque(self.rng.sample(range(len(self.acts)), len(self.acts)))
        while any(place < len(acts) for place, acts in zip(self._places, self.acts, strict=True)):
            if self._in_flight and self.rng.random() < 0.3:
                self._deliver()
                continue
            if self.rng.random() < 0.1:
                favourite.rotate(1)
            # Someone runs as far as it can, the others starve meanwhile.
            if not any(self._try(rank) for rank in favourite):
                if not self._in_flight:
                    raise DeadlockError(self._where())
                self._deliver()

    def _deliver(self) -> None:
        """Messages overtake each other."""
        index = self.rng.randrange(len(self._in_flight))
        self._arrived.add(self._in_flight.pop(index))

    def _try(self, rank: int) -> bool:
        """Do a rank's next act if it can be done now."""
        if self._places[rank] == len(self.acts[rank]):
            return False
        act = self.acts[rank][self._places[rank]]
        if isinstance(act, Send):
            self._in_flight.append(act.key)
        elif isinstance(act, Receive):
            if act.key not in self._arrived:
                return False
            self._arrived.remove(act.key)
        else:
            return self._enter(rank, act)
        self._go_on(rank)
        return True

    def _enter(self, rank: int, act: Meet) -> bool:
        inside = self._entered[act.ranks]
        if rank in inside:
            return False
        inside[rank] = act.what
        if len(inside) == len(act.ranks):
            if len(set(inside.values())) > 1:
                raise WrongMeetingError(f"{act.ranks}: {inside}")
            inside.clear()
            for member in act.ranks:
                self._go_on(member)
        return True

    def _go_on(self, rank: int) -> None:
        self._places[rank] += 1
        self.num_turns += 1

    def _where(self) -> str:
        waiting = [
            f"rank {rank} at {acts[place]}"
            for rank, (place, acts) in enumerate(zip(self._places, self.acts, strict=True))
            if place < len(acts)
        ]
        return "; ".join(waiting)
