"""`arachne checkpoints`: what stands in a run's folder, whether it is whole, and pruning it."""

import fcntl
import json
import os
from pathlib import Path

import numpy as np
import pytest

from arachne.cli.main import main
from arachne.core.strict_json import to_json
from arachne.trainer.checkpoint import commit, write_shard
from arachne.trainer.checkpoint_files import Chunk, TrainState, checkpoints_dir
from tests.forbidden_files import forbidden
from tests.trainer.tiny_runs import tiny_config


def _save(run_dir: Path, step: int) -> Path:
    for rank in range(2):
        values = np.full(3, rank, np.float32)
        chunks = [Chunk(name="w", kind="master", offset=3 * rank, total=6, values=values)]
        write_shard(run_dir, step, rank, chunks)
    losses = (2.0, 1.25)[-step:]
    state = TrainState(
        step=step,
        num_updates=step,
        seed=3,  # as in the settings
        world_size=2,
        config_json=to_json(tiny_config(run_dir, run_dir)),
        losses=losses,
    )
    return commit(run_dir, step, parameters={"w": (2, 3)}, state=state)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for step in (1, 2, 3):
        _save(tmp_path, step)
    return tmp_path


def _names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in checkpoints_dir(run_dir).iterdir())


def _listed(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict]:
    code = main(["checkpoints", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("target", ["nowhere", "shard-00000.safetensors"])
def test_a_shard_that_is_a_link_to_nowhere_or_itself_is_a_damaged_checkpoint(
    run_dir: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    shard = checkpoints_dir(run_dir) / "step-000003" / "shard-00000.safetensors"
    shard.unlink()
    shard.symlink_to(target)
    code, listed = _listed(capsys, run_dir, "--verify")
    assert code == 3
    newest = listed["checkpoints"][0]
    assert newest["name"] == "step-000003"
    assert newest["fault"].startswith("shard-00000.safetensors is missing")


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("name", "message"),
    [("checkpoints/best.json", "it is no file"), (".lock", ".lock' is no file; move it away")],
)
def test_a_pipe_among_a_run_s_files_keeps_nobody_waiting(
    run_dir: Path, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    os.mkfifo(run_dir / name)
    assert main(["checkpoints", str(run_dir), "--prune", "--keep", "1"]) == 2
    assert message in capsys.readouterr().err


def test_checkpoints_are_listed_newest_first(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoints", str(run_dir)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[1:]] == [
        "step-000003",
        "step-000002",
        "step-000001",
    ]
    assert printed[1].split()[-3:] == ["2", "1.2500", "committed"]
    code, found = _listed(capsys, run_dir)
    assert code == 0
    row = found["checkpoints"][0]
    size = sum(f.stat().st_size for f in (checkpoints_dir(run_dir) / "step-000003").iterdir())
    assert (row["step"], row["ranks"], row["loss"], row["num_bytes"]) == (3, 2, 1.25, size)


def test_a_flipped_bit_is_found_when_asked_for(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = checkpoints_dir(run_dir) / "step-000002" / "shard-00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    assert _listed(capsys, run_dir)[0] == 0
    code, found = _listed(capsys, run_dir, "--verify")
    assert code == 3
    faults = [row["fault"] for row in found["checkpoints"]]
    conditions = [row["condition"] for row in found["checkpoints"]]
    assert conditions == ["whole", "damaged", "whole"]
    assert faults[0] == faults[2] == ""
    assert faults[1].startswith("shard-00001.safetensors is damaged")


def test_a_damaged_index_and_an_unfinished_folder_are_told_apart(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoints_dir(run_dir) / "step-000003" / "index.json").write_text("{}")
    (checkpoints_dir(run_dir) / "step-000004.partial").mkdir()
    code, found = _listed(capsys, run_dir)
    assert code == 3
    unfinished, damaged, *_ = found["checkpoints"]
    assert (unfinished["condition"], unfinished["fault"]) == ("unfinished", "")
    assert damaged["condition"] == "damaged"
    assert damaged["fault"].startswith("index.json is damaged")


def test_pruning_counts_from_the_newest_whole_one(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoints_dir(run_dir) / "step-000003" / "shard-00000.safetensors").unlink()
    code, found = _listed(capsys, run_dir, "--prune", "--keep", 1)
    assert (code, found["pruned"]) == (0, ["step-000001"])
    assert _names(run_dir) == ["step-000002", "step-000003"]


def test_each_checkpoint_is_one_line_in_a_pipe_however_long_its_fault_is(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoints_dir(run_dir) / "step-000002" / "index.json").write_text("{}")
    assert main(["checkpoints", str(run_dir), "--verify"]) == 3
    header, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("step-000002")
    assert lines[1].endswith("it describes all parameters")
    assert {
        line.index(" committed" if "committed" in line else " whole") for line in lines[::2]
    } == {header.index(" condition")}


def test_what_was_pruned_is_said_with_what_it_freed_and_what_crashes_left(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoints_dir(run_dir) / "step-000002.partial").mkdir()
    assert main(["checkpoints", str(run_dir), "--prune", "--keep", "2"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("deleted ")
    assert last.endswith("B: step-000002.partial, step-000001")
    assert main(["checkpoints", str(run_dir), "--prune", "--keep", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing to delete"


def test_only_the_name_that_a_step_is_saved_under_is_a_checkpoint(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (
        "step-\u0663\u0663\u0663\u0663\u0663\u0663",
        "step-0000009",
        "step-9",
        "step-000009.old",
    ):
        (checkpoints_dir(run_dir) / name).mkdir()
    _, found = _listed(capsys, run_dir)
    assert [row["step"] for row in found["checkpoints"]] == [3, 2, 1]


def test_nothing_is_pruned_beside_a_training(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (run_dir / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["checkpoints", str(run_dir), "--prune", "--keep", "1"]) == 2
    assert "another process trains" in capsys.readouterr().err
    assert len(_names(run_dir)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prune"], "--prune and --keep N belong together"),
        (["--keep", "2"], "--prune and --keep N belong together"),
        (["--prune", "--keep", "0"], "--keep is 0; at least 1"),
    ],
)
def test_options_that_cannot_work_are_refused(
    run_dir: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoints", str(run_dir), *options]) == 2
    assert message in capsys.readouterr().err
    assert len(_names(run_dir)) == 3


def test_a_number_that_is_none_is_one_line(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["checkpoints", str(run_dir), "--prune", "--keep", "x"])
    assert end.value.code == 2
    line = "arachne: argument --keep: invalid int value: 'x'; see arachne checkpoints --help\n"
    assert capsys.readouterr().err == line


def test_a_folder_without_checkpoints_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoints", str(tmp_path)]) == 2
    assert main(["checkpoints", str(tmp_path / "none")]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "has no checkpoint; a run saves one every checkpoint.every steps" in first
    assert "there is no folder" in second


def test_a_checkpoint_that_may_not_be_read_is_listed_and_neither_counts_nor_goes(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoints_dir(run_dir) / "step-000003"
    with forbidden(folder):
        code, listed = _listed(capsys, run_dir, "--prune", "--keep", "1")
        assert main(["checkpoints", str(run_dir)]) == 3
    assert code == 3
    unreadable, kept = listed["checkpoints"]
    assert (unreadable["name"], unreadable["num_bytes"]) == ("step-000003", None)
    assert unreadable["condition"] == "damaged"
    assert unreadable["fault"].startswith("cannot be read: ")
    assert "Permission denied" in unreadable["fault"]
    assert (kept["name"], kept["fault"]) == ("step-000002", "")
    assert _names(run_dir) == ["step-000002", "step-000003"]


def test_a_folder_whose_files_alone_may_not_be_listed_is_whole(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with forbidden(checkpoints_dir(run_dir) / "step-000003", 0o100):
        code, listed = _listed(capsys, run_dir, "--verify")
    assert code == 0
    assert listed["checkpoints"][0]["condition"] == "whole"
    assert listed["checkpoints"][0]["num_bytes"] is None


@pytest.mark.parametrize("words", [[], ["--prune", "--keep", "1"]])
@pytest.mark.parametrize(
    ("name", "mode"), [("checkpoints", 0), ("checkpoints", 0o400), (".", 0), ("..", 0)]
)
def test_folders_that_may_not_be_read_are_one_line_that_names_them(
    run_dir: Path, capsys: pytest.CaptureFixture[str], words: list[str], name: str, mode: int
) -> None:
    folder = (run_dir / name).resolve()
    with forbidden(folder, mode):
        assert main(["checkpoints", str(run_dir), *words]) == 2
    error = capsys.readouterr().err
    assert str(folder) in error
    assert error.endswith("; let this user read and write it\n")
    assert "Permission denied" in error
    assert error.count("\n") == 1


def test_pruning_spares_the_best_and_stops_where_nobody_knows_which_that_is(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = checkpoints_dir(run_dir) / "best.json"
    impossible = ('{"step": -10, "loss": 0.5}', '{"step": 1, "loss": -5.0}', "1" * 100_000)
    for broken in ('{"step": 1, "lo', "[1]", '{"step": 1}', *impossible):
        best.write_text(broken)
        assert main(["checkpoints", str(run_dir), "--prune", "--keep", "1"]) == 2
        assert "names the best checkpoint, cannot be read" in capsys.readouterr().err
    best.unlink()
    best.mkdir()
    assert main(["checkpoints", str(run_dir), "--prune", "--keep", "1"]) == 2
    assert len([name for name in _names(run_dir) if name.startswith("step-")]) == 3
    best.rmdir()
    best.write_text('{"step": 1, "loss": 0.5}')
    assert main(["checkpoints", str(run_dir), "--prune", "--keep", "1"]) == 0
    assert _names(run_dir) == ["best.json", "step-000001", "step-000003"]
