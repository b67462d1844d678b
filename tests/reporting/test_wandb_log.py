"""Weights & Biases, against a module that only remembers."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from arachne.core.errors import ConfigError
from arachne.reporting import wandb_log
from arachne.reporting.wandb_log import WandbLog, check_installed


@pytest.fixture
def calls(monkeypatch) -> list[Any]:
    """What a fake `wandb` was asked, in order."""
    heard: list[Any] = []
    run = SimpleNamespace(
        id="abc",
        log=lambda row: heard.append(("log", row)),
        define_metric=lambda *names, **options: heard.append(("define", names, options)),
        finish=lambda: heard.append(("finish",)),
    )

    def init(**options: Any) -> Any:
        heard.append(("init", options))
        return run

    fake = ModuleType("wandb")
    fake.Error = RuntimeError  # type: ignore[attr-defined]
    fake.init, fake.Video = init, lambda path: f"video {Path(path).name}"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr(wandb_log, "find_spec", lambda name: object())
    return heard


def test_numbers_carry_the_runs_own_step(calls, tmp_path: Path):
    log = WandbLog("films", tmp_path, {"run": {"steps": 3}})
    log.write_scalars(2, {"train/loss": 0.5})
    log.write_videos(2, {"samples/0": tmp_path / "0.mp4"})
    log.close()
    (_, options), defined, *logged = calls
    assert options["project"] == "films"
    assert options["config"] == {"run": {"steps": 3}}
    assert options["id"] is None
    assert "mode" not in options, "WANDB_MODE decides"
    assert defined == ("define", ("*",), {"step_metric": "step"})
    assert logged == [
        ("log", {"train/loss": 0.5, "step": 2}),
        ("log", {"samples/0": "video 0.mp4", "step": 2}),
        ("finish",),
    ]


def test_a_resumed_run_is_the_same_run(calls, tmp_path: Path):
    WandbLog("films", tmp_path, {})
    calls.clear()
    WandbLog("films", tmp_path, {})
    assert calls[0][1]["id"] == "abc"
    assert calls[0][1]["resume"] == "allow"


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setattr(wandb_log, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"logging.wandb is 'films'.*pip install 'arachne\[wandb"):
        check_installed("films")
    check_installed("")


def test_a_server_that_cannot_be_reached_is_one_line(calls, tmp_path: Path, monkeypatch):
    def refuse(**options: Any) -> Any:
        raise RuntimeError("no API key.")

    monkeypatch.setattr(sys.modules["wandb"], "init", refuse)
    with pytest.raises(ConfigError, match=r"cannot be used: no API key; run wandb login, or set"):
        WandbLog("films", tmp_path, {})


def test_nothing_is_imported_before_it_is_used():
    assert "wandb" not in sys.modules
