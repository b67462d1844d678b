"""Finds the newest whole checkpoint, says what is wrong with others, and reads parts of one.

Nothing here unpickles, and nothing needs torch. Every name that a checkpoint's files give is
checked before it becomes a path.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from arachne.core.errors import CheckpointError, DataError
from arachne.core.strict_json import from_json
from arachne.core.units import count_text, names_text
from arachne.trainer.checkpoint_files import (
    FORMAT,
    INDEX,
    INDEX_HASH,
    REPLACED,
    CheckpointIndex,
    ChunkPlace,
    ShardFile,
    TrainState,
    checkpoints_dir,
    sha256_of,
    shard_name,
    step_folders,
    step_name,
)
from arachne.trainer.checkpoint_pieces import fault_of_pieces
from arachne.trainer.shard_file import damaged_extents

_MOST_INDEX_BYTES = 2**28
"""Over a hundred times what 14B parameters on 512 ranks take: some 200 bytes for each piece."""

_MOST_THREADS = 8
_SHARD_NAME = re.compile(r"shard-[0-9]{5,}\.safetensors")
_DTYPE_OF_BYTES = {4: "F32", 8: "F64"}


def verified(path: Path) -> CheckpointIndex:
    """The index of a checkpoint, after every byte was compared with its SHA-256.

    Raises:
        CheckpointError: Names the first file that is missing or damaged, and what of it.
    """
    index = read_index(path)
    # Hashing does not hold the interpreter.
    threads = max(1, min(_MOST_THREADS, len(os.sched_getaffinity(0)), len(index.shards)))
    with ThreadPoolExecutor(max_workers=threads) as pool:
        faults = pool.map(lambda shard: _fault_of(path / shard.name, shard), index.shards)
        fault = next((fault for fault in faults if fault), "")
        pool.shutdown(cancel_futures=True)
    if fault:
        raise CheckpointError(f"checkpoint {path.name}: {fault}")
    return index


def _fault_of(file: Path, shard: ShardFile) -> str:
    """What is wrong with a shard; empty if nothing is."""
    try:
        if not file.is_file():
            lack = "is no file" if file.exists() else "is missing"
            return f"{shard.name} {lack}; it held {names_text(_names(shard))}"
        num_bytes = file.stat().st_size
        sha256 = sha256_of(file) if num_bytes == shard.num_bytes else None
        if sha256 == shard.sha256:
            return _fault_of_header(file, shard)
        keys = damaged_extents(file, {place.key: place.extent for place in shard.chunks})
    except OSError as error:
        return f"{shard.name} cannot be read: {error}; it holds {names_text(_names(shard))}"
    if sha256 is None:
        found = f"found {num_bytes} bytes, needed {shard.num_bytes}"
    else:
        found = f"found SHA-256 {sha256[:12]}…, needed {shard.sha256[:12]}…"
    by_key = {place.key: place for place in shard.chunks}
    lost = [f"{by_key[key].kind} of {by_key[key].name}" for key in keys]
    where = f"in {names_text(lost)}" if lost else f"in its header, for {names_text(_names(shard))}"
    return f"{shard.name} is damaged {where}: {found}"


def _fault_of_header(file: Path, shard: ShardFile) -> str:
    """Where an undamaged shard holds other arrays than the index says; empty if nowhere."""
    try:
        with safe_open(file, framework="numpy") as arrays:
            slices = {key: arrays.get_slice(key) for key in arrays.keys()}  # noqa: SIM118
            found = {key: (each.get_dtype(), each.get_shape()) for key, each in slices.items()}
    except (OSError, SafetensorError) as error:
        return f"{shard.name} cannot be read: {error}; it holds {names_text(_names(shard))}"
    needed = {
        place.key: (_DTYPE_OF_BYTES[place.extent.num_bytes // place.length], [place.length])
        for place in shard.chunks
    }
    other = [key for key in sorted({*found, *needed}) if found.get(key) != needed.get(key)]
    return (
        f"{shard.name} holds other arrays than {INDEX} says: {names_text(other)}" if other else ""
    )


def newest(
    run_dir: Path,
    on_skip: Callable[[str], None],
    check: Callable[[Path], CheckpointIndex] = verified,
) -> Path:
    """The newest checkpoint that `check` lets pass: without one, that is whole, every file hashed.

    `on_skip` is told, in one line each, which newer ones were passed over and why.

    Raises:
        CheckpointError: There is none.
    """
    root = checkpoints_dir(run_dir)
    num_skipped = 0
    for folder in step_folders(root):
        if folder.suffix in ("", REPLACED):
            try:
                check(folder.path)
            except CheckpointError as error:
                num_skipped += 1
                on_skip(f"skipped: {error}")
            else:
                return folder.path
    if not num_skipped:
        raise CheckpointError(
            f"run {str(run_dir)!r}: no checkpoint in {str(root)!r}; restore one from a copy, or "
            "train from the start, without --resume"
        )
    raise CheckpointError(
        f"run {str(run_dir)!r}: none of its {num_skipped} checkpoints is whole in {str(root)!r}; "
        f"see why with: arachne checkpoints {run_dir} --verify; restore one from a copy, or start "
        "anew in another run.dir"
    )


class CheckpointReader:
    """Reads any part of any parameter from a checkpoint, whatever world wrote it.

    Only the index is checked on opening; `newest` and `verified` check the shards.
    """

    def __init__(self, path: Path) -> None:
        index = read_index(path)
        self._path = path
        self.state: TrainState = index.state
        self.parameters: dict[str, tuple[int, ...]] = index.parameters
        self._pieces: dict[tuple[str, str], list[tuple[ChunkPlace, str]]] = defaultdict(list)
        for shard in index.shards:
            for place in shard.chunks:
                self._pieces[place.name, place.kind].append((place, shard.name))

    def holds(self, name: str, kind: str) -> bool:
        """Whether it has an array of this kind for a parameter."""
        return (name, kind) in self._pieces

    def read(self, name: str, kind: str, start: int, stop: int) -> np.ndarray:
        """Elements [start, stop) of a flattened parameter, 1-D, in the dtype that was written.

        Raises:
            CheckpointError: The checkpoint has no such parameter or kind, or fewer elements.
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
        if size and not self.holds(name, kind):
            raise CheckpointError(
                f"checkpoint {self._path.name} has no {kind} of {name!r}; it was written with "
                "another optimizer"
            )
        parts: list[np.ndarray] = []
        for place, file in sorted(self._pieces[name, kind], key=lambda piece: piece[0].offset):
            first, last = max(start, place.offset), min(stop, place.end)
            if first < last:
                parts.append(self._values(file, place, first - place.offset, last - place.offset))
        if sum(map(len, parts)) != stop - start:
            raise CheckpointError(
                f"checkpoint {self._path.name}: its pieces of {kind} of {name} do not tile "
                f"[{start}, {stop}); restore {INDEX} from a copy"
            )
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def _values(self, file: str, place: ChunkPlace, first: int, last: int) -> np.ndarray:
        try:
            with safe_open(self._path / file, framework="numpy") as shard:
                return np.asarray(shard.get_slice(place.key)[first:last])
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"checkpoint {self._path.name}: {file} cannot be read: {error}"
            ) from error


def read_index(path: Path) -> CheckpointIndex:
    """The index of a checkpoint, compared with its own SHA-256.

    Raises:
        CheckpointError: It is missing, damaged, of another format or step, may not be read, or
            names a file that is no shard.
    """
    try:
        for name in (INDEX, INDEX_HASH):
            _check_file(path, name)
        content, needed = (path / INDEX).read_bytes(), (path / INDEX_HASH).read_bytes()
        found = sha256_of(path / INDEX)
    except OSError as error:
        raise CheckpointError(f"checkpoint {path.name}: cannot be read: {error}") from error
    if needed != f"{found}  {INDEX}\n".encode():
        raise CheckpointError(
            f"checkpoint {path.name}: {INDEX} is damaged, or {INDEX_HASH}: found SHA-256 "
            f"{found[:12]}…, needed {needed[:12].decode('ascii', 'replace')}…; {_LOST_INDEX}"
        )
    try:
        index = from_json(content, CheckpointIndex, what=INDEX)
    except DataError as error:
        raise CheckpointError(f"checkpoint {path.name}: {error}") from error
    _check_index(path, index)
    return index


_LOST_INDEX = "it describes all parameters"


def _check_file(path: Path, name: str) -> None:
    if not (path / name).is_file():
        lack = "is no file" if (path / name).exists() else "is missing"
        raise CheckpointError(f"checkpoint {path.name}: {name} {lack}; {_LOST_INDEX}")
    if (path / name).stat().st_size > _MOST_INDEX_BYTES:
        raise CheckpointError(
            f"checkpoint {path.name}: {name} has more than {_MOST_INDEX_BYTES:,} bytes, which "
            f"no ledger of ours has; {_LOST_INDEX}"
        )


def _check_index(path: Path, index: CheckpointIndex) -> None:
    if index.format != FORMAT:
        raise CheckpointError(
            f"checkpoint {path.name} has format {index.format}; this version reads {FORMAT}"
        )
    state = index.state
    if path.name.removesuffix(REPLACED) != step_name(state.step):
        raise CheckpointError(
            f"checkpoint {path.name} is of step {state.step}; delete it where "
            f"{step_name(state.step)} is there too, or else give it that name"
        )
    for shard in index.shards:
        if not _SHARD_NAME.fullmatch(shard.name):
            raise CheckpointError(
                f"checkpoint {path.name}: {INDEX} names the file {shard.name!r}, which is no shard"
            )
    are_named = all(shard.name == shard_name(rank) for rank, shard in enumerate(index.shards))
    if len(index.shards) != state.world_size or not are_named:
        raise CheckpointError(
            f"checkpoint {path.name}: {INDEX} names {count_text(len(index.shards), 'shard')}, "
            f"needed one of each of {count_text(state.world_size, 'rank')}; restore it from a copy"
        )
    if fault := fault_of_pieces(index.parameters, index.shards):
        raise CheckpointError(
            f"checkpoint {path.name}: {INDEX} is wrong: {fault}; restore it from a copy"
        )


def _names(shard: ShardFile) -> list[str]:
    return sorted({place.name for place in shard.chunks})
