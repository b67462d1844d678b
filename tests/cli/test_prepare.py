"""`arachne prepare` as users run it, and `arachne train` after it."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from arachne.cli.main import main
from arachne.cli.preparing_display import Display
from arachne.cli.run_dir import locked_run_dir, write_resolved
from arachne.cli.run_ledger import written_ledger
from arachne.core.errors import ConfigError, DataError
from arachne.core.ledger import Ledger
from arachne.core.strict_toml import load_toml
from arachne.data.manifest import read_manifest
from arachne.data.prepare import Latents
from arachne.data.process_identity import own_identity
from arachne.trainer.config import RunConfig
from arachne.trainer.settings.dataset import DatasetSettings
from tests.trainer.tiny_runs import (
    changed,
    make_clips,
    tiny_config,
    with_manifest,
    write_captions,
)

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


@pytest.fixture(autouse=True)
def _one_core(monkeypatch):
    """Files are inspected in this process."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})


def printed_json(capfd, *words: str, code: int = 0) -> dict:
    assert main(["prepare", *words, "--json"]) == code
    captured = capfd.readouterr()
    assert captured.err == "", "no bar where nobody looks"
    return json.loads(captured.out)


def ledger_of(run: Path | RunConfig) -> Ledger:
    run_dir = run.parent / "run" if isinstance(run, Path) else Path(run.run.dir)
    return read_manifest(run_dir / "ledger.parquet")


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
def test_the_size_that_it_says_has_the_pooled_states_of_captions(dataset, tmp_path, capfd):
    config = tiny_config(dataset, tmp_path / "run", dtype="float32")
    config = changed(config, "data", cache=str(tmp_path / "cache"))
    config = changed(config, "model", family="hunyuan_video", preset="hunyuanvideo-13b")
    write_resolved(config, tmp_path / "run.toml")
    estimate = printed_json(capfd, str(tmp_path / "run.toml"), "--dry-run")
    printed_json(capfd, str(tmp_path / "run.toml"), "--workers", "1")
    arrays = arrays_of(tmp_path / "cache").values()
    headers = sum(8 + int.from_bytes(array[:8], "little") for array in arrays)
    assert sum(map(len, arrays)) - headers == estimate["cache_bytes"]


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


def test_names_of_files_move_no_terminal(run_file, capfd):
    clips = run_file.parent / "clips"
    name = "bad\x1b[31m\u202e\x9b2J.mp4"
    (clips / name).write_bytes(b"no video")
    write_captions(clips, [*NAMES, name])
    shown = "rejected bad\\x1b[31m\\u202e\\x9b2J.mp4: "
    assert main(["prepare", str(run_file), "--dry-run"]) == 0
    assert capfd.readouterr().out.startswith(shown)
    assert main(["prepare", str(run_file), "--workers", "1"]) == 3
    assert capfd.readouterr().out.startswith(shown)


def test_the_name_of_a_file_that_was_replaced_moves_no_terminal(run_file, capfd):
    clips = run_file.parent / "clips"
    name = "a\x1b[31m.mp4"
    (clips / "a.mp4").rename(clips / name)
    write_captions(clips, [name, *NAMES[1:]])
    assert main(["prepare", str(run_file), "--workers", "1"]) == 0
    replace_file(clips / name, clips / "b.mp4")
    capfd.readouterr()
    assert main(["prepare", str(run_file), "--dry-run"]) == 0
    assert "taken as now: a\\x1b[31m.mp4\n" in capfd.readouterr().out


@pytest.mark.distributed
def test_a_clip_that_is_too_slow_is_rejected_in_the_ledger_until_it_is_tried_again(
    run_file, capfd, monkeypatch
):
    from arachne.trainer import preparing_processes

    def too_slow(workshop, pieces, **_):
        key = next(piece.key for piece in pieces if isinstance(piece, Latents))
        workshop.store.rejections.add(key, "decoding it took longer than 1 s")
        make(workshop, pieces, **_)

    from arachne.cli import preparing

    make = preparing_processes.make_on_processes
    monkeypatch.setattr(preparing, "make_on_processes", too_slow)
    outcome = printed_json(capfd, str(run_file), "--workers", "1", code=3)
    assert [row["clip"] for row in outcome["rejected"]] == ["a.mp4"]
    assert (outcome["made"], outcome["cached"]) == (13, 0)
    assert all(row.stamp for row in ledger_of(run_file).rows), "so that it is not read each time"
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


def replace_file(path: Path, other: Path) -> None:
    """Put another content at a path: of the same size and modification time, as far as can be."""
    stat = path.stat()
    content = other.read_bytes()
    # An empty MP4 box at the end, or bytes after a picture's, change nothing of what is decoded.
    padding = max(0, stat.st_size - len(content) - 8)
    if stat.st_size >= len(content) + 8:
        content += struct.pack(">I4s", 8 + padding, b"free") + bytes(padding)
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.distributed
def test_a_file_that_was_replaced_by_another_of_its_name_size_and_time_is_taken_anew(
    run_file, capfd
):
    clips = run_file.parent / "clips"
    small, large = sorted((clips / name for name in NAMES[:4]), key=lambda p: p.stat().st_size)[::3]
    assert printed_json(capfd, str(run_file), "--workers", "1")["made"] == 13
    before = large.stat()
    replace_file(large, small)
    assert (large.stat().st_size, large.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)

    estimate = printed_json(capfd, str(run_file), "--dry-run")
    assert (estimate["replaced"], estimate["missing_latents"]) == ([large.name], 1)
    outcome = printed_json(capfd, str(run_file), "--workers", "1")
    assert (outcome["replaced"], outcome["made"]) == ([large.name], 1)
    (row,) = [row for row in ledger_of(run_file).rows if row.clip.path == large.name]
    assert row.content == hashlib.sha256(large.read_bytes()).hexdigest()
    again = printed_json(capfd, str(run_file), "--workers", "1")
    assert (again["replaced"], again["made"], again["cached"]) == ([], 0, 13)


@pytest.mark.distributed
def test_files_are_read_again_only_where_they_were_touched(run_file, capfd, monkeypatch):
    from arachne.data import inspect

    read: list[str] = []
    look = inspect._inspect_file
    monkeypatch.setattr(inspect, "_inspect_file", lambda job: read.append(job.path) or look(job))
    assert printed_json(capfd, str(run_file), "--workers", "1")["made"] == 13
    assert sorted(read) == NAMES
    stamps = [row.stamp for row in ledger_of(run_file).rows]
    assert all(stamps)
    (run_file.parent / "clips" / "b.mp4").touch()
    for expected in (["b.mp4"], []):
        read.clear()
        outcome = printed_json(capfd, str(run_file), "--workers", "1")
        assert (outcome["made"], outcome["replaced"], read) == (0, [], expected)
    changed = [a != row.stamp for a, row in zip(stamps, ledger_of(run_file).rows, strict=True)]
    assert changed == [False, True, False, False, False, False]
    table = run_file.parent / "clips" / "metadata.csv"
    table.write_text(table.read_text().replace("this is e", "this is a sheet"))
    outcome = printed_json(capfd, str(run_file), "--workers", "1")
    assert (outcome["made"], outcome["replaced"], read) == (1, [], []), "the new caption"


@pytest.mark.distributed
def test_a_new_run_takes_files_as_they_are_and_one_with_checkpoints_keeps_its_clips(
    run_file, capfd
):
    clips, cache = run_file.parent / "clips", run_file.parent / "cache"
    assert printed_json(capfd, str(run_file), "--workers", "1")["made"] == 13
    with (clips / "c.mp4").open("ab") as file:
        file.write(struct.pack(">I4s", 8, b"free"))
    assert main(["train", str(run_file), "--set", "checkpoint.every=3"]) == 0
    assert len(arrays_of(cache)) == 14, "its latents"
    assert main(["prepare", str(run_file), "--workers", "1"]) == 0
    assert main(["prepare", str(run_file), "--workers", "1", "--again"]) == 0, "all is as it was"
    shutil.copy(clips / "b.mp4", clips / "a.mp4")
    capfd.readouterr()
    assert main(["prepare", str(run_file), "--workers", "1"]) == 2
    assert (
        "holds checkpoints of a run where 1 file had other content (a.mp4)"
        in capfd.readouterr().err
    )
    assert main(["prepare", str(run_file), "--set", "data.fps=4"]) == 2
    assert "of a run where data.fps is 8.0 and not 4.0; choose" in capfd.readouterr().err
    words = ["--resume", "--set", "run.steps=4"]
    assert main(["train", str(run_file), *words]) == 0
    assert (
        "since the run began the dataset has 1 file with other content ('a.mp4'); the run goes on "
        "with the clips of its ledger; --rescan takes" in " ".join(capfd.readouterr().out.split())
    )


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


@pytest.fixture
def config(run_file) -> RunConfig:
    """Of the run, whose ledger is of one look in this process."""
    config = load_toml(run_file, RunConfig)
    write_resolved(config, Path(with_manifest(config).run.dir) / "run.resolved.toml")
    return config


def quiet(what: str, done: int, total: int) -> None:
    """No bar."""


def prepared_beside(config: RunConfig, other: RunConfig, **options: bool) -> None:
    """One process prepares a run, and another one would like to."""
    with (
        written_ledger(config, quiet, is_again=False),
        written_ledger(other, quiet, is_again=options.get("is_again", False)),
    ):
        pass


def test_two_that_prepare_one_run_by_the_same_settings_do_not_exclude_each_other(config):
    prepared_beside(config, config)
    prepared_beside(config, config, is_again=True)
    prepared_beside(config, changed(config, "optimizer", lr=1.0))
    prepared_beside(config, changed(config, "data", cache="elsewhere"))


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("data", {"fps": 4.0}, "where data.fps is 8.0 and not 4.0; wait for it"),
        ("data", {"held_out": 0.5}, "where data.held_out is 0.0 and not 0.5; wait for it"),
        ("model", {"text_tokens": 5}, "where model.text_tokens is 4 and not 5; wait for it"),
    ],
)
def test_who_prepares_a_run_by_other_settings_meanwhile_is_refused(config, section, values, words):
    before = ledger_of(config)
    with pytest.raises(ConfigError, match=r"another process prepares run\.dir") as refused:
        prepared_beside(config, changed(config, section, **values))
    assert words in str(refused.value)
    assert ledger_of(config) == before


def test_from_repeats_to_weights_and_to_fewer_datasets_the_rows_that_stand_are_kept(config):
    path = str(shutil.copytree(config.data.path, Path(config.run.dir).parent / "more"))
    before = changed(config, "data", others=(DatasetSettings(path=path, repeats=2.0),))
    with written_ledger(before, quiet, is_again=False) as first:
        assert {row.clip.dataset for row in first.ledger.rows} == {"", "more"}
    others = (DatasetSettings(path=path, weight=3.0),)
    with written_ledger(
        changed(config, "data", weight=1.0, others=others), quiet, is_again=False
    ) as weighted:
        assert weighted.stood == first.ledger
    with written_ledger(config, quiet, is_again=False) as alone:
        assert alone.stood is None


def test_who_finds_other_clips_while_a_run_is_prepared_is_refused(config):
    clips = Path(config.data.path)
    with written_ledger(config, quiet, is_again=False):
        shutil.copy(clips / "a.mp4", clips / "b.mp4")
        words = r"where 1 file had other content \(b\.mp4\); wait"
        with (
            pytest.raises(ConfigError, match=words),
            written_ledger(config, quiet, is_again=False),
        ):
            pass


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_the_gate_keeps_nobody_waiting(config):
    gate = Path(config.run.dir) / ".lock-ledger"
    gate.unlink(missing_ok=True)
    os.mkfifo(gate)
    with (
        pytest.raises(DataError, match=r"\.lock-ledger' is no file; move it away"),
        written_ledger(config, quiet, is_again=False),
    ):
        pass


def test_a_damaged_ledger_is_refused_but_made_anew_if_all_is_inspected_again(config):
    path = Path(config.run.dir) / "ledger.parquet"
    before = ledger_of(config)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="delete it to have the dataset read again"):
        prepared_beside(config, config)
    with written_ledger(config, quiet, is_again=True):
        assert ledger_of(config) == before


@pytest.mark.parametrize("verb", ["prepare", "train"])
def test_that_no_clip_is_usable_is_said_before_a_model_is_loaded(
    run_file, capfd, monkeypatch, verb
):
    from arachne.cli import preparing
    from arachne.trainer import session

    for name in NAMES:
        (run_file.parent / "clips" / name).write_bytes(b"nothing")
    for module in (preparing, session):
        monkeypatch.setattr(module, "run_video_encoder", None)
        monkeypatch.setattr(module, "run_text_encoder", None)
    assert main([verb, str(run_file)]) == 2
    assert "none of the 6 clips in" in capfd.readouterr().err


@pytest.mark.distributed
def test_claims_of_processes_that_were_ended_do_not_stay_when_nothing_is_left_to_do(
    run_file, capfd
):
    assert printed_json(capfd, str(run_file), "--workers", "1")["made"] == 13
    claims = run_file.parent / "cache" / "claims"
    assert list(claims.iterdir()) == []
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        number = process.pid
    (claims / "ended").write_text(" ".join([*own_identity().split(" ")[:-2], str(number), "1"]))
    (claims / "elsewhere-long-ago").write_text("another-boot pid:[1] 1 1")
    os.utime(claims / "elsewhere-long-ago", (1e9, 1e9))
    (claims / "elsewhere").write_text("another-boot pid:[1] 1 1")
    (claims / "own").write_text(own_identity())
    assert printed_json(capfd, str(run_file), "--workers", "1")["made"] == 0
    assert sorted(path.name for path in claims.iterdir()) == ["elsewhere", "own"]


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
