"""`arachne report`."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from arachne.cli import report
from arachne.core.errors import DataError
from arachne.reporting.run_files import METRICS
from tests.forbidden_files import forbidden
from tests.reporting.made_runs import write_made_run


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="arachne")
    report.add_parser(parser.add_subparsers())
    return parser.parse_args(["report", *words])


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return write_made_run(tmp_path / "first", num_steps=3)


def test_the_page_and_the_perfetto_trace_are_written_and_named(run_dir, capsys):
    arguments = parsed(str(run_dir))
    assert arguments.run(arguments) == 0
    assert (run_dir / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    events = json.loads((run_dir / "trace.perfetto.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1, 2}
    out = capsys.readouterr().out
    assert f"report: {run_dir / 'report.html'}" in out
    assert "3 steps on 4 ranks, planner arachne" in out


@pytest.mark.timeout(10)
def test_a_pipe_of_the_name_of_a_trace_keeps_nobody_waiting(run_dir):
    os.mkfifo(run_dir / "traces" / "rank-00009.jsonl")
    arguments = parsed(str(run_dir))
    with pytest.raises(DataError, match=r"rank-00009\.jsonl' is no file; move it away"):
        arguments.run(arguments)


def test_sheets_of_no_step_and_pictures_without_end_are_left_out_with_a_note(run_dir, capsys):
    for name in ("step-abc", "step-1"):
        (run_dir / "samples" / name).mkdir(parents=True)
        (run_dir / "samples" / name / "sheet.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    large = run_dir / "samples" / "step-000001" / "sheet.png"
    large.parent.mkdir(parents=True, exist_ok=True)
    with large.open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        file.truncate(2 * 10**11)  # a hole, which takes no room
    arguments = parsed(str(run_dir))
    assert arguments.run(arguments) == 0
    page = (run_dir / "report.html").read_text(encoding="utf-8")
    assert "samples/step-abc/sheet.png is of no step; left out" in page
    assert "samples/step-1/sheet.png is of no step; left out" in page
    assert "samples/step-000001/sheet.png has 200 GB; pictures above 4 MB are left out" in page


def test_a_run_that_may_not_be_read_is_one_line(run_dir):
    arguments = parsed(str(run_dir))
    refused = rf"Permission denied: '{run_dir}/.*'; let this user read and write it"
    with forbidden(run_dir), pytest.raises(DataError, match=refused):
        arguments.run(arguments)


def test_metrics_that_may_not_be_read_are_named_with_what_helps(run_dir):
    arguments = parsed(str(run_dir))
    refused = r"metrics\.jsonl': Permission denied; let this user read and write it"
    with forbidden(run_dir / METRICS), pytest.raises(DataError, match=refused):
        arguments.run(arguments)


def test_a_picture_that_may_not_be_read_is_left_out_with_a_note(run_dir, capsys):
    picture = run_dir / "samples" / "a.png"
    picture.parent.mkdir(exist_ok=True)
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    arguments = parsed(str(run_dir))
    with forbidden(picture):
        assert arguments.run(arguments) == 0
    assert "note: samples/a.png: Permission denied; left out" in capsys.readouterr().out


def test_the_page_goes_where_output_says(run_dir, tmp_path, capsys):
    target = tmp_path / "page.html"
    assert report.run(parsed(str(run_dir), "--output", str(target))) == 0
    assert target.exists()
    assert not (run_dir / "report.html").exists()


def test_json_prints_one_object_with_figures_and_paths(run_dir, capsys):
    assert report.run(parsed(str(run_dir), "--json")) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["report"] == str(run_dir / "report.html")
    assert table["figures"]["num_steps"] == 3
    assert table["figures"]["ranks"] == 4
    assert table["notes"] == []


def test_a_run_without_traces_gets_no_perfetto_file(tmp_path, capsys):
    (tmp_path / METRICS).write_text('{"step": 0, "loss": 1.0}\n')
    assert report.run(parsed(str(tmp_path), "--json")) == 0
    assert json.loads(capsys.readouterr().out)["perfetto"] is None
    assert not (tmp_path / "trace.perfetto.json").exists()


def test_a_folder_that_is_no_run_is_an_error_of_the_user(tmp_path):
    with pytest.raises(DataError, match="is not a run"):
        report.run(parsed(str(tmp_path)))


def test_a_page_that_cannot_be_written_is_an_error_that_names_it(run_dir, tmp_path):
    target = tmp_path / "missing" / "page.html"
    with pytest.raises(DataError, match=r"cannot write .*page\.html"):
        report.run(parsed(str(run_dir), "--output", str(target)))


def test_a_full_disk_is_told_with_the_page_s_name(run_dir, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DataError, match=r"cannot write '.*report\.html': No space left"):
        report.run(parsed(str(run_dir)))


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        parsed("--help")
    assert stop.value.code == 0
    assert "arachne report runs/first" in capsys.readouterr().out


def test_importing_the_verb_loads_neither_torch_nor_anything_that_draws():
    code = (
        "import sys, arachne.cli.report, arachne.reporting.timeline, arachne.reporting.trace_files;"
        "print(sorted({'torch', 'plotly', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": "src"},
        cwd=Path(__file__).parents[2],
    )
    assert found.stdout.strip() == "[]"
