"""Checkpoints that load on any world size and survive being killed at any moment.

Every rank calls `write_shard`; when all have, rank 0 calls `commit`. Files are written aside,
synced, and renamed together, so that a checkpoint exists whole or not at all. Parameters and
moments are 1-D pieces of the flattened tensors: any number of ranks reads what any other number
wrote. Nothing here pickles, and nothing here needs torch. Reading is in `checkpoint_reader.py`.
"""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from arachne.core.errors import CheckpointError, DataError
from arachne.core.strict_json import from_json, to_json
from arachne.core.units import bytes_text
from arachne.trainer.checkpoint_files import (
    DELETING,
    FORMAT,
    INDEX,
    INDEX_HASH,
    PARTIAL,
    REPLACED,
    CheckpointIndex,
    Chunk,
    ChunkPlace,
    ShardFile,
    TrainState,
    best_step,
    checkpoints_dir,
    delete,
    description_name,
    disk_errors_named,
    has_checkpoints,
    sha256_of,
    shard_name,
    step_folders,
    step_name,
    sync,
    tensor_key,
    way_on,
    write_synced,
)
from arachne.trainer.checkpoint_pieces import fault_of_pieces
from arachne.trainer.settings.checkpoint import CheckpointSettings
from arachne.trainer.shard_file import write_arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Which checkpoints stay when a new one was committed.

    Attributes:
        newest: So many of the newest ones; 0 = all.
        every: Those of steps that this divides stay in any case; 0 = none.
    """

    newest: int = 0
    every: int = 0

    def spares(self, step: int) -> bool:
        """Whether a checkpoint stays however old it is."""
        return self.every > 0 and step % self.every == 0


KEEP_ALL = Keep()


def keep_of(settings: CheckpointSettings) -> Keep:
    """What a run's settings say of it."""
    return Keep(newest=settings.keep, every=settings.keep_every)


def check_free_space(run_dir: Path, needed_bytes: int) -> None:
    """Refuse to begin a checkpoint that the disk cannot hold.

    Raises:
        CheckpointError: Fewer bytes are free.
    """
    root = checkpoints_dir(run_dir)
    with disk_errors_named(run_dir):
        root.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(root).free
    if free_bytes < needed_bytes:
        older = f"; `arachne checkpoints {run_dir} --prune --keep 1` deletes all but the newest"
        raise CheckpointError(
            f"the disk of {str(root)!r} has {bytes_text(free_bytes)} free, a checkpoint needs "
            f"{bytes_text(needed_bytes)}; {way_on(run_dir)}"
            f"{older if has_checkpoints(run_dir) else ''}"
        )


def forget_partial(run_dir: Path, step: int) -> None:
    """Delete what was written of a checkpoint that will not be committed."""
    with suppress(OSError):
        delete(checkpoints_dir(run_dir) / (step_name(step) + PARTIAL))


def write_shard(run_dir: Path, step: int, rank: int, chunks: Sequence[Chunk]) -> ShardFile:
    """Write and sync what one rank holds; every rank calls it, in any order.

    Leaves the shard and its description in `step-….partial`; files that an earlier crash left under
    the same names are replaced. Empty pieces are left out.

    Raises:
        CheckpointError: The disk is full, or cannot be written.
    """
    folder = checkpoints_dir(run_dir) / (step_name(step) + PARTIAL)
    path, description = folder / shard_name(rank), folder / description_name(rank)
    arrays: dict[str, np.ndarray] = {}
    for chunk in chunks:
        if len(chunk.values):
            key = tensor_key(chunk.name, chunk.kind, chunk.offset)
            assert key not in arrays, f"{key} was given twice"
            arrays[key] = np.ascontiguousarray(chunk.values)
    with disk_errors_named(run_dir, folder.name):
        folder.mkdir(parents=True, exist_ok=True)
        # First the old description goes: it must never describe the new bytes.
        description.unlink(missing_ok=True)
        written = write_arrays(path, arrays)
        places = tuple(
            ChunkPlace(
                name=chunk.name,
                kind=chunk.kind,
                offset=chunk.offset,
                length=len(chunk.values),
                extent=written.extents[tensor_key(chunk.name, chunk.kind, chunk.offset)],
            )
            for chunk in chunks
            if len(chunk.values)
        )
        shard = ShardFile(
            name=path.name, num_bytes=written.num_bytes, sha256=written.sha256, chunks=places
        )
        write_synced(description, to_json(shard))
        sync(folder)
    return shard


def commit(
    run_dir: Path,
    step: int,
    *,
    parameters: Mapping[str, tuple[int, ...]],
    state: TrainState,
    keep: Keep = KEEP_ALL,
) -> Path:
    """Make a step's shards a checkpoint; rank 0 calls it once every rank has written its shard.

    A kill at any moment leaves either the checkpoints as they were, or those with the new one.
    Only then are older ones pruned; all stay unless `keep` says otherwise.

    Raises:
        CheckpointError: A shard is missing, the pieces do not cover every parameter exactly once,
            or the disk cannot be written.
    """
    assert state.step == step, (state.step, step)
    root = checkpoints_dir(run_dir)
    partial, final = root / (step_name(step) + PARTIAL), root / step_name(step)
    with disk_errors_named(run_dir, partial.name):
        shards = tuple(_described_shard(partial, rank) for rank in range(state.world_size))
    if fault := fault_of_pieces(parameters, shards):
        raise CheckpointError(f"checkpoint {partial.name}: {fault}")
    index = CheckpointIndex(format=FORMAT, state=state, parameters=dict(parameters), shards=shards)
    with disk_errors_named(run_dir, partial.name):
        write_synced(partial / INDEX, to_json(index) + "\n")
        write_synced(partial / INDEX_HASH, f"{sha256_of(partial / INDEX)}  {INDEX}\n")
        wanted = {INDEX, INDEX_HASH, *(shard.name for shard in shards)}
        for path in partial.iterdir():
            if path.name not in wanted:
                delete(path)
        sync(partial)
        if final.exists():
            _set_aside(final)
        partial.rename(final)
        sync(root)
        sync(run_dir)  # the first checkpoint made `checkpoints/`
    prune(run_dir, keep, newest_step=step)
    return final


def prune(run_dir: Path, keep: Keep, *, newest_step: int) -> tuple[str, ...]:
    """Delete the checkpoints before `newest_step` that `keep` does not name; all may stay.

    `newest_step` is the newest that is known to be whole: it stays and counts as one. Later ones,
    which a resumed run found damaged, neither count nor go; the one that `best.json` names stays.
    What crashes left of earlier steps goes in any case. Gives the names of the pruned checkpoints.

    Raises:
        CheckpointError: `best.json` cannot be read, or a checkpoint cannot be deleted.
    """
    root = checkpoints_dir(run_dir)
    try:
        return _pruned(root, keep, newest_step)
    except OSError as error:
        raise CheckpointError(
            f"{step_name(newest_step)} in {str(root)!r} is whole, but what is older cannot be "
            f"deleted: {error}; delete that by hand, then go on with --resume"
        ) from error


def _pruned(root: Path, keep: Keep, newest_step: int) -> tuple[str, ...]:
    folders = [folder for folder in step_folders(root) if folder.step <= newest_step]
    committed = {folder.step: folder.path for folder in folders if folder.suffix == ""}
    aside = {folder.step: folder.path for folder in folders if folder.suffix == REPLACED}
    doomed = [path for step, path in aside.items() if step in committed]
    readable = sorted(aside | committed, reverse=True)
    best = best_step(root)
    old = readable[keep.newest :] if keep.newest else []
    surplus = [step for step in old if step != best and not keep.spares(step)]
    doomed += [(aside | committed)[step] for step in surplus]
    for path in doomed:
        # Renamed first: a half-deleted folder must not look like a checkpoint.
        path.rename(_free_name(root, path.name.removesuffix(REPLACED) + DELETING))
    for folder in step_folders(root):
        is_left = folder.suffix == PARTIAL and folder.step <= newest_step
        if folder.suffix == DELETING or is_left:
            delete(folder.path)
    return tuple(step_name(step) for step in surplus)


def _set_aside(final: Path) -> None:
    """Make room for a step that is saved once more; what was there stays readable meanwhile."""
    replaced = final.with_name(final.name + REPLACED)
    if replaced.exists():
        replaced.rename(_free_name(final.parent, final.name + DELETING))
    final.rename(replaced)


def _free_name(root: Path, name: str) -> Path:
    """`root / name`, after what a crash may have left there was deleted."""
    delete(root / name)
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
