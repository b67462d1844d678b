"""Plans that are ready before they are needed: made beside rank 0, broadcast between steps.

A process of its own plans step k+1 while the ranks run step k. Rank 0 sends each plan as JSON, so
that all ranks hold the same bytes. A planner that fails or is
late is replaced by the fallback, on rank 0 and therefore on all ranks alike.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

from arachne.core.placed_plan import PlacedPlan
from arachne.core.units import step_text
from arachne.runtime.messages import text_of_first
from arachne.runtime.planning_process import PlanningProcess
from arachne.runtime.process_groups import RankGroup
from arachne.runtime.world import World

Request = TypeVar("Request")


_LOOK_EVERY_S = 0.2


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class _Pending(Generic[Request]):
    request: Request
    plan: Future[PlacedPlan]


class PlanSource(Generic[Request]):
    """Gives every rank the plan of a step.

    Args:
        world: This rank's world.
        group: All its ranks.
        request_of: What the plan of a step depends on; called on rank 0.
        make_plan: Plans a request; a picklable function that needs no torch.
        make_fallback: Plans the same request cheaply, in rank 0 itself.
        timeout_s: How long rank 0 waits for a plan before it takes the fallback.
        say: Told, on rank 0, why a fallback was taken.
        hurries: Whether rank 0 shall wait no longer and take the fallback.
    """

    def __init__(
        self,
        world: World,
        group: RankGroup,
        *,
        request_of: Callable[[int], Request],
        make_plan: Callable[[Request], PlacedPlan],
        make_fallback: Callable[[Request], PlacedPlan],
        timeout_s: float,
        say: Callable[[str], None],
        hurries: Callable[[], bool] = _never,
    ) -> None:
        self._world = world
        self._group = group
        self._request_of = request_of
        self._make_plan = make_plan
        self._make_fallback = make_fallback
        self._timeout_s = timeout_s
        self._say = say
        self._hurries = hurries
        self._pending: dict[int, _Pending[Request]] = {}
        self._process = PlanningProcess() if world.rank == 0 else None

    def request(self, step: int) -> None:
        """Start planning a step in the background; only rank 0 does something."""
        if self._process is None or step in self._pending:
            return
        request = self._request_of(step)
        try:
            plan = self._process.submit(self._make_plan, request)
        except BrokenProcessPool:
            self._say(f"{step_text(step)}: the planning process had ended; another one was started")
            plan = self._new_process().submit(self._make_plan, request)
        self._pending[step] = _Pending(request, plan)

    def renew(self) -> None:
        """Plan again what was asked for; what requests depend on has changed. On rank 0."""
        for step in tuple(self._pending):
            self._pending.pop(step).plan.cancel()
            self.request(step)

    def obtain(self, step: int) -> PlacedPlan:
        """The plan of a step, the same on all ranks; all call it together, between two steps.

        Ranks wait for it at most the planner's time-out, or until the world's.
        """
        text = self._plan_or_fallback(step).to_json() if self._world.rank == 0 else ""
        return PlacedPlan.received(text_of_first(text, self._group, self._world.device))

    def _plan_or_fallback(self, step: int) -> PlacedPlan:
        self.request(step)
        pending = self._pending.pop(step)
        try:
            return self._awaited(pending.plan)
        except TimeoutError:
            waited = f"no plan after {self._timeout_s:g} s"
            reason = "none yet, and the run is to stop" if self._hurries() else waited
            self._new_process()
        except BrokenProcessPool:
            reason = "its process ended"
            self._new_process()
        except Exception as error:
            first_line, *_ = str(error).splitlines() or [""]
            reason = f"{type(error).__name__}: {first_line}"
        self._say(
            f"{step_text(step)}: the planner failed ({reason}); using the static fallback plan"
        )
        return self._make_fallback(pending.request)

    def _awaited(self, plan: Future[PlacedPlan]) -> PlacedPlan:
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                return plan.result(timeout=max(0.0, min(left_s, _LOOK_EVERY_S)))
            except TimeoutError:
                if plan.done():
                    return plan.result()  # it came just now, or the error is the planner's own
                if left_s <= _LOOK_EVERY_S or self._hurries():
                    raise

    def _new_process(self) -> PlanningProcess:
        """Replace a process that ended or hangs; it plans what was asked of the old one."""
        assert self._process is not None
        self._process.end()
        self._process = PlanningProcess()
        for step, pending in self._pending.items():
            if not _is_ready(pending.plan):
                plan = self._process.submit(self._make_plan, pending.request)
                self._pending[step] = _Pending(pending.request, plan)
        return self._process

    def close(self) -> None:
        """End the planning process, even if it is planning."""
        if self._process is not None:
            self._process.end()

    def __enter__(self) -> "PlanSource[Request]":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _is_ready(plan: Future[PlacedPlan]) -> bool:
    """Whether there is a plan, or the planner's own error; not if its process ended before."""
    if plan.cancelled() or not plan.done():
        return False
    return not isinstance(plan.exception(), BrokenProcessPool)
