"""Nothing of ours needs a temporary folder whose name is short enough for a socket."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from arachne.cli.run_dir import write_resolved
from arachne.reporting.run_files import read_metrics
from arachne.trainer.preparing_ray import socket_parent
from tests.cli.test_prepare import ENVIRONMENT
from tests.trainer.tiny_runs import changed, make_clips, tiny_config


@pytest.fixture
def long_folder(tmp_path: Path) -> Path:
    """Of 150 characters."""
    folder = tmp_path / "t"
    folder /= "o" * (149 - len(str(folder)))
    assert len(str(folder)) == 150
    folder.mkdir(parents=True)
    return folder


def done(verb: str, run_file: Path, *words: str, temporary: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "arachne", verb, str(run_file), *words],
        capture_output=True,
        text=True,
        timeout=100,
        env=ENVIRONMENT | {"TMPDIR": str(temporary)},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.distributed
def test_runs_are_prepared_and_trained_and_leave_nothing_there(tmp_path, long_folder):
    config = changed(
        tiny_config(make_clips(tmp_path / "clips"), tmp_path / "run", dtype="float32"),
        "run",
        ranks=2,
    )
    write_resolved(config, tmp_path / "run.toml")
    encoding = changed(config, "data", encode="online", cache=str(tmp_path / "other cache"))
    encoding = changed(encoding, "run", dir=str(tmp_path / "encoding"))
    write_resolved(encoding, tmp_path / "encoding.toml")

    said = done("prepare", tmp_path / "run.toml", "--workers", "2", "--json", temporary=long_folder)
    assert json.loads(said)["rejected"] == []
    for name in ("run", "encoding"):
        done("train", tmp_path / f"{name}.toml", temporary=long_folder)
        assert len(read_metrics(tmp_path / name).train) == 3
    assert not list(long_folder.iterdir())


def test_a_ray_of_our_own_lies_where_its_sockets_names_are_short_enough(monkeypatch, long_folder):
    monkeypatch.setattr("tempfile.tempdir", str(long_folder))
    assert len(socket_parent()) <= 20
    assert os.access(socket_parent(), os.W_OK)
    monkeypatch.setattr("tempfile.tempdir", "/dev/shm")
    assert socket_parent() == "/dev/shm"
