"""Ranks end together: with their results, or with the words of the one that failed first."""

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from arachne.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    Interrupted,
    LostRankError,
)
from arachne.runtime import launcher
from arachne.runtime.launcher import run_ranks
from tests.runtime.rank_groups import all_end, children

pytestmark = pytest.mark.distributed

LONG_S = 50.0
"""Nothing here may take as long as ranks wait for each other."""


@pytest.fixture(autouse=True)
def not_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(autouse=True)
def nothing_is_left_running():
    before, begin_s = children(), time.monotonic()
    yield
    assert children() <= before
    assert time.monotonic() - begin_s < 10.0


def meet() -> None:
    dist.all_reduce(torch.ones(1))


def rank_and_sum(world, addend):
    meet()
    return world.rank, world.size, addend + world.rank


def test_results_come_back_by_rank():
    assert run_ranks(3, rank_and_sum, (10,)) == [(0, 3, 10), (1, 3, 11), (2, 3, 12)]


def tensor_of_rank(world):
    return torch.full((100_000,), float(world.rank))


def test_a_tensor_comes_back_by_value():
    for rank, tensor in enumerate(run_ranks(2, tensor_of_rank)):
        assert torch.equal(tensor, torch.full((100_000,), float(rank)))


def slow_to_leave(world, folder):
    torch.distributed.barrier()
    threading.Thread(target=lambda: (time.sleep(1.2), (folder / str(world.rank)).touch())).start()


def test_ranks_that_are_done_may_finish_what_they_started(tmp_path: Path):
    run_ranks(2, slow_to_leave, (tmp_path,))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def refuse_on(world, bad_rank):
    if world.rank == bad_rank:
        raise DataError(f"clip 'a/b.mp4' is bad, says rank {world.rank}")
    meet()
    time.sleep(LONG_S)


@pytest.mark.parametrize("bad_rank", [0, 2])
def test_a_users_error_arrives_as_itself_while_others_wait(bad_rank):
    with pytest.raises(DataError, match=f"^clip 'a/b.mp4' is bad, says rank {bad_rank}$"):
        run_ranks(3, refuse_on, (bad_rank,), timeout_s=LONG_S)


def fail_on(world, bad_rank):
    if world.rank == bad_rank:
        meet()
        raise ZeroDivisionError("the cause")
    while True:
        meet()  # ends when the connection is closed


@pytest.mark.parametrize("bad_rank", [0, 1, 2])
def test_a_bug_arrives_with_its_traceback_and_not_with_its_consequences(bad_rank):
    with pytest.raises(RuntimeError) as caught:
        run_ranks(3, fail_on, (bad_rank,), timeout_s=LONG_S)
    message = str(caught.value)
    assert message.startswith(f"rank {bad_rank} on ")
    assert 'raise ZeroDivisionError("the cause")' in message
    assert "gloo" not in message


def fail_late(world):
    """Rank 0 learns that rank 1 is gone long before rank 1 can say why."""
    if world.rank == 1:
        dist.destroy_process_group()
        time.sleep(1.5)
        raise ZeroDivisionError("the cause")
    meet()


def test_a_consequence_that_is_known_first_waits_for_its_cause():
    with pytest.raises(RuntimeError, match="the cause"):
        run_ranks(2, fail_late, timeout_s=LONG_S)


def refuse_because_of_a_lost_peer(world):
    if world.rank == 1:
        meet()
        raise ZeroDivisionError("the cause")
    try:
        while True:
            meet()
    except RuntimeError as error:
        raise ConfigError("something else must be wrong") from error


def test_a_users_error_that_follows_from_a_lost_peer_hides_nothing():
    with pytest.raises(RuntimeError, match="the cause"):
        run_ranks(2, refuse_because_of_a_lost_peer, timeout_s=LONG_S)


def only_consequences(world):
    raise RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:1] closed by peer")


def test_consequences_are_reported_where_there_is_nothing_else():
    with pytest.raises(RuntimeError, match=r"rank . on .*failed:\n(.|\n)*closed by peer"):
        run_ranks(2, only_consequences)


def wait_in_vain(world):
    place = "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78]"
    raise RuntimeError(f"{place} Timed out waiting 50000ms for recv operation to complete")


def test_ranks_that_nobody_watches_and_that_wait_in_vain_are_one_line():
    expected = r"^rank \d waited in vain for another rank \(RuntimeError: .*; start again with"
    with pytest.raises(LostRankError, match=expected):
        run_ranks(2, wait_in_vain)


def kill_on(world, bad_rank, number):
    faulthandler.disable()  # pytest's would print every stack
    meet()
    if world.rank == bad_rank:
        os.kill(os.getpid(), number)
    while True:
        meet()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
@pytest.mark.parametrize("bad_rank", [0, 2])
def test_a_killed_rank_is_named_with_its_signal(bad_rank, number):
    expected = f"^rank {bad_rank} was ended by {number.name} before the run was over; start again"
    with pytest.raises(LostRankError, match=expected):
        run_ranks(3, kill_on, (bad_rank, number), timeout_s=LONG_S)


def leave_quietly(world):
    if world.rank == 1:
        os._exit(7)
    meet()


def test_a_rank_that_ends_without_a_result_is_lost():
    with pytest.raises(LostRankError, match=r"^rank 1 ended with exit code 7 before"):
        run_ranks(2, leave_quietly, timeout_s=LONG_S)


def unpicklable_result(world):
    return lambda: world


def test_a_result_that_cannot_be_sent_is_a_bug_and_no_lost_rank():
    with pytest.raises(RuntimeError, match="pickle"):
        run_ranks(2, unpicklable_result, timeout_s=LONG_S)


def hang_on_purpose(world):
    """The others hang where no signal handler of Python runs, and no connection closes."""
    if world.rank == 0:
        time.sleep(0.3)
        raise DataError("rank 0 gives up")
    signal.signal(signal.SIGTERM, lambda *_: None)
    world.store.wait(["never"])


def test_ranks_that_ignore_being_asked_are_made_to_end():
    with pytest.raises(DataError, match="gives up"):
        run_ranks(4, hang_on_purpose, timeout_s=LONG_S)


def wait_for_signal(world, number, folder):
    seen = threading.Event()
    signal.signal(number, lambda *_: seen.set())
    (folder / str(world.rank)).touch()
    assert seen.wait(30.0), "no signal came"
    return "heard"


@contextmanager
def sent_when_two_wait(number: int, folder: Path) -> Iterator[None]:
    """Send this process a signal once two ranks have left a file in a folder."""

    def send() -> None:
        while len(list(folder.iterdir())) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        sender.join()


def fail_after_signal(world, error, folder):
    seen = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: seen.set())
    (folder / str(world.rank)).touch()
    assert seen.wait(30.0), "no signal came"
    if world.rank == 1:
        raise error
    while True:
        meet()


@pytest.mark.parametrize("error", [CheckpointError("nothing was saved"), ValueError("our bug")])
def test_what_fails_after_a_signal_is_told(error: Exception, tmp_path: Path):
    kind = RuntimeError if isinstance(error, ValueError) else type(error)
    with sent_when_two_wait(signal.SIGTERM, tmp_path), pytest.raises(kind, match=str(error)):
        run_ranks(2, fail_after_signal, (error, tmp_path), timeout_s=LONG_S)


def end_by_signal(world, folder):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    (folder / str(world.rank)).touch()
    while True:
        meet()


def test_ranks_that_a_signal_ended_were_interrupted(tmp_path: Path):
    with sent_when_two_wait(signal.SIGTERM, tmp_path), pytest.raises(Interrupted):
        run_ranks(2, end_by_signal, (tmp_path,), timeout_s=LONG_S)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_passed_on_and_the_ranks_decide(number, tmp_path: Path):
    before = signal.getsignal(number)
    with sent_when_two_wait(number, tmp_path):
        assert run_ranks(2, wait_for_signal, (number, tmp_path)) == ["heard", "heard"]
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_a_ranks_first_moment_ends_it_and_is_not_handled_as_by_its_launcher(
    number, monkeypatch
):
    begin = launcher.end_by_signals

    def signalled(*numbers) -> None:
        os.kill(os.getpid(), number)
        begin(*numbers)

    monkeypatch.setattr(launcher, "end_by_signals", signalled)
    with pytest.raises(LostRankError, match=f"rank . was ended by {number.name}"):
        run_ranks(2, rank_and_sum, (10,))


SCRIPT = """
import os, sys, time
import torch.distributed as dist
from arachne.runtime.launcher import run_ranks
from arachne.runtime.clock import HostClock
from arachne.runtime.plan_source import PlanSource
from arachne.runtime.process_groups import ProcessGroups
from arachne.runtime.recorder import Recorder

def hang(world, folder):
    recorder = Recorder(rank=world.rank, world_size=world.size, clock=HostClock())
    group = ProcessGroups(world, (1,), recorder).world
    plans = PlanSource(world, group, request_of=lambda step: 60.0, make_plan=time.sleep,
                       make_fallback=time.sleep, timeout_s=60.0, say=print)
    plans.request(0)
    time.sleep(0.5)
    children = open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read()
    with open(f"{folder}/{world.rank}.part", "w") as file:
        file.write(f"{os.getpid()} {children}")
    os.rename(f"{folder}/{world.rank}.part", f"{folder}/{world.rank}")
    if world.rank:
        dist.barrier()
    time.sleep(60)

if __name__ == "__main__":
    run_ranks(3, hang, (sys.argv[1],))
"""


def test_ranks_planner_and_folder_end_when_the_launcher_is_killed(tmp_path: Path):
    script, folder = tmp_path / "script.py", tmp_path / "pids"
    script.write_text(SCRIPT)
    folder.mkdir()
    root = Path(launcher.__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        env={**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(tmp_path)},
    )
    try:
        deadline_s = time.monotonic() + 60.0
        while not all((folder / str(rank)).exists() for rank in range(3)):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
    finally:
        parent.kill()
        parent.wait()
    pids = [int(word) for rank in range(3) for word in (folder / str(rank)).read_text().split()]
    assert len(pids) >= 4, "three ranks and a planner"
    assert all_end(pids), "something outlived its run"
    assert not list(tmp_path.glob("arachne-ranks-*")), "the ranks' folder outlived them"
