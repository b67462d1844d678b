"""The parts of a report page that are plain HTML: cards, tables, pictures. All text is escaped."""

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape

from arachne.core.bucket import Bucket
from arachne.core.ledger import Ledger, LedgerRow
from arachne.core.placed_plan import PlacedPlan
from arachne.core.trace import Trace
from arachne.core.units import bytes_text, count_text
from arachne.reporting.comparison import REFERENCE, Strategy, reference_of
from arachne.reporting.headlines import Headlines
from arachne.reporting.report_data import Sample
from arachne.reporting.shape_colours import UNKNOWN_COLOUR, Paint
from arachne.reporting.tables import duration_text, share_text
from arachne.reporting.timeline import ENCODER_OPACITY, KIND_COLOURS, KIND_NAMES, drawn_kinds

MAX_LEDGER_ROWS = 200
_STATUS_ORDER = ("rejected", "trimmed", "kept")
_MAX_CAPTION = 160


def card(label: str, value: str, sub: str = "") -> str:
    """One headline figure."""
    detail = f'<div class="sub">{escape(sub)}</div>' if sub else ""
    number, _, unit = value.partition(" ")
    is_figure = bool(unit) and number[:1].isdigit() and "→" not in value
    shown = f'{escape(number)} <span class="unit">{escape(unit)}</span>' if is_figure else None
    return (
        f'<div class="card"><div class="label">{escape(label)}</div>'
        f'<div class="value">{shown or escape(value)}</div>{detail}</div>'
    )


def headline_cards(figures: Headlines) -> str:
    """The row of cards at the top; a figure that was not recorded has no card."""
    cards: list[str] = []
    if figures.first_loss is not None and figures.last_loss is not None:
        sub = f"recent mean {figures.recent_loss:.3g}"
        if figures.validation_loss is not None:
            sub += f"; validation {figures.validation_loss:.3g}"
        cards.append(
            card("Training loss", f"{figures.first_loss:.3g} → {figures.last_loss:.3g}", sub)
        )
    if figures.idle_ratio is not None:
        cards.append(card("Idle ratio", share_text(figures.idle_ratio), "median over the steps"))
    cards += _time_cards(figures)
    if figures.tokens_per_s is not None:
        sub = "video tokens, median"
        if figures.ranks is not None:
            sub += f", on {count_text(figures.ranks, 'rank')}"
        cards.append(card("Throughput", f"{_large(figures.tokens_per_s)} tokens/s", sub))
    elif figures.ranks is not None:
        cards.append(card("Ranks", f"{figures.ranks:,}"))
    if figures.mfu is not None:
        cards.append(card("MFU", share_text(figures.mfu), "model FLOPs utilisation, median"))
    if figures.peak_memory_bytes is not None:
        peak = bytes_text(figures.peak_memory_bytes)
        cards.append(card("Peak memory", peak, "of the rank that needed most"))
    if figures.clips is not None:
        used = figures.clips["kept"] + figures.clips["trimmed"]
        sub = ", ".join(f"{figures.clips[status]:,} {status}" for status in figures.clips)
        cards.append(card("Usable clips", f"{used:,} of {sum(figures.clips.values()):,}", sub))
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


def _time_cards(figures: Headlines) -> list[str]:
    cards: list[str] = []
    if figures.step_s is not None:
        cards.append(card("Step time", duration_text(figures.step_s), _modelled_sub(figures)))
    elif figures.modelled_step_s is not None:
        cards.append(card("Modelled step time", duration_text(figures.modelled_step_s), "median"))
    if figures.model_error is not None:
        sub = f"of step times, median; 95 % within {share_text(figures.model_error_p95)}"
        if figures.launch_error is not None:
            sub += f"; of launches, of late: {share_text(figures.launch_error)}"
        cards.append(card("Cost model error", share_text(figures.model_error), sub))
    return cards


def _large(number: float) -> str:
    return f"{number / 1e6:,.3g} M" if number >= 1e6 else f"{number:,.0f}"


def _modelled_sub(figures: Headlines) -> str:
    if figures.modelled_step_s is None:
        return "median, measured"
    return f"median, measured; modelled {duration_text(figures.modelled_step_s)}"


def shape_legend(
    paints: Mapping[Bucket, Paint],
    plans: Iterable[PlacedPlan],
    traces: Collection[Trace],
    *,
    has_unknown: bool,
) -> str:
    """Which colour is which shape, and what else the timelines of these plans and traces draw."""
    items = [_swatch(_background(paint), str(bucket)) for bucket, paint in paints.items()]
    modules = {launch.cascade.module for plan in plans for launch in plan.launches}
    if modules - {"dit"}:
        ground = _background(next(iter(paints.values())))
        items.append(_swatch(ground, "encoders of a shape (pale)", opacity=ENCODER_OPACITY))
    if has_unknown:
        items.append(_swatch(UNKNOWN_COLOUR, "launch without a stored plan"))
    kinds = drawn_kinds(traces)
    items += [_swatch(KIND_COLOURS[kind], KIND_NAMES[kind]) for kind in KIND_NAMES if kind in kinds]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _background(paint: Paint) -> str:
    if not paint.hatch:
        return paint.colour
    angle = {"/": 135, ".": 0, "x": 45}.get(paint.hatch, 90)
    return f"repeating-linear-gradient({angle}deg, {paint.colour} 0 3px, #fff 3px 4.5px)"


def _swatch(background: str, label: str, *, opacity: float = 1.0) -> str:
    style = f"background:{background}"
    if opacity < 1.0:
        style += f";opacity:{opacity:g}"
    return f'<li><span class="swatch" style="{style}"></span>{escape(label)}</li>'


def strategies_table(strategies: Sequence[Strategy]) -> str:
    """Strategies in figures, in the given order."""
    reference = reference_of(tuple(strategies))
    rows: list[str] = []
    for strategy in strategies:
        ratio = strategy.ratio_to(reference)
        cells = [
            duration_text(strategy.step_s),
            duration_text(strategy.modelled_step_s),
            share_text(strategy.idle_ratio),
            "–" if ratio is None else f"{ratio:.2f}×",
        ]
        numbers = "".join(f'<td class="number">{escape(cell)}</td>' for cell in cells)
        ours = ' class="ours"' if strategy is reference else ""
        rows.append(f"<tr{ours}><td>{escape(strategy.name)}</td>{numbers}</tr>")
    heads = ("measured step", "modelled step", "idle ratio", "time ÷ arachne")
    numbers = "".join(f'<th class="number">{head}</th>' for head in heads)
    return (
        f'<div class="scroll"><table><thead><tr><th>strategy</th>{numbers}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def figures_table(what: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Texts of each row by its name, whose head is `what`; Arachne's own row stands out."""
    lines: list[str] = []
    for name, texts in rows.items():
        numbers = "".join(f'<td class="number">{escape(text)}</td>' for text in texts)
        ours = ' class="ours"' if name == REFERENCE else ""
        lines.append(f"<tr{ours}><td>{escape(name)}</td>{numbers}</tr>")
    heads = "".join(f'<th class="number">{escape(head)}</th>' for head in columns)
    return (
        f'<div class="scroll"><table><thead><tr><th>{what}</th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def ledger_table(ledger: Ledger) -> str:
    """The first 200 rows, those that were rejected or trimmed before those that were kept."""
    rows = sorted(ledger.rows, key=lambda row: _STATUS_ORDER.index(row.status))
    body = "".join(_ledger_row(row) for row in rows[:MAX_LEDGER_ROWS])
    return (
        '<div class="scroll"><table><thead><tr><th>status</th><th>clip</th>'
        '<th>frames</th><th>shape</th><th class="number">tokens</th><th>why</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _ledger_row(row: LedgerRow) -> str:
    caption = row.clip.caption
    if len(caption) > _MAX_CAPTION:
        caption = caption[: _MAX_CAPTION - 1] + "…"
    shape = "–" if row.bucket is None else str(row.bucket)
    tokens = f"{row.num_tokens:,}" if row.num_tokens else "–"
    return (
        f'<tr><td><span class="badge {row.status}">{row.status}</span></td>'
        f'<td class="clip">{escape(row.clip.name)}<span>{escape(caption)}</span></td>'
        f'<td class="exact">{escape(row.arithmetic) or "–"}</td>'
        f'<td class="exact">{escape(shape)}</td><td class="number">{tokens}</td>'
        f'<td class="reason">{escape(row.reason)}</td></tr>'
    )


def ledger_summary(ledger: Ledger) -> str:
    """Counts by status, and how many rows the table shows."""
    counts = ", ".join(f"{number:,} {status}" for status, number in ledger.counts.items())
    text = f"{count_text(len(ledger.rows), 'clip')}: {counts}."
    if len(ledger.rows) > MAX_LEDGER_ROWS:
        text += (
            f" The first {MAX_LEDGER_ROWS} are listed, rejected and trimmed ones before kept ones."
        )
    return text


def samples_grid(samples: Iterable[Sample]) -> str:
    """Pictures, embedded in the page."""
    figures = "".join(
        f'<figure class="panel"><img alt="{escape(sample.name)}" '
        f'src="data:image/png;base64,{base64.b64encode(sample.png).decode()}">'
        f"<figcaption>{escape(sample.name)}</figcaption></figure>"
        for sample in samples
    )
    return f'<div class="samples">{figures}</div>'


def notes_list(notes: Sequence[str]) -> str:
    """What was skipped while reading the run; empty if nothing was."""
    if not notes:
        return ""
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>'
