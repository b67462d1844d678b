import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from arachne.cli.inspect import add_parser
from arachne.core.errors import ConfigError, DataError
from tests.data.media import write_ramp


def _inspect(*words: object) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["inspect", *map(str, words)])
    return arguments.run(arguments)


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "160")
    root = tmp_path / "clips"
    write_ramp(root / "a.mp4", 40)
    (root / "a.txt").write_text("a [red] ramp")
    return root


def test_the_ledger_is_printed_and_nothing_is_written(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(dataset.parent.rglob("*"))
    assert _inspect(dataset, "--resolution", 64, "--frame-buckets", "1,17,33") == 0
    printed = capsys.readouterr().out
    assert "40f@16 → 40f@16 → 33" in printed
    assert "64x48x33" in printed
    assert "1 clip: 0 kept, 1 trimmed, 0 rejected" in printed
    assert sorted(dataset.parent.rglob("*")) == before


def test_a_rejected_clip_gives_exit_code_3(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dataset / "bad.mp4").touch()
    assert _inspect(dataset, "--missing-caption", "empty", "--workers", 1) == 3
    assert "the file has 0 bytes" in capsys.readouterr().out


def test_json_has_every_row(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _inspect(dataset, "--json", "--frame-buckets", "1,33", "--resolution", 64) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["counts"] == {"kept": 0, "trimmed": 1, "rejected": 0}
    (row,) = found["rows"]
    assert row["clip"]["caption"] == "a [red] ramp"
    assert row["bucket"] == {"width": 64, "height": 48, "frames": 33}


def test_a_run_file_gives_the_settings_and_options_change_them(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file = tmp_path / "run.toml"
    run_file.write_text(
        f"[run]\ndir = 'out'\nsteps = 1\n"
        f"[data]\npath = '{dataset}'\ncache = 'cache'\nfps = 8.0\nresolution = 64\n"
        "frame_buckets = [1, 17]\n"
    )
    assert _inspect(run_file) == 0
    assert "40f@16 → 20f@8 → 17" in capsys.readouterr().out
    assert _inspect(run_file, "--fps", 16, "--set", "data.frame_buckets=[33]") == 0
    assert "40f@16 → 40f@16 → 33" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--frame-buckets", "1,16"], "use 13 or 17"),
        (["--frame-buckets", "1;17"], "write for example 1,17,33"),
        (["--resolution", "3"], "data.resolution"),
        (["--fps", "0"], "data.fps"),
        (["--workers", "0"], "--workers"),
        (["--set", "data.fps=3"], "--set changes settings of a run file"),
    ],
)
def test_options_that_cannot_work_are_refused(
    dataset: Path, words: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        _inspect(dataset, *words)


def test_a_dataset_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        _inspect(tmp_path / "none")


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _inspect("--help")
    assert "arachne inspect clips/ --fps 16" in capsys.readouterr().out


def test_the_verb_needs_neither_torch_nor_pyav_until_it_runs() -> None:
    code = (
        "import sys, arachne.cli.inspect; "
        "assert 'av' not in sys.modules and 'torch' not in sys.modules; "
        "import arachne.data.inspect, arachne.data.prepare, arachne.data.loader; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
