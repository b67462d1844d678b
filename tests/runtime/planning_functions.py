"""Planners that go wrong on request; imported in the planning process, so without torch."""

import os
import signal
import sys
import time

from arachne.core.placed_plan import PlacedPlan

Request = tuple[int, str]
"""Step, and what to do."""


def made_plan(request: Request) -> PlacedPlan:
    step, wish = request
    if wish == "raise":
        raise ValueError("no such thing\nand a second line")
    if wish == "late":
        time.sleep(60.0)
    if wish == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if wish in ("exit", "hopeless"):
        os._exit(3)
    if wish == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if wish == "slow":
        time.sleep(1.5)
    if wish == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    return PlacedPlan(step=step, planner=facts(), world_size=3, launches=())


def facts() -> str:
    return f"{os.getpid()} torch={'torch' in sys.modules} nice={os.nice(0)}"


def fallback_plan(request: Request) -> PlacedPlan:
    assert request[1] != "hopeless", "no plan at all"
    return PlacedPlan(step=request[0], planner=f"fallback {os.getpid()}", world_size=3, launches=())
