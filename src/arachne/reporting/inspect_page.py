"""The page of `arachne inspect`: what each bucket costs, and each clip as the model will see it."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from arachne.core.ledger import Ledger, LedgerRow
from arachne.core.units import count_text
from arachne.reporting.bucket_shares import BucketShare
from arachne.reporting.ledger_table import shown_rows
from arachne.reporting.page_document import document
from arachne.reporting.page_parts import card, ledger_table, notes_list
from arachne.reporting.tables import share_text

_MAX_CAPTION = 140
_FOOT = (
    "Thumbnails are first frames: turned upright, scaled and cropped as for training, then made "
    "smaller for this page. FLOPs are those of forward and backward without recomputation, "
    "encoders not counted."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumbnails:
    """First frames by the name of their clip.

    Attributes:
        jpegs: Those that could be decoded.
        faults: Why the others could not.
    """

    jpegs: Mapping[str, bytes]
    faults: Mapping[str, str]


def render_inspection(
    title: str,
    lead: str,
    ledger: Ledger,
    shares: Sequence[BucketShare],
    model: str,
    thumbnails: Thumbnails,
    max_rows: int,
) -> str:
    """A whole page.

    Args:
        title: The dataset.
        lead: One sentence beneath it.
        ledger: All clips.
        shares: Its buckets.
        model: Whose FLOPs the shares are of.
        thumbnails: Of the clips that the page shows.
        max_rows: Most clips that it shows; `shown_rows` says which.
    """
    shown = shown_rows(ledger, max_rows)
    rejected = tuple(row for row in shown if row.status == "rejected")
    hidden = len(ledger.rows) - len(shown)
    notes = [f"{name}: {fault}" for name, fault in thumbnails.faults.items()]
    if hidden:
        notes.append(f"{count_text(hidden, 'clip')} more; --rows {len(ledger.rows)} shows all.")
    body = (
        f"{_cards(ledger, shares, model)}{notes_list(notes)}"
        f"{_bucket_section(shares, model)}"
        f"{_rejected_section(rejected)}"
        f"{_clips_section(shown, thumbnails)}"
    )
    return document(title=title, lead=lead, body=body, figures={}, times=_FOOT, shows_idle=False)


def _cards(ledger: Ledger, shares: Sequence[BucketShare], model: str) -> str:
    counts = ", ".join(f"{count:,} {status}" for status, count in ledger.counts.items())
    tokens = sum(share.num_tokens * share.num_clips for share in shares)
    flops = sum(share.clip_flops * share.num_clips for share in shares)
    longest = max((share.num_tokens for share in shares), default=0)
    shortest = min((share.num_tokens for share in shares), default=0)
    cards = [
        card("Usable clips", f"{len(ledger.usable):,} of {len(ledger.rows):,}", counts),
        card("Buckets", f"{len(shares):,}", f"{shortest:,} to {longest:,} tokens a clip"),
        card("Epoch", _large(tokens, "tokens"), "of video"),
        card("Training compute", _large(flops, "FLOP"), f"an epoch of {model}"),
    ]
    return f'<div class="cards">{"".join(cards)}</div>'


def _large(number: float, unit: str) -> str:
    for size, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.3g} {prefix}{unit if len(unit) < 5 else ' ' + unit}"
    return f"{number:,.0f} {unit}"


def _bucket_section(shares: Sequence[BucketShare], model: str) -> str:
    if not shares:
        return ""
    rows = "".join(
        f"<tr><td class='exact'>{share.bucket}</td><td class='number'>{share.num_clips:,}</td>"
        f"<td class='number'>{share.num_tokens:,}</td>"
        f"<td class='number'>{_large(share.clip_flops, 'FLOP')}</td>"
        f"<td>{_bar(share.token_share)}</td><td>{_bar(share.flops_share)}</td></tr>"
        for share in shares
    )
    return (
        "<h2>What the buckets cost</h2>"
        f"<p class='why'>Predicted for {escape(model)}; attention makes long clips dearer than "
        "their tokens.</p>"
        '<div class="panel"><div class="scroll"><table><thead><tr><th>bucket</th>'
        '<th class="number">clips</th><th class="number">tokens per clip</th>'
        '<th class="number">compute per clip</th><th>share of tokens</th>'
        f"<th>share of compute</th></tr></thead><tbody>{rows}</tbody></table></div></div>"
    )


def _bar(share: float) -> str:
    return (
        f'<span class="share"><span style="width:{100 * share:.2f}%"></span></span>'
        f"{share_text(share)}"
    )


def _rejected_section(rejected: Sequence[LedgerRow]) -> str:
    if not rejected:
        return ""
    return (
        f"<h2>Not used</h2><p class='why'>{count_text(len(rejected), 'clip')} that will not "
        f'train.</p><div class="panel">{ledger_table(Ledger(rows=tuple(rejected)))}</div>'
    )


def _clips_section(shown: Sequence[LedgerRow], thumbnails: Thumbnails) -> str:
    rows = [row for row in shown if row.status != "rejected"]
    if not rows:
        return ""
    rows.sort(key=lambda row: -row.num_tokens)
    figures = "".join(_clip(row, thumbnails) for row in rows)
    return (
        "<h2>Clips as the model will see them</h2><p class='why'>First frames; the largest clips "
        f"first.</p><div class='clips'>{figures}</div>"
    )


def _clip(row: LedgerRow, thumbnails: Thumbnails) -> str:
    jpeg = thumbnails.jpegs.get(row.clip.name)
    picture = '<div class="none">not decoded</div>'
    if jpeg is not None:
        source = base64.b64encode(jpeg).decode()
        picture = f'<img alt="first frame" src="data:image/jpeg;base64,{source}">'
    caption = row.clip.caption
    if len(caption) > _MAX_CAPTION:
        caption = caption[: _MAX_CAPTION - 1] + "…"
    return (
        f'<figure class="panel">{picture}<figcaption><b>{escape(row.clip.name)}</b>'
        f'<span class="badge {row.status}">{row.status}</span>'
        f"<p>{row.bucket}, {row.num_tokens:,} tokens</p><p>{escape(row.arithmetic)}</p>"
        f"<p>{escape(row.reason)}</p><p>{escape(caption)}</p>"
        "</figcaption></figure>"
    )
