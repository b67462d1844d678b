"""From a dataset on disk to cached arrays, by all ranks together; the same ledger on every rank."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from arachne.core.errors import DataError
from arachne.core.families import family_named
from arachne.core.ledger import Ledger, LedgerRow
from arachne.core.strict_json import from_json, to_json
from arachne.data.cache import LatentCache
from arachne.data.inspect import inspect_dataset
from arachne.data.manifest import read_manifest, write_manifest
from arachne.data.prepare import encode_clip, missing
from arachne.data.split import held_out
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
    """

    ledger: Ledger
    train: TrainingData
    held_out: TrainingData


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
    if world.rank == 0 and rejected_count(ledger) != rejected_count(read_manifest(manifest)):
        write_manifest(ledger, manifest)
    _meet(world, "amended ledger")
    if not ledger.usable:
        raise DataError(
            f"none of the {len(ledger.rows)} clips in {config.data.path!r} is usable; "
            f"see why with: arachne inspect {config.data.path}"
        )
    is_held_out = [held_out(row, config.data.held_out) for row in ledger.usable]

    def part(held: bool) -> TrainingData:
        chosen = zip(ledger.usable, is_held_out, strict=True)
        return TrainingData(
            rows=tuple(row for row, is_held in chosen if is_held == held),
            cache_dir=cache_dir,
            fps=config.data.fps,
            video_fingerprint=video_encoder.fingerprint,
            text_fingerprint=text_encoder.fingerprint,
        )

    prepared = Prepared(ledger=ledger, train=part(held=False), held_out=part(held=True))
    if not prepared.train.rows:
        raise DataError(
            f"data.held_out {config.data.held_out} keeps all {len(ledger.usable)} usable clips "
            "from training; lower it"
        )
    return prepared


def rejected_count(ledger: Ledger) -> int:
    """Clips that do not train."""
    return ledger.counts["rejected"]


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
    for rank in range(world.size):
        world.store.wait([f"{what}/{rank}"], _PATIENCE)
