"""What each rank is doing, in a small mapped file that other processes read at any time.

A rank writes a few bytes whenever it begins something else; it sends nothing and waits for
nobody. What it wrote stays readable while it sleeps, is stopped, or holds the interpreter. Imports
no torch.
"""

import json
import mmap
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from arachne.core.errors import ConfigError
from arachne.core.refused_write import refusal

NOT_JUDGED = ("start", "plan", "handoff", "over")
"""Activities in which silence means nothing: before the first step waits are as long as encoding
takes, a plan that does not come is replaced after a time-out of its own, who waits for a handoff
waits for a rank that is judged itself, and after the last step there is nothing left to wait
for."""

_BESIDE_STEPS = ("start", "validate", "sample", "checkpoint")

_STATE = struct.Struct("<dqq?12s")  # changed at, step, launch, is waiting, activity
_IDENTITY = struct.Struct("<q?")  # process, is asynchronous
_ISSUED = struct.Struct("<q24s")  # group of the last collective, its operation
_LENGTHS = struct.Struct("<qq")  # bytes of the two texts
_COUNT = struct.Struct("<q")

_STATE_AT, _IDENTITY_AT, _ISSUED_AT, _LENGTHS_AT, _COUNTS_AT = 0, 64, 128, 192, 256
_MAX_GROUPS = 1024
_GROUPS_AT = _COUNTS_AT + _MAX_GROUPS * _COUNT.size
_TEXT_BYTES = 1 << 18
_LAUNCHES_AT = _GROUPS_AT + _TEXT_BYTES
_FILE_BYTES = _LAUNCHES_AT + _TEXT_BYTES

_NONE = -1
"""Stands for None in the file."""


class Progress(Protocol):
    """Is told what its rank does."""

    def change(self, activity: str, launch: int | None = None, *, is_waiting: bool = False) -> None:
        """The rank begins something else; `is_waiting` in the collective that it issued last."""
        ...

    def issued(self, operation: str, ranks: tuple[int, ...]) -> None:
        """The rank enters a collective of a group."""
        ...

    def begin_step(
        self, step: int, launch_texts: Mapping[int, str], within: str = "between"
    ) -> None:
        """A step begins, or work `within` an activity beside steps, with these launches."""
        ...


class Unwatched:
    """The progress of a rank that nobody watches."""

    def change(self, activity: str, launch: int | None = None, *, is_waiting: bool = False) -> None:
        """Nothing."""

    def issued(self, operation: str, ranks: tuple[int, ...]) -> None:
        """Nothing."""

    def begin_step(
        self, step: int, launch_texts: Mapping[int, str], within: str = "between"
    ) -> None:
        """Nothing."""


class ProgressFile:
    """The progress of one rank, in a file of its own.

    Raises:
        ConfigError: There is no room for it.
    """

    def __init__(self, path: Path, *, is_async: bool) -> None:
        part = path.with_suffix(".part")
        try:
            with part.open("w+b") as file:
                # A page for which there is no room would end the process when it is written.
                os.posix_fallocate(file.fileno(), 0, _FILE_BYTES)
                self._map = mmap.mmap(file.fileno(), _FILE_BYTES)
        except OSError as error:
            raise ConfigError(
                f"{str(path)!r}, in which a rank says what it does, cannot have its "
                f"{_FILE_BYTES:,} bytes: {refusal(error)}; make room, or set TMPDIR to a folder "
                "that has some"
            ) from error
        self._step, self._within = _NONE, "start"
        self._slots: dict[tuple[int, ...], int] = {}
        self._counts: list[int] = []
        self._groups_text = b""
        _IDENTITY.pack_into(self._map, _IDENTITY_AT, os.getpid(), is_async)
        _ISSUED.pack_into(self._map, _ISSUED_AT, _NONE, b"")
        self.change("start")
        os.rename(part, path)  # a reader finds a whole file, or none

    def change(self, activity: str, launch: int | None = None, *, is_waiting: bool = False) -> None:
        """The rank begins something else; `is_waiting` in the collective that it issued last.

        Between what else it does before the first step, or in validation, samples or a checkpoint
        it is at these.
        """
        if activity in _BESIDE_STEPS:
            self._within = activity
        elif activity == "plan":
            self._within = "between"
        elif activity == "between":
            activity = self._within
        _STATE.pack_into(
            self._map,
            _STATE_AT,
            time.monotonic(),
            self._step,
            _NONE if launch is None else launch,
            is_waiting,
            activity.encode(),
        )

    def issued(self, operation: str, ranks: tuple[int, ...]) -> None:
        """The rank enters a collective of a group."""
        slot = self._slots.get(ranks)
        if slot is None:
            slot = self._add_group(ranks)
        self._counts[slot] += 1
        _COUNT.pack_into(self._map, _COUNTS_AT + slot * _COUNT.size, self._counts[slot])
        _ISSUED.pack_into(self._map, _ISSUED_AT, slot, operation.encode())

    def begin_step(
        self, step: int, launch_texts: Mapping[int, str], within: str = "between"
    ) -> None:
        """A step begins, or work `within` an activity beside steps, with these launches."""
        text = json.dumps(list(launch_texts.items())).encode()
        if len(text) > _TEXT_BYTES:
            text = b"[]"  # the report then names launches by their index only
        self._write_text(_LAUNCHES_AT, 1, text)
        self._step, self._within = step, within
        self.change("between")

    def _add_group(self, ranks: tuple[int, ...]) -> int:
        self._groups_text += json.dumps(ranks).encode() + b"\n"
        slot = len(self._slots)
        assert slot < _MAX_GROUPS, slot
        assert len(self._groups_text) <= _TEXT_BYTES, ranks
        self._slots[ranks] = slot
        self._counts.append(0)
        self._write_text(_GROUPS_AT, 0, self._groups_text)
        return slot

    def _write_text(self, at: int, index: int, text: bytes) -> None:
        self._map[at : at + len(text)] = text
        lengths = list(_LENGTHS.unpack_from(self._map, _LENGTHS_AT))
        lengths[index] = len(text)
        _LENGTHS.pack_into(self._map, _LENGTHS_AT, *lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """What one rank was doing when somebody looked.

    Attributes:
        rank: Who.
        pid: Its process.
        step: The step that it began last; None before the first.
        launch: The launch that it is in, by its index in the plan.
        activity: A kind of span, or `start`, `between`, `plan`, `checkpoint`, `validate`, `over`.
        is_waiting: Whether it is inside the collective that it entered last.
        is_async: Whether collectives return before they are done, so that it waits anywhere.
        changed_at_s: When it began this, on the machine's monotonic clock.
        operation: The collective that it entered last; empty if there was none.
        group: The group of that collective.
        num_entered: Collectives that it entered so far, by group.
        launch_texts: Its launches of this step in words, by index.
    """

    rank: int
    pid: int = 0
    step: int | None = None
    launch: int | None = None
    activity: str = "start"
    is_waiting: bool = False
    is_async: bool = False
    changed_at_s: float = 0.0
    operation: str = ""
    group: tuple[int, ...] = ()
    num_entered: Mapping[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])
    launch_texts: Mapping[int, str] = field(default_factory=dict[int, str])


def read_progress(path: Path, rank: int) -> RankProgress:
    """What a rank wrote into its file; one without a file has not started.

    A rank may write meanwhile, so that a value can be mixed of two states; that of a rank that has
    been silent for a while is whole.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return RankProgress(rank=rank)
    changed_at_s, step, launch, is_waiting, activity = _STATE.unpack_from(content, _STATE_AT)
    pid, is_async = _IDENTITY.unpack_from(content, _IDENTITY_AT)
    slot, operation = _ISSUED.unpack_from(content, _ISSUED_AT)
    groups_bytes, launches_bytes = _LENGTHS.unpack_from(content, _LENGTHS_AT)
    lines = content[_GROUPS_AT : _GROUPS_AT + groups_bytes].splitlines()
    groups = [tuple(json.loads(line)) for line in lines]
    counts = [
        _COUNT.unpack_from(content, _COUNTS_AT + i * _COUNT.size)[0] for i in range(len(groups))
    ]
    return RankProgress(
        rank=rank,
        pid=pid,
        step=None if step == _NONE else step,
        launch=None if launch == _NONE else launch,
        activity=_text(activity),
        is_waiting=is_waiting,
        is_async=is_async,
        changed_at_s=changed_at_s,
        operation=_text(operation),
        group=groups[slot] if 0 <= slot < len(groups) else (),
        num_entered=dict(zip(groups, counts, strict=True)),
        launch_texts=_launch_texts(content[_LAUNCHES_AT : _LAUNCHES_AT + launches_bytes]),
    )


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode(errors="replace")


def _launch_texts(content: bytes) -> dict[int, str]:
    try:
        return dict(json.loads(content))
    except ValueError:
        return {}  # none yet, or the rank is writing them just now
