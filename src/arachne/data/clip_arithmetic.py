"""One clip's way from its file to tokens, each step with its numbers."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from arachne.core.clip import Clip, MediaFacts, TimeSpan
from arachne.core.errors import DataError
from arachne.core.ledger import LedgerRow
from arachne.core.model_shape import Geometry
from arachne.core.units import count_text, percent_text
from arachne.data.extraction import piece_spans
from arachne.data.frame_size import FrameSize, ideal_size, scaled_size
from arachne.data.probe import timeline_of
from arachne.data.remote_path import DatasetPath
from arachne.data.shapes import ShapeRules
from arachne.data.source_media import source_media
from arachne.data.timeline import Cut, Timeline, cut, facts_of, retimed_count

Step = tuple[str, str]
"""What a step is called, and its arithmetic."""


def clips_named(clips: Sequence[Clip], name: str) -> tuple[Clip, ...]:
    """The clip of this name, or else all clips of the file of this name; also the clip that a
    piece of this name is taken from.

    Raises:
        DataError: There is none; the message has the nearest name.
    """
    found = [clip for clip in clips if clip.name == name]
    found = found or [clip for clip in clips if clip.path == name]
    if not found:
        path, _, piece = name.rpartition("@")
        found = [clip for clip in clips if piece.endswith("s") and clip.path == path]
    if not found:
        near = get_close_matches(name, [clip.name for clip in clips], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DataError(f"no clip of the {len(clips):,} is called {name!r}{hint}")
    return tuple(found)


def clip_arithmetic(
    root: DatasetPath, rows: Sequence[LedgerRow], rules: ShapeRules, geometry: Geometry
) -> tuple[Step, ...]:
    """The steps of an inspected clip, as far as it got; `rows` are those of all its pieces."""
    row = rows[0]
    steps: list[Step] = [("caption", "; or: ".join(row.clip.captions) or "(none)")]
    try:
        timeline = timeline_of(source_media(root, row.clip.path))
        part = cut(timeline, row.clip.span)
        steps += _steps(timeline, part, rows, rules, geometry)
    except (DataError, OSError):
        pass  # the row's reason says so
    steps.append((row.status, row.reason or "nothing was changed"))
    return tuple(steps)


def _steps(
    timeline: Timeline,
    part: Cut,
    rows: Sequence[LedgerRow],
    rules: ShapeRules,
    geometry: Geometry,
) -> Iterator[Step]:
    row = rows[0]
    facts = facts_of(timeline, row.clip.span)
    is_still = facts.fps == 0.0
    count = 1 if is_still else retimed_count(facts.num_frames / facts.fps, rules.fps)
    yield "file", _file_text(timeline)
    if row.clip.span is not None and not is_still:
        yield "span", _span_text(row.clip.span, part)
    if not is_still:
        yield "retimed", _retimed_text(facts, rules.fps, count)
    yield "length", _length_text(rules, geometry, count, is_still)
    if row.bucket is not None:
        yield from _piece_steps(timeline, part, rows, rules, count)
    yield "area", _area_text(facts, rules)
    size = rules.size_of(facts, geometry)
    if isinstance(size, FrameSize):
        yield "size", _size_text(facts, size, rules, geometry)
    if row.bucket is not None:
        yield "bucket", f"{row.bucket} (width x height x frames)"
        latent, tokens = geometry.latent_grid(row.bucket), geometry.token_grid(row.bucket)
        yield "latent", f"{_grid_text(latent)} (frames x height x width)"
        yield "tokens", f"{_grid_text(tokens)} = {row.num_tokens:,}"


def _file_text(timeline: Timeline) -> str:
    size = f"{timeline.width}x{timeline.height} upright, with square pixels"
    if timeline.num_frames == 1:
        return f"a still, {size}"
    rate = timeline.num_frames / timeline.end_s
    return f"{timeline.num_frames:,} frames in {timeline.end_s:.3f} s ({rate:.3f} fps), {size}"


def _span_text(span: TimeSpan, part: Cut) -> str:
    return (
        f"{span.start_s:g} s to {span.end_s:g} s: frames {part.first:,} to {part.stop - 1:,}, "
        f"{count_text(part.stop - part.first, 'frame')} shown from {part.start_s:.3f} s to "
        f"{part.end_s:.3f} s"
    )


def _retimed_text(facts: MediaFacts, fps: float, count: int) -> str:
    duration_s = facts.num_frames / facts.fps
    return (
        f"{count_text(facts.num_frames, 'frame')} / {facts.fps:.3f} fps = {duration_s:.3f} s; "
        f"{duration_s:.3f} s x {fps:g} fps = {duration_s * fps:.2f}, so {count}"
    )


def _piece_steps(
    timeline: Timeline, part: Cut, rows: Sequence[LedgerRow], rules: ShapeRules, count: int
) -> Iterator[Step]:
    """Where each piece of the clip begins, and what of the file it shows."""
    assert rows[0].bucket is not None, rows[0]
    frames = rows[0].bucket.frames
    starts = rules.extraction.starts(count, frames)
    if rows[0].clip.piece is None:
        return
    spans = piece_spans(timeline, part, starts, frames, rules.fps)
    for row, piece in zip(rows, spans, strict=True):
        start, span = starts[piece.number], cut(timeline, piece.span)
        yield (
            f"piece {piece.number + 1} of {len(starts)}",
            f"{rules.extraction.mode}: {start:,} to {start + frames - 1:,} of {count:,} frames; "
            f"from frame {span.first:,} of the file, shown at {span.start_s:.3f} s; "
            f"called {row.clip.name}",
        )


def _length_text(rules: ShapeRules, geometry: Geometry, count: int, is_still: bool) -> str:
    if is_still:
        return "1, as every still"
    if rules.extraction.mode == "full":
        most = min(count, rules.extraction.max_frames)
        return (
            f"{geometry.legal_frames_up_to(most)}, the longest {geometry.frame_step}k+1 of at most "
            f"{most}"
        )
    lengths = sorted(rules.frame_buckets)
    listed = ", ".join(map(str, lengths))
    fitting = [length for length in lengths if length <= count]
    if not fitting:
        return f"none: {count} frames fill none of {listed}"
    rest = count_text(count - fitting[-1], "frame")
    return f"{fitting[-1]}, the longest of {listed} that {count} frames fill; {rest} left over"


def _area_text(facts: MediaFacts, rules: ShapeRules) -> str:
    resolution, window = rules.resolution_of(facts), rules.window_of(facts)
    width, height = ideal_size(*window, resolution, upscale=rules.upscale)
    most = f"{resolution} x {resolution} = {resolution * resolution:,}"
    if len(rules.resolutions) > 1:
        is_reached = resolution * resolution <= window[0] * window[1] + 1e-6
        which = "the largest of" if is_reached else "the least of"
        most += f" ({which} {', '.join(map(str, sorted(rules.resolutions)))}"
        most += " that it reaches)" if is_reached else ", of which it reaches none)"
    pixels = f"{facts.width} x {facts.height} = {facts.width * facts.height:,} pixels"
    if rules.aspects:
        part = "of them" if rules.fit == "crop" else "set in"
        pixels += f", {part} {window[0]:.1f}x{window[1]:.1f} in the nearest of "
        pixels += ", ".join(rules.aspects)
    if (width, height) == window:
        return f"{pixels}, within {most}: not scaled for that"
    where = "over" if width < window[0] else "below"
    scale = width / window[0]
    return f"{pixels}, {where} {most}: scaled by {scale:.4f} to {width:.1f}x{height:.1f}"


def _size_text(facts: MediaFacts, size: FrameSize, rules: ShapeRules, geometry: Geometry) -> str:
    columns, rows = geometry.side_multiple
    scaled = scaled_size(facts.width, facts.height, (size.width, size.height), rules.fit)
    lost = (
        f"then {percent_text(size.cropped_share, 1)} cropped evenly"
        if rules.fit == "crop"
        else f"set in the middle, {percent_text(size.black_share, 1)} black"
    )
    return (
        f"{size.width}x{size.height}, the nearest in multiples of {columns} and {rows}; scaled to "
        f"{scaled[0]}x{scaled[1]}, {lost}"
    )


def _grid_text(grid: tuple[int, int, int]) -> str:
    return " x ".join(map(str, grid))
