"""Where a run's numbers and samples go: files of the run's folder, TensorBoard, W&B."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from arachne.core.batch import Batch
from arachne.core.errors import ConfigError
from arachne.core.placed_plan import PlacedPlan
from arachne.core.rank_log import RankLog
from arachne.core.refused_write import fix_of, refusal_at
from arachne.reporting.previews import preview_of
from arachne.reporting.run_files import (
    SHEET,
    TENSORBOARD,
    RunWriter,
    StepMetrics,
    read_metrics,
    samples_dir,
)
from arachne.reporting.scalars import scalar_step, scalars_of
from arachne.reporting.tensorboard import TensorBoardLog
from arachne.reporting.video_files import contact_sheet, read_mp4, write_mp4
from arachne.reporting.wandb_log import WandbLog
from arachne.runtime.world import World
from arachne.trainer.checkpoint_files import way_on
from arachne.trainer.config import RunConfig
from arachne.trainer.interval_samples import SampleVideo

_SHEET_COLUMNS = 6
_SHEET_SIDE = 240
"""Pixels of the longer side of a sheet's pictures: a row of six fits a page."""


class RunLogs:
    """Writes a run's files; every rank has one, and all but rank 0's write only their own.

    All methods raise ConfigError when the disk is full or cannot be written; where
    `logging.on_error` is `continue` they say it instead, once until it can be written again.
    """

    def __init__(self, config: RunConfig, world: World, say: Callable[[str], None]) -> None:
        self._config = config
        self._world = world
        self._say = say
        self._is_failing = False
        self.writer = RunWriter(run_dir=Path(config.run.dir))
        self._tensorboard: TensorBoardLog | None = None
        self._wandb: WandbLog | None = None
        self._validated: frozenset[int] = frozenset()

    @property
    def _run_dir(self) -> Path:
        return self.writer.run_dir

    def begin(self, done: int) -> None:
        """Training goes on after so many steps: drop what is about to be written again."""
        with self._disk_errors_named():
            self.writer.go_on_from(done, self._world.rank)
            if self._world.rank != 0:
                return
            self._validated = frozenset(row.step for row in read_metrics(self._run_dir).validation)
            if self._config.logging.tensorboard:
                folder = self._run_dir / TENSORBOARD
                self._tensorboard = TensorBoardLog(folder, first_step=done + 1 if done else 0)
            if self._config.logging.wandb:
                settings = msgspec.to_builtins(self._config)
                self._wandb = WandbLog(self._config.logging.wandb, self._run_dir, settings)

    def close(self) -> None:
        """Training is over."""
        for log in (self._tensorboard, self._wandb):
            if log is not None:
                try:
                    log.close()
                except OSError as error:
                    self._say(f"{self._run_dir}: the end of a log cannot be written: {error}")

    def write(self, row: StepMetrics) -> None:
        """A row of metrics, on rank 0."""
        with self._disk_errors_named():
            self.writer.write_metrics(row)
            for log in (self._tensorboard, self._wandb):
                if log is not None:
                    log.write_scalars(scalar_step(row), scalars_of(row))

    def write_plan(self, plan: PlacedPlan, batch: Batch) -> None:
        """A step's plan, and the clips of its slots, on rank 0."""
        with self._disk_errors_named():
            self.writer.write_plan(plan)
            self.writer.write_batch(batch)

    def write_rank_log(self, log: RankLog) -> None:
        """What this rank did in a step."""
        with self._disk_errors_named():
            self.writer.write_rank_log(log)

    def is_validated(self, done: int) -> bool:
        """Whether an earlier part of the run has the validation loss after so many steps."""
        return done in self._validated

    def is_sampled(self, done: int) -> bool:
        """Whether an earlier part of the run drew the samples after so many steps."""
        with self._disk_errors_named():
            return (samples_dir(self._run_dir, done) / SHEET).is_file()
        return False

    def write_samples(self, done: int, videos: tuple[SampleVideo, ...]) -> None:
        """This rank's own videos."""
        with self._disk_errors_named():
            for video in videos:
                path = samples_dir(self._run_dir, done) / f"{video.number}.mp4"
                write_mp4(path, video.frames, self._config.data.fps)

    def join_samples(self, done: int) -> None:
        """The sheet of all ranks' videos, on rank 0; it marks them as complete."""
        folder = samples_dir(self._run_dir, done)
        prompts = self._config.validation.prompts
        paths = {number: folder / f"{number}.mp4" for number in range(len(prompts))}
        with self._disk_errors_named():
            videos = {number: read_mp4(path) for number, path in paths.items()}
            if self._tensorboard is not None:
                previews = {
                    f"samples/{number}": preview_of(frames, self._config.data.fps)
                    for number, frames in videos.items()
                }
                self._tensorboard.write_previews(done, previews)
            if self._wandb is not None:
                named = {f"samples/{number}": path for number, path in paths.items()}
                self._wandb.write_videos(done, named)
            rows: list[tuple[str, np.ndarray]] = [
                (f"{number}  {prompts[number]}", frames) for number, frames in videos.items()
            ]
            contact_sheet(folder / SHEET, rows, _SHEET_COLUMNS, max_side=_SHEET_SIDE)

    @contextmanager
    def _disk_errors_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = refusal_at(error, self._run_dir)
            line = f"run.dir {str(self._run_dir)!r} cannot be written: {why}"
            if self._config.logging.on_error == "stop":
                raise ConfigError(f"{line}; {way_on(self._run_dir, fix_of(error))}") from error
            if not self._is_failing:
                self._say(f"{line}; training goes on, its logs lack what comes until it can be")
            self._is_failing = True
        else:
            self._is_failing = False
