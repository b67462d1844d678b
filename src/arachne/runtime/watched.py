"""Have this rank watched while it trains; the first rank of each machine starts the watchdog."""

import faulthandler
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arachne.core.batch import Batch
from arachne.core.child_python import module_command, module_environment
from arachne.core.held_signals import signals_held_back
from arachne.core.placed_plan import PlacedPlan
from arachne.core.strict_json import to_json
from arachne.runtime.hang_report import span_text
from arachne.runtime.progress import ProgressFile
from arachne.runtime.run_folder import RunFolder
from arachne.runtime.watchdog import WatchOrder, progress_path, stacks_path
from arachne.runtime.world import World

_BACKSTOP = 10.0
"""torch's own time-out over the watchdog's. torch's counts from when a rank began to wait, although
the others may be at work, and its error says nothing of them; so it only has to end the run if the
watchdog itself was killed. *Assumption*: no rank waits for ten time-outs in one collective."""


def collective_timeout_s(timeout_s: float) -> float:
    """How long torch lets a watched rank wait in one collective."""
    return _BACKSTOP * timeout_s


def launch_texts(
    batch: Batch, plan: PlacedPlan, rank: int, next_batch: Batch | None = None
) -> dict[int, str]:
    """A rank's launches in words for a report, by index: module, shape, clips and ranks.

    `next_batch` has the clips of launches that encode for the next step.
    """
    clips = (batch.clips, next_batch.clips if next_batch is not None else ())
    return {
        index: (
            f"{launch.cascade.module} of {launch.cascade.bucket}, "
            + ", ".join(
                repr(clips[launch.cascade.steps_ahead][slot].name) for slot in launch.cascade.slots
            )
            + ", "
            f"on {'ranks' if launch.degree > 1 else 'rank'} {span_text(launch.ranks)}"
        )
        for index, launch in plan.on_rank(rank)
    }


@contextmanager
def watched(world: World, *, timeout_s: float, report_dir: Path) -> Iterator[ProgressFile]:
    """A context in which a silence of this rank for `timeout_s` ends the run, with a report.

    All ranks enter it together. Gives the progress that the rank has to write; see `Recorder`.
    """
    is_first = world.rank == world.ranks_here[0]
    own = RunFolder("arachne-watched-") if world.folder is None and is_first else None
    folder = world.folder or _shared(world, own)
    progress = ProgressFile(progress_path(folder, world.rank), is_async=world.device.type == "cuda")
    with stacks_path(folder, world.rank).open("w") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        watchdog = None
        try:
            if is_first:
                watchdog = _start(world, folder, timeout_s, report_dir)
            yield progress
        finally:
            progress.change("over")
            faulthandler.unregister(signal.SIGUSR1)
            if watchdog is not None:
                watchdog.kill()
                watchdog.wait()
            if own is not None:
                own.remove()


def _shared(world: World, own: RunFolder | None) -> Path:
    """The folder that the first rank of a machine made, on all its ranks."""
    key = f"watched folder of rank {world.ranks_here[0]}"
    if own is not None:
        world.store.set(key, str(own.path))
    return Path(world.store.get(key).decode())


def _start(
    world: World, folder: Path, timeout_s: float, report_dir: Path
) -> "subprocess.Popen[bytes]":
    has_others = len(world.machines.sizes) > 1
    order = WatchOrder(
        folder=str(folder),
        ranks=tuple(world.ranks_here),
        timeout_s=timeout_s,
        report_dir=str(report_dir),
        node=world.machines.machine_of(world.rank) if has_others else None,
        parent=os.getpid(),
        has_launcher=world.folder is not None,
    )
    with signals_held_back():  # the ranks decide when the run ends
        return subprocess.Popen(
            module_command("arachne.runtime.watchdog", to_json(order)),
            stdin=subprocess.DEVNULL,
            env=module_environment(),
        )
