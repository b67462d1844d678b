"""The ledger that `arachne prepare` works on: of the run's clips as they are now, in `run.dir`.

Any number of processes prepare one run at once. They make and replace its ledger one after the
other, and only while nobody works with another one.
"""

import fcntl
import os
from collections.abc import Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from arachne.cli.run_dir import (
    has_checkpoints,
    locked_run_dir,
    run_dir_errors_named,
    write_resolved,
)
from arachne.core.errors import ConfigError, DataError
from arachne.core.ledger import Ledger
from arachne.core.strict_toml import load_toml
from arachne.core.units import count_text
from arachne.data.manifest import read_manifest, write_manifest
from arachne.reporting.run_files import MANIFEST, RESOLVED_CONFIG, check_kinds
from arachne.trainer.config import RunConfig
from arachne.trainer.planning_shape import only_bucket
from arachne.trainer.preparation import Progress, check_usable, inspected

_GATE = ".lock-ledger"

_NAMES_SHOWN = 3

_OF_NO_ROW = ("cache", "held_out", "encode", "cache_online", "repeats", "weight", "read_ahead_mb")
"""Settings of `[data]` that say nothing of what a clip is brought to."""

_OF_NO_ARRAY = ("data.cache", "data.cache_online", "data.read_ahead_mb", "model.other_expert")
"""Settings of `[data]` and `[model]` that processes which prepare one run may have differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentLedger:
    """The ledger of a run's clips as they are now.

    Attributes:
        path: Of the manifest.
        ledger: Of every clip.
        stood: What was there before, of the same settings; None if nothing was.
    """

    path: Path
    ledger: Ledger
    stood: Ledger | None

    @property
    def replaced(self) -> tuple[str, ...]:
        """Files whose content was another in the ledger that stood, by their names."""
        before = {} if self.stood is None else _contents(self.stood)
        now = _contents(self.ledger)
        return tuple(name for name, content in now.items() if before.get(name, content) != content)

    @property
    def has_other_clips(self) -> bool:
        """Whether other clips stood, or something else of them trained; frames that were counted
        and stamps do not matter.
        """
        return self.stood is None or _trained(self.stood) != _trained(self.ledger)

    @property
    def has_other_stamps(self) -> bool:
        """Whether a file was touched since, or its stamp was not known."""
        return self.stood is not None and _stamps(self.stood) != _stamps(self.ledger)


def current_ledger(config: RunConfig, progress: Progress, *, is_again: bool) -> CurrentLedger:
    """The ledger of the run's clips; nothing is written.

    Of the one that stands, rows are taken whose files are as they were, unless it `is_again`.

    Raises:
        DataError: The dataset cannot be read, or no clip of it trains.
    """
    path = manifest_of(config)
    try:
        stood = _standing(config, path)
    except DataError:  # damaged
        if not is_again:
            raise
        stood = None
    ledger = inspected(config, progress, () if is_again or stood is None else stood.rows)
    check_usable(config.data, ledger)
    return CurrentLedger(path=path, ledger=ledger, stood=stood)


@contextmanager
def written_ledger(
    config: RunConfig, progress: Progress, *, is_again: bool
) -> Iterator[CurrentLedger]:
    """The same, written; a context in which nobody trains in the run's folder, nor prepares it with
    other settings or clips.

    Raises:
        ConfigError: Somebody does, or the folder holds a run with other settings.
        DataError: As `current_ledger`, or it cannot be written.
    """
    run_dir = Path(config.run.dir)
    with locked_run_dir(run_dir, is_shared=True):
        pass  # nobody trains there
    with ExitStack() as stack:
        with _alone(run_dir):
            _check_made_by_a_run(run_dir)
            if change := _change(config, run_dir):
                _check_may_be_replaced(run_dir, change)
                with _nobody_else(run_dir, change):
                    pass  # refused before everything is inspected
            found = current_ledger(config, progress, is_again=is_again)
            if change or found.has_other_clips:
                _replace(config, found, change or _other_clips_text(found))
            stack.enter_context(locked_run_dir(run_dir, is_shared=True))
            if found.has_other_stamps:  # the same clips: whoever prepares them is not disturbed
                write_manifest(found.ledger, found.path)
        yield found


def manifest_of(config: RunConfig) -> Path:
    """Where a run's ledger lies."""
    return Path(config.run.dir) / MANIFEST


@contextmanager
def _alone(run_dir: Path) -> Iterator[None]:
    """A context for one process at a time; the others wait."""
    check_kinds(run_dir, _GATE)
    with run_dir_errors_named(run_dir):
        gate = os.open(run_dir / _GATE, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
    try:
        with suppress(OSError):  # a file system without locks: better unguarded than unusable
            fcntl.flock(gate, fcntl.LOCK_EX)
        yield
    finally:
        os.close(gate)


def _standing(config: RunConfig, path: Path) -> Ledger | None:
    """The ledger that stands, if its clips were brought to what this run's are."""
    before = _settings(path.parent)
    if before is None or not path.is_file():
        return None
    is_same = (
        _of_rows(before) == _of_rows(config)
        and before.model.family == config.model.family
        and only_bucket(before.model) == only_bucket(config.model)
    )
    return read_manifest(path) if is_same else None


def _of_rows(config: RunConfig) -> Mapping[str, Any]:
    """Settings of `[data]` that say what clips are brought to."""
    found = msgspec.to_builtins(config.data)
    others = [_without(_OF_NO_ROW, other) for other in found["others"]]
    return {**_without(_OF_NO_ROW, found), "others": others}


def _without(names: Container[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


def _settings(run_dir: Path) -> RunConfig | None:
    path = run_dir / RESOLVED_CONFIG
    return load_toml(path, RunConfig) if path.is_file() else None


def _change(config: RunConfig, run_dir: Path) -> str:
    """Which setting of clips and encoders is another than the folder's, in words; else empty."""
    before = _settings(run_dir)
    if before is None:
        return ""
    old, new = _flat(before), _flat(config)
    return next(
        (
            f"{name} is {old[name]!r} and not {value!r}"
            for name, value in new.items()
            if name not in _OF_NO_ARRAY and old.get(name) != value
        ),
        "",
    )


def _flat(config: RunConfig) -> Mapping[str, Any]:
    sections: Mapping[str, Mapping[str, Any]] = {
        name: msgspec.to_builtins(getattr(config, name)) for name in ("data", "model")
    }
    return {f"{name}.{key}": value for name, all in sections.items() for key, value in all.items()}


def _check_made_by_a_run(run_dir: Path) -> None:
    if (run_dir / MANIFEST).is_file() and not (run_dir / RESOLVED_CONFIG).is_file():
        raise ConfigError(
            f"run.dir {str(run_dir)!r} holds {MANIFEST!r}, which no run of Arachne wrote; choose "
            "an empty or new folder"
        )


def _check_may_be_replaced(run_dir: Path, change: str) -> None:
    if has_checkpoints(run_dir):
        raise ConfigError(
            f"run.dir {str(run_dir)!r} holds checkpoints of a run where {change}; choose another "
            "run.dir"
        )


@contextmanager
def _nobody_else(run_dir: Path, change: str) -> Iterator[None]:
    """A context in which no other process prepares the run."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked_run_dir(run_dir))
        except ConfigError as error:
            raise ConfigError(
                f"another process prepares run.dir {str(run_dir)!r}, where {change}; wait for it, "
                "end it, or choose another run.dir"
            ) from error
        yield


def _replace(config: RunConfig, found: CurrentLedger, change: str) -> None:
    """Write ledger and settings, while nobody else works with others."""
    run_dir = found.path.parent
    _check_may_be_replaced(run_dir, change)
    with _nobody_else(run_dir, change):
        # Settings go last: after a kill in between the manifest does not pass for theirs. They
        # go first too where there are none, since a manifest alone is not known as ours.
        if not (run_dir / RESOLVED_CONFIG).is_file():
            write_resolved(config, run_dir / RESOLVED_CONFIG)
        write_manifest(found.ledger, found.path)
        write_resolved(config, run_dir / RESOLVED_CONFIG)


def _other_clips_text(found: CurrentLedger) -> str:
    """How the clips that stood differ from those that are there now."""
    if found.replaced:
        files = count_text(len(found.replaced), "file")
        return f"{files} had other content ({', '.join(found.replaced[:_NAMES_SHOWN])})"
    return "the dataset had other clips, or what was found in them was another"


def _contents(ledger: Ledger) -> dict[str, str]:
    """What each file's content was, by the names of files as messages have them."""
    files = ((replace(row.clip, span=None, piece=None), row.content) for row in ledger.rows)
    return {clip.name: content for clip, content in files if content}


def _trained(ledger: Ledger) -> list[tuple[object, ...]]:
    """What each row says of training."""
    return [(r.clip, r.status, r.bucket, r.num_tokens, r.content) for r in ledger.rows]


def _stamps(ledger: Ledger) -> tuple[str, ...]:
    return tuple(row.stamp for row in ledger.rows)
