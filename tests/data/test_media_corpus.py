"""Each file of the corpus is classified right once it was prepared, in bounded time and memory."""

import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from arachne.core.clip import Clip, TimeSpan
from arachne.core.families import family_named
from arachne.core.ledger import LedgerRow
from arachne.data.inspect import inspect_clips
from arachne.data.make_arrays import Begun, Settled, Workshop, make_arrays
from arachne.data.prepare import Store
from arachne.data.shapes import ShapeRules
from tests.data.media_corpus import (
    CORPUS,
    FPS,
    LENGTHS,
    RESOLUTION,
    MediaCase,
    fault_of,
    write_corpus,
)

MAX_S = 10.0
MAX_MIB = 512.0


class GreyEncoder:
    """The mean grey of each frame, as one channel of one pixel."""

    fingerprint = "grey"

    def encode(self, frames: np.ndarray, /) -> np.ndarray:
        return frames.mean(axis=(1, 2, 3), dtype=np.float64)[None, :, None, None]


class NoText:
    fingerprint = "none"

    def encode(self, _caption: str, /) -> np.ndarray:
        return np.zeros((1, 1), np.float32)


@dataclass(frozen=True)
class Prepared:
    """The corpus on the disk, and what became of each case: its row and its frames' greys."""

    root: Path
    found: dict[str, tuple[LedgerRow, list[float] | None]]


def _clip(case: MediaCase) -> Clip:
    span = TimeSpan(start_s=case.span[0], end_s=case.span[1]) if case.span else None
    return Clip(path=case.name, caption="", span=span)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("corpus")
    root = folder / "data"
    write_corpus(root, CORPUS)
    rules = ShapeRules(fps=FPS, resolution=RESOLUTION, frame_buckets=LENGTHS)
    clips = [_clip(case) for case in CORPUS]
    ledger = inspect_clips(root, clips, rules, family_named("wan").geometry, 1)
    store = Store(
        cache_dir=folder / "cache", fps=FPS, video_fingerprint="grey", text_fingerprint="none"
    )
    workshop = Workshop(root=root, store=store, video_encoder=GreyEncoder(), text_encoder=NoText())
    told: list[Begun | Settled] = []
    make_arrays(workshop, store.pieces(ledger.usable), told.append)
    reasons = {event.key: event.reason for event in told if isinstance(event, Settled)}
    rows = store.amended(ledger, reasons).rows
    found = {case.name: (row, _greys(store, row)) for case, row in zip(CORPUS, rows, strict=True)}
    return Prepared(root=root, found=found)


def _greys(store: Store, row: LedgerRow) -> list[float] | None:
    if row.bucket is None:
        return None
    return store.cache.get(store.keys_of(row)[0])[0, :, 0, 0].tolist()


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: f"{case.row}-{case.name}")
def test_each_file_is_kept_exactly_or_quarantined_with_its_reason(
    prepared: Prepared, case: MediaCase
) -> None:
    row, greys = prepared.found[case.name]
    assert fault_of(case, row, greys) is None


def test_files_of_one_name_do_not_share_their_frames(prepared: Prepared) -> None:
    one, two = (prepared.found[f"{folder}/same.mp4"] for folder in ("one", "two"))
    assert one[0].content != two[0].content
    assert len(one[1] or ()) != len(two[1] or ())


def test_the_corpus_is_large_and_covers_every_condition_of_media() -> None:
    assert len({case.name for case in CORPUS}) == len(CORPUS) >= 60
    rows = Counter(case.row for case in CORPUS)
    assert set(rows) >= {"M1", "M2", "M3", "M4", "M6", "M7", "M8", "M9", "M10", "M11", "M12", "M13"}


def test_no_file_takes_longer_than_10_s_or_more_than_512_mib(prepared: Prepared) -> None:
    """Inspected and decoded in a process of their own, whose peak is set back before each file."""
    cases = [(case.name, case.span) for case in CORPUS]
    code = f"""
        import re, time
        from pathlib import Path
        from arachne.core.clip import Clip, TimeSpan
        from arachne.core.errors import DataError
        from arachne.core.families import family_named
        from arachne.data.decode import decode_clip
        from arachne.data.inspect import inspect_clips
        from arachne.data.shapes import ShapeRules
        from arachne.data.source_media import source_media

        root = Path({str(prepared.root)!r})
        rules = ShapeRules(fps={FPS}, resolution={RESOLUTION}, frame_buckets={LENGTHS})
        geometry = family_named("wan").geometry
        for name, span in {cases!r}:
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
            begin_s = time.monotonic()
            span = span and TimeSpan(start_s=span[0], end_s=span[1])
            clip = Clip(path=name, caption="", span=span)
            (row,) = inspect_clips(root, [clip], rules, geometry, 1).rows
            if row.bucket is not None:
                try:
                    decode_clip(source_media(root, name), span, row.bucket, {FPS})
                except DataError:
                    pass
            took_s = time.monotonic() - begin_s
            status = Path("/proc/self/status").read_text()
            print(took_s, int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) / 2**10, name)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True
    )
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert len(lines) == len(CORPUS)
    assert [name for took_s, _, name in lines if float(took_s) > MAX_S] == []
    assert [name for _, mebibytes, name in lines if float(mebibytes) > MAX_MIB] == []
