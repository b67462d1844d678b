# pyright: basic
"""A run's numbers and samples as TensorBoard event files; needs no TensorFlow.

Each record is on its way to the disk before the call returns, and no thread or queue stands
between: a killed run has lost nothing, and TensorBoard can read along. That is why this writes
records by tensorboardX's formats, and not through its buffered writer.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arachne.reporting.previews import Preview


class TensorBoardLog:
    """Writes one event file; TensorBoard joins all files of the folder.

    Args:
        folder: Where the event files of the run lie; made if missing.
        first_step: Events that an earlier part of the run wrote for this step or a later one are
            no longer shown: they are about to be done again.
    """

    def __init__(self, folder: Path, *, first_step: int) -> None:
        # Loaded here: it imports torch where that is installed, and only training writes events.
        from tensorboardX.proto import event_pb2, summary_pb2
        from tensorboardX.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        now_s = time.time()
        # Generated modules, whose names no type checker sees.
        self._event: Any = vars(event_pb2)["Event"]
        self._summary: Any = vars(summary_pb2)["Summary"]
        session: Any = vars(event_pb2)["SessionLog"]
        path = folder / f"events.out.tfevents.{now_s:.6f}.from-step-{first_step}"
        self._records = RecordWriter(str(path))
        self._write(self._event(wall_time=now_s, file_version="brain.Event:2"))
        start = session(status=session.START)
        self._write(self._event(wall_time=now_s, step=first_step, session_log=start))

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Named numbers of a step; names before a slash are the groups of the page."""
        values = [
            self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()
        ]
        self._write_values(step, values)

    def write_previews(self, step: int, previews: Mapping[str, Preview]) -> None:
        """Named moving pictures of a step."""
        values = [
            self._summary.Value(
                tag=tag,
                image=self._summary.Image(
                    height=preview.height,
                    width=preview.width,
                    colorspace=3,
                    encoded_image_string=preview.gif,
                ),
            )
            for tag, preview in previews.items()
        ]
        self._write_values(step, values)

    def close(self) -> None:
        """End the file."""
        self._records.close()

    def _write_values(self, step: int, values: list) -> None:
        if values:
            summary = self._summary(value=values)
            self._write(self._event(wall_time=time.time(), step=step, summary=summary))

    def _write(self, event) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()
