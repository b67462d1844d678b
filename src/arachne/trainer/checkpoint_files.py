"""What a checkpoint consists of, as values, and how its files reach the disk for certain.

RUN_DIR/checkpoints/
    step-000123/                    committed: complete, never changed again
        shard-00000.safetensors     what rank 0 held
        index.json                  training state, shapes, each shard's SHA-256 and pieces
        index.json.sha256           `sha256sum -c` reads it
    step-000124.partial/            being written, or left by a crash; never read
    step-000123.replaced/           committed earlier and saved once more; read if it has to be
    step-000100.deleting/           being pruned; never read
    best.json                       {"step": 100, "loss": 0.5}: what pruning spares, if any
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, isfinite, log2
from pathlib import Path

import numpy as np

from arachne.core.errors import CheckpointError, DataError
from arachne.core.new_file import opened_anew
from arachne.core.refused_write import fix_of, refusal_at
from arachne.core.strict_json import from_json, to_json
from arachne.trainer.shard_file import Extent

MASTER = "master"
"""The kind that every parameter has: its value in full precision."""

FORMAT = 2
"""Version of the layout; a reader refuses any other."""

_MOST_BEST_BYTES = 10_000

LOSSES_KEPT = 1000
"""Losses that a checkpoint holds: the newest. `metrics.jsonl` has all of them."""

INDEX = "index.json"
INDEX_HASH = "index.json.sha256"
BEST = "best.json"
PARTIAL, REPLACED, DELETING = ".partial", ".replaced", ".deleting"

_MOST_SIZE_BITS = 63
"""Elements of a parameter count below two to this; no file holds more."""

_MOST_NUMBER = float(np.finfo(np.float32).max)

_STEP_FOLDER = re.compile(r"step-([0-9]{6,})(\.partial|\.replaced|\.deleting)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of one flattened parameter, or of an array that belongs to it.

    Attributes:
        name: The parameter's name in the model.
        kind: Which of its arrays: `master`, or whatever else the optimizer holds of it.
        offset: First element of the piece.
        total: Elements of the whole parameter.
        values: 1-D float32 or float64.
    """

    name: str
    kind: str
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
    kind: str
    offset: int
    length: int
    extent: Extent

    def __post_init__(self) -> None:
        assert self.offset >= 0, self
        assert self.length >= 1, self

    @property
    def key(self) -> str:
        """Name of its tensor in the shard."""
        return tensor_key(self.name, self.kind, self.offset)

    @property
    def end(self) -> int:
        """One past its last element."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """One rank's file: its name, its size and SHA-256, and the pieces that it holds."""

    name: str
    num_bytes: int
    sha256: str
    chunks: tuple[ChunkPlace, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clips:
    """Which clips a run trains on: how many, and a SHA-256 over all of them in their order."""

    num_clips: int
    sha256: str

    def __post_init__(self) -> None:
        assert self.num_clips >= 1, f"{self.num_clips} clips"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """What a run has to know, beside the weights, to go on.

    Attributes:
        step: Steps done.
        num_updates: Optimizer updates among them; a step that was not finite made none.
        seed: The run's seed.
        world_size: Ranks that write the checkpoint.
        config_json: The resolved run file.
        base: What the frozen parameters under the trained ones are; empty if none is frozen.
        video_fingerprint, text_fingerprint: Name the encoders, wherever they lie; empty if that is
            not known.
        losses: Losses of the newest updates, at most LOSSES_KEPT; all finite.
        cluster_json: The calibrated cluster that plans are made for; None before calibration.
        numbers: What the optimizer remembers beside arrays, in the range of float32.
        left_out: Names of clips that some step had to do without, sorted.
        clips: What the run trains on; None if that is not known.
        next_plan_json: Plan of the next step; None if there is none.
        requested_cluster_json: What the plan of the step after it was asked for with; None if it
            was not asked for.
        environment: Versions and device of rank 0, by name; no variables.
    """

    step: int
    num_updates: int
    seed: int
    world_size: int
    config_json: str
    base: str = ""
    video_fingerprint: str = ""
    text_fingerprint: str = ""
    losses: tuple[float, ...] = ()
    cluster_json: str | None = None
    numbers: dict[str, float] = field(default_factory=dict[str, float])
    left_out: tuple[str, ...] = ()
    clips: Clips | None = None
    next_plan_json: str | None = None
    requested_cluster_json: str | None = None
    environment: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        assert 0 <= self.num_updates <= self.step, (
            f"{self.num_updates} updates in {self.step} steps"
        )
        assert self.world_size >= 1, f"a world of {self.world_size} ranks"
        most = min(self.num_updates, LOSSES_KEPT)
        assert len(self.losses) <= most, f"{len(self.losses)} losses of {self.num_updates} updates"
        assert all(isfinite(loss) for loss in self.losses), "JSON has no NaN"
        for name, number in self.numbers.items():
            assert abs(number) <= _MOST_NUMBER, f"{name} is {number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIndex:
    """The content of `index.json`."""

    format: int
    state: TrainState
    parameters: dict[str, tuple[int, ...]]
    shards: tuple[ShardFile, ...]

    def __post_init__(self) -> None:
        for name, shape in self.parameters.items():
            assert min(shape, default=0) >= 0, (name, shape)
            size_bits = sum(map(log2, filter(None, shape)))
            assert size_bits < _MOST_SIZE_BITS, (name, f"about 2^{size_bits:.0f} elements")


def checkpoints_dir(run_dir: Path) -> Path:
    """Where a run keeps its checkpoints."""
    return run_dir / "checkpoints"


def step_name(step: int) -> str:
    """Folder of a step's checkpoint: `step-000123`."""
    return f"step-{step:06d}"


def shard_name(rank: int) -> str:
    """File of one rank: `shard-00003.safetensors`."""
    return f"shard-{rank:05d}.safetensors"


def tensor_key(name: str, kind: str, offset: int) -> str:
    """Name in a shard of the piece of a parameter that begins at an element."""
    return f"{kind}/{name}@{offset}"


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
    """All folders of steps, newest first; a committed one comes before the one it replaced.

    Raises:
        CheckpointError: This user may not look into `root`.
    """
    try:
        found = _step_folders(root) if root.is_dir() else []
    except OSError as error:
        raise CheckpointError(
            f"the run's checkpoints cannot be read: {refusal_at(error)}; {fix_of(error)}"
        ) from error
    return tuple(sorted(found, key=lambda folder: (-folder.step, folder.suffix)))


def _step_folders(root: Path) -> list[StepFolder]:
    folders: list[StepFolder] = []
    for path in root.iterdir():
        match = _STEP_FOLDER.fullmatch(path.name)
        if match is not None and path.is_dir():
            folder = StepFolder(path=path, step=int(match[1]), suffix=match[2] or "")
            if path.name == step_name(folder.step) + folder.suffix:  # no second name for a step
                folders.append(folder)
    return folders


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """Content of `best.json`: the step whose checkpoint pruning spares, and its validation loss."""

    step: int
    loss: float

    def __post_init__(self) -> None:
        assert self.step >= 1, f"step {self.step}"
        assert 0.0 <= self.loss < inf, f"loss {self.loss}"


def known_best(root: Path) -> Best | None:
    """What `best.json` holds; None if there is no such file.

    Raises:
        CheckpointError: It cannot be read: nobody knows then which checkpoint to spare.
    """
    path = root / BEST
    try:
        if path.exists() and not path.is_file():
            raise DataError("it is no file")
        if path.exists() and path.stat().st_size > _MOST_BEST_BYTES:
            raise DataError(f"it has {path.stat().st_size:,} bytes")
        return from_json(path.read_bytes(), Best, what=BEST)
    except FileNotFoundError:
        return None
    except (OSError, DataError) as error:
        raise CheckpointError(
            f"{str(path)!r}, which names the best checkpoint, cannot be read ({error}); correct "
            'it to {"step": STEP, "loss": LOSS}, or delete it to spare none'
        ) from error


def best_step(root: Path) -> int | None:
    """The step that `best.json` names; None if there is no such file.

    Raises:
        CheckpointError: It cannot be read.
    """
    best = known_best(root)
    return best.step if best is not None else None


def write_best(root: Path, best: Best) -> None:
    """Name the best checkpoint, in one go: a kill leaves the old name or the new one."""
    partial = root / (BEST + PARTIAL)
    write_synced(partial, to_json(best))
    partial.replace(root / BEST)
    sync(root)


def delete(path: Path) -> None:
    """Delete a file or a folder with all that it holds; of a link, the link alone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_synced(path: Path, text: str) -> None:
    """Write a text file whose bytes are on the disk when this returns."""
    with opened_anew(path) as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def has_checkpoints(run_dir: Path) -> bool:
    """Whether a checkpoint was ever committed there; what a crash left half-written is none.

    Raises:
        CheckpointError: This user may not look.
    """
    folders = step_folders(checkpoints_dir(run_dir))
    return any(folder.suffix in ("", REPLACED) for folder in folders)


def way_on(run_dir: Path, fix: str = "free space") -> str:
    """What a message advises after the disk refused something: resuming needs a checkpoint."""
    try:
        if not has_checkpoints(run_dir):
            return f"there is no earlier checkpoint; {fix} or change run.dir, and start again"
    except CheckpointError:
        return f"checkpoints that are there are untouched; {fix}, then go on with --resume"
    return f"earlier checkpoints are untouched; {fix}, then go on with --resume"


@contextmanager
def disk_errors_named(run_dir: Path, name: str = "") -> Iterator[None]:
    """Turn what the disk refuses into a `CheckpointError` that names the checkpoint's folder."""
    try:
        yield
    except OSError as error:
        folder = checkpoints_dir(run_dir) / name
        raise CheckpointError(
            f"checkpoint {str(folder)!r} cannot be written: {refusal_at(error, folder)}; "
            f"{way_on(run_dir, fix_of(error))}"
        ) from error
