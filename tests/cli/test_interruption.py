"""How the command ends: by a signal before ranks run, which is one line; and by itself."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from arachne.cli import interruption

CODE = """
import atexit, sys, time
from arachne.cli import main as file

what = sys.argv.pop()

class Verb:
    @staticmethod
    def add_parser(subparsers):
        subparsers.add_parser("do").set_defaults(run=run)

def run(arguments):
    try:
        if what == "import":
            import slow
        print("begun", flush=True)
        if what in ("end", "bug"):
            atexit.register(print, "left", flush=True)
        elif what != "end for long":
            time.sleep(30.0)
        return 1 // 0 if what == "bug" else 3
    finally:
        print("cleared up", flush=True)
        if what == "clear up for long":
            time.sleep(30.0)

file._verbs = lambda: (Verb,)
class Last:
    def __del__(self):
        print("taken apart", flush=True)

last = Last()
code = file.main()
if what == "end for long":
    print("ended", flush=True)
    time.sleep(30.0)
sys.exit(code)
"""
SLOW = """
import time
print("begun", flush=True)
try:
    time.sleep(30.0)
except BaseException as error:
    raise ImportError("something was not found") from error
"""
NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def not_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_hang_up_under_nohup_changes_nothing(tmp_path):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with begun(tmp_path, "work") as process:
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=20.0)[1] == "arachne: interrupted\n"
    assert process.returncode == 143


@contextmanager
def begun(folder: Path, what: str) -> Iterator["subprocess.Popen[str]"]:
    (folder / "slow.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, "do", what],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path, str(folder)])},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(("what", "said"), [("work", "cleared up\n"), ("import", "")])
def test_a_signal_is_one_line_and_so_are_two(tmp_path, number, times, what, said):
    with begun(tmp_path, what) as process:
        for _ in range(times):
            process.send_signal(number)
        assert process.communicate(timeout=20.0) == (said, "arachne: interrupted\n")
    # A second one may come when Python itself has given its handlers up: the same to a shell.
    assert process.returncode in (128 + number, -number)
    assert times == 2 or process.returncode > 0


@pytest.mark.parametrize("number", NUMBERS)
def test_a_second_one_later_ends_it_at_once(tmp_path, number):
    with begun(tmp_path, "clear up for long") as process:
        process.send_signal(number)
        assert process.stdout is not None
        assert process.stdout.readline() == "cleared up\n"
        process.send_signal(number)  # the same request
        time.sleep(interruption._SAME_REQUEST_S + 0.1)
        assert process.poll() is None
        process.send_signal(number)
        process.communicate(timeout=5.0)
    assert process.returncode == 128 + number


@pytest.mark.parametrize("number", NUMBERS)
def test_one_after_all_was_done_changes_nothing(tmp_path, number):
    with begun(tmp_path, "end for long") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["cleared up\n", "ended\n"]
        process.send_signal(number)
        assert process.communicate(timeout=5.0) == ("", "")
    assert process.returncode == 3


def ended(what: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", CODE, "do", what]
    return subprocess.run(command, capture_output=True, text=True, timeout=20.0, check=False)


def test_a_command_ends_without_taking_apart_what_it_imported():
    found = ended("end")
    assert (found.stdout, found.stderr) == ("begun\ncleared up\nleft\n", "")
    assert found.returncode == 3


def test_after_a_bug_python_ends_as_it_does():
    found = ended("bug")
    assert found.stdout == "begun\ncleared up\nleft\ntaken apart\n"
    assert found.stderr.endswith("ZeroDivisionError: integer division or modulo by zero\n")
    assert found.returncode == 1
