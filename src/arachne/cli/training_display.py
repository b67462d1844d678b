"""What a training run shows: bars on a terminal, plain lines elsewhere; only rank 0 shows any."""

import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from arachne.core.errors import visible
from arachne.core.lasting_streams import LastingStream
from arachne.core.ledger import Ledger
from arachne.core.refused_write import refusal
from arachne.core.units import bytes_text, count_text, percent_text, seconds_text
from arachne.reporting.run_files import DISPLAY, MANIFEST, StepMetrics
from arachne.trainer.config import RunConfig

_LINE_EVERY_S = 5.0
_PACE_OVER_S = 1800.0
"""The bar's time left follows the newest half hour; rich's own 30 s hold no long step."""

_MAX_REJECTED = 20
_MAX_SLOW = 3


class TrainingDisplay:
    """A context in which a run is shown.

    A standard output that is closed, full, or left by its reader does not end the run: what it
    does not take goes to a file in the run's folder.
    """

    def __init__(self, config: RunConfig, *, is_shown: bool) -> None:
        self._config = config
        self._is_shown = is_shown
        self._has_bars = is_shown and sys.stdout.isatty()
        self._output = LastingStream(sys.stdout)
        self._has_left = False
        self._file: TextIO | None = None
        self._console = self._console_on(self._output)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            expand=True,
            speed_estimate_period=_PACE_OVER_S,
        )
        self._figures = Text("", style="dim", overflow="fold")
        self._live = Live(Group(self._bars, self._figures), console=self._console)
        self._tasks: dict[str, TaskID] = {}
        self._last_line_s = -_LINE_EVERY_S
        self._idle_ratio: float | None = None

    def __enter__(self) -> "TrainingDisplay":
        if self._has_bars:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._has_bars:
            self._live.stop()
        if self._file is not None:
            self._console.quiet = True
            with suppress(OSError):
                self._file.close()

    def say(self, text: str) -> None:
        """One line; it may quote names from files."""
        line = escape(visible(text))
        self._console.print(line)
        if self._is_lost():
            self._console.print(line)

    def progress(self, what: str, done: int, total: int) -> None:
        """A stretch of work with a known length."""
        if not self._is_shown:
            return
        self._is_lost()
        if self._has_bars:
            self._show(what, done, total)
        elif done == total or time.monotonic() - self._last_line_s > _LINE_EVERY_S:
            self._last_line_s = time.monotonic()
            self.say(f"{what}: {done} of {total}")

    def started(self, ledger: Ledger, world_size: int) -> None:
        """The data is ready."""
        counts = ledger.counts
        self.say(
            f"{count_text(len(ledger.usable), 'clip')} on {count_text(world_size, 'rank')}: "
            f"{counts['kept']} kept whole, {counts['trimmed']} trimmed, "
            f"{counts['rejected']} rejected"
        )
        rejected = [row for row in ledger.rows if row.status == "rejected"]
        for row in rejected[:_MAX_REJECTED]:
            self.say(f"rejected {row.clip.name}: {row.reason}")
        if len(rejected) > _MAX_REJECTED:
            more = count_text(len(rejected) - _MAX_REJECTED, "more clip")
            self.say(f"rejected {more}; {self._config.run.dir}/{MANIFEST} has them all")

    def step(self, metrics: StepMetrics) -> None:
        """One optimizer step is done."""
        if not self._is_shown:
            return
        self._is_lost()
        done, total = metrics.step + 1, self._config.run.steps
        if self._has_bars:
            # Only traced steps know it: the newest one stays in view.
            self._idle_ratio = metrics.idle_ratio or self._idle_ratio
            shown = replace(metrics, idle_ratio=self._idle_ratio)
            self._figures.plain = figures_text(shown, is_short=True)
            self._show("training", done, total)
        elif done % self._config.logging.every == 0 or done == total:
            self.say(f"step {done}/{total}  {figures_text(metrics, is_short=False)}")

    def validation(self, row: StepMetrics) -> None:
        """The loss on held-out noise was measured."""
        levels = ", ".join(f"{loss:.4f}" for loss in (row.sigma_losses or {}).values())
        by_level = f" (from the least noise to the most: {levels})" if "," in levels else ""
        self.say(f"after step {row.step}: validation loss {row.loss:.4f}{by_level}")

    def finished(self, step: int, num_skipped: int, was_stopped: bool) -> None:
        """The run is over."""
        if was_stopped and step == 0:
            self.say("stopped before the first step; start again")
        elif was_stopped:
            self.say(f"stopped after step {step}; go on with: arachne train … --resume")
        else:
            skipped = f", {num_skipped} of them skipped" if num_skipped else ""
            self.say(f"done: {count_text(step, 'step')}{skipped}; files in {self._config.run.dir}")

    def _console_on(self, stream: LastingStream) -> Console:
        return Console(
            file=cast(TextIO, stream), highlight=False, soft_wrap=True, quiet=not self._is_shown
        )

    def _is_lost(self) -> bool:
        """Whether standard output just took no more, so that a file shows what comes next."""
        if self._has_left or self._output.error is None:
            return False
        self._has_left = True
        if self._has_bars:
            self._has_bars = False
            self._live.stop()
        path = Path(self._config.run.dir) / DISPLAY
        line = f"standard output cannot be written: {refusal(self._output.error)}; the run goes on"
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            print(f"arachne: {line}, shown nowhere ({path}: {refusal(error)})", file=sys.stderr)
            self._console.quiet = True
            return False
        print(f"arachne: {line}, shown in {path}", file=sys.stderr)
        self._console = self._console_on(LastingStream(self._file))
        self._console.print(f"{line}, shown here", markup=False)
        return True

    def _show(self, what: str, done: int, total: int) -> None:
        """One bar at a time: what was done before is no longer news."""
        if what not in self._tasks:
            for task in self._tasks.values():
                self._bars.remove_task(task)
            self._tasks = {what: self._bars.add_task(what, total=total)}
        self._bars.update(self._tasks[what], completed=done, total=total)


def figures_text(metrics: StepMetrics, *, is_short: bool) -> str:
    """A step's figures in one line; short ones fit 80 columns, since a bar says the time left."""
    parts = [_number("loss", metrics.loss, ".4f"), _number("norm", metrics.grad_norm, ".3f")]
    if metrics.step_s is not None:
        parts.append(seconds_text(metrics.step_s))
    if metrics.tokens_per_s is not None:
        parts.append(f"{metrics.tokens_per_s:,.0f} tokens/s")
    if metrics.clips_per_s is not None and not is_short:
        parts.append(f"{metrics.clips_per_s:.3g} clips/s")
    for label, share in (
        ("MFU", metrics.mfu),
        ("idle", metrics.idle_ratio),
        ("data wait", metrics.load_share if not is_short else None),
    ):
        if share is not None:
            parts.append(f"{label} {percent_text(share, 0 if share >= 0.1 else 1)}")
    if metrics.peak_memory_bytes is not None:
        parts.append(bytes_text(metrics.peak_memory_bytes))
    parts += _troubles(metrics)
    if not is_short:
        if metrics.launch_error is not None:
            parts.append(f"launch times off by {percent_text(metrics.launch_error)}")
        if metrics.time_left_s:
            parts.append(f"{seconds_text(metrics.time_left_s)} left")
    return "  ".join(parts)


def _troubles(metrics: StepMetrics) -> list[str]:
    """Slow ranks, and what the run had to do without so far."""
    slow = enumerate(metrics.rank_speeds or ())
    parts = [f"rank {rank} at {percent_text(speed)} speed" for rank, speed in slow if speed < 1.0]
    del parts[_MAX_SLOW:]
    if metrics.skipped_steps:
        parts.append(f"{count_text(metrics.skipped_steps, 'step')} skipped")
    if metrics.left_out:
        parts.append(f"{count_text(metrics.left_out, 'clip')} left out")
    return parts


def _number(label: str, value: float | None, form: str) -> str:
    return f"{label} {'none' if value is None else format(value, form)}"
