"""TensorBoard event files, read back record by record as the format says."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tensorboardX.crc32c import crc32c
from tensorboardX.proto import event_pb2

from arachne.reporting.previews import preview_of
from arachne.reporting.tensorboard import TensorBoardLog


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def events(folder: Path) -> list[list[Any]]:
    """The events of each file of a folder, in the order in which TensorBoard reads the files."""
    return [events_in(path) for path in sorted(folder.glob("*tfevents*"))]


def events_in(path: Path) -> list[Any]:
    data, found, at = path.read_bytes(), [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        (crc,) = struct.unpack_from("<I", data, at + 8)
        assert crc == masked(data[at : at + 8])
        body = data[at + 12 : at + 12 + length]
        (crc,) = struct.unpack_from("<I", data, at + 12 + length)
        assert crc == masked(body)
        found.append(event_pb2.Event.FromString(body))
        at += length + 16
    return found


def test_numbers_are_on_the_disk_at_once(tmp_path: Path):
    log = TensorBoardLog(tmp_path / "tb", first_step=0)
    log.write_scalars(3, {"train/loss": 0.5, "speed/mfu": 0.25})
    ((version, start, event),) = events(tmp_path / "tb")
    assert version.file_version == "brain.Event:2"
    assert start.session_log.status == event_pb2.SessionLog.START
    assert event.step == 3
    found = {value.tag: value.simple_value for value in event.summary.value}
    assert found == {"train/loss": 0.5, "speed/mfu": 0.25}
    log.close()


def test_a_resumed_run_goes_on_in_a_new_file_and_takes_back_what_it_does_again(tmp_path: Path):
    for first_step, steps in ((0, (1, 2, 3)), (3, (3, 4))):
        log = TensorBoardLog(tmp_path, first_step=first_step)
        for step in steps:
            log.write_scalars(step, {"train/loss": float(10 * first_step + step)})
        log.close()
    shown: dict[int, float] = {}
    for event in (event for file in events(tmp_path) for event in file):
        if event.HasField("session_log"):  # what TensorBoard does: later events are purged
            shown = {step: loss for step, loss in shown.items() if step < event.step}
        for value in event.summary.value:
            assert event.step not in shown
            shown[event.step] = value.simple_value
    assert shown == {1: 1.0, 2: 2.0, 3: 33.0, 4: 34.0}


def test_a_video_is_a_moving_picture_at_its_own_speed(tmp_path: Path):
    frames = np.random.default_rng(0).integers(0, 256, (9, 48, 640, 3)).astype(np.uint8)
    log = TensorBoardLog(tmp_path, first_step=0)
    log.write_previews(7, {"samples/0": preview_of(frames, fps=8.0)})
    log.close()
    (value,) = events(tmp_path)[0][-1].summary.value
    (tmp_path / "shown.gif").write_bytes(value.image.encoded_image_string)
    with Image.open(tmp_path / "shown.gif") as picture:
        assert (picture.width, picture.height) == (value.image.width, value.image.height)
        assert (picture.width, picture.height) == (320, 24)
        assert getattr(picture, "n_frames", 1) == 9
        assert picture.info["duration"] == pytest.approx(125, abs=10)
