"""Checkpoints that load on any world size and survive being killed at any moment.

Every rank calls `write_shard`; when all have, rank 0 calls `commit`. Files are written aside,
synced, and renamed together, so that a checkpoint exists whole or not at all. Parameters and
moments are 1-D pieces of the flattened tensors: any number of ranks reads what any other number
wrote. Nothing here unpickles, and nothing here needs torch.
"""

import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from arachne.core.errors import CheckpointError, DataError
from arachne.core.strict_json import from_json, to_json
from arachne.trainer.checkpoint_files import (
    DELETING,
    FORMAT,
    INDEX,
    INDEX_HASH,
    KINDS,
    PARTIAL,
    REPLACED,
    CheckpointIndex,
    Chunk,
    ChunkPlace,
    Kind,
    ShardFile,
    TrainState,
    checkpoints_dir,
    description_name,
    disk_errors_named,
    sha256_of,
    shard_name,
    step_folders,
    step_name,
    sync,
    write_synced,
)

__all__ = [
    "KINDS",
    "CheckpointIndex",
    "CheckpointReader",
    "Chunk",
    "ChunkPlace",
    "Kind",
    "ShardFile",
    "TrainState",
    "checkpoints_dir",
    "commit",
    "newest",
    "prune",
    "verified",
    "write_shard",
]

_NAMES_SHOWN = 3


def write_shard(run_dir: Path, step: int, rank: int, chunks: Sequence[Chunk]) -> ShardFile:
    """Write and sync what one rank holds; every rank calls it, in any order.

    Leaves the shard and its description in `step-….partial`; files that an earlier crash left under
    the same names are replaced. Empty pieces are left out.

    Raises:
        CheckpointError: The disk is full, or cannot be written.
    """
    folder = checkpoints_dir(run_dir) / (step_name(step) + PARTIAL)
    path, description = folder / shard_name(rank), folder / description_name(rank)
    tensors: dict[str, np.ndarray] = {}
    places: list[ChunkPlace] = []
    for chunk in chunks:
        if len(chunk.values):
            place = ChunkPlace(
                name=chunk.name, kind=chunk.kind, offset=chunk.offset, length=len(chunk.values)
            )
            assert place.key not in tensors, f"{place.key} was given twice"
            tensors[place.key] = np.ascontiguousarray(chunk.values)
            places.append(place)
    with disk_errors_named(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # First the old description goes: it must never describe the new bytes.
        description.unlink(missing_ok=True)
        save_file(tensors, path)
        sync(path)
        shard = ShardFile(name=path.name, sha256=sha256_of(path), chunks=tuple(places))
        write_synced(description, to_json(shard))
        sync(folder)
    return shard


def commit(
    run_dir: Path,
    step: int,
    *,
    parameters: Mapping[str, tuple[int, ...]],
    state: TrainState,
    keep: int = 0,
) -> Path:
    """Make a step's shards a checkpoint; rank 0 calls it once every rank has written its shard.

    A kill at any moment leaves either the checkpoints as they were, or those with the new one.
    Only then are older ones pruned, to the `keep` newest (0 = all).

    Raises:
        CheckpointError: A shard is missing, the pieces do not cover every parameter exactly once,
            or the disk cannot be written.
    """
    assert state.step == step, (state.step, step)
    root = checkpoints_dir(run_dir)
    partial, final = root / (step_name(step) + PARTIAL), root / step_name(step)
    shards = tuple(_described_shard(partial, rank) for rank in range(state.world_size))
    _check_coverage(partial, shards, parameters)
    index = CheckpointIndex(format=FORMAT, state=state, parameters=dict(parameters), shards=shards)
    with disk_errors_named(partial):
        write_synced(partial / INDEX, to_json(index) + "\n")
        write_synced(partial / INDEX_HASH, f"{sha256_of(partial / INDEX)}  {INDEX}\n")
        wanted = {INDEX, INDEX_HASH, *(shard.name for shard in shards)}
        for path in partial.iterdir():
            if path.name not in wanted:
                path.unlink()
        sync(partial)
        if final.exists():
            _set_aside(final)
        partial.rename(final)
        sync(root)
        prune(run_dir, keep, newest_step=step)
    return final


def prune(run_dir: Path, keep: int, *, newest_step: int) -> tuple[str, ...]:
    """Delete checkpoints before `newest_step`, so that the `keep` newest stay (0 = all stay).

    `newest_step` is the newest that is known to be whole: it stays and counts as one. Later ones,
    which a resumed run found damaged, neither count nor go. What crashes left of earlier steps goes
    in any case. Gives the names of the pruned checkpoints.
    """
    root = checkpoints_dir(run_dir)
    folders = [folder for folder in step_folders(root) if folder.step <= newest_step]
    committed = {folder.step: folder.path for folder in folders if folder.suffix == ""}
    aside = {folder.step: folder.path for folder in folders if folder.suffix == REPLACED}
    doomed = [path for step, path in aside.items() if step in committed]
    readable = sorted(aside | committed, reverse=True)
    surplus = readable[keep:] if keep else []
    doomed += [(aside | committed)[step] for step in surplus]
    for path in doomed:
        # Renamed first: a half-deleted folder must not look like a checkpoint.
        path.rename(_free_name(root, path.name.removesuffix(REPLACED) + DELETING))
    for folder in step_folders(root):
        if folder.suffix == DELETING or (folder.suffix == PARTIAL and folder.step <= newest_step):
            shutil.rmtree(folder.path)
    return tuple(step_name(step) for step in surplus)


def newest(run_dir: Path, on_skip: Callable[[str], None]) -> Path:
    """The newest checkpoint that is whole; every file is hashed.

    `on_skip` is told, in one line each, which newer ones were passed over and why.

    Raises:
        CheckpointError: There is none.
    """
    root = checkpoints_dir(run_dir)
    num_skipped = 0
    for folder in step_folders(root):
        if folder.suffix in ("", REPLACED):
            try:
                verified(folder.path)
            except CheckpointError as error:
                num_skipped += 1
                on_skip(f"skipped: {error}")
            else:
                return folder.path
    found = f"none of its {num_skipped} checkpoints is whole" if num_skipped else "no checkpoint"
    raise CheckpointError(
        f"run {str(run_dir)!r}: {found} in {str(root)!r}; restore one from a copy, or start the "
        "run without --resume"
    )


def verified(path: Path) -> CheckpointIndex:
    """The index of a checkpoint, after every byte was compared with its SHA-256.

    Raises:
        CheckpointError: Names the first file that is missing or damaged, and what it holds.
    """
    index = _read_index(path)
    for shard in index.shards:
        file = path / shard.name
        if not file.is_file():
            raise CheckpointError(
                f"checkpoint {path.name}: {shard.name} is missing; it held {_names_text(shard)}"
            )
        found = _sha256_or_error(file)
        if found != shard.sha256:
            raise CheckpointError(
                f"checkpoint {path.name}: {shard.name} is damaged: found SHA-256 {found[:12]}…, "
                f"needed {shard.sha256[:12]}…; it holds {_names_text(shard)}"
            )
    return index


class CheckpointReader:
    """Reads any part of any parameter from a checkpoint, whatever world wrote it.

    Only the index is checked on opening; `newest` and `verified` check the shards.
    """

    def __init__(self, path: Path) -> None:
        index = _read_index(path)
        self._path = path
        self.state: TrainState = index.state
        self.parameters: dict[str, tuple[int, ...]] = index.parameters
        self._pieces: dict[tuple[str, Kind], list[tuple[ChunkPlace, str]]] = defaultdict(list)
        for shard in index.shards:
            for place in shard.chunks:
                self._pieces[place.name, place.kind].append((place, shard.name))

    def read(self, name: str, kind: Kind, start: int, stop: int) -> np.ndarray:
        """Elements [start, stop) of a flattened parameter, 1-D, in the dtype that was written.

        Raises:
            CheckpointError: The checkpoint has no such parameter, or fewer elements.
        """
        if name not in self.parameters:
            raise CheckpointError(
                f"checkpoint {self._path.name} has no parameter {name!r}; it is of another model"
            )
        size = prod(self.parameters[name])
        if not 0 <= start <= stop <= size:
            raise CheckpointError(
                f"checkpoint {self._path.name}: {name} has {size} elements, needed "
                f"[{start}, {stop}); it is of another model"
            )
        parts: list[np.ndarray] = []
        for place, file in sorted(self._pieces[name, kind], key=lambda piece: piece[0].offset):
            first, last = max(start, place.offset), min(stop, place.end)
            if first < last:
                parts.append(self._values(file, place, first - place.offset, last - place.offset))
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def _values(self, file: str, place: ChunkPlace, first: int, last: int) -> np.ndarray:
        try:
            with safe_open(self._path / file, framework="numpy") as shard:
                return np.asarray(shard.get_slice(place.key)[first:last])
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"checkpoint {self._path.name}: {file} cannot be read: {error}"
            ) from error


def _set_aside(final: Path) -> None:
    """Make room for a step that is saved once more; what was there stays readable meanwhile."""
    replaced = final.with_name(final.name + REPLACED)
    if replaced.exists():
        replaced.rename(_free_name(final.parent, final.name + DELETING))
    final.rename(replaced)


def _free_name(root: Path, name: str) -> Path:
    """`root / name`, after what a crash may have left there was deleted."""
    if (root / name).exists():
        shutil.rmtree(root / name)
    return root / name


def _described_shard(partial: Path, rank: int) -> ShardFile:
    path = partial / description_name(rank)
    if not path.is_file() or not (partial / shard_name(rank)).is_file():
        raise CheckpointError(
            f"checkpoint {partial.name}: rank {rank} has not written its shard; "
            "commit only after all ranks have"
        )
    try:
        return from_json(path.read_bytes(), ShardFile, what=path.name)
    except DataError as error:
        raise CheckpointError(f"checkpoint {partial.name}: {error}") from error


def _check_coverage(
    partial: Path, shards: Sequence[ShardFile], parameters: Mapping[str, tuple[int, ...]]
) -> None:
    """Every element of every parameter and moment is there exactly once, and nothing else."""
    spans: dict[tuple[str, Kind], list[tuple[int, int]]] = {
        (name, kind): [] for name in parameters for kind in KINDS
    }
    for shard in shards:
        for place in shard.chunks:
            if (place.name, place.kind) not in spans:
                raise CheckpointError(
                    f"checkpoint {partial.name}: {shard.name} holds {place.name!r}, which is no "
                    "parameter of this model"
                )
            spans[place.name, place.kind].append((place.offset, place.end))
    for (name, kind), pieces in spans.items():
        covered = 0
        for first, last in sorted(pieces):
            if first != covered:
                break
            covered = last
        size = prod(parameters[name])
        if covered != size or sum(last - first for first, last in pieces) != size:
            raise CheckpointError(
                f"checkpoint {partial.name}: {kind} of {name} needs {size} elements, each once; "
                f"the ranks wrote {sorted(pieces)}"
            )


def _read_index(path: Path) -> CheckpointIndex:
    for name in (INDEX, INDEX_HASH):
        if not (path / name).is_file():
            raise CheckpointError(f"checkpoint {path.name}: {name} is missing")
    needed = (path / INDEX_HASH).read_bytes()[:64].decode("ascii", "replace")
    found = _sha256_or_error(path / INDEX)
    if found != needed:
        raise CheckpointError(
            f"checkpoint {path.name}: {INDEX} is damaged: found SHA-256 {found[:12]}…, "
            f"needed {needed[:12]}…"
        )
    try:
        index = from_json((path / INDEX).read_bytes(), CheckpointIndex, what=INDEX)
    except DataError as error:
        raise CheckpointError(f"checkpoint {path.name}: {error}") from error
    if index.format != FORMAT:
        raise CheckpointError(
            f"checkpoint {path.name} has format {index.format}; this version reads {FORMAT}"
        )
    return index


def _sha256_or_error(file: Path) -> str:
    try:
        return sha256_of(file)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {file.parent.name}: {file.name} cannot be read: {error}"
        ) from error


def _names_text(shard: ShardFile) -> str:
    names = sorted({place.name for place in shard.chunks})
    shown = ", ".join(names[:_NAMES_SHOWN]) or "nothing"
    more = len(names) - _NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
