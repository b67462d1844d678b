"""Plans that are ready before they are needed: made beside rank 0, sent through the store.

A process of its own plans step k+1 while the ranks run step k. Rank 0 publishes each plan as JSON;
every other rank reads it from the store, so all hold the same bytes. A planner that fails or is
late is replaced by the fallback, on rank 0 and therefore on all ranks alike.
"""

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from datetime import timedelta
from types import TracebackType
from typing import Generic, TypeVar

from arachne.core.placed_plan import PlacedPlan
from arachne.runtime.parent_watch import exit_with_parent
from arachne.runtime.world import World

Request = TypeVar("Request")


class PlanSource(Generic[Request]):
    """Gives every rank the plan of a step.

    Args:
        world: This rank's world.
        request_of: What the plan of a step depends on; called on rank 0.
        make_plan: Plans a request; a picklable function that needs no torch.
        make_fallback: Plans the same request cheaply, in rank 0 itself.
        timeout_s: How long rank 0 waits for a plan before it takes the fallback.
        say: Told, on rank 0, why a fallback was taken.
    """

    def __init__(
        self,
        world: World,
        *,
        request_of: Callable[[int], Request],
        make_plan: Callable[[Request], PlacedPlan],
        make_fallback: Callable[[Request], PlacedPlan],
        timeout_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._world = world
        self._request_of = request_of
        self._make_plan = make_plan
        self._make_fallback = make_fallback
        self._timeout_s = timeout_s
        self._say = say
        self._pending: dict[int, Future[PlacedPlan]] = {}
        self._pool = self._new_pool() if world.rank == 0 else None

    def request(self, step: int) -> None:
        """Start planning a step in the background; only rank 0 does something."""
        if self._pool is None or step in self._pending:
            return
        request = self._request_of(step)
        try:
            self._pending[step] = self._pool.submit(self._make_plan, request)
        except BrokenProcessPool:
            self._pool.shutdown(wait=False)
            self._pool = self._new_pool()
            self._pending[step] = self._pool.submit(self._make_plan, request)

    def obtain(self, step: int) -> PlacedPlan:
        """The plan of a step, the same on all ranks; every rank calls it in the same order."""
        key = f"plan/{step}"
        if self._world.rank == 0:
            plan = self._plan_or_fallback(step)
            self._world.store.set(key, plan.to_json())
            self._world.store.delete_key(f"plan/{step - 4}")
            return plan
        self._world.store.wait([key], timedelta(seconds=self._timeout_s + self._world.timeout_s))
        return PlacedPlan.from_json(self._world.store.get(key).decode())

    def _plan_or_fallback(self, step: int) -> PlacedPlan:
        self.request(step)
        pending = self._pending.pop(step)
        try:
            return pending.result(timeout=self._timeout_s)
        except TimeoutError:
            pending.cancel()
            reason = f"no plan after {self._timeout_s:g} s"
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        self._say(f"step {step}: the planner failed ({reason}); using the static fallback plan")
        return self._make_fallback(self._request_of(step))

    def _new_pool(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=_start_planning)

    def close(self) -> None:
        """End the planning process."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> "PlanSource[Request]":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _start_planning() -> None:
    """The planning process gives way to the ranks, and ends with rank 0."""
    exit_with_parent()
    os.nice(10)
