"""Checkpoints that are damaged in every way that a disk, a copy or a hand damages them."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from arachne.trainer.checkpoint import KEEP_ALL, Keep, commit, write_shard
from arachne.trainer.checkpoint_files import Chunk, TrainState

SHAPES = {"blocks.0.w": (30, 50), "blocks.0.b": (50,), "scale": (), "head.w": (20, 30, 2)}
KINDS = ("master", "exp_avg", "exp_avg_sq")
STEPS = (10, 20, 30)
NEWEST = f"step-{STEPS[-1]:06d}"
_PAGE_BYTES = 4096


def chunks_of(step: int, num_ranks: int) -> list[list[Chunk]]:
    """What each rank holds, different in every step."""
    rng = np.random.default_rng(step)
    chunks: list[list[Chunk]] = [[] for _ in range(num_ranks)]
    for name, shape in SHAPES.items():
        total = int(np.prod(shape, dtype=np.int64))
        bounds = [total * rank // num_ranks for rank in range(num_ranks + 1)]
        for rank in range(num_ranks):
            start, stop = bounds[rank], bounds[rank + 1]
            for kind in KINDS:
                values = rng.standard_normal(stop - start).astype(np.float32)
                chunk = Chunk(name=name, kind=kind, offset=start, total=total, values=values)
                chunks[rank].append(chunk)
    return chunks


def write_checkpoint(run_dir: Path, step: int, num_ranks: int = 2, keep: Keep = KEEP_ALL) -> None:
    """One, as all ranks write it together."""
    for rank, chunks in enumerate(chunks_of(step, num_ranks)):
        write_shard(run_dir, step, rank, chunks)
    state = TrainState(step=step, num_updates=step, seed=0, world_size=num_ranks, config_json="{}")
    commit(run_dir, step, parameters=SHAPES, state=state, keep=keep)


def write_checkpoints(run_dir: Path, num_ranks: int = 2) -> None:
    """One of each step."""
    for step in STEPS:
        write_checkpoint(run_dir, step, num_ranks)


def damage_newest(run_dir: Path, rng: random.Random) -> str:
    """Damage the newest checkpoint in one random way; what was done."""
    newest = run_dir / "checkpoints" / NEWEST
    older = newest.with_name(f"step-{rng.choice(STEPS[:-1]):06d}")
    kind = rng.choice(sorted(_DAMAGES))
    return f"{kind}: {_DAMAGES[kind](newest, older, rng)}"


def _any_file(folder: Path, rng: random.Random) -> Path:
    return rng.choice(sorted(folder.iterdir()))


def _flip_a_bit(newest: Path, _older: Path, rng: random.Random) -> str:
    path = _any_file(newest, rng)
    content = bytearray(path.read_bytes())
    position, bit = rng.randrange(len(content)), rng.randrange(8)
    content[position] ^= 1 << bit
    path.write_bytes(content)
    return f"{path.name}, byte {position}, bit {bit}"


def _zero_a_page(newest: Path, _older: Path, rng: random.Random) -> str:
    path = _any_file(newest, rng)
    content = bytearray(path.read_bytes())
    start = rng.randrange(len(content)) // _PAGE_BYTES * _PAGE_BYTES
    stop = min(start + _PAGE_BYTES, len(content))
    content[start:stop] = bytes(stop - start)
    path.write_bytes(content)
    return f"{path.name}, from byte {start}"


def _truncate(newest: Path, _older: Path, rng: random.Random) -> str:
    path = _any_file(newest, rng)
    size = rng.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"{path.name} to {size} bytes"


def _append(newest: Path, _older: Path, rng: random.Random) -> str:
    path = _any_file(newest, rng)
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.randint(1, 100)))
    return path.name


def _delete(newest: Path, _older: Path, rng: random.Random) -> str:
    path = _any_file(newest, rng)
    path.unlink()
    return path.name


def _swap_shards(newest: Path, _older: Path, _rng: random.Random) -> str:
    first, second, *_ = sorted(newest.glob("shard-*"))
    aside = newest / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    return f"{first.name} and {second.name}"


def _take_a_file_of_another_step(newest: Path, older: Path, rng: random.Random) -> str:
    name = _any_file(newest, rng).name
    shutil.copyfile(older / name, newest / name)
    return f"{name} of {older.name}"


def _take_the_index_of_another_step(newest: Path, older: Path, _rng: random.Random) -> str:
    for name in ("index.json", "index.json.sha256"):
        shutil.copyfile(older / name, newest / name)
    return older.name


def _take_the_name_of_another_step(newest: Path, older: Path, _rng: random.Random) -> str:
    shutil.rmtree(newest)
    shutil.copytree(older, newest)
    return f"{older.name} as {newest.name}"


_DAMAGES: dict[str, Callable[[Path, Path, random.Random], str]] = {
    "one bit": _flip_a_bit,
    "a zeroed page": _zero_a_page,
    "truncated": _truncate,
    "longer": _append,
    "deleted": _delete,
    "shards swapped": _swap_shards,
    "a file of another step": _take_a_file_of_another_step,
    "the index of another step": _take_the_index_of_another_step,
    "another step's checkpoint": _take_the_name_of_another_step,
}
