"""How far preparing is: a bar with rate and time left on a terminal's standard error, else nothing.

The bar is drawn when something is told, not by a thread of its own: processes are forked beside it.
"""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class Display:
    """A context in which progress is shown."""

    def __init__(self, *, is_shown: bool) -> None:
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _RateColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
            disable=not (is_shown and sys.stderr.isatty()),
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def progress(self, what: str, done: int, total: int) -> None:
        """A stretch of work with a known length; what was done before is no longer shown."""
        if what not in self._tasks:
            for task in self._tasks.values():
                self._bars.remove_task(task)
            self._tasks = {what: self._bars.add_task(what, total=total)}
        self._bars.update(self._tasks[what], completed=done, refresh=True)


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Pieces of work a second."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f}/s")
