"""`arachne prepare` as users run it, and `arachne train` after it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from arachne.cli.main import main
from arachne.cli.preparing_display import Display
from arachne.cli.run_dir import locked_run_dir, write_resolved
from arachne.data.manifest import read_manifest
from tests.trainer.tiny_runs import changed, make_clips, tiny_config, write_captions

NAMES = ["a.mp4", "b.mp4", "c.mp4", "d.mp4", "e.png", "f.png"]
ENVIRONMENT = os.environ | {"PYTHONPATH": "src", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return make_clips(tmp_path_factory.mktemp("cli") / "clips")


@pytest.fixture
def run_file(dataset, tmp_path) -> Path:
    """A run on a dataset and with a cache of its own."""
    shutil.copytree(dataset, tmp_path / "clips")
    config = tiny_config(tmp_path / "clips", tmp_path / "run", dtype="float32")
    write_resolved(changed(config, "run", ranks=1), tmp_path / "run.toml")
    return tmp_path / "run.toml"


def printed_json(capfd, *words: str, code: int = 0) -> dict:
    assert main(["prepare", *words, "--json"]) == code
    captured = capfd.readouterr()
    assert captured.err == "", "no bar where nobody looks"
    return json.loads(captured.out)


def arrays_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.safetensors")}


@pytest.mark.distributed
def test_it_says_what_it_would_do_does_it_and_then_nothing_is_left(run_file, capfd):
    before = sorted(run_file.parent.rglob("*"))
    estimate = printed_json(capfd, str(run_file), "--dry-run")
    assert sorted(run_file.parent.rglob("*")) == before, "a dry run writes nothing"
    assert (estimate["missing_latents"], estimate["missing_texts"]) == (6, 7)

    outcome = printed_json(capfd, str(run_file), "--workers", "2")
    assert outcome["made"] == 13
    assert outcome["cached"] == 0
    assert outcome["rejected"] == []
    arrays = arrays_of(run_file.parent / "cache")
    assert len(arrays) == 13
    headers = sum(8 + int.from_bytes(array[:8], "little") for array in arrays.values())
    assert sum(map(len, arrays.values())) - headers == estimate["cache_bytes"]

    again = printed_json(capfd, str(run_file), "--workers", "2")
    assert (again["made"], again["cached"]) == (0, 13)
    left = printed_json(capfd, str(run_file), "--dry-run")
    assert (left["missing_latents"], left["missing_texts"], left["cache_bytes"]) == (0, 0, 0)


@pytest.mark.distributed
def test_training_finds_everything_cached(run_file, capfd):
    assert main(["prepare", str(run_file), "--workers", "1"]) == 0
    cache = run_file.parent / "cache"
    times = {path: path.stat().st_mtime_ns for path in cache.rglob("*.safetensors")}
    assert main(["train", str(run_file)]) == 0
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.safetensors")} == times
    assert "13 arrays made" in capfd.readouterr().out


@pytest.mark.distributed
def test_a_dataset_at_an_address_is_prepared_and_trained(run_file, capfd):
    archive = shutil.make_archive(str(run_file.parent / "all"), "zip", run_file.parent, "clips")
    shutil.rmtree(run_file.parent / "clips")
    there = f"data.path='zip://clips::{archive}'"
    outcome = printed_json(capfd, str(run_file), "--workers", "2", "--set", there)
    assert (outcome["made"], outcome["rejected"]) == (13, [])
    assert main(["train", str(run_file), "--set", there]) == 0


@pytest.mark.distributed
def test_a_bad_file_is_listed_with_its_reason_and_the_rest_is_made(run_file, capfd):
    clips = run_file.parent / "clips"
    (clips / "broken.mp4").write_bytes(b"no video")
    write_captions(clips, [*NAMES, "broken.mp4"])
    outcome = printed_json(capfd, str(run_file), "--workers", "1", code=3)
    ((rejected),) = outcome["rejected"]
    assert rejected["clip"] == "broken.mp4"
    assert rejected["reason"]
    assert outcome["made"] == 13
    ledger = read_manifest(run_file.parent / "run" / "ledger.parquet")
    assert ledger.counts["rejected"] == 1


def test_a_dry_run_names_the_first_rejected_clips_by_reason(run_file, capfd):
    clips = run_file.parent / "clips"
    bad = [f"bad{number:02}.mp4" for number in range(12)]
    for name in bad:
        (clips / name).write_bytes(b"" if name < "bad08.mp4" else b"no video")
    write_captions(clips, [*NAMES, *bad])
    assert main(["prepare", str(run_file), "--dry-run"]) == 0
    empty, odd, more, counts, *_ = capfd.readouterr().out.splitlines()
    assert empty == f"rejected {', '.join(bad[:8])}: the file has 0 bytes"
    assert odd.startswith("rejected bad08.mp4, bad09.mp4: its content is no video")
    assert more == "rejected 2 clips more; --json names all"
    assert counts == "6 clips to train, 12 rejected"
    found = printed_json(capfd, str(run_file), "--dry-run")
    assert [row["clip"] for row in found["rejected"]] == bad


@pytest.mark.distributed
def test_a_clip_that_is_too_slow_is_rejected_in_the_ledger_until_it_is_tried_again(
    run_file, capfd, monkeypatch
):
    from arachne.trainer import preparing_processes

    def too_slow(workshop, pieces, **_):
        key = next(piece.key for piece in pieces if hasattr(piece, "row"))
        workshop.store.rejections.add(key, "decoding it took longer than 1 s")
        make(workshop, pieces, **_)

    from arachne.cli import preparing

    make = preparing_processes.make_on_processes
    monkeypatch.setattr(preparing, "make_on_processes", too_slow)
    outcome = printed_json(capfd, str(run_file), "--workers", "1", code=3)
    assert [row["clip"] for row in outcome["rejected"]] == ["a.mp4"]
    assert (outcome["made"], outcome["cached"]) == (13, 0)
    monkeypatch.undo()
    after = printed_json(capfd, str(run_file), "--workers", "1", code=3)
    assert (after["made"], after["cached"]) == (0, 11), "neither its latents nor its caption count"
    again = printed_json(capfd, str(run_file), "--workers", "1", "--again")
    assert (again["made"], again["rejected"]) == (1, [])


@pytest.mark.distributed
def test_a_file_that_was_away_is_prepared_once_it_is_back(run_file, capfd):
    assert printed_json(capfd, str(run_file), "--workers", "1")["made"] == 13
    shutil.rmtree(run_file.parent / "cache")
    clip = run_file.parent / "clips" / "a.mp4"
    clip.rename(run_file.parent / "away.mp4")
    (missing,) = printed_json(capfd, str(run_file), "--workers", "1", code=3)["rejected"]
    assert missing["reason"] == "path 'a.mp4' is not a file in the dataset's folder"
    (run_file.parent / "away.mp4").rename(clip)
    outcome = printed_json(capfd, str(run_file), "--workers", "1")
    assert (outcome["made"], outcome["cached"], outcome["rejected"]) == (1, 12, [])


@pytest.mark.distributed
def test_a_changed_setting_or_a_new_clip_is_noticed_and_only_that_is_made(run_file, capfd):
    assert printed_json(capfd, str(run_file), "--workers", "1")["made"] == 13
    smaller = printed_json(capfd, str(run_file), "--workers", "1", "--set", "data.resolution=32")
    assert smaller["cached"] >= 7, "the words stay"
    assert 0 < smaller["made"] <= 6
    clips = run_file.parent / "clips"
    shutil.copy(clips / "e.png", clips / "new.png")
    write_captions(clips, [*NAMES, "new.png"])
    more = printed_json(capfd, str(run_file), "--workers", "1")
    assert sum(more["clips"].values()) == 7
    assert more["made"] == 1, "its caption; its pixels are known"


def test_ray_that_is_not_installed_or_under_torchrun_is_one_line(run_file, capfd, monkeypatch):
    from arachne.cli import prepare

    monkeypatch.setattr(prepare, "find_spec", lambda _: None)
    monkeypatch.setattr(prepare, "loaded_config", None)  # it is not got to
    assert main(["prepare", str(run_file), "--engine", "ray", "--dry-run"]) == 2
    assert "which is not installed; pip install 'arachne[ray]'" in capfd.readouterr().err
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    assert main(["prepare", str(run_file), "--engine", "ray"]) == 2
    assert "--engine ray starts its own workers" in capfd.readouterr().err


def test_what_cannot_work_is_one_line(run_file, capfd):
    assert main(["prepare", str(run_file), "--workers", "0"]) == 2
    assert "--workers is 0; it must be at least 1" in capfd.readouterr().err
    with locked_run_dir(run_file.parent / "run"):
        assert main(["prepare", str(run_file)]) == 2
    assert "another process trains in run.dir" in capfd.readouterr().err
    (run_file.parent / "run" / "ledger.parquet").write_bytes(b"mine")
    assert main(["prepare", str(run_file)]) == 2
    assert "which no run of Arachne wrote" in capfd.readouterr().err


def test_two_that_prepare_one_run_do_not_exclude_each_other(tmp_path):
    with locked_run_dir(tmp_path, is_shared=True), locked_run_dir(tmp_path, is_shared=True):
        pass


def test_a_terminal_shows_rate_and_time_left(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with Display(is_shown=True) as display:
        for done in range(4):
            display.progress("preparing", done, 10)
    shown = capsys.readouterr().err
    assert "preparing" in shown
    assert "3/10" in shown
    assert "/s" in shown


@pytest.mark.distributed
def test_ranks_of_torchrun_share_the_work(run_file):
    words = ["--standalone", "--nproc-per-node", "2", "-m", "arachne", "prepare", str(run_file)]
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words, "--json"],
        capture_output=True,
        text=True,
        timeout=110,
        env=ENVIRONMENT,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    outcome = json.loads(line)
    assert (outcome["made"], outcome["rejected"]) == (13, [])
    assert len(arrays_of(run_file.parent / "cache")) == 13
