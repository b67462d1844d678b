"""What a checkpoint consists of, as values, and how its files reach the disk for certain.

RUN_DIR/checkpoints/
    step-000123/                    committed: complete, never changed again
        shard-00000.safetensors     what rank 0 held
        index.json                  training state, shapes, each shard's SHA-256 and pieces
        index.json.sha256           `sha256sum -c` reads it
    step-000124.partial/            being written, or left by a crash; never read
    step-000123.replaced/           committed earlier and saved once more; read if it has to be
    step-000100.deleting/           being pruned; never read
"""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Literal

import numpy as np
from safetensors import SafetensorError

from arachne.core.errors import CheckpointError

Kind = Literal["master", "exp_avg", "exp_avg_sq"]
KINDS: tuple[Kind, ...] = ("master", "exp_avg", "exp_avg_sq")
"""What is stored of each parameter: its value and AdamW's two moments."""

FORMAT = 1
"""Version of the layout; a reader refuses any other."""

INDEX = "index.json"
INDEX_HASH = "index.json.sha256"
PARTIAL, REPLACED, DELETING = ".partial", ".replaced", ".deleting"

_STEP_FOLDER = re.compile(r"step-(\d{6,})(\.partial|\.replaced|\.deleting)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of one flattened parameter, or of one of its moments.

    Attributes:
        name: The parameter's name in the model.
        kind: Which of its arrays.
        offset: First element of the piece.
        total: Elements of the whole parameter.
        values: 1-D float32 or float64.
    """

    name: str
    kind: Kind
    offset: int
    total: int
    values: np.ndarray

    def __post_init__(self) -> None:
        assert self.values.ndim == 1, self.values.shape
        assert self.values.dtype in (np.float32, np.float64), self.values.dtype
        assert 0 <= self.offset <= self.offset + len(self.values) <= self.total, self.offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPlace:
    """Where a piece lies: elements [offset, offset + length) of a parameter, in one shard."""

    name: str
    kind: Kind
    offset: int
    length: int

    @property
    def key(self) -> str:
        """Name of its tensor in the shard."""
        return f"{self.kind}/{self.name}@{self.offset}"

    @property
    def end(self) -> int:
        """One past its last element."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """One rank's file: its name, the SHA-256 of its bytes, and the pieces that it holds."""

    name: str
    sha256: str
    chunks: tuple[ChunkPlace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """What a run has to know, beside the weights, to go on.

    Attributes:
        step: Steps done.
        num_updates: Optimizer updates among them; a step that was not finite made none.
        seed: The run's seed.
        world_size: Ranks that write the checkpoint.
        config_json: The resolved run file.
        losses: Loss of every step that was taken; all finite.
        cluster_json: The calibrated cluster that plans are made for; None before calibration.
    """

    step: int
    num_updates: int
    seed: int
    world_size: int
    config_json: str
    losses: tuple[float, ...] = ()
    cluster_json: str | None = None

    def __post_init__(self) -> None:
        assert 0 <= self.num_updates <= self.step, (self.num_updates, self.step)
        assert self.world_size >= 1, self.world_size
        assert all(isfinite(loss) for loss in self.losses), "JSON has no NaN"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIndex:
    """The content of `index.json`."""

    format: int
    state: TrainState
    parameters: dict[str, tuple[int, ...]]
    shards: tuple[ShardFile, ...]


def checkpoints_dir(run_dir: Path) -> Path:
    """Where a run keeps its checkpoints."""
    return run_dir / "checkpoints"


def step_name(step: int) -> str:
    """Folder of a step's checkpoint: `step-000123`."""
    return f"step-{step:06d}"


def shard_name(rank: int) -> str:
    """File of one rank: `shard-00003.safetensors`."""
    return f"shard-{rank:05d}.safetensors"


def description_name(rank: int) -> str:
    """File in which a rank describes its shard until the commit."""
    return f"shard-{rank:05d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFolder:
    """A folder of `checkpoints/`, whatever its condition; `suffix` is empty when committed."""

    path: Path
    step: int
    suffix: str


def step_folders(root: Path) -> tuple[StepFolder, ...]:
    """All folders of steps, newest first; a committed one comes before the one it replaced."""
    if not root.is_dir():
        return ()
    folders: list[StepFolder] = []
    for path in root.iterdir():
        match = _STEP_FOLDER.fullmatch(path.name)
        if match is not None and path.is_dir():
            folders.append(StepFolder(path=path, step=int(match[1]), suffix=match[2] or ""))
    return tuple(sorted(folders, key=lambda folder: (-folder.step, folder.suffix)))


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_synced(path: Path, text: str) -> None:
    """Write a text file whose bytes are on the disk when this returns."""
    path.write_text(text, encoding="utf-8")
    sync(path)


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors_named(folder: Path) -> Iterator[None]:
    """Turn what the disk refuses into a `CheckpointError` with the folder's name."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"checkpoint {str(folder)!r} cannot be written: {error}; earlier checkpoints are "
            "untouched; free space or change run.dir, then resume"
        ) from error
