"""`arachne doctor` on this machine, on made faults, and with ranks that meet."""

import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from arachne.cli import doctor
from arachne.cli.doctor_of_run import _state_bytes, findings_of_run
from arachne.cli.main import main
from arachne.cli.run_dir import write_resolved
from arachne.reporting import wandb_log
from arachne.trainer.settings.dataset import DatasetSettings
from tests.trainer.tiny_runs import changed, tiny_config


def _findings(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, dict]]:
    code = main(["doctor", "--json", *words])
    rows = json.loads(capsys.readouterr().out)["findings"]
    return code, {row["what"]: row for row in rows}


def test_this_machine_can_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = _findings(capsys, "--folder", str(tmp_path))
    assert code == 0
    assert found["torch"]["found"] == importlib.metadata.version("torch")
    assert {"python", "CPU", "disk", "TMPDIR", "shared memory", "open files"} <= found.keys()
    assert all((row["verdict"] == "good") == (row["fix"] == "") for row in found.values())


def test_a_missing_package_is_a_fault_only_if_nothing_works_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    present = importlib.metadata.version

    def version(name: str) -> str:
        if name in ("av", "ortools"):
            raise importlib.metadata.PackageNotFoundError(name)
        return present(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    code, found = _findings(capsys, "--folder", str(tmp_path))
    assert code == 2
    assert (found["av"]["verdict"], found["av"]["fix"]) == ("fault", "install av")
    assert found["ortools"]["verdict"] == "warning"


def test_a_folder_that_cannot_be_used_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = _findings(capsys, "--folder", str(tmp_path / "none"))
    assert code == 2
    assert "No such file" in found["disk"]["found"]


def test_little_space_and_few_open_files_are_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: usage(int(64e6), 0, int(1e9)))
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda which: (1024, 4096))
    code, found = _findings(capsys, "--folder", str(tmp_path))
    assert code == 0
    assert [found[name]["verdict"] for name in ("disk", "shared memory", "open files")] == [
        "warning"
    ] * 3
    assert "--shm-size" in found["shared memory"]["fix"]


@pytest.mark.distributed
def test_ranks_under_torchrun_meet_and_only_the_first_speaks(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "arachne", "doctor", "--json", "--folder", str(tmp_path)],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        (said, _), (silent, _) = (rank.communicate(timeout=90) for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
    assert silent == ""
    found = {row["what"]: row for row in json.loads(said)["findings"]}
    assert found["ranks"]["found"].startswith("2 ranks meet in")
    assert found["clocks"]["verdict"] == "good"
    assert [rank.returncode for rank in ranks] == [0, 0]


def test_a_run_s_folders_room_and_model_are_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "clips").mkdir()
    config = tiny_config(tmp_path / "clips", tmp_path / "runs" / "new")
    write_resolved(config, tmp_path / "run.toml")
    code, found = _findings(capsys, "--run", str(tmp_path / "run.toml"))
    assert code == 0
    assert str(tmp_path) in found["run.dir"]["found"]
    assert found["checkpoints"]["verdict"] == "good"
    assert "2 at once" in found["checkpoints"]["found"]

    config = changed(changed(config, "data", path="nowhere"), "model", pretrained="nowhere")
    write_resolved(config, tmp_path / "run.toml")
    code, found = _findings(capsys, "--run", str(tmp_path / "run.toml"))
    assert code == 2
    assert found["data.path"]["verdict"] == found["model"]["verdict"] == "fault"
    assert "no config.json" in found["model"]["found"]
    assert found["model"]["fix"].startswith("name a folder")
    assert found["run file"]["found"] == "model.pretrained 'nowhere' does not exist"

    planned = changed(config, "model", preset="wan-1.3b", family="wan")
    write_resolved(planned, tmp_path / "run.toml")
    _, found = _findings(capsys, "--run", str(tmp_path / "run.toml"))
    assert found["run file"]["verdict"] == "fault", "a preset is for planning alone"

    write_resolved(config, tmp_path / "run.toml")
    whole = ("--set", f"data.path={tmp_path}", "--set", "model.pretrained=")
    code, found = _findings(capsys, "--run", str(tmp_path / "run.toml"), *whole)
    assert code == 0
    others = (DatasetSettings(path="away"),)
    write_resolved(changed(config, "data", others=others), tmp_path / "run.toml")
    code, found = _findings(capsys, "--run", str(tmp_path / "run.toml"), *whole)
    assert code == 2
    assert found["data.others.path"]["found"] == "there is no 'away' on this machine"

    write_resolved(changed(config, "data", path="nonsense://clips"), tmp_path / "run.toml")
    _, found = _findings(capsys, "--run", str(tmp_path / "run.toml"))
    assert found["data.path"]["verdict"] == "fault"
    assert "Protocol not known: nonsense" in found["data.path"]["found"]


def test_a_run_s_logs_may_need_a_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_log, "find_spec", lambda _: None)
    config = changed(tiny_config(tmp_path, tmp_path / "run"), "logging", wandb="films")
    write_resolved(config, tmp_path / "run.toml")
    code, found = _findings(capsys, "--run", str(tmp_path / "run.toml"))
    assert code == 2
    assert "the package wandb is not installed" in found["run file"]["found"]


def test_settings_without_a_run_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--set", "data.path=x"]) == 2
    assert "name its file with --run" in capsys.readouterr().err


def test_gpus_are_held_against_the_cluster_file_and_the_state(tmp_path: Path) -> None:
    config = changed(tiny_config(tmp_path, tmp_path), "cluster", name="h100")
    config = changed(config, "model", preset="wan-14b", num_layers=0, num_heads=0, head_size=0)
    config = changed(config, "model", ffn_size=0, video_encoder="dct")

    def verdicts(memory_bytes: float) -> dict[str, str]:
        return {row.what: row.verdict for row in findings_of_run(config, [int(memory_bytes)])}

    assert verdicts(85e9)["cluster"] == "good"
    config = changed(config, "cluster", name="h100x8")
    assert verdicts(85e9)["cluster"] == "good"
    assert verdicts(24e9)["cluster"] == "fault"
    assert verdicts(24e9)["state"] == "warning"
    assert verdicts(1e12)["state"] == "good"


def test_few_bytes_for_as_many_checkpoints_as_are_kept_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clips").mkdir()
    plain = tiny_config(tmp_path / "clips", tmp_path / "run")

    def room(keep: int, free: float) -> Any:
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(int(1e12), 0, int(free)))
        config = changed(plain, "checkpoint", keep=keep)
        return next(row for row in findings_of_run(config, []) if row.what == "checkpoints")

    each = room(1, 0.0).found.partition(" each")[0]
    assert room(1, 1e9).verdict == "good"
    assert room(4, 1e9).found.startswith(f"{each} each, 5 at once; 1 GB free")
    needed = _state_bytes(plain)[1]
    assert (room(4, 5 * needed + 1).verdict, room(4, 5 * needed - 1).verdict) == ("good", "warning")
    assert "lower checkpoint.keep" in room(4, 0.0).fix


def test_a_folder_that_cannot_be_written_is_a_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    code, found = _findings(capsys, "--folder", str(tmp_path))
    assert code == 2
    assert found["disk"]["found"] == f"{str(tmp_path)!r} cannot be written"


def test_ranks_that_meet_late_and_clocks_that_are_apart_are_warnings() -> None:
    assert [row.verdict for row in doctor.meeting_findings(8, 0.001, 0.01)] == ["good", "good"]
    slow, skewed = doctor.meeting_findings(8, 0.1, 2.0)
    assert (slow.verdict, skewed.verdict) == ("warning", "warning")
    assert slow.found == "8 ranks meet in 100 ms"
    assert "NCCL_SOCKET_IFNAME" in slow.fix
    assert "NTP" in skewed.fix


@pytest.mark.parametrize(
    ("said", "verdict", "found"),
    [
        ("echo 570.1; echo 570.1", "good", "570.1; torch is built for CUDA 12.8"),
        ("echo 570.1; echo 560.2", "warning", "560.2, 570.1; torch is built for CUDA 12.8"),
        ("exit 9", "warning", "nvidia-smi does not answer"),
    ],
)
def test_one_driver_is_good_and_two_or_none_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, verdict: str, found: str
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{said}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    driver = doctor._driver("12.8")
    assert driver.verdict == verdict
    assert driver.found.startswith(found)
    assert bool(driver.fix) == (verdict == "warning")
