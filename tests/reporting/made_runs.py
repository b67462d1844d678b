"""Synthetic runs: what a small training run would have written, from a seed."""

import random
import zlib
from pathlib import Path

from arachne.core.batch import Batch, BatchClip
from arachne.core.bucket import Bucket
from arachne.core.cascade import Cascade
from arachne.core.clip import Clip, TimeSpan
from arachne.core.ledger import Ledger, LedgerRow
from arachne.core.placed_plan import PlacedLaunch, PlacedPlan
from arachne.core.rank_log import RankEvent, RankLog, trace_from_logs
from arachne.core.trace import Span
from arachne.reporting.run_files import RunWriter, StepMetrics

SHAPES = {
    Bucket(width=208, height=112, frames=81): 1911,
    Bucket(width=208, height=112, frames=33): 819,
    Bucket(width=160, height=160, frames=49): 1300,
    Bucket(width=208, height=112, frames=1): 91,
}
HOSTILE = "<script>alert('caption')</script>"


def made_batch(step: int, num_clips: int = 8) -> Batch:
    rng = random.Random(step)
    shapes = [rng.choice(list(SHAPES)) for _ in range(num_clips)]
    return Batch(
        step=step,
        clips=tuple(
            BatchClip(
                name=f"clips/{HOSTILE if i == 0 else f'beach-{i:02d}'}.mp4",
                bucket=bucket,
                num_tokens=SHAPES[bucket],
            )
            for i, bucket in enumerate(shapes)
        ),
    )


def made_plan(batch: Batch, world_size: int = 4) -> PlacedPlan:
    """Long clips on pairs of ranks, then each other clip where there is room first."""
    free_s = [0.0] * world_size
    launches: list[PlacedLaunch] = []
    by_length = sorted(range(len(batch.clips)), key=lambda i: -batch.clips[i].num_tokens)
    for slot in by_length:
        clip = batch.clips[slot]
        degree = 2 if clip.num_tokens > 1500 and world_size > 1 else 1
        first = min(
            range(0, world_size - degree + 1, degree),
            key=lambda rank: max(free_s[rank : rank + degree]),
        )
        ranks = tuple(range(first, first + degree))
        start_s = max(free_s[rank] for rank in ranks)
        duration_s = 0.012 + 9e-5 * clip.num_tokens / degree
        cascade = Cascade(
            module="dit", slots=(slot,), bucket=clip.bucket, num_tokens=clip.num_tokens
        )
        launches.append(
            PlacedLaunch(cascade=cascade, ranks=ranks, start_s=start_s, duration_s=duration_s)
        )
        for rank in ranks:
            free_s[rank] = start_s + duration_s
    launches.sort(key=lambda launch: (launch.start_s, launch.ranks))
    return PlacedPlan(
        step=batch.step, planner="arachne", world_size=world_size, launches=tuple(launches)
    )


def made_logs(plan: PlacedPlan, seed: int = 0) -> tuple[RankLog, ...]:
    """Logs in which each launch takes a little longer or shorter than planned."""
    rng = random.Random(seed * 1000 + plan.step)
    now_s = [0.002 + 0.001 * rng.random() for _ in range(plan.world_size)]
    events: list[list[RankEvent]] = [
        [_event(rank, "load", 0.0, now_s[rank])] for rank in range(plan.world_size)
    ]
    for index, launch in enumerate(plan.launches):
        part_s = launch.duration_s * rng.uniform(0.92, 1.18) / 3
        for meeting in range(2):
            arrivals_s = {r: now_s[r] + part_s * rng.uniform(0.97, 1.06) for r in launch.ranks}
            moved_s = max(arrivals_s.values()) + (0.15 * part_s if launch.degree > 1 else 0.0)
            for rank, arrival_s in arrivals_s.items():
                events[rank].append(_event(rank, "compute", now_s[rank], arrival_s, index))
                if launch.degree > 1:
                    events[rank].append(
                        _event(rank, "communicate", arrival_s, moved_s, index, meeting)
                    )
                now_s[rank] = moved_s
        for rank in launch.ranks:
            events[rank].append(_event(rank, "compute", now_s[rank], now_s[rank] + part_s, index))
            now_s[rank] += part_s
    end_s = max(now_s) + 0.009
    for rank in range(plan.world_size):
        events[rank].append(_event(rank, "reduce", now_s[rank], end_s, None, 0))
        events[rank].append(_event(rank, "optimizer", end_s, end_s + 0.006))
    return tuple(
        RankLog(
            step=plan.step,
            planner=plan.planner,
            rank=rank,
            world_size=plan.world_size,
            events=tuple(events[rank]),
        )
        for rank in range(plan.world_size)
    )


def _event(rank, kind, start_s, end_s, launch=None, meeting=None) -> RankEvent:
    span = Span(rank=rank, kind=kind, start_s=start_s, end_s=end_s, launch=launch)
    return RankEvent(span=span, meeting=meeting)


def made_metrics(plan: PlacedPlan, batch: Batch, logs: tuple[RankLog, ...]) -> StepMetrics:
    step_s = max(event.span.end_s for log in logs for event in log.events)
    num_tokens = sum(clip.num_tokens for clip in batch.clips)
    rng = random.Random(plan.step)
    return StepMetrics(
        step=plan.step,
        loss=0.35 + 0.65 * 0.93**plan.step + 0.03 * rng.random(),
        grad_norm=1.0 + rng.random(),
        lr=1e-4,
        step_s=step_s,
        period_s=1.05 * step_s,
        idle_ratio=trace_from_logs(logs).idle_ratio,
        tokens=num_tokens,
        tokens_per_s=num_tokens / (1.05 * step_s),
        modelled_step_s=plan.makespan_s + 0.014,
        planner=plan.planner,
    )


def made_ledger(num_rows: int = 12) -> Ledger:
    bucket = Bucket(width=208, height=112, frames=81)
    rows: list[LedgerRow] = []
    for i in range(num_rows):
        status = ("kept", "kept", "trimmed", "rejected")[i % 4]
        rows.append(
            LedgerRow(
                clip=Clip(
                    path=f"videos/clip-{i:03d}.mp4",
                    caption=HOSTILE if i == 0 else f"A quiet street at dusk, take {i}.",
                    span=TimeSpan(start_s=1.0, end_s=6.5) if i % 5 == 4 else None,
                ),
                status=status,
                arithmetic="132f@25 → 84f@16 → 81" if status != "rejected" else "9f@25 → 5f@16",
                reason={
                    "kept": "scaled 1280x720 to 208x117, cropped to 208x112",
                    "trimmed": "3 frames past the longest bucket that it fills",
                    "rejected": "5 frames; the shortest bucket for videos needs 17",
                }[status],
                bucket=None if status == "rejected" else bucket,
                num_tokens=0 if status == "rejected" else SHAPES[bucket],
                content=f"{i:064x}",
            )
        )
    return Ledger(rows=tuple(rows))


def write_made_run(run_dir: Path, *, num_steps: int = 6, world_size: int = 4) -> Path:
    """A whole run directory but for the manifest; returns it."""
    run_dir.mkdir(parents=True, exist_ok=True)
    writer = RunWriter(run_dir=run_dir)
    for step in range(num_steps):
        batch = made_batch(step, num_clips=2 * world_size)
        plan = made_plan(batch, world_size)
        logs = made_logs(plan)
        writer.write_batch(batch)
        writer.write_plan(plan)
        for log in logs:
            writer.write_rank_log(log)
        writer.write_metrics(made_metrics(plan, batch, logs))
        if step % 3 == 2:
            held_out = StepMetrics(step=step, kind="validation", loss=0.4 + 0.6 * 0.93**step)
            writer.write_metrics(held_out)
    return run_dir


def made_png(width: int = 96, height: int = 54, seed: int = 0) -> bytes:
    """A small picture with a gradient, without an imaging library."""
    rows = b"".join(
        b"\0"
        + bytes(
            channel
            for x in range(width)
            for channel in ((x * 2 + 40 * seed) % 256, y * 4 % 256, 120)
        )
        for y in range(height)
    )
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")
        for kind, body in chunks
    )
