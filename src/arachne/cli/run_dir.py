"""Open a run's folder: refuse to mix two runs, and write the resolved run file."""

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
import tomli_w

from arachne.core.errors import CheckpointError, ConfigError, DataError
from arachne.core.new_file import written_aside
from arachne.core.refused_write import fix_of, refusal_at
from arachne.core.strict_json import from_json
from arachne.core.strict_toml import load_toml
from arachne.reporting import run_files
from arachne.trainer.checkpoint_contents import readable
from arachne.trainer.checkpoint_files import (
    TrainState,
    checkpoints_dir,
    delete,
    has_checkpoints,
    step_name,
)
from arachne.trainer.checkpoint_reader import newest, verified
from arachne.trainer.config import RunConfig
from arachne.trainer.kept_ledger import KEPT, give_back_ledger, keep_ledger
from arachne.trainer.settings.dataset import DatasetSettings
from arachne.trainer.settings.model import ModelSettings

_LOCK = ".lock"
_PAUSE_S = 0.2
_HANG_REPORTS = "hang-*.txt"

_MAY_CHANGE = (
    *("path", "cache", "cache_online", "read_ahead_mb"),
    *("other_expert", "pretrained", "init_from"),
)
"""Settings of sections that decide a loss curve which do not. What lies under trained parameters is
compared by its bytes, wherever it lies now, and so are clips; what a run began with has trained
since."""

_ENCODERS = ("video_encoder", "image_encoder", "text_encoder")
"""Settings of `[model]` that may name another place with the same bytes."""

_MAY_MOVE = ("pretrained", "other_expert", *_ENCODERS)
"""Settings of `[model]` that may name other places than when the run was trained."""

_STALE = (
    run_files.METRICS,
    run_files.PLANS,
    run_files.BATCHES,
    run_files.TRACES,
    run_files.MANIFEST,
    KEPT,
    run_files.COMPARISON,
    run_files.SAMPLES,
    run_files.REPORT,
    run_files.PERFETTO,
    run_files.TENSORBOARD,
    run_files.WANDB_ID,
    run_files.DISPLAY,
)

Resume = Literal["no", "if-any", "must"]
"""Whether a run goes on from its newest checkpoint, if there is one, or only if there is one."""


def resumes(run_dir: Path, resume: Resume) -> bool:
    """Whether there is something to resume, and it shall be."""
    return resume == "must" or (resume == "if-any" and has_checkpoints(run_dir))


@contextmanager
def opened_run_dir(
    config: RunConfig, *, resume: bool, rescan: bool = False, patience_s: float = 0.0
) -> Iterator[None]:
    """A context in which no other process trains in the run's folder.

    The folder is made, or checked to be the run that is resumed. With `rescan` its ledger goes, so
    that the dataset is read again; it stands again if the run ends before its first step. For
    `patience_s` another process may still be about to end.

    Raises:
        ConfigError: A run stands there and `resume` was not asked for, it has other settings, or
            another process trains there.
        DataError: Something else has the name of one of a run's files.
        CheckpointError: There is nothing to resume.
    """
    run_dir = Path(config.run.dir)
    ledger = run_dir / run_files.MANIFEST
    if not run_dir.is_dir():
        _check(config, run_dir, resume=resume)  # a refusal leaves no folder behind
    with locked_run_dir(run_dir, patience_s=patience_s):
        _check(config, run_dir, resume=resume)
        with run_dir_errors_named(run_dir):
            if not resume:
                for path in (*(run_dir / name for name in _STALE), *run_dir.glob(_HANG_REPORTS)):
                    delete(path)
            give_back_ledger(ledger)  # of a part that was killed before its first step
            if rescan:
                keep_ledger(ledger)
                delete(ledger)
            write_resolved(config, run_dir / run_files.RESOLVED_CONFIG)
        try:
            yield
        except BaseException:
            # No error hides the run's own: the next part gives the ledger back, or says why not.
            with suppress(DataError, OSError):
                give_back_ledger(ledger)
            raise
        with run_dir_errors_named(run_dir):
            give_back_ledger(ledger)


@contextmanager
def locked_run_dir(
    run_dir: Path, *, is_shared: bool = False, patience_s: float = 0.0
) -> Iterator[None]:
    """A context in which no other process trains in, or prunes, a run's folder, which is made.

    Those that share the lock (they prepare the same run) do not exclude each other.

    Raises:
        ConfigError: Another process does, or the folder cannot be written.
        DataError: Something else has the name of one of a run's files.
    """
    run_files.check_kinds(run_dir, KEPT, _LOCK)
    with run_dir_errors_named(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        # Over NFS a shared lock asks for a file that can be read, and another for one to write.
        flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK  # a pipe of that name waits for nobody
        lock = os.fdopen(os.open(run_dir / _LOCK, flags, 0o666), "rb+", buffering=0)
    with lock:
        _lock(lock, run_dir, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX, patience_s)
        yield


def _lock(file: IO[bytes], run_dir: Path, kind: int, patience_s: float) -> None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        if patience_s > 0.0:
            time.sleep(min(patience_s, _PAUSE_S))
            _lock(file, run_dir, kind, patience_s - _PAUSE_S)
            return
        raise ConfigError(
            f"another process trains in run.dir {str(run_dir)!r}, or prepares it; wait for it, end "
            "it, or choose another run.dir"
        ) from error
    except OSError:
        return  # a file system without locks: better unguarded than unusable


def _check(config: RunConfig, run_dir: Path, *, resume: bool) -> None:
    root = checkpoints_dir(run_dir)
    if root.exists() and not root.is_dir():
        raise ConfigError(
            f"{str(root)!r} is no folder, so that no checkpoint can be saved in it; move it away, "
            "or choose another run.dir"
        )
    if resume:
        _check_same_run(config, run_dir)
    elif has_checkpoints(run_dir):
        raise ConfigError(
            f"run.dir {str(run_dir)!r} already holds checkpoints; add --resume to go on with that "
            "run, or choose another run.dir"
        )
    else:
        _check_made_by_a_run(run_dir)


@contextmanager
def run_dir_errors_named(run_dir: Path) -> Iterator[None]:
    """Turn what the disk refuses into a `ConfigError` that names the run's folder and the file."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"run.dir {str(run_dir)!r} cannot be written: {refusal_at(error, run_dir)}; choose "
            f"another folder, or {fix_of(error)}"
        ) from error


def is_same_job(run_dir: Path, torchrun_id: str) -> bool:
    """Whether the job of torchrun that trained there last is this one; an empty name is none."""
    path = run_dir / run_files.JOB
    return bool(torchrun_id) and path.is_file() and path.read_bytes() == torchrun_id.encode()


def note_job(run_dir: Path, torchrun_id: str) -> None:
    """Write down which job of torchrun trains there, for its ranks that are started again.

    Raises:
        ConfigError: The folder cannot be written.
    """
    with run_dir_errors_named(run_dir):
        (run_dir / run_files.JOB).write_text(torchrun_id, "utf-8")


def _check_made_by_a_run(run_dir: Path) -> None:
    """Only what a run wrote may be deleted: such a folder holds the run's resolved file."""
    if (run_dir / run_files.RESOLVED_CONFIG).is_file():
        return
    found = [name for name in _STALE if (run_dir / name).exists()]
    if found:
        raise ConfigError(
            f"run.dir {str(run_dir)!r} holds {found[0]!r}, which no run of Arachne wrote; choose "
            "an empty or new folder"
        )


def opened_checkpoint(
    run_dir: Path, step: int | None, overrides: Sequence[str] = ()
) -> tuple[RunConfig, Path]:
    """A run's settings and its checkpoint of a step, or the newest whole one; every file is hashed.

    Overrides may say where models lie now that the run was trained with. Encoders that lay in the
    pretrained pipeline are looked for in the one that is named now.

    Raises:
        ConfigError: An override is of something else.
        DataError: The folder is no run.
        CheckpointError: There is no such checkpoint, or it is damaged.
    """
    if not (run_dir / run_files.RESOLVED_CONFIG).is_file():
        raise DataError(
            f"{str(run_dir)!r} is not a run: it has no {run_files.RESOLVED_CONFIG}; name the "
            "run.dir of an `arachne train`"
        )
    run_files.check_kinds(run_dir)
    places = [f"model.{name}" for name in _MAY_MOVE]
    for override in overrides:
        if override.partition("=")[0].strip() not in places:
            raise ConfigError(
                f"--set {override} is none of what may change after the training: "
                f"{', '.join(places)}; leave it out"
            )
    resolved = run_dir / run_files.RESOLVED_CONFIG
    before = load_toml(resolved, RunConfig).model
    config = load_toml(resolved, RunConfig, overrides=overrides)
    given = {override.partition("=")[0].strip() for override in overrides}
    followed = {
        name: config.model.pretrained
        for name in _ENCODERS
        if f"model.{name}" not in given and getattr(before, name) == before.pretrained != ""
    }
    config = replace(config, model=replace(config.model, **followed))
    if step is None:
        return config, newest(run_dir, on_skip=print)
    path = checkpoints_dir(run_dir) / step_name(step)
    if not path.is_dir():
        found = ", ".join(sorted(p.name for p in checkpoints_dir(run_dir).glob("step-*"))) or "none"
        raise CheckpointError(f"there is no checkpoint of step {step}; found: {found}")
    verified(path)
    return config, path


def write_resolved(config: RunConfig, path: Path) -> None:
    """Every setting of the run, as a run file; a full disk leaves the one that was there."""
    with written_aside(path) as partial:
        partial.write_text(tomli_w.dumps(msgspec.to_builtins(config)), encoding="utf-8")


def _check_same_run(config: RunConfig, run_dir: Path) -> None:
    """What decides a loss curve must not change between two parts of one run."""
    # Its shards are hashed where they are loaded.
    state = readable(newest(run_dir, lambda _: None, check=readable)).state
    before = from_json(state.config_json, RunConfig, what="the checkpoint's settings")
    for section in ("data", "model", "lora", "objective", "batch"):
        _check_same_section(section, getattr(before, section), getattr(config, section))
    _check_same_encoders(before.model, config.model, state)
    for name in ("name", "whole_matrices"):  # the state that it left is another class's
        old, new = getattr(before.optimizer, name), getattr(config.optimizer, name)
        if old != new:
            raise ConfigError(_changed(f"optimizer.{name}", old, new))
    if before.memory.base != config.memory.base:
        raise ConfigError(_changed("memory.base", before.memory.base, config.memory.base))
    if before.run.seed != config.run.seed:
        raise ConfigError(_changed("run.seed", before.run.seed, config.run.seed))
    if state.step > config.run.steps:
        raise CheckpointError(
            f"the checkpoint is of step {state.step}, run.steps is {config.run.steps}; raise it"
        )


def _check_same_section(section: str, before: Any, now: Any) -> None:
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(now)
    for key, value in new.items():
        if key == "others":
            if _wherever(before.others) != _wherever(now.others):
                raise ConfigError(_changed(f"{section}.{key}", old[key], value))
        elif key not in (*_MAY_CHANGE, *_ENCODERS) and old[key] != value:
            raise ConfigError(_changed(f"{section}.{key}", old[key], value))


def _wherever(others: Sequence[DatasetSettings]) -> list[tuple[object, ...]]:
    """Datasets as their clips name them, wherever they lie."""
    return [(each.label, each.repeats, each.weight, each.resolution) for each in others]


def _check_same_encoders(before: ModelSettings, now: ModelSettings, state: TrainState) -> None:
    """Encoders that are named otherwise must be those that the run was trained with."""
    changed = [name for name in _ENCODERS if getattr(before, name) != getattr(now, name)]
    for name in changed:
        of_text = name == "text_encoder"
        known = state.text_fingerprint if of_text else state.video_fingerprint
        if not known or known != _fingerprint(now, of_text=of_text):
            raise ConfigError(_changed(f"model.{name}", getattr(before, name), getattr(now, name)))


def _fingerprint(model: ModelSettings, *, of_text: bool) -> str:
    """Of a run's encoder as it is now, of which every byte is read."""
    from arachne.trainer.run_encoders import run_text_encoder, run_video_encoder  # with torch

    encoder = run_text_encoder(model) if of_text else run_video_encoder(model)
    return encoder.fingerprint


def _changed(setting: str, before: Any, now: Any) -> str:
    return (
        f"{setting} is {now!r}, but the run to resume has {before!r}; set it back, or start a new "
        "run in another run.dir"
    )
