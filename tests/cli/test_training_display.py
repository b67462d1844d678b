"""A run whose standard output takes no more is shown in a file, and said to be."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arachne.cli.training_display import TrainingDisplay
from tests.trainer.tiny_runs import changed, tiny_config


@contextmanager
def full_output(monkeypatch) -> Iterator[None]:
    """A context in which standard output is on a full disk."""
    with open("/dev/full", "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        yield


def config_in(folder: Path):
    return changed(tiny_config(folder, folder / "run"), "logging", every=1)


def test_what_a_full_output_does_not_take_goes_to_a_file(tmp_path, monkeypatch, capsys):
    config = config_in(tmp_path)
    Path(config.run.dir).mkdir()
    with full_output(monkeypatch), TrainingDisplay(config, is_shown=True) as display:
        display.say("first [1]")
        display.progress("encoding clips", 3, 3)
        display.finished(5, 1, was_stopped=False)
    path = Path(config.run.dir) / "display.txt"
    why = "standard output cannot be written: No space left on device; the run goes on, shown"
    assert path.read_text().splitlines() == [
        f"{why} here",
        "first [1]",
        "encoding clips: 3 of 3",
        f"done: 5 steps, 1 of them skipped; files in {config.run.dir}",
    ]
    assert capsys.readouterr().err == f"arachne: {why} in {path}\n", "once"


def test_names_from_files_move_no_cursor(tmp_path, capsys):
    with TrainingDisplay(config_in(tmp_path), is_shown=True) as display:
        display.say("torch was 9.\x1b[2J\n, is 2")
    assert capsys.readouterr().out == "torch was 9.\\x1b[2J\\n, is 2\n"


def test_without_a_folder_for_the_file_the_run_goes_on_unseen(tmp_path, monkeypatch, capsys):
    config = config_in(tmp_path)
    with full_output(monkeypatch), TrainingDisplay(config, is_shown=True) as display:
        display.say("first")
        display.say("second")
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "the run goes on, shown nowhere" in error


def test_bars_of_a_terminal_that_is_gone_become_lines(tmp_path, monkeypatch, capsys):
    leader, terminal = os.openpty()
    config = config_in(tmp_path)
    Path(config.run.dir).mkdir()
    with open(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with TrainingDisplay(config, is_shown=True) as display:
            display.progress("encoding clips", 1, 3)
            os.close(leader)
            display.say("lost")
            display.progress("encoding clips", 3, 3)
        monkeypatch.undo()
    shown = (Path(config.run.dir) / "display.txt").read_text()
    assert shown.endswith("shown here\nlost\nencoding clips: 3 of 3\n")
    assert "\x1b" not in shown
