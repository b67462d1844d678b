"""What a rank does, moment by moment: at any time it does one thing, and each change is a span."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from arachne.core.rank_log import RankEvent, RankLog
from arachne.core.trace import Span, SpanKind
from arachne.runtime.clock import Clock
from arachne.runtime.progress import Progress, Unwatched


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One tensor that travels between two ranks, as both of them record it.

    Attributes:
        source: Global rank that sends it.
        target: Global rank that receives it.
        content: What it is.
        num_elements: Its size.
    """

    source: int
    target: int
    content: str
    num_elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecord:
    """One collective that a rank issued, for the laws on who may wait for whom.

    An exchange of messages is a collective too: all members of the group issue it at the same place
    in their order, even those that have nothing to send.

    Attributes:
        launch: Index of the launch in the plan; None between launches.
        ranks: The group, as global ranks.
        operation: For example `all_to_all`.
        num_elements: Elements that the members hold together; equal on all of them.
        dtype: Of the tensor.
        messages: Of an exchange of messages, those that this rank sends and receives, in order.
    """

    launch: int | None
    ranks: tuple[int, ...]
    operation: str
    num_elements: int
    dtype: str
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class _OpenEvent:
    kind: SpanKind
    launch: int | None
    meeting: int | None
    start: Any
    end: Any


class Recorder:
    """Records the spans of one rank, one step at a time; also keeps a ledger of collectives.

    The ledger grows only while `keeps_ledger` is set.
    """

    def __init__(self, *, rank: int, world_size: int, clock: Clock) -> None:
        self.rank = rank
        self.world_size = world_size
        self.clock = clock
        self.keeps_ledger = False
        self.ledger: list[CollectiveRecord] = []
        self.progress: Progress = Unwatched()
        """Told each change at the moment it happens, for those who watch the rank."""
        self._events: list[_OpenEvent] = []
        self._doing: list[tuple[SpanKind, int | None, int | None]] = []
        self._since: Any = None
        self._launch: int | None = None
        self._meetings: Counter[int | None] = Counter()
        self._thread = threading.current_thread()

    @contextmanager
    def doing(self, kind: SpanKind) -> Iterator[None]:
        """Everything inside is one kind of work, but for what is recorded inside it."""
        with self._state(kind, None):
            yield

    @contextmanager
    def launch(self, index: int) -> Iterator[None]:
        """Everything inside belongs to one launch, and computes unless it says otherwise."""
        assert self._launch is None, "launches do not nest"
        self._launch = index
        try:
            with self._state("compute", None):
                yield
        finally:
            self._launch = None

    @contextmanager
    def collective(
        self, operation: str, ranks: tuple[int, ...], num_elements: int, dtype: str
    ) -> Iterator[None]:
        """One collective that blocks, from its issue to its end."""
        self.issued(operation, ranks, num_elements, dtype)
        with self.meeting():
            yield

    def issued(
        self,
        operation: str,
        ranks: tuple[int, ...],
        num_elements: int,
        dtype: str,
        messages: tuple[Message, ...] = (),
    ) -> None:
        """Enter a collective in the ledger, at the moment it is issued.

        Raises:
            RuntimeError: This thread may not issue any, see `_check_thread`.
        """
        self._check_thread(operation)
        self.progress.issued(operation, ranks)
        if self.keeps_ledger:
            self.ledger.append(
                CollectiveRecord(
                    launch=self._launch,
                    ranks=ranks,
                    operation=operation,
                    num_elements=num_elements,
                    dtype=dtype,
                    messages=messages,
                )
            )

    @contextmanager
    def meeting(self) -> Iterator[None]:
        """Waiting for a collective's end; its number in the launch is the same on all members."""
        number = self._meetings[self._launch]
        self._meetings[self._launch] += 1
        with self._state("communicate" if self._launch is not None else "reduce", number):
            yield

    def handed(self, message: Message) -> None:
        """Enter a message of a handoff in the ledger: its source when it is sent, its target when
        it is waited for."""
        self._check_thread("handoff")
        if self.keeps_ledger:
            self.ledger.append(
                CollectiveRecord(
                    launch=self._launch,
                    ranks=(message.source, message.target),
                    operation="handoff",
                    num_elements=message.num_elements,
                    dtype="float32",
                    messages=(message,),
                )
            )

    def sent(self, *, launch: int, meeting: int) -> None:
        """This moment is when something left for `launch`: until then, who needs it only waits."""
        now = self.clock.stamp()
        self._events.append(
            _OpenEvent(kind="handoff", launch=launch, meeting=meeting, start=now, end=now)
        )

    @contextmanager
    def arrival(self, meeting: int) -> Iterator[None]:
        """Waiting for something that a launch needs; between launches that is plain waiting."""
        if self._launch is None:
            yield
        else:
            with self._state("handoff", meeting):
                yield

    def finish(self, *, step: int, planner: str) -> RankLog:
        """The log of the step that is over; the recorder is empty again."""
        assert not self._doing, "a step is finished outside all recorded work"
        stamps = [stamp for event in self._events for stamp in (event.start, event.end)]
        seconds = iter(self.clock.seconds(stamps))
        events: list[RankEvent] = []
        for event in self._events:
            start_s, end_s = next(seconds), next(seconds)
            span = Span(
                rank=self.rank, kind=event.kind, start_s=start_s, end_s=end_s, launch=event.launch
            )
            events.append(RankEvent(span=span, meeting=event.meeting))
        events.sort(key=lambda event: event.span.start_s)  # of one moment, in recorded order
        self._events.clear()
        self._meetings.clear()
        return RankLog(
            step=step,
            planner=planner,
            rank=self.rank,
            world_size=self.world_size,
            events=tuple(events),
        )

    def _check_thread(self, operation: str) -> None:
        """Collectives have one order on all ranks since one thread issues them: the one that made
        the recorder, or autograd's while that one waits for a backward.
        """
        thread = threading.current_thread()
        if thread is not self._thread and torch._C._current_graph_task_id() == -1:  # pyright: ignore[reportPrivateUsage]
            raise RuntimeError(
                f"rank {self.rank} issued {operation!r} in thread {thread.name!r}, outside of a "
                f"backward; collectives belong to thread {self._thread.name!r}"
            )

    @contextmanager
    def _state(self, kind: SpanKind, meeting: int | None) -> Iterator[None]:
        self._change()
        self._doing.append((kind, self._launch, meeting))
        self._tell()
        try:
            yield
        finally:
            self._change()
            self._doing.pop()
            self._tell()

    def _change(self) -> None:
        """Close the stretch that ends now, and open the next one."""
        now = self.clock.stamp()
        if self._doing:
            kind, launch, meeting = self._doing[-1]
            self._events.append(
                _OpenEvent(kind=kind, launch=launch, meeting=meeting, start=self._since, end=now)
            )
        self._since = now

    def _tell(self) -> None:
        if self._doing:
            kind, launch, meeting = self._doing[-1]
            is_collective = meeting is not None and kind != "handoff"
            self.progress.change(kind, launch, is_waiting=is_collective)
        else:
            self.progress.change("between")
