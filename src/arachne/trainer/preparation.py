"""From a dataset on disk to cached arrays, by all ranks together; the same ledger on every rank."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from arachne.core.errors import ConfigError, DataError
from arachne.core.families import family_named
from arachne.core.ledger import Ledger, LedgerRow
from arachne.core.strict_json import from_json, to_json
from arachne.data.limits import MAX_DECODE_S
from arachne.data.make_arrays import Begun, Settled, Workshop, make_arrays
from arachne.data.manifest import read_manifest, write_manifest
from arachne.data.prepare import Store
from arachne.data.remote_path import dataset_path
from arachne.data.split import first_by_content, held_out, training_rows
from arachne.models.first_frame import FirstFrameEncoder
from arachne.models.interface import PictureReader, TextEncoder, VideoEncoder
from arachne.runtime.world import World
from arachne.trainer.config import RunConfig
from arachne.trainer.dataset import TrainingData
from arachne.trainer.dataset_changes import replaced_files
from arachne.trainer.encoding_room import encoding_before
from arachne.trainer.kept_ledger import keep_ledger
from arachne.trainer.planning_shape import only_bucket
from arachne.trainer.settings.data import DataSettings
from arachne.trainer.sources import inspected_sources, of_one_bucket, sources

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
        null_text: Token states [L, D] of the empty caption; after a black picture where text
            encoders see one.
        replaced: Files that hold other content than when the ledger was made, by their names.
    """

    ledger: Ledger
    train: TrainingData
    held_out: TrainingData
    null_text: NDArray[np.float32]
    replaced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunLedger:
    """A run's ledger before anything is encoded.

    Attributes:
        manifest: Where it lies.
        ledger: One row per clip of the dataset, of which some train.
        is_new: Whether it was made just now.
        replaced: As of `Prepared`; none of a new one.
    """

    manifest: Path
    ledger: Ledger
    is_new: bool
    replaced: tuple[str, ...] = ()


def begun_ledger(
    world: World, config: RunConfig, *, manifest: Path, progress: Progress, is_current: bool = False
) -> BegunLedger:
    """The run's ledger, for which no model is needed; all ranks call it together.

    A manifest that stands already is taken as it is, and its files are compared with it unless they
    just were (`is_current`).

    Raises:
        DataError: The dataset cannot be read, or no clip of it trains; on every rank.
        ConfigError: The ranks do not share `run.dir`.
    """
    if world.rank == 0:
        is_new = not manifest.is_file()
        replaced: tuple[str, ...] = ()
        if is_new:
            write_manifest(inspected(config, progress), manifest)
        elif not is_current:
            replaced = replaced_files(config.data, read_manifest(manifest))
        world.store.set("begun ledger", to_json((is_new, replaced)))
    _meet(world, "ledger")
    if not manifest.is_file():
        raise ConfigError(
            f"run.dir {str(manifest.parent)!r} of rank {world.rank} is not the one of rank 0: its "
            f"{manifest.name} is missing; name a folder that all machines share"
        )
    begun = world.store.get("begun ledger")
    is_new, replaced = from_json(begun, tuple[bool, tuple[str, ...]], what="begun ledger")
    ledger = read_manifest(manifest)
    check_usable(config.data, ledger)
    return BegunLedger(manifest=manifest, ledger=ledger, is_new=is_new, replaced=replaced)


def check_usable(data: DataSettings, ledger: Ledger) -> None:
    """Refuse a ledger of which nothing trains.

    Raises:
        DataError: All of its clips are rejected, or held out.
    """
    if not ledger.usable:
        reasons = Counter(row.reason for row in ledger.rows).most_common(1)
        why = "".join(f"{count} of them: {reason}; " for reason, count in reasons)
        raise DataError(
            f"none of the {len(ledger.rows)} clips in {data.path!r} is usable; {why}"
            f"see what their files hold with: arachne inspect {data.path}"
        )
    if not training_rows(ledger.usable, data.held_out):
        raise DataError(
            f"data.held_out {data.held_out} keeps all {len(ledger.usable)} usable clips "
            "from training; lower it"
        )


def prepare(
    world: World,
    config: RunConfig,
    begun: BegunLedger,
    *,
    video_encoder: VideoEncoder,
    text_encoder: TextEncoder,
    progress: Progress,
) -> Prepared:
    """The cached clips of a run whose ledger has begun, and the ledger as it then is.

    Raises:
        DataError: The cache cannot be written, or no clip can be decoded.
    """
    workshop = workshop_of(
        config,
        video_encoder,
        text_encoder,
        num_decoders=decoders_per_process(world.device.type, len(world.ranks_here)),
    )
    ledger = prepared_ledger(
        world,
        config,
        workshop,
        begun,
        progress=progress,
        is_online=config.data.encode == "online",
    )
    check_usable(config.data, ledger)
    store = workshop.store
    train = TrainingData(
        rows=training_rows(ledger.usable, config.data.held_out),
        cache_dir=store.cache_dir,
        fps=config.data.fps,
        video_fingerprint=store.video_fingerprint,
        text_fingerprint=store.text_fingerprint,
        packing=video_encoder.packing if isinstance(video_encoder, FirstFrameEncoder) else None,
        fit=config.data.fit,
        text_sees_clip=store.text_sees_clip,
    )
    others = tuple(row for row in ledger.usable if held_out(row, config.data.held_out))
    return Prepared(
        ledger=ledger,
        train=train,
        held_out=replace(train, rows=others),
        null_text=store.cache.get(store.null_key),
        replaced=begun.replaced,
    )


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
        text_sees_clip=isinstance(text_encoder, PictureReader),
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
    begun: BegunLedger,
    *,
    progress: Progress,
    is_online: bool = False,
    is_final: bool = True,
) -> Ledger:
    """The run's ledger, once all that can be made of it is cached; all ranks call it together.

    With `is_online` only what validation losses need is made, and a manifest that stands already is
    kept as it is: what was found out of its clips since must not change a run's steps. Unless it
    `is_final` the manifest keeps clips that could not be made this time only, such as those of a
    file that was away, and only the ledger that is returned has them rejected.

    Raises:
        DataError: The cache cannot be written.
        RankMemoryError: This rank has no memory to encode.
    """
    manifest = begun.manifest
    if world.rank == 0:
        workshop.store.tidy()
    _meet(world, "tidy cache")  # nobody begins before rank 0 has seen what is missing
    needed = _held_out_part(config, begun.ledger) if is_online else begun.ledger
    with encoding_before("cuda" if world.device.type == "cuda" else "cpu"):
        own_reasons = made(workshop, needed, progress)
    reasons = _everybodys(world, own_reasons)
    if world.rank == 0 and (begun.is_new or not is_online):
        lasting = reasons if is_final else {}
        amend_manifest(manifest, workshop.store, lasting, keeps_old=not begun.is_new)
    _meet(world, "amended ledger")
    ledger = read_manifest(manifest)
    return ledger if is_final else workshop.store.amended(ledger, reasons)


def _held_out_part(config: RunConfig, ledger: Ledger) -> Ledger:
    """The clips that validation losses are measured on."""
    rows = tuple(row for row in ledger.usable if held_out(row, config.data.held_out))
    if not rows and config.validation.every:
        limit = config.validation.clips or len(ledger.usable)
        rows = first_by_content(training_rows(ledger.usable, config.data.held_out), limit)
    return replace(ledger, rows=tuple(rows))


def made(workshop: Workshop, ledger: Ledger, progress: Progress) -> dict[str, str]:
    """Make all arrays of a ledger; why clips were rejected on the way, by the array's key."""
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


def inspected(config: RunConfig, progress: Progress, known: Sequence[LedgerRow] = ()) -> Ledger:
    """The ledger of a run's dataset; nothing is written. Of `known` rows, which an earlier one has
    by the same settings, those stand whose files are as they were.

    Raises:
        DataError: The dataset cannot be read.
    """
    found = inspected_sources(
        config.data,
        config.data.shape_rules,
        family_named(config.model.family).geometry,
        num_workers=len(os.sched_getaffinity(0)),
        progress=lambda done, total: progress("inspecting files", done, total),
        known=known,
    )
    return of_one_bucket(found, only_bucket(config.model))


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
