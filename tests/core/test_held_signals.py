"""A process that is started while signals are held back does not act as its parent would."""

import os
import signal
import subprocess
import sys
import time

import pytest

from arachne.core.held_signals import end_by_signals, ending_signals, signals_held_back

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def not_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_hang_up_that_is_ignored_asks_for_nothing():
    assert ending_signals() == NUMBERS
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert ending_signals() == NUMBERS[:2]
    with signals_held_back():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.fixture
def heard():
    """Signals that this process has acted on."""
    heard: list[int] = []
    before = [signal.signal(number, lambda number, _: heard.append(number)) for number in NUMBERS]
    yield heard
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)


def test_held_back_signals_come_afterwards(heard):
    with signals_held_back():
        for number in NUMBERS:
            os.kill(os.getpid(), number)
        assert heard == []
    latest = time.monotonic() + 20.0  # another thread may have taken one, and be a moment late
    while len(heard) < len(NUMBERS) and time.monotonic() < latest:
        time.sleep(0.001)
    assert sorted(heard) == sorted(NUMBERS)


ANOTHER_THREAD = """
import os, signal, sys, threading, time
from arachne.core.held_signals import signals_held_back

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell began us aside
threading.Thread(target=time.sleep, args=(5.0,), daemon=True).start()
with signals_held_back():
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(0.1)
    print("held back", flush=True)
time.sleep(5.0)
print("never")
"""


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_that_another_thread_could_take_waits_as_well(number):
    command = [sys.executable, "-c", ANOTHER_THREAD, str(int(number))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert ended.stdout == "held back\n"
    assert ended.returncode == -number


@pytest.mark.parametrize("number", NUMBERS)
def test_a_fork_is_deaf_until_it_says_that_signals_end_it(heard, number):
    ready, writable = os.pipe()
    with signals_held_back():
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), number)
            os.write(writable, b"deaf")
            end_by_signals(*NUMBERS)
            os._exit(0)
    os.close(writable)
    assert os.read(ready, 4) == b"deaf"
    os.close(ready)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -number
    assert heard == []


@pytest.mark.parametrize("number", NUMBERS)
def test_a_program_that_is_started_meanwhile_is_deaf_for_good(number):
    code = f"import os; os.kill(os.getpid(), {int(number)}); print('deaf')"
    with signals_held_back():
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.communicate(timeout=20.0)[0] == b"deaf\n"
    assert process.returncode == 0
