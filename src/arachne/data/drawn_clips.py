"""Clips drawn from a length distribution, shaped as real ones are: a ledger without a dataset."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from arachne.core.clip import Clip, MediaFacts, TimeSpan
from arachne.core.ledger import Ledger, LedgerRow
from arachne.core.model_shape import Geometry
from arachne.data.length_distributions import LengthDistribution, SizeMix, size_at
from arachne.data.shapes import ShapeRules, Shaping, shape_of


def drawn_ledger(
    distribution: LengthDistribution,
    rules: ShapeRules,
    geometry: Geometry,
    *,
    num_clips: int,
    seed: int,
    sizes: SizeMix | None = None,
) -> Ledger:
    """A ledger of `num_clips` clips, named by their length: `panda70m/00012@0.00-5.44s`, with a
    row for each piece that the extraction mode takes of them.

    The same seed gives the same clips, and a longer ledger begins with the shorter one. Files are
    taken to have `rules.fps` frames per second. `sizes` takes the place of the distribution's own.

    Raises:
        ConfigError: A length is not legal for the model.
    """
    rules.check(geometry)
    rng = Random(seed)
    mix = sizes or distribution.sizes
    rows: list[LedgerRow] = []
    known: dict[MediaFacts, Shaping] = {}
    for index in range(num_clips):
        length_s = distribution.length_s(_share(rng))
        size = size_at(mix, _share(rng))
        facts = MediaFacts(
            width=size.width,
            height=size.height,
            fps=rules.fps,
            num_frames=max(1, int(length_s * rules.fps)),
            is_estimated=False,
        )
        clip = Clip(
            path=f"{distribution.name}/{index:05d}",
            caption="",
            span=TimeSpan(start_s=0.0, end_s=length_s),
        )
        if facts not in known:
            known[facts] = shape_of(facts, rules, geometry)
        rows += _rows(clip, known[facts], rules, geometry)
    return Ledger(rows=tuple(rows))


def _share(rng: Random) -> float:
    """Uniform, above 0 and below 1: both ends of a quantile function may be infinite."""
    return (rng.getrandbits(52) + 0.5) / 2**52


def _rows(
    clip: Clip, shaping: Shaping, rules: ShapeRules, geometry: Geometry
) -> Iterator[LedgerRow]:
    for number, piece in enumerate(_pieces(clip, shaping, rules.fps)):
        yield LedgerRow(
            clip=piece,
            status=shaping.status,
            arithmetic=shaping.piece_arithmetic(number),
            reason=shaping.reason,
            bucket=shaping.bucket,
            num_tokens=0 if shaping.bucket is None else geometry.num_tokens(shaping.bucket),
            content="",
        )


def _pieces(clip: Clip, shaping: Shaping, fps: float) -> Iterator[Clip]:
    if shaping.bucket is None or shaping.is_whole:
        yield clip
        return
    for start in shaping.starts:
        stop = start + shaping.bucket.frames
        yield replace(clip, piece=TimeSpan(start_s=start / fps, end_s=stop / fps))
