"""What a training run shows: bars on a terminal, plain lines elsewhere; only rank 0 shows any."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from arachne.core.ledger import Ledger
from arachne.core.units import count_text, seconds_text
from arachne.reporting.run_files import StepMetrics
from arachne.trainer.config import RunConfig

_LINE_EVERY_S = 5.0


class TrainingDisplay:
    """A context in which a run is shown."""

    def __init__(self, config: RunConfig, *, is_shown: bool) -> None:
        self._config = config
        self._is_shown = is_shown
        self._has_bars = is_shown and sys.stdout.isatty()
        self._console = Console(highlight=False, soft_wrap=True, quiet=not is_shown)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
            disable=not self._has_bars,
        )
        self._tasks: dict[str, TaskID] = {}
        self._last_line_s = -_LINE_EVERY_S

    def __enter__(self) -> "TrainingDisplay":
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(escape(text))

    def progress(self, what: str, done: int, total: int) -> None:
        """A stretch of work with a known length."""
        if not self._is_shown:
            return
        if self._has_bars:
            self._show(what, done, total, "")
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
        for row in ledger.rows:
            if row.status == "rejected":
                self.say(f"rejected {row.clip.name}: {row.reason}")

    def step(self, metrics: StepMetrics) -> None:
        """One optimizer step is done."""
        if not self._is_shown:
            return
        done, total = metrics.step + 1, self._config.run.steps
        figures = _figures(metrics, is_short=self._has_bars)
        if self._has_bars:
            self._show("training", done, total, figures)
        elif done % self._config.logging.every == 0 or done == total:
            self.say(f"step {done}/{total}  {figures}")

    def validation(self, step: int, loss: float) -> None:
        """The loss on held-out noise was measured."""
        self.say(f"after step {step}: held-out loss {loss:.4f}")

    def finished(self, step: int, was_stopped: bool) -> None:
        """The run is over."""
        if was_stopped:
            self.say(f"stopped after step {step}; go on with: arachne train … --resume")
        else:
            self.say(f"done: {count_text(step, 'step')}; files in {self._config.run.dir}")

    def _show(self, what: str, done: int, total: int, figures: str) -> None:
        """One bar at a time: what was done before is no longer news."""
        if what not in self._tasks:
            for task in self._tasks.values():
                self._bars.remove_task(task)
            self._tasks = {what: self._bars.add_task(what, total=total, figures="")}
        self._bars.update(self._tasks[what], completed=done, total=total, figures=figures)


def _figures(metrics: StepMetrics, *, is_short: bool) -> str:
    """A step's figures; short ones leave room for a bar on 80 columns."""
    parts = [f"loss {metrics.loss:.4f}"]
    if not is_short:
        parts.append(f"norm {metrics.grad_norm:.3f}")
    if metrics.step_s is not None and metrics.tokens is not None:
        parts.append(seconds_text(metrics.step_s))
        if not is_short:
            parts.append(f"{metrics.tokens / metrics.step_s:,.0f} tokens/s")
    if metrics.idle_ratio is not None:
        parts.append(f"idle {metrics.idle_ratio:.0%}")
    if metrics.launch_error is not None and not is_short:
        parts.append(f"launch times off by {metrics.launch_error:.0%}")
    return "  ".join(parts)
