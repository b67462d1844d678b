"""From a dataset on disk to cached arrays, by all ranks together; the same ledger on every rank."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arachne.core.errors import ConfigError, DataError
from arachne.core.families import family_named
from arachne.core.ledger import Ledger, LedgerRow
from arachne.core.strict_json import from_json, to_json
from arachne.data.cache import LatentCache, text_key
from arachne.data.inspect import inspect_dataset
from arachne.data.manifest import read_manifest, write_manifest
from arachne.data.prepare import encode_clip, missing
from arachne.data.split import held_out, training_rows
from arachne.models.interface import TextEncoder, VideoEncoder
from arachne.runtime.world import World
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset import TrainingData

_PATIENCE = timedelta(days=30)
"""Encoding a large dataset takes longer than any time-out for training; a lost rank is noticed by
the launcher, which ends the others."""

Progress = Callable[[str, int, int], None]
"""Told (what, done, total) on rank 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What every rank knows of the data.

    Attributes:
        ledger: One row per clip of the dataset.
        train: Clips that train.
        held_out: Clips that only validate; may be empty.
        null_text: Token states [L, D] of the empty caption.
    """

    ledger: Ledger
    train: TrainingData
    held_out: TrainingData
    null_text: NDArray[np.float32]


def prepare(
    world: World,
    config: RunConfig,
    *,
    manifest: Path,
    video_encoder: VideoEncoder,
    text_encoder: TextEncoder,
    progress: Progress,
) -> Prepared:
    """The run's ledger and its cached clips; a manifest that stands already is taken as it is.

    Raises:
        DataError: The dataset cannot be read, or no clip of it is usable.
    """
    if world.rank == 0 and not manifest.is_file():
        write_manifest(_inspected(config, progress), manifest)
    _meet(world, "ledger")
    if not manifest.is_file():
        raise ConfigError(
            f"run.dir {str(manifest.parent)!r} of rank {world.rank} is not the one of rank 0: its "
            f"{manifest.name} is missing; name a folder that all machines share"
        )
    ledger = read_manifest(manifest)
    cache_dir = Path(config.data.cache)
    fingerprints = (video_encoder.fingerprint, text_encoder.fingerprint)
    # Dealt before asking what is missing: other ranks may have begun to fill the cache.
    dealt = ledger.usable[world.rank :: world.size]
    mine = missing(dealt, LatentCache(cache_dir), config.data.fps, *fingerprints)
    rejected: list[LedgerRow] = []
    for done, row in enumerate(mine, start=1):
        encoded = encode_clip(
            row,
            Path(config.data.path),
            config.data.fps,
            video_encoder,
            text_encoder,
            LatentCache(cache_dir),
        )
        if encoded.status == "rejected":
            rejected.append(encoded)
        progress("encoding clips", done, len(mine))
    ledger = _without(ledger, _everybodys(world, rejected))
    if world.rank == 0:
        _store_null_text(text_encoder, cache_dir)
        if ledger != read_manifest(manifest):
            write_manifest(ledger, manifest)
    _meet(world, "amended ledger")
    _check_cache_is_shared(world, ledger, config, fingerprints)
    if not ledger.usable:
        raise DataError(
            f"none of the {len(ledger.rows)} clips in {config.data.path!r} is usable; "
            f"see why with: arachne inspect {config.data.path}"
        )
    train = TrainingData(
        rows=training_rows(ledger.usable, config.data.held_out),
        cache_dir=cache_dir,
        fps=config.data.fps,
        video_fingerprint=video_encoder.fingerprint,
        text_fingerprint=text_encoder.fingerprint,
    )
    others = tuple(row for row in ledger.usable if held_out(row, config.data.held_out))
    prepared = Prepared(
        ledger=ledger,
        train=train,
        held_out=replace(train, rows=others),
        null_text=LatentCache(cache_dir).get(text_key("", text_encoder.fingerprint)),
    )
    if not prepared.train.rows:
        raise DataError(
            f"data.held_out {config.data.held_out} keeps all {len(ledger.usable)} usable clips "
            "from training; lower it"
        )
    return prepared


def _store_null_text(text_encoder: TextEncoder, cache_dir: Path) -> None:
    """Cache the empty caption's states too, so that a full cache needs no encoder."""
    cache = LatentCache(cache_dir)
    key = text_key("", text_encoder.fingerprint)
    if not cache.has(key):
        cache.put(key, np.asarray(text_encoder.encode(""), dtype=np.float32))


def _check_cache_is_shared(
    world: World, ledger: Ledger, config: RunConfig, fingerprints: tuple[str, str]
) -> None:
    """Look for one clip of each other rank's share: a cache on one machine's own disk shows here.

    Raises:
        ConfigError: This rank does not see what another one encoded.
    """
    cache = LatentCache(Path(config.data.cache))
    for row in ledger.usable[: world.size]:
        if missing([row], cache, config.data.fps, *fingerprints):
            raise ConfigError(
                f"data.cache {config.data.cache!r}: rank {world.rank} does not find clip "
                f"{row.clip.name!r}, which another rank encoded; name a folder that all machines "
                "share"
            )


def _inspected(config: RunConfig, progress: Progress) -> Ledger:
    return inspect_dataset(
        Path(config.data.path),
        config.data.shape_rules,
        family_named(config.model.family).geometry,
        config.data.missing_caption,
        num_workers=len(os.sched_getaffinity(0)),
        progress=lambda done, total: progress("inspecting files", done, total),
    )


def _everybodys(world: World, rejected: list[LedgerRow]) -> list[LedgerRow]:
    """What all ranks rejected while encoding."""
    world.store.set(f"rejected/{world.rank}", to_json(rejected))
    rows: list[LedgerRow] = []
    for rank in range(world.size):
        key = f"rejected/{rank}"
        world.store.wait([key], _PATIENCE)
        rows += from_json(world.store.get(key), list[LedgerRow], what="rejected rows")
    return rows


def _without(ledger: Ledger, rejected: list[LedgerRow]) -> Ledger:
    by_clip = {row.clip: row for row in rejected}
    return replace(ledger, rows=tuple(by_clip.get(row.clip, row) for row in ledger.rows))


def _meet(world: World, what: str) -> None:
    """Wait for all ranks without the time-out of collectives."""
    world.store.set(f"{what}/{world.rank}", "here")
    world.store.wait([f"{what}/{rank}" for rank in range(world.size)], _PATIENCE)
