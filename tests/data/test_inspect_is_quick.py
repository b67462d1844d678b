"""10,000 rows of metadata in under 10 s: each layout is read, and its spans shaped, fast enough.

Seconds are those of this process alone, so that a busy machine does not count; the rows are a
fifth of that.
"""

import gc
import io
import json
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from arachne.core.families import family_named
from arachne.data.inspect import inspect_clips
from arachne.data.layouts import read_clips
from arachne.data.shapes import ShapeRules
from tests.data.media import write_ramp

NUM_ROWS = 2000
LIMIT_S = 10.0 * NUM_ROWS / 10_000
NUM_FILES = 10
RULES = ShapeRules(fps=16.0, resolution=64, frame_buckets=(1, 17))


@pytest.fixture(autouse=True)
def nothing_of_other_tests_is_collected() -> Iterator[None]:
    """A command has not what hundreds of tests before this one have left for the collector."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


ROWS: list[dict[str, Any]] = [
    {
        "video": f"{index % NUM_FILES}.mp4",
        "caption": f"a clip, number {index}",
        "start": index // NUM_FILES * 0.005,
        "end": index // NUM_FILES * 0.005 + 1.1,
    }
    for index in range(NUM_ROWS)
]


def _csv(root: Path) -> None:
    lines = [f'{r["video"]},"{r["caption"]}",{r["start"]},{r["end"]}\n' for r in ROWS]
    (root / "metadata.csv").write_text("video,caption,start,end\n" + "".join(lines))


def _json_lines(root: Path) -> None:
    (root / "metadata.jsonl").write_text("\n".join(map(json.dumps, ROWS)))


def _parquet(root: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), root / "metadata.parquet")


def _arrow(root: Path) -> None:
    table = pyarrow.Table.from_pylist(ROWS)
    with (
        pyarrow.OSFile(str(root / "metadata.arrow"), "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table)


def _koala(root: Path) -> None:
    lines = [
        f"{index % NUM_FILES},\"['0:00:0{r['start']:.3f}', '0:00:0{r['end']:.3f}']\",x\n"
        for index, r in enumerate(ROWS)
    ]
    (root / "koala.csv").write_text("videoID,timestamp,caption\n" + "".join(lines))


@pytest.mark.parametrize("write", [_csv, _json_lines, _parquet, _arrow, _koala])
def test_the_rows_of_a_table_are_read_and_shaped_in_time(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    video = write_ramp(tmp_path / "0.mp4", 40).read_bytes()
    for index in range(1, NUM_FILES):
        (tmp_path / f"{index}.mp4").write_bytes(video)
    write(tmp_path)
    begin_s = time.process_time()
    clips = read_clips(tmp_path, "error")
    ledger = inspect_clips(tmp_path, clips, RULES, family_named("wan").geometry, 1)
    assert time.process_time() - begin_s < LIMIT_S
    assert len(ledger.usable) == NUM_ROWS


def _lists(root: Path) -> None:
    (root / "videos.txt").write_text("\n".join(f"{index}.mp4" for index in range(NUM_ROWS)))
    (root / "prompts.txt").write_text("\n".join("x" for _ in range(NUM_ROWS)))


def _sidecars(root: Path) -> None:
    for index in range(NUM_ROWS):
        (root / f"{index}.mp4").touch()
        (root / f"{index}.txt").write_text("x")


def _tar(root: Path) -> None:
    with tarfile.open(root / "s.tar", "w") as tar:
        for index in range(NUM_ROWS):
            for name, content in ((f"{index}.mp4", b""), (f"{index}.txt", b"x")):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize("write", [_lists, _sidecars, _tar])
def test_the_other_layouts_are_listed_and_refused_in_time(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    """Files of 0 bytes, or none: what is left is the metadata."""
    write(tmp_path)
    begin_s = time.process_time()
    clips = read_clips(tmp_path, "error")
    ledger = inspect_clips(tmp_path, clips, RULES, family_named("wan").geometry, 1)
    assert time.process_time() - begin_s < LIMIT_S
    assert ledger.counts["rejected"] == NUM_ROWS
