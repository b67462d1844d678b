"""From a dataset on disk to cached arrays, by all ranks together; the same ledger on every rank."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arachne.core.errors import ConfigError, DataError
from arachne.core.families import family_named
from arachne.core.ledger import Ledger
from arachne.core.strict_json import from_json, to_json
from arachne.data.atomic_file import remove_leftovers
from arachne.data.cache import LatentCache, text_key
from arachne.data.limits import MAX_DECODE_S
from arachne.data.make_arrays import Begun, Settled, Workshop, make_arrays
from arachne.data.manifest import read_manifest, write_manifest
from arachne.data.prepare import Store
from arachne.data.remote_path import dataset_path
from arachne.data.split import first_by_content, held_out, training_rows
from arachne.models.first_frame import FirstFrameEncoder
from arachne.models.interface import TextEncoder, VideoEncoder
from arachne.runtime.world import World
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset import TrainingData
from arachne.trainer.kept_ledger import keep_ledger
from arachne.trainer.sources import inspected_sources, sources

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
    workshop = workshop_of(
        config,
        video_encoder,
        text_encoder,
        num_decoders=decoders_per_process(world.device.type, world.ranks_per_node),
    )
    ledger = prepared_ledger(
        world,
        config,
        workshop,
        manifest=manifest,
        progress=progress,
        is_online=config.data.encode == "online",
    )
    if not ledger.usable:
        raise DataError(
            f"none of the {len(ledger.rows)} clips in {config.data.path!r} is usable; "
            f"see why with: arachne inspect {config.data.path}"
        )
    cache_dir = workshop.store.cache_dir
    train = TrainingData(
        rows=training_rows(ledger.usable, config.data.held_out),
        cache_dir=cache_dir,
        fps=config.data.fps,
        video_fingerprint=video_encoder.fingerprint,
        text_fingerprint=text_encoder.fingerprint,
        packing=video_encoder.packing if isinstance(video_encoder, FirstFrameEncoder) else None,
        fit=config.data.fit,
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


def workshop_of(
    config: RunConfig,
    video_encoder: VideoEncoder,
    text_encoder: TextEncoder,
    *,
    num_decoders: int = 1,
    time_limit_s: float = MAX_DECODE_S,
) -> Workshop:
    """What a run's arrays are made from and with."""
    store = Store(
        cache_dir=Path(config.data.cache),
        fps=config.data.fps,
        video_fingerprint=video_encoder.fingerprint,
        text_fingerprint=text_encoder.fingerprint,
        fit=config.data.fit,
    )
    return Workshop(
        root=dataset_path(config.data.path),
        other_roots={source.name: source.root for source in sources(config.data) if source.name},
        store=store,
        video_encoder=video_encoder,
        text_encoder=text_encoder,
        num_decoders=num_decoders,
        time_limit_s=time_limit_s,
    )


def prepared_ledger(
    world: World,
    config: RunConfig,
    workshop: Workshop,
    *,
    manifest: Path,
    progress: Progress,
    is_online: bool = False,
    is_final: bool = True,
) -> Ledger:
    """The manifest's ledger, once all that can be made of it is cached; all ranks call it together.

    With `is_online` only what held-out losses need is made, and a manifest that stands already is
    kept as it is: what was found out of its clips since must not change a run's steps. Unless it
    `is_final` the manifest keeps clips that could not be made this time only, such as those of a
    file that was away, and only the ledger that is returned has them rejected.

    Raises:
        DataError: The dataset cannot be read, or the cache cannot be written.
        ConfigError: The ranks do not share `run.dir`.
    """
    is_new = False
    if world.rank == 0:
        remove_leftovers(workshop.store.cache_dir)
        is_new = not manifest.is_file()
        if is_new:
            write_manifest(inspected(config, progress), manifest)
    _meet(world, "ledger")
    if not manifest.is_file():
        raise ConfigError(
            f"run.dir {str(manifest.parent)!r} of rank {world.rank} is not the one of rank 0: its "
            f"{manifest.name} is missing; name a folder that all machines share"
        )
    ledger = read_manifest(manifest)
    needed = _held_out_part(config, ledger) if is_online else ledger
    reasons = _everybodys(world, made(workshop, needed, progress))
    if world.rank == 0 and (is_new or not is_online):
        lasting = reasons if is_final else {}
        amend_manifest(manifest, workshop.store, lasting, keeps_old=not is_new)
    _meet(world, "amended ledger")
    ledger = read_manifest(manifest)
    return ledger if is_final else workshop.store.amended(ledger, reasons)


def _held_out_part(config: RunConfig, ledger: Ledger) -> Ledger:
    """The clips that held-out losses are measured on."""
    rows = tuple(row for row in ledger.usable if held_out(row, config.data.held_out))
    if not rows and config.validation.every:
        limit = config.validation.clips or len(ledger.usable)
        rows = first_by_content(training_rows(ledger.usable, config.data.held_out), limit)
    return replace(ledger, rows=tuple(rows))


def made(workshop: Workshop, ledger: Ledger, progress: Progress) -> dict[str, str]:
    """Make all arrays of a ledger; why clips were rejected on the way, by their latents' key."""
    pieces = workshop.store.pieces(ledger.rows)
    reasons: dict[str, str] = {}
    num_settled = 0

    def tell(event: Begun | Settled) -> None:
        nonlocal num_settled
        if isinstance(event, Begun):
            return
        num_settled += 1
        if event.reason:
            reasons[event.key] = event.reason
        progress("encoding clips", num_settled, len(pieces))

    make_arrays(workshop, pieces, tell)
    return reasons


def amend_manifest(
    manifest: Path, store: Store, reasons: Mapping[str, str], *, keeps_old: bool = False
) -> Ledger:
    """Reject clips of which no latents could be made; the ledger that then stands.

    With `keeps_old` the one that stood is set aside, to stand again if the run is refused.

    Raises:
        DataError: The manifest cannot be read or written.
    """
    before = read_manifest(manifest)
    ledger = store.amended(before, reasons)
    if ledger != before:
        if keeps_old:
            keep_ledger(manifest)
        write_manifest(ledger, manifest)
    return ledger


def inspected(config: RunConfig, progress: Progress) -> Ledger:
    """The ledger of a run's dataset; nothing is written.

    Raises:
        DataError: The dataset cannot be read.
    """
    return inspected_sources(
        config.data,
        config.data.shape_rules,
        family_named(config.model.family).geometry,
        num_workers=len(os.sched_getaffinity(0)),
        progress=lambda done, total: progress("inspecting files", done, total),
    )


def decoders_per_process(device: str, num_processes: int) -> int:
    """How many decoders each of a machine's preparing processes should have.

    A GPU encodes faster than one core decodes, so its process keeps several cores busy; a process
    that encodes on the CPU has one core for both.
    """
    if device == "cpu":
        return 1
    return max(1, len(os.sched_getaffinity(0)) // num_processes)


def _everybodys(world: World, reasons: dict[str, str]) -> dict[str, str]:
    """What all ranks rejected while encoding."""
    world.store.set(f"rejected/{world.rank}", to_json(reasons))
    found: dict[str, str] = {}
    for rank in range(world.size):
        key = f"rejected/{rank}"
        world.store.wait([key], _PATIENCE)
        found |= from_json(world.store.get(key), dict[str, str], what="rejected clips")
    return found


def _meet(world: World, what: str) -> None:
    """Wait for all ranks without the time-out of collectives."""
    world.store.set(f"{what}/{world.rank}", "here")
    world.store.wait([f"{what}/{rank}" for rank in range(world.size)], _PATIENCE)
