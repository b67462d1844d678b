"""A run's folder: fresh, used, resumed, or somebody else's."""

import json
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arachne.cli.run_dir import opened_run_dir
from arachne.core.errors import CheckpointError, ConfigError, DataError
from arachne.core.ledger import Ledger
from arachne.core.strict_json import to_json
from arachne.core.strict_toml import load_toml
from arachne.data.manifest import read_manifest, write_manifest
from arachne.reporting.run_files import DISPLAY, MANIFEST, METRICS, RESOLVED_CONFIG, SAMPLES
from arachne.trainer.checkpoint import commit, forget_partial, write_shard
from arachne.trainer.checkpoint_files import Chunk, TrainState, checkpoints_dir
from arachne.trainer.config import RunConfig
from arachne.trainer.kept_ledger import KEPT
from arachne.trainer.run_encoders import run_text_encoder, run_video_encoder
from arachne.trainer.settings.batch import BatchSettings
from arachne.trainer.settings.data import DataSettings
from arachne.trainer.settings.model import ModelSettings
from arachne.trainer.settings.optimizer import OptimizerSettings
from arachne.trainer.settings.run import RunSettings
from tests.forbidden_files import forbidden


@pytest.fixture
def config(tmp_path) -> RunConfig:
    return RunConfig(
        run=RunSettings(dir=str(tmp_path / "run"), steps=10, seed=1),
        data=DataSettings(path="clips", cache="cache"),
        model=ModelSettings(preset="wan-1.3b"),
    )


def open_run_dir(config: RunConfig, *, resume: bool) -> None:
    with opened_run_dir(config, resume=resume):
        pass


def changed(config: RunConfig, section: str, **values: Any) -> RunConfig:
    return replace(config, **{section: replace(getattr(config, section), **values)})


def write_checkpoint(config: RunConfig, step: int, **known: str) -> Path:
    run_dir = Path(config.run.dir)
    values = np.zeros(2, np.float32)
    chunks = [Chunk(name="w", kind="master", offset=0, total=2, values=values)]
    write_shard(run_dir, step, 0, chunks)
    state = TrainState(
        step=step, num_updates=step, seed=1, world_size=1, config_json=to_json(config), **known
    )
    return commit(run_dir, step, parameters={"w": (2,)}, state=state)


def test_a_new_folder_gets_every_setting_as_a_run_file(config):
    open_run_dir(config, resume=False)
    assert load_toml(Path(config.run.dir) / RESOLVED_CONFIG, RunConfig) == config


def test_a_folder_with_checkpoints_is_refused(config):
    write_checkpoint(config, 3)
    with pytest.raises(ConfigError, match="already holds checkpoints; add --resume"):
        open_run_dir(config, resume=False)


def test_what_a_run_without_checkpoints_wrote_makes_room_for_a_new_one(config):
    run_dir = Path(config.run.dir)
    open_run_dir(config, resume=False)
    (run_dir / METRICS).write_text("{}")
    (run_dir / DISPLAY).write_text("step 1")
    (run_dir / SAMPLES).mkdir()
    (run_dir / "notes.txt").write_text("mine")

    open_run_dir(config, resume=False)
    left = sorted(path.name for path in run_dir.iterdir())
    assert left == [".lock", "notes.txt", RESOLVED_CONFIG]


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", [RESOLVED_CONFIG, METRICS, DISPLAY, ".torchrun", "report.html"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_pipe_of_the_name_of_a_run_s_file_keeps_nobody_waiting(config, name, resume):
    write_checkpoint(config, 3)
    os.mkfifo(Path(config.run.dir) / name)
    with pytest.raises(DataError, match=rf"{name}' is no file; move it away"):
        open_run_dir(config, resume=resume)


@pytest.mark.parametrize("resume", [False, True])
def test_checkpoints_that_are_no_folder_are_refused(config, resume):
    open_run_dir(config, resume=False)
    checkpoints_dir(Path(config.run.dir)).write_text("")
    with pytest.raises(ConfigError, match="checkpoints' is no folder, so that no checkpoint can"):
        open_run_dir(config, resume=resume)


def test_a_copy_of_a_ledger_that_cannot_be_read_replaces_nothing(config):
    open_run_dir(config, resume=False)
    run_dir = Path(config.run.dir)
    write_manifest(Ledger(rows=()), run_dir / MANIFEST)
    (run_dir / KEPT).write_text("junk")
    write_checkpoint(config, 3)
    open_run_dir(config, resume=True)
    assert read_manifest(run_dir / MANIFEST) == Ledger(rows=())
    assert not (run_dir / KEPT).exists()


def keep_a_ledger(config: RunConfig) -> Path:
    """As a part of a run leaves it that was killed while it read its dataset anew."""
    write_checkpoint(config, 3)
    kept = Path(config.run.dir) / KEPT
    write_manifest(Ledger(rows=()), kept)
    return kept


def test_a_copy_of_a_ledger_that_may_not_be_read_stays_until_it_may(config):
    kept = keep_a_ledger(config)
    refused = r"before\.parquet' cannot be read: Permission denied; let this user read and write it"
    with forbidden(kept), pytest.raises(DataError, match=refused):
        open_run_dir(config, resume=True)
    open_run_dir(config, resume=True)
    assert read_manifest(kept.with_name(MANIFEST)) == Ledger(rows=())
    assert not kept.exists()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            DataError("it has 9 rows: split the table"),
            "it has 9 rows: split the table; it is the run's ledger",
        ),
        (MemoryError(), "memory does not suffice; end what else takes it"),
        (pa.ArrowMemoryError("malloc of size 1 failed"), "memory does not suffice"),
    ],
)
def test_a_copy_of_a_ledger_for_which_there_is_no_memory_stays(config, monkeypatch, error, words):
    kept = keep_a_ledger(config)

    def check_room(*_args: Any) -> None:
        raise error

    monkeypatch.setattr("arachne.data.manifest.check_room", check_room)
    with pytest.raises(DataError, match=rf"before\.parquet' cannot be read: {words}"):
        open_run_dir(config, resume=True)
    assert kept.is_file()


def test_a_copy_of_a_ledger_of_a_later_version_stays(config):
    kept = keep_a_ledger(config)
    table = pq.read_table(kept).replace_schema_metadata({"arachne_manifest": "9"})
    pq.write_table(table, kept)
    with pytest.raises(DataError, match=r"it is of version 9; .* are read; .*version of Arachne"):
        open_run_dir(config, resume=True)
    assert kept.is_file()


def test_a_copy_of_a_ledger_that_may_not_be_read_hides_no_other_error(config):
    write_checkpoint(config, 3)
    run_dir = Path(config.run.dir)
    write_manifest(Ledger(rows=()), run_dir / MANIFEST)

    def end_early(stack: ExitStack) -> None:
        with opened_run_dir(config, resume=True, rescan=True):
            stack.enter_context(forbidden(run_dir / KEPT))
            raise DataError("no clip")

    with ExitStack() as stack, pytest.raises(DataError, match="no clip"):
        end_early(stack)
    assert (run_dir / KEPT).is_file()


@pytest.mark.parametrize("name", ["step-000006", "step-000006/index.json"])
def test_a_newest_checkpoint_that_may_not_be_read_is_passed_over(config, name):
    write_checkpoint(config, 3)
    newer = write_checkpoint(replace(config, batch=BatchSettings(clips=5)), 6)
    with forbidden(newer.parent / name):
        open_run_dir(config, resume=True)


def test_a_lock_of_another_user_is_named(config):
    write_checkpoint(config, 3)
    open_run_dir(config, resume=True)
    refused = r"Permission denied: '.*/\.lock'; choose another folder, or let this user read"
    with (
        forbidden(Path(config.run.dir) / ".lock", 0o444),
        pytest.raises(ConfigError, match=refused),
    ):
        open_run_dir(config, resume=True)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", [".", "checkpoints"])
def test_a_run_that_may_not_be_read_is_one_line_that_names_its_folder(config, name, resume):
    folder = write_checkpoint(config, 3).parents[1] / name
    refused = rf"cannot be read: .*Permission denied: '{folder}.*'; let this user read and write it"
    with forbidden(folder), pytest.raises((DataError, CheckpointError), match=refused):
        open_run_dir(config, resume=resume)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", ["samples/a.png", "samples/step-000002/sheet.png", KEPT, ".lock"])
def test_a_pipe_of_the_name_of_a_picture_or_a_copy_keeps_nobody_waiting(config, name):
    write_checkpoint(config, 3)
    path = Path(config.run.dir) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    with pytest.raises(DataError, match=rf"{name}' is no file; move it away"):
        open_run_dir(config, resume=True)


def test_a_link_to_nothing_is_no_file(config):
    write_checkpoint(config, 3)
    (Path(config.run.dir) / METRICS).symlink_to("nowhere")
    with pytest.raises(DataError, match=r"metrics\.jsonl' is no file; move it away"):
        open_run_dir(config, resume=True)


@pytest.mark.timeout(10)
def test_a_pipe_where_a_checkpoint_is_to_be_written_is_deleted(config):
    write_checkpoint(config, 3)
    partial = checkpoints_dir(Path(config.run.dir)) / "step-000004.partial"
    os.mkfifo(partial)
    forget_partial(Path(config.run.dir), 4)
    assert not partial.exists()


def test_a_file_of_the_name_of_a_run_s_folder_is_refused(config):
    write_checkpoint(config, 3)
    (Path(config.run.dir) / SAMPLES).write_text("")
    with pytest.raises(DataError, match="samples' is no folder; move it away"):
        open_run_dir(config, resume=True)


def test_a_folder_that_is_not_a_runs_loses_nothing(config):
    samples = Path(config.run.dir) / SAMPLES
    samples.mkdir(parents=True)
    (samples / "holiday.png").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds 'samples', which no run .* choose an empty"):
        open_run_dir(config, resume=False)
    assert (samples / "holiday.png").exists()


def test_a_checkpoint_that_a_crash_left_half_written_locks_nobody_out(config):
    open_run_dir(config, resume=False)
    partial = checkpoints_dir(Path(config.run.dir)) / "step-000002.partial"
    partial.mkdir(parents=True)
    open_run_dir(config, resume=False)


def test_a_file_in_the_place_of_the_checkpoints_is_found_before_the_first_step(config):
    Path(config.run.dir).mkdir(parents=True)
    checkpoints_dir(Path(config.run.dir)).write_text("mine")
    with pytest.raises(ConfigError, match=r"checkpoints' is no folder, .*move it away"):
        open_run_dir(config, resume=False)


def test_a_full_disk_leaves_the_resolved_file_that_was_there(config, monkeypatch):
    open_run_dir(config, resume=False)
    resolved = Path(config.run.dir) / "run.resolved.toml"
    before = resolved.read_text()

    def full(path, *_args, **_kwargs):
        path.touch()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(ConfigError, match="No space left"):
            open_run_dir(config, resume=False)
    assert resolved.read_text() == before
    assert not list(resolved.parent.glob("*.partial"))


def test_resuming_from_nothing_says_so(config):
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*train from the start, without"):
        open_run_dir(config, resume=True)


def test_resuming_may_change_what_does_not_decide_the_loss_curve(config):
    write_checkpoint(config, 3)
    later = changed(config, "run", steps=20, ranks=3)
    later = changed(later, "data", cache="elsewhere", path="moved")
    later = changed(later, "planner", name="static_dp")
    later = replace(later, optimizer=OptimizerSettings(lr=1e-5))
    open_run_dir(later, resume=True)
    assert load_toml(Path(config.run.dir) / RESOLVED_CONFIG, RunConfig) == later


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("run", {"seed": 2}, "run.seed is 2, but the run to resume has 1; set it back"),
        (
            "optimizer",
            {"name": "muon"},
            "optimizer.name is 'muon', but the run to resume has 'adamw'",
        ),
        ("model", {"image_to_video": True}, "model.image_to_video is True, but the run to resume"),
        ("model", {"num_layers": 4}, "model.num_layers is 4, but the run to resume has 0"),
        ("data", {"resolution": 64}, "data.resolution is 64, but the run to resume has 480"),
        ("objective", {"shift": 1.0}, "objective.shift is 1.0, but the run to resume has 3.0"),
        ("batch", {"clips": 9}, "batch.clips is 9, but the run to resume has 8"),
    ],
)
def test_resuming_with_another_loss_curve_is_refused(config, section, values, words):
    write_checkpoint(config, 3)
    with pytest.raises(ConfigError, match=words):
        open_run_dir(changed(config, section, **values), resume=True)
    assert not (Path(config.run.dir) / RESOLVED_CONFIG).exists()


PARTS = {
    "vae": {"_class_name": "AutoencoderKLWan"},
    "text_encoder": {"model_type": "umt5", "d_model": 16},
    "image_encoder": {
        "model_type": "clip_vision_model",
        "hidden_size": 8,
        "image_size": 14,
        "patch_size": 7,
    },
}


def pipeline_of(folder: Path) -> Path:
    """Encoders as files that are hashed, and not loaded."""
    for part, options in PARTS.items():
        (folder / part).mkdir(parents=True)
        (folder / part / "config.json").write_text(json.dumps(options))
        (folder / part / "weights").write_text(part)
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")
    return folder


def with_encoders(config: RunConfig, folder: Path) -> RunConfig:
    places = dict.fromkeys(("video_encoder", "text_encoder", "image_encoder"), str(folder))
    return changed(config, "model", image_to_video=True, **places)


def of_encoders(config: RunConfig) -> dict[str, str]:
    """What a checkpoint knows of them."""
    return {
        "video_fingerprint": run_video_encoder(config.model).fingerprint,
        "text_fingerprint": run_text_encoder(config.model).fingerprint,
    }


def test_resuming_takes_encoders_from_another_place_if_their_bytes_are_the_same(config, tmp_path):
    before = with_encoders(config, pipeline_of(tmp_path / "a"))
    write_checkpoint(before, 3, **of_encoders(before))
    (tmp_path / "a").rename(tmp_path / "b")
    now = with_encoders(config, tmp_path / "b")
    open_run_dir(now, resume=True)
    assert load_toml(Path(config.run.dir) / RESOLVED_CONFIG, RunConfig) == now


@pytest.mark.parametrize("part", PARTS)
def test_resuming_with_other_encoders_in_another_place_is_refused(config, tmp_path, part):
    before = with_encoders(config, pipeline_of(tmp_path / "a"))
    write_checkpoint(before, 3, **of_encoders(before))
    setting = {"vae": "video_encoder"}.get(part, part)
    there = pipeline_of(tmp_path / "b")
    now = changed(before, "model", **{setting: str(there)})
    open_run_dir(now, resume=True)
    (there / part / "weights").write_text("others")
    with pytest.raises(
        ConfigError, match=rf"model\.{setting} is '.*b', but the run to resume has '.*a'; set it"
    ):
        open_run_dir(now, resume=True)


def test_encoders_of_which_a_checkpoint_knows_nothing_stay_where_they_are(config, tmp_path):
    before = with_encoders(config, pipeline_of(tmp_path / "a"))
    write_checkpoint(before, 3)
    open_run_dir(before, resume=True)
    now = with_encoders(config, pipeline_of(tmp_path / "b"))
    with pytest.raises(ConfigError, match=r"model\.video_encoder is '.*b', but the run to resume"):
        open_run_dir(now, resume=True)


def test_resuming_a_lora_on_a_base_of_other_bits_is_refused(config):
    before = changed(config, "lora", rank=4)
    write_checkpoint(before, 3)
    with pytest.raises(
        ConfigError, match=r"memory\.base is 'nf4', but the run to resume has 'model'"
    ):
        open_run_dir(changed(before, "memory", base="nf4"), resume=True)


def test_resuming_with_fewer_steps_than_were_done_is_refused(config):
    write_checkpoint(config, 3)
    with pytest.raises(CheckpointError, match=r"checkpoint is of step 3, run.steps is 2; raise it"):
        open_run_dir(changed(config, "run", steps=2), resume=True)
    open_run_dir(changed(config, "run", steps=3), resume=True)


def test_a_damaged_newest_checkpoint_is_passed_over(config):
    write_checkpoint(config, 3)
    newer = write_checkpoint(replace(config, batch=BatchSettings(clips=5)), 6)
    (newer / "index.json").write_text("{")
    open_run_dir(config, resume=True)


def test_a_folder_that_cannot_be_made_is_one_line(config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"run.dir .* cannot be written: .*; choose another"):
        open_run_dir(changed(config, "run", dir=str(tmp_path / "file" / "run")), resume=False)
