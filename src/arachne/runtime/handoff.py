"""Hand what encoders made to the ranks that train on it, from rank to rank.

A rank posts what it will receive before its first launch, sends each result the moment that it is
made, and waits for one only where it trains on it. Sending waits for nobody: a message moves in the
background as soon as both ends have named it, and messages have numbers of their own, so that they
may arrive in any order.

Results travel between the hosts, over gloo: encoders leave them there, and training takes them from
there. So no message stands in a queue of the device behind another whose receiver is still at
work, which on NCCL's one queue per communicator would hold up ranks that are ready.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from arachne.core.bucket import Bucket
from arachne.core.cascade import Encoder
from arachne.runtime.handoff_routes import Route
from arachne.runtime.recorder import Message, Recorder
from arachne.runtime.world import World

ShapeOf = Callable[[Encoder, Bucket], tuple[int, ...]]
"""Shape of what an encoder makes of a clip; a function of the clip's shape, so that receivers know
it before anything was made."""

Key = tuple[int, Encoder, int]
"""Step, encoder and slot of a result."""


@dataclass(frozen=True, slots=True)
class _Awaited:
    tag: int
    route: Route
    work: Any
    result: Tensor


class Handoffs:
    """The results that a rank makes, sends, receives and holds; all ranks construct it together.

    Holds float32 tensors on the host: those of this step's clips until they are taken, and those of
    the next step's that this rank will train on.
    """

    def __init__(self, world: World, recorder: Recorder, shape_of: ShapeOf) -> None:
        self._rank = world.rank
        self._world_size = world.size
        self._recorder = recorder
        self._shape_of = shape_of
        self._group = _host_group(world)
        self._routes: dict[Key, tuple[int, Route]] = {}
        self._held: dict[Key, Tensor] = {}
        self._awaited: dict[Key, _Awaited] = {}
        self._sent: list[tuple[Any, Tensor]] = []

    @property
    def held_bytes(self) -> int:
        """Bytes of all results that this rank holds or has posted a place for."""
        awaited = [each.result for each in self._awaited.values()]
        return sum(each.nbytes for each in (*self._held.values(), *awaited))

    def begin(self, routes: Sequence[Route]) -> None:
        """Post what this rank will receive in a step; all ranks call it with the same routes."""
        assert not self._sent, "the step before was not ended"
        self._routes = {_key(route): (tag, route) for tag, route in enumerate(routes)}
        for tag, route in enumerate(routes):
            if self._rank in route.receivers:
                result = torch.empty(self._shape_of(route.module, route.bucket))
                work = dist.irecv(result, src=route.source, group=self._group, tag=tag)
                self._awaited[_key(route)] = _Awaited(tag, route, work, result)

    def give(self, step: int, module: Encoder, slot: int, result: Tensor) -> None:
        """Send what this rank has made to all that train on it, or keep it; waits for nobody.

        Of several ranks that made it together one sends it.
        """
        key = (step, module, slot)
        tag, route = self._routes[key]
        assert self._rank in route.makers, route
        assert tuple(result.shape) == self._shape_of(module, route.bucket), (result.shape, route)
        result = result.detach().to("cpu", torch.float32).contiguous()
        if self._rank in route.targets:
            self._held[key] = result
        if self._rank != route.source:
            return
        for target in route.receivers:
            self._recorder.handed(_message(route, target, result))
            self._recorder.sent(launch=route.trainer, meeting=self._meeting(tag, target))
            self._sent.append((dist.isend(result, dst=target, group=self._group, tag=tag), result))

    def take(self, step: int, module: Encoder, slot: int) -> Tensor:
        """A result that this rank trains on; waits until it has arrived. Can be taken once."""
        key = (step, module, slot)
        if key in self._held:
            return self._held.pop(key)
        awaited = self._awaited.pop(key)
        self._recorder.handed(_message(awaited.route, self._rank, awaited.result))
        with self._recorder.arrival(self._meeting(awaited.tag, self._rank)):
            awaited.work.wait()
        return awaited.result

    def end(self, step: int) -> None:
        """Wait until all that was sent has left, and forget what was made for `step` or before.

        Nobody is waited for: receivers posted it all when the step began.
        """
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()
        self._drop([key for key in (*self._held, *self._awaited) if key[0] <= step])

    def drop(self) -> None:
        """Forget what was made for steps that will not run; all ranks call it after a step."""
        self._drop([*self._held, *self._awaited])

    def _drop(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._held.pop(key, None)
            if key in self._awaited:
                self._awaited.pop(key).work.wait()

    def _meeting(self, tag: int, target: int) -> int:
        """A message's number: downwards from -1, since collectives of a launch go up from 0."""
        return -1 - (tag * self._world_size + target)


def _key(route: Route) -> Key:
    return route.step, route.module, route.slot


def _message(route: Route, target: int, result: Tensor) -> Message:
    return Message(
        source=route.source,
        target=target,
        content=f"{route.module} of slot {route.slot} of step {route.step}",
        num_elements=result.numel(),
    )


def _host_group(world: World) -> dist.ProcessGroup | None:
    """A group of all ranks that reaches their hosts; only pairs ever meet in it."""
    if world.device.type == "cpu":
        return dist.group.WORLD
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=world.timeout_s))
    assert isinstance(group, dist.ProcessGroup)
    return group
