"""What `arachne prepare` does: the run's ledger, then its arrays, on processes, ranks or Ray."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from arachne.cli.preparing_display import Display
from arachne.cli.run_ledger import CurrentLedger, current_ledger, manifest_of, written_ledger
from arachne.core.families import family_named
from arachne.core.ledger import Ledger
from arachne.data.limits import MAX_DECODE_S
from arachne.data.make_arrays import Settled, Workshop
from arachne.data.manifest import read_manifest
from arachne.data.prepare import Latents, Piece, Store
from arachne.models.first_frame import packed_values
from arachne.models.interface import TextEncoder, VideoEncoder
from arachne.runtime.world import join_world, leave_world, resolved_device_kind
from arachne.trainer.config import RunConfig
from arachne.trainer.planning_shape import run_text_rows
from arachne.trainer.preparation import (
    amend_manifest,
    begun_ledger,
    check_usable,
    decoders_per_process,
    prepared_ledger,
    workshop_of,
)
from arachne.trainer.preparing_processes import make_on_processes
from arachne.trainer.preparing_ray import make_on_ray, ray_cluster
from arachne.trainer.run_encoders import run_text_encoder, run_video_encoder

_Make = Callable[[Workshop, Sequence[Piece], Callable[[Settled], None]], None]
"""Makes pieces and tells what became of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the command line asked for.

    Attributes:
        workers: Processes; None is one per GPU, or per CPU core.
        time_limit_s: A clip that is decoded for longer is rejected; None is the usual limit.
        is_again: Inspect again, and try rejected clips again.
    """

    workers: int | None
    time_limit_s: float | None
    is_again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A clip that cannot be trained, and why."""

    clip: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What preparing has come to.

    Attributes:
        clips: By status.
        made: Arrays that were missing; by now they are cached, or their clips rejected.
        cached: Arrays that were there before. Clips of the same bytes, span and shape share their
            latents, those of the same words their text.
        wall_s: Seconds that making them took.
        rejected: Every clip that cannot be trained.
        replaced: Files that hold other content than when they were last inspected, by their names;
            they are taken as they are now.
    """

    clips: dict[str, int]
    made: int
    cached: int
    wall_s: float
    rejected: tuple[Rejected, ...]
    replaced: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What preparing would do.

    Attributes:
        clips: By status.
        missing_latents: Latents to make.
        missing_texts: Captions to encode, the empty one among them.
        cache_bytes: Size of both.
        decoded_bytes: Size of the pixels that are decoded for it.
        rejected: Every clip that cannot be trained.
        replaced: As of `Outcome`.
    """

    clips: dict[str, int]
    missing_latents: int
    missing_texts: int
    cache_bytes: int
    decoded_bytes: int
    rejected: tuple[Rejected, ...]
    replaced: tuple[str, ...]


def estimate(config: RunConfig, request: Request) -> Estimate:
    """What preparing would do; nothing is written.

    Raises:
        ArachneError: The dataset or an encoder cannot be read.
    """
    with Display(is_shown=True) as display:
        found = current_ledger(config, display.progress, is_again=request.is_again)
    ledger = found.ledger
    video_encoder, text_encoder = _encoders(config, "cpu")
    store = workshop_of(config, video_encoder, text_encoder).store
    missing, _ = _missing(store, ledger, is_again=request.is_again)
    geometry = family_named(config.model.family).geometry
    buckets = [piece.row.bucket for piece in missing if isinstance(piece, Latents)]
    num_texts = len(missing) - len(buckets)
    text_size = text_encoder.text_size
    values = num_texts * run_text_rows(config.model, text_size) * text_size
    pixels = 0
    for bucket in buckets:
        assert bucket is not None
        values += packed_values(video_encoder, geometry.latent_grid(bucket))
        pixels += bucket.num_pixels
    return Estimate(
        clips=ledger.counts,
        missing_latents=len(buckets),
        missing_texts=num_texts,
        cache_bytes=4 * values,
        decoded_bytes=3 * pixels,
        rejected=_rejected(ledger),
        replaced=found.replaced,
    )


def prepare_on_processes(config: RunConfig, request: Request) -> Outcome:
    """Prepare on processes of this machine.

    Raises:
        ArachneError: See `core.errors`.
    """
    device = resolved_device_kind(config.run.device)
    usual = torch.cuda.device_count() if device == "cuda" else len(os.sched_getaffinity(0))
    num_processes = request.workers or usual

    def make(
        workshop: Workshop, missing: Sequence[Piece], on_settled: Callable[[Settled], None]
    ) -> None:
        make_on_processes(
            workshop,
            missing,
            num_processes=min(num_processes, len(missing)),
            device=device,
            on_settled=on_settled,
        )

    num_decoders = decoders_per_process(device, num_processes)
    return _prepare(config, request, make, device=device, num_decoders=num_decoders)


def prepare_on_ray(config: RunConfig, request: Request) -> Outcome:
    """Prepare on a Ray cluster.

    Raises:
        ArachneError: See `core.errors`.
    """
    with ray_cluster() as cluster:
        device = cluster.device(config.run.device)
        num_actors = cluster.num_actors(device, request.workers)

        def make(
            workshop: Workshop, missing: Sequence[Piece], on_settled: Callable[[Settled], None]
        ) -> None:
            make_on_ray(
                workshop,
                missing,
                cluster=cluster,
                num_actors=num_actors,
                device=device,
                on_settled=on_settled,
            )

        num_decoders = cluster.cpus_per_actor(device)
        return _prepare(config, request, make, device=device, num_decoders=num_decoders)


def _prepare(
    config: RunConfig, request: Request, make: _Make, *, device: str, num_decoders: int
) -> Outcome:
    """The run's ledger, then what the cache lacks, made by an engine."""
    with (
        Display(is_shown=True) as display,
        written_ledger(config, display.progress, is_again=request.is_again) as found,
    ):
        # Only now that there is something to encode.
        workshop = _workshop(config, request, device=device, num_decoders=num_decoders)
        store = workshop.store
        missing, num_cached = _begin(store, found.path, is_again=request.is_again)
        begin_s = time.monotonic()
        reasons: dict[str, str] = {}
        settled: set[str] = set()

        def on_settled(event: Settled) -> None:
            settled.add(event.key)
            if event.reason:
                reasons[event.key] = event.reason
            display.progress("preparing", len(settled), len(missing))

        make(workshop, missing, on_settled)
        store.tidy()
        # What could not be made this time only, such as of a file that was away, is told, and
        # tried again by the next one; what never can, the store remembers.
        ledger = store.amended(amend_manifest(found.path, store, {}), reasons)
    counts = (len(missing), num_cached)
    return _outcome(config, found, ledger, counts, time.monotonic() - begin_s)


def prepare_as_rank(config: RunConfig, request: Request) -> Outcome | None:
    """Prepare as a rank that torchrun started, with its GPU; None on all ranks but the first.

    Raises:
        ArachneError: See `core.errors`.
    """
    world = join_world(config.run.device, config.run.timeout_s)
    device, path = world.device.type, manifest_of(config)
    with ExitStack() as stack:
        display = stack.enter_context(Display(is_shown=world.rank == 0))
        found: CurrentLedger | None = None
        if world.rank == 0:
            context = written_ledger(config, display.progress, is_again=request.is_again)
            found = stack.enter_context(context)
        begun = begun_ledger(
            world, config, manifest=path, progress=display.progress, is_current=True
        )
        workshop = _workshop(
            config,
            request,
            device=str(world.device),
            num_decoders=decoders_per_process(device, len(world.ranks_here)),
        )
        counts = (0, 0)
        if world.rank == 0:
            missing, num_cached = _begin(workshop.store, path, is_again=request.is_again)
            counts = (len(missing), num_cached)
        begin_s = time.monotonic()
        ledger = prepared_ledger(
            world, config, workshop, begun, progress=display.progress, is_final=False
        )
    leave_world()  # not after an error: peers may still wait
    if found is None:
        return None
    return _outcome(config, found, ledger, counts, time.monotonic() - begin_s)


def _workshop(config: RunConfig, request: Request, *, device: str, num_decoders: int) -> Workshop:
    return workshop_of(
        config,
        *_encoders(config, device),
        num_decoders=num_decoders,
        time_limit_s=request.time_limit_s or MAX_DECODE_S,
    )


def _encoders(config: RunConfig, device: str) -> tuple[VideoEncoder, TextEncoder]:
    return (
        run_video_encoder(config.model, device=device),
        run_text_encoder(config.model, device=device),
    )


def _begin(store: Store, manifest: Path, *, is_again: bool) -> tuple[tuple[Piece, ...], int]:
    """Tidy the cache; the pieces of work that are missing in it, and how many it has."""
    store.tidy()
    ledger = read_manifest(manifest)
    missing, num_cached = _missing(store, ledger, is_again=is_again)
    if is_again:
        for piece in missing:
            store.rejections.forget(piece.key)
    return missing, num_cached


def _missing(store: Store, ledger: Ledger, *, is_again: bool) -> tuple[tuple[Piece, ...], int]:
    """What is to be made, and how much is cached; clips that were rejected before are made only if
    they are tried again."""
    pieces = store.pieces(ledger.rows)
    absent = [piece for piece in pieces if not store.cache.has(piece.key)]
    missing = [p for p in absent if is_again or store.rejections.reason_of(p.key) is None]
    return tuple(missing), len(pieces) - len(absent)


def _outcome(
    config: RunConfig,
    found: CurrentLedger,
    ledger: Ledger,
    counts: tuple[int, int],
    wall_s: float,
) -> Outcome:
    """`counts` are the arrays that were missing, and those that were cached, before the work."""
    num_missing, num_cached = counts
    check_usable(config.data, ledger)
    return Outcome(
        clips=ledger.counts,
        made=num_missing,
        cached=num_cached,
        wall_s=round(wall_s, 3),
        rejected=_rejected(ledger),
        replaced=found.replaced,
    )


def _rejected(ledger: Ledger) -> tuple[Rejected, ...]:
    return tuple(
        Rejected(clip=row.clip.name, reason=row.reason)
        for row in ledger.rows
        if row.status == "rejected"
    )
