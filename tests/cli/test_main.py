"""The `arachne` command as a whole: exit codes, one-line errors, help."""

import argparse
import errno
import os
import shlex
import subprocess
import sys

import pytest

from arachne.cli import main as main_file
from arachne.cli.main import main
from arachne.core.errors import ConfigError, DataError


def verbs() -> list[str]:
    parser = main_file._parser()
    (subparsers,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return sorted(subparsers.choices)


def with_verb(monkeypatch, action) -> None:
    """Replace all verbs by one that does `action`."""

    class Verb:
        @staticmethod
        def add_parser(subparsers) -> None:
            subparsers.add_parser("do").set_defaults(run=lambda arguments: action())

    monkeypatch.setattr(main_file, "_verbs", lambda: (Verb,))


def raising(error: BaseException):
    def action() -> int:
        raise error

    return action


def test_the_verbs_exit_code_is_the_commands(monkeypatch):
    with_verb(monkeypatch, lambda: 3)
    assert main(["do"]) == 3


@pytest.mark.parametrize("error", [ConfigError("lower it"), DataError("no clip is usable")])
def test_an_error_that_the_user_can_fix_is_one_line_and_exit_code_2(monkeypatch, capsys, error):
    with_verb(monkeypatch, raising(error))
    assert main(["do"]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"arachne: {error}\n"
    assert captured.out == ""


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch):
    with_verb(monkeypatch, raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["do"])


def test_ctrl_c_is_130_and_one_line(monkeypatch, capsys):
    with_verb(monkeypatch, raising(KeyboardInterrupt()))
    assert main(["do"]) == 130
    assert capsys.readouterr().err == "arachne: interrupted\n"


def test_an_unknown_verb_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit) as end:
        main(["trian"])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "trian" in error
    assert all(verb in error for verb in verbs())


@pytest.mark.parametrize("verb", verbs())
def test_the_help_of_every_verb_shows_an_example(verb, capsys):
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert f"example:\n  arachne {verb}" in text


def test_the_commands_own_help_and_version(capsys):
    for option, words in (("--help", "arachne train run.toml"), ("--version", "arachne ")):
        with pytest.raises(SystemExit) as end:
            main([option])
        assert end.value.code == 0
        assert words in capsys.readouterr().out


def test_a_reader_that_leaves_early_is_no_error():
    code = "import sys; from arachne.cli.main import main; sys.exit(main(['--help']))"
    pipe = subprocess.run(
        ["bash", "-c", f'{sys.executable} -c "{code}" | head -1'],
        capture_output=True,
        text=True,
        check=False,
    )
    assert pipe.stdout.startswith("usage: arachne")
    assert "Traceback" not in pipe.stderr


ONE_VERB = """
import sys
from arachne.cli import main as file

class Verb:
    @staticmethod
    def add_parser(subparsers):
        subparsers.add_parser("do").set_defaults(run=lambda arguments: print("done") or 0)

file._verbs = lambda: (Verb,)
sys.exit(file.main(sys.argv[1:]))
"""


# As a user has it: what is printed waits in a buffer, and fails only at the end.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def redirected(word: str, redirection: str) -> tuple[int, str]:
    command = f"{sys.executable} -c {shlex.quote(ONE_VERB)} {word} {redirection}"
    ended = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, env=BUFFERED
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("word", ["do", "--help", "--version"])
@pytest.mark.parametrize(
    ("redirection", "reason"),
    [(">/dev/full", "No space left on device"), (">&-", "it is closed")],
)
def test_output_that_is_lost_is_one_line(word, redirection, reason):
    line = (
        f"arachne: standard output cannot be written: {reason}; what it printed is lost; "
        "send it elsewhere\n"
    )
    assert redirected(word, redirection) == (2, line)


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_errors_that_nobody_can_read_keep_their_exit_code(redirection):
    assert redirected("do", redirection) == (0, "")
    assert redirected("trian", redirection) == (2, "")
    assert redirected("do", f">&- {redirection}") == (2, "")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_file_for_which_there_is_no_room_is_one_line(monkeypatch, capsys, number):
    with_verb(monkeypatch, raising(OSError(number, os.strerror(number), "a/file")))
    assert main(["do"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"arachne: cannot write 'a/file': {os.strerror(number)}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.EACCES, "let this user read and write it"),
        (errno.EIO, "look at the disk"),
        (errno.ESTALE, "look at the disk"),
    ],
)
def test_a_file_that_the_system_refuses_is_one_line(monkeypatch, capsys, number, fix):
    with_verb(monkeypatch, raising(OSError(number, os.strerror(number), "a/file")))
    assert main(["do"]) == 2
    said = f"arachne: 'a/file' cannot be used: {os.strerror(number)}; {fix}\n"
    assert capsys.readouterr().err == said


def test_a_file_that_ought_to_be_there_is_a_bug_of_ours(monkeypatch):
    with_verb(monkeypatch, raising(FileNotFoundError(errno.ENOENT, "No such file", "a/file")))
    with pytest.raises(FileNotFoundError):
        main(["do"])


def test_a_name_that_the_system_refuses_is_one_line(capsys):
    assert main(["checkpoints", "a" * 5000]) == 2
    error = capsys.readouterr().err
    assert error == f"arachne: a file's name is too long: '{'a' * 60}'…\n"


def test_no_verb_needs_torch_to_say_what_it_is_for():
    code = (
        "import sys; from arachne.cli.main import _parser; _parser(); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'diffusers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
