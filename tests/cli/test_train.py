"""`arachne train` on a tiny dataset, as users run it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from arachne.cli.main import main
from arachne.cli.run_dir import write_resolved
from arachne.data.cache import LatentCache, text_key
from arachne.data.manifest import read_manifest
from arachne.models.diffusers_module import build_transformer
from arachne.models.hashed_text import HASHED_TEXT_SIZE, HashedTextEncoder
from arachne.reporting.run_files import read_batches, read_metrics, read_plans
from arachne.trainer.checkpoint_reader import newest, verified
from tests.data.media import write_damaged_packets
from tests.models.tiny_autoencoders import save_tiny_autoencoder
from tests.trainer.tiny_runs import changed, make_clips, tiny_config, write_captions

COMMAND = [sys.executable, "-m", "arachne", "train"]
TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    *("-m", "arachne", "train"),
]
ENVIRONMENT = os.environ | {"PYTHONPATH": "src", "OMP_NUM_THREADS": "1"}
NAMES = ["a.mp4", "b.mp4", "c.mp4", "d.mp4", "e.png", "f.png"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return make_clips(tmp_path_factory.mktemp("cli") / "clips")


@pytest.fixture
def run_file(dataset, tmp_path) -> Path:
    config = tiny_config(dataset, tmp_path / "run", dtype="float32")
    write_resolved(changed(config, "run", ranks=2), tmp_path / "run.toml")
    return tmp_path / "run.toml"


def started(command: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *words],
        capture_output=True,
        text=True,
        timeout=100,
        env=ENVIRONMENT,
        check=False,
    )


def refused(capfd, *words: str) -> str:
    """The one line that a command says that cannot work; no bug, no traceback."""
    assert main(["train", *words]) == 2
    error = capfd.readouterr().err
    assert error.startswith("arachne: ")
    assert error.count("\n") == 1, error
    return error


@pytest.mark.distributed
def test_a_run_trains_writes_its_files_and_is_not_overwritten(run_file, capfd):
    ended = started(COMMAND, str(run_file))
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()
    assert "6 clips on 2 ranks" in ended.stdout
    steps = [line for line in lines if line.startswith("step ")]
    assert len(steps) == 3
    assert all("launch times off by" in line for line in steps)
    assert lines[-1].startswith("done: 3 steps; files in ")

    run_dir = run_file.parent / "run"
    rows = read_metrics(run_dir).train
    assert [row.step for row in rows] == [0, 1, 2]
    assert all(row.launch_error is not None and row.launch_error >= 0.0 for row in rows)
    assert set(read_plans(run_dir)[0]) == set(read_batches(run_dir)[0]) == {0, 1, 2}
    for rank in (0, 1):
        logs = (run_dir / "traces" / f"rank-0000{rank}.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in logs] == [0, 1, 2]
    assert verified(newest(run_dir, on_skip=print)).state.step == 3
    assert (run_dir / "ledger.parquet").is_file()
    assert (run_dir / "run.resolved.toml").is_file()

    assert "already holds checkpoints" in refused(capfd, str(run_file))
    seed = refused(capfd, str(run_file), "--resume", "--set", "run.seed=9")
    assert "run.seed is 9, but the run to resume has 3" in seed
    fewer = refused(capfd, str(run_file), "--resume", "--set", "run.steps=2")
    assert "checkpoint is of step 3" in fewer
    assert main(["train", str(run_file), "--resume", "--ranks", "1", "--set", "run.steps=5"]) == 0
    assert [row.step for row in read_metrics(run_dir).train] == [0, 1, 2, 3, 4]


@pytest.mark.distributed
def test_a_run_whose_pipeline_and_clips_were_moved_goes_on_from_there(dataset, tmp_path, capfd):
    clips = shutil.copytree(dataset, tmp_path / "clips")
    config = tiny_config(clips, tmp_path / "run", steps=2, dtype="float32")
    shape = config.model.shape(latent_channels=4, text_size=HASHED_TEXT_SIZE)
    pipeline = save_tiny_autoencoder("AutoencoderKLWan", tmp_path / "a")
    transformer = build_transformer(shape, dtype=torch.float32, seed=0)
    transformer.module.save_pretrained(pipeline / "transformer")
    config = changed(config, "data", cache=str(tmp_path / "cache"))
    config = changed(config, "model", pretrained=str(pipeline), video_encoder="auto")
    assert config.model.video_encoder == str(pipeline)
    write_resolved(changed(config, "run", ranks=1), tmp_path / "run.toml")
    words = str(tmp_path / "run.toml"), "--set", "run.steps=3"
    assert main(["train", words[0]]) == 0

    pipeline.rename(tmp_path / "b")
    export = ["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "diffusers"]
    assert main([*export, "--set", f"model.pretrained={tmp_path / 'b'}"]) == 0
    for name in ("pretrained", "video_encoder"):
        words += "--set", f"model.{name}={tmp_path / 'b'}"
    other = shutil.copytree(clips, tmp_path / "other")
    shutil.copy(other / "b.mp4", other / "a.mp4")
    elsewhere = ["train", *words, "--resume", "--set", f"data.path={other}"]
    assert main(elsewhere) == 2
    line = capfd.readouterr().err
    assert "but it has other content in 'a.mp4' of the run to resume; name the folder" in line
    for path in other.glob("[a-d]*"):
        path.unlink()
    assert main(elsewhere) == 2
    line = capfd.readouterr().err
    assert "but it has not 'a.mp4', 'b.mp4', 'c.mp4', … of the run to resume" in line
    clips.rename(tmp_path / "moved")
    words += "--set", f"data.path={tmp_path / 'moved'}"
    assert main(["train", *words, "--resume"]) == 0
    assert [row.step for row in read_metrics(tmp_path / "run").train] == [0, 1, 2]
    capfd.readouterr()


@pytest.mark.distributed
def test_one_flipped_bit_in_the_states_of_no_words_stops_no_run(run_file, tmp_path, capfd):
    cache = LatentCache(tmp_path / "cache")
    words = str(run_file), "--set", f"data.cache={tmp_path / 'cache'}"
    assert main(["train", *words]) == 0
    key = text_key("", HashedTextEncoder(num_tokens=4).fingerprint)
    needed, path = cache.get(key), cache.path_of(key)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert main(["train", *words, "--resume", "--set", "run.steps=4"]) == 0
    assert np.array_equal(cache.get(key), needed)
    capfd.readouterr()


@pytest.mark.distributed
def test_bad_clips_among_good_ones_are_named_and_the_exit_code_says_so(
    dataset, tmp_path, run_file, capfd
):
    """Also one of which only decoding finds out that it is bad."""
    more = tmp_path / "more"
    shutil.copytree(dataset, more)
    (more / "broken.mp4").write_bytes(b"no video")
    (more / "empty.mp4").touch()
    write_damaged_packets(more / "holes.mp4")
    bad = ["broken.mp4", "empty.mp4", "holes.mp4"]
    write_captions(more, [*NAMES, *bad])
    code = main(["train", str(run_file), "--set", f"data.path={more}"])
    captured = capfd.readouterr()
    assert code == 3
    for name in bad:
        assert f"rejected {name}: " in captured.out
    ledger = read_manifest(tmp_path / "run" / "ledger.parquet")
    assert [row.clip.path for row in ledger.rows if row.status == "rejected"] == bad
    assert all(row.reason for row in ledger.rows if row.status == "rejected")
    assert "6 clips on 2 ranks" in captured.out
    assert captured.err == ""


@pytest.mark.distributed
def test_one_clip_trains_on_three_ranks(tmp_path, run_file, dataset, capfd):
    (tmp_path / "one").mkdir()
    shutil.copy(dataset / "b.mp4", tmp_path / "one")
    write_captions(tmp_path / "one", ["b.mp4"])
    options = ["--set", f"data.path={tmp_path / 'one'}", "--set", "batch.clips=1"]
    assert main(["train", str(run_file), "--ranks", "3", *options]) == 0
    assert "1 clip on 3 ranks" in capfd.readouterr().out


def test_what_cannot_work_is_one_line(run_file, tmp_path, capfd):
    good = str(run_file)
    assert "there is no file 'nowhere.toml'" in refused(capfd, "nowhere.toml")
    typo = refused(capfd, good, "--set", "planner.itertions=5")
    assert "did you mean 'planner.iterations'" in typo
    assert "did you mean 'static_sp'" in refused(capfd, good, "--set", "planner.name=static_ps")
    assert "--ranks is 0; it must be at least 1" in refused(capfd, good, "--ranks", "0")
    nothing = refused(capfd, good, "--resume")
    assert "no checkpoint" in nothing
    assert "without --resume" in nothing
    assert "does not exist" in refused(capfd, good, "--set", f"data.path={tmp_path / 'no'}")
    assert not (tmp_path / "run").exists()


def test_an_empty_dataset_and_a_cache_on_no_disk_are_refused_before_models_are_loaded(
    run_file, tmp_path, capfd, monkeypatch
):
    monkeypatch.setitem(sys.modules, "arachne.cli.training", None)
    monkeypatch.setitem(sys.modules, "arachne.cli.preparing", None)
    (tmp_path / "nothing").mkdir()
    empty = refused(capfd, str(run_file), "--set", f"data.path={tmp_path / 'nothing'}")
    assert "holds no clip; add metadata.csv" in empty
    odd = refused(capfd, str(run_file), "--set", "data.cache=/proc/cache")
    assert "cannot write '/proc/cache'" in odd
    assert "set data.cache to another folder" in odd
    assert main(["prepare", str(run_file), "--set", "data.cache=/proc/cache"]) == 2
    assert "set data.cache to another folder" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.distributed
def test_an_error_on_the_ranks_is_one_line_too(run_file, tmp_path, capfd):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.mp4").write_bytes(b"")
    write_captions(tmp_path / "empty", ["a.mp4"])
    line = refused(capfd, str(run_file), "--set", f"data.path={tmp_path / 'empty'}")
    assert "none of the 1 clips" in line


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run.stpes=5", "did you mean 'run.steps'"),
        ("optimiser.lr=1", "did you mean 'optimizer'"),
        ("run.seed=3", "already holds checkpoints"),
    ],
)
def test_a_slip_is_found_before_torch_is_imported_and_within_a_second(run_file, override, said):
    (run_file.parent / "run" / "checkpoints" / "step-000001").mkdir(parents=True)
    code = (
        "import sys, time; from arachne.cli.main import main; "
        f"code = main(['train', {str(run_file)!r}, '--set', {override!r}]); "
        "print(time.process_time()); sys.exit(code if 'torch' not in sys.modules else 99)"
    )
    ended = started([sys.executable, "-c", code])
    assert ended.returncode == 2
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert float(ended.stdout) < 1.0, "seconds of a CPU"


def test_ranks_cannot_be_asked_for_under_torchrun(run_file, capfd, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "use its --nproc-per-node" in refused(capfd, str(run_file), "--ranks", "2")


@pytest.mark.distributed
def test_ctrl_c_ends_the_run_with_a_checkpoint_to_go_on_from(run_file):
    process = subprocess.Popen(
        [*COMMAND, str(run_file), "--set", "run.steps=100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 3/"):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            break
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert error == ""
    assert "stopped after step " in out
    run_dir = run_file.parent / "run"
    steps = [row.step for row in read_metrics(run_dir).train]
    assert verified(newest(run_dir, on_skip=print)).state.step == len(steps) >= 3


@pytest.mark.distributed
def test_under_torchrun_its_ranks_train_and_a_used_folder_is_refused_without_a_hang(run_file):
    ended = started(TORCHRUN, str(run_file))
    assert ended.returncode == 0, ended.stderr
    assert "6 clips on 2 ranks" in ended.stdout
    assert ended.stdout.count("done: 3 steps") == 1, "only rank 0 speaks"
    assert verified(newest(run_file.parent / "run", on_skip=print)).state.world_size == 2

    again = started(TORCHRUN, str(run_file))
    assert again.returncode != 0
    assert again.stderr.count("arachne: run.dir") == 1
    assert "already holds checkpoints" in again.stderr
