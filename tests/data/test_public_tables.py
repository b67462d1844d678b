"""Tables in every accepted format, and public ones with the columns of their publication."""

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from arachne.core.clip import Clip, TimeSpan
from arachne.core.errors import DataError
from arachne.core.families import family_named
from arachne.core.ledger import Ledger
from arachne.core.strict_json import from_json, to_json
from arachne.data.inspect import inspect_dataset
from arachne.data.layouts import detected_layout, read_clips
from arachne.data.manifest import read_manifest, write_manifest
from arachne.data.shapes import ShapeRules

WAN = family_named("wan").geometry
RULES = ShapeRules(fps=16.0, resolution=64, frame_buckets=(1, 17, 33))

A_CAT = Clip(path="a.mp4", caption="a cat", span=TimeSpan(start_s=1.0, end_s=3.5))
A_DOG = Clip(path="b.mp4", caption="a dog")
ROWS: list[dict[str, Any]] = [
    {"video": "a.mp4", "caption": "a cat", "start": 1, "end": 3.5},
    {"video": "b.mp4", "caption": "a dog", "start": None, "end": None},
]


def _write(root: Path, name: str, text: str) -> None:
    (root / name).write_text(text, encoding="utf-8")


def _media(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"")


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_only_line_ends_part_the_rows_of_json_lines(tmp_path: Path, ends: str) -> None:
    odd = "".join(map(chr, (0x2028, 0x2029, 0x85)))
    rows = [{"video": f"{n}.mp4", "caption": f"a{odd}b"} for n in range(2)]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    (tmp_path / "metadata.jsonl").write_bytes(ends.join(lines).encode())
    assert [clip.caption for clip in read_clips(tmp_path, "error")] == [f"a{odd}b"] * 2


@pytest.mark.parametrize("name", ["metadata.json", "metadata.jsonl"])
def test_half_a_character_rejects_its_row_which_can_be_stored(tmp_path: Path, name: str) -> None:
    rows = [
        {"video": "a.mp4", "caption": "cut \ud83d"},
        {"video": "b\udc00.mp4", "caption": "x"},
        {"video": "c.mp4", "caption": ["whole", "cut \ud83d"]},
        {"video": "d.mp4", "caption": "a cat \U0001f408"},
    ]
    text = json.dumps(rows) if name.endswith("json") else "\n".join(map(json.dumps, rows))
    _write(tmp_path, name, text)
    ledger = inspect_dataset(tmp_path, RULES, WAN, "error", 1)
    reasons = [row.reason for row in ledger.rows]
    assert reasons[:3] == [
        "its caption holds half a character, \\ud83d; remove it",
        "its path holds half a character, \\udc00; remove it",
        "its caption holds half a character, \\ud83d; remove it",
    ]
    assert reasons[3] == "path 'd.mp4' is not a file in the dataset's folder"
    write_manifest(ledger, tmp_path / "manifest.parquet")
    assert read_manifest(tmp_path / "manifest.parquet") == ledger
    assert from_json(to_json(ledger), Ledger, what="it") == ledger


def test_json_jsonl_and_parquet_say_what_csv_says(tmp_path: Path) -> None:
    texts = {
        "metadata.csv": "video,caption,start,end\na.mp4,a cat,1,3.5\nb.mp4,a dog,,\n",
        "metadata.json": json.dumps(ROWS),
        "metadata.jsonl": "\n".join(map(json.dumps, ROWS)) + "\n\n",
    }
    for name, text in texts.items():
        folder = tmp_path / name.replace(".", "_")
        folder.mkdir()
        _write(folder, name, text)
        assert read_clips(folder, "error") == (A_CAT, A_DOG), name
        assert detected_layout(folder).name == f"table {name}"
    folder = tmp_path / "parquet"
    folder.mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "metadata.parquet")
    assert read_clips(folder, "error") == (A_CAT, A_DOG)


def test_a_json_object_with_one_list_is_that_list(tmp_path: Path) -> None:
    _write(tmp_path, "metadata.json", json.dumps({"version": 2, "clips": ROWS}))
    assert read_clips(tmp_path, "error") == (A_CAT, A_DOG)


def test_lists_belong_together_line_by_line(tmp_path: Path) -> None:
    _write(tmp_path, "videos.txt", "./a.mp4\nsub\\b.mp4\n")
    _write(tmp_path, "prompts.txt", "\ufeffa cat\r\na dog\r\n")
    assert read_clips(tmp_path, "error") == (
        Clip(path="a.mp4", caption="a cat"),
        Clip(path="sub/b.mp4", caption="a dog"),
    )
    assert detected_layout(tmp_path).name == "lists videos.txt and prompts.txt"


@pytest.mark.parametrize(
    ("prompts", "captions"),
    [
        ("\na dog\na cow\n", ("", "a dog", "a cow")),
        ("a cat\na dog\n\n", ("a cat", "a dog", "")),
        ("a cat\n\na cow\n\n\n", ("a cat", "", "a cow")),
    ],
)
def test_a_blank_line_is_the_caption_of_its_file_wherever_it_stands(
    tmp_path: Path, prompts: str, captions: tuple[str, ...]
) -> None:
    _write(tmp_path, "videos.txt", "a.mp4\nb.mp4\nc.mp4\n\n")
    _write(tmp_path, "prompts.txt", prompts)
    assert tuple(clip.caption for clip in read_clips(tmp_path, "empty")) == captions


def test_a_folder_without_a_list_has_sidecar_captions(tmp_path: Path) -> None:
    _media(tmp_path, "a.mp4")
    _write(tmp_path, "a.txt", "a cat")
    assert detected_layout(tmp_path).name == "sidecar captions"


def test_openvid_1m(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "OpenVid-1M.csv",
        "video,caption,aesthetic score,motion score,temporal consistency score,camera motion,frame,"
        "fps,seconds,new_id\n"
        'celebv_0_0.mp4,"In the video, a man speaks.",5.1,1.2,0.99,static,120,24.0,5.0,0\n',
    )
    assert read_clips(tmp_path, "error") == (
        Clip(path="celebv_0_0.mp4", caption="In the video, a man speaks."),
    )


def test_open_sora(tmp_path: Path) -> None:
    _write(
        tmp_path,
        "meta.csv",
        "path,text,num_frames,height,width,aspect_ratio,resolution,fps\n"
        "clips/a.mp4,a cat,51,720,1280,0.56,921600,25.0\n",
    )
    assert read_clips(tmp_path, "error") == (Clip(path="clips/a.mp4", caption="a cat"),)


KOALA = (
    "videoID,url,timestamp,caption,clarity_score,aesthetic_score,motion_score,"
    "video_training_suitability_score\n"
)
SOURCE = "w_HPjTkEU_7"
"""The id of a video of YouTube may look like that of a clip."""


def _koala(*numbers: int, source: str = SOURCE) -> str:
    return KOALA + "".join(
        f"{source}_{n},https://example.org/{source},\"['0:00:{n:02}.250', '0:00:{n + 5:02}.5']\","
        f"scene {n},0.9,4.1,2.0,3.3\n"
        for n in numbers
    )


def test_koala_36m_beside_whole_videos_lists_spans_of_them(tmp_path: Path) -> None:
    _media(tmp_path, f"videos/{SOURCE}.webm")
    _write(tmp_path, "Koala_36M_1.csv", _koala(3, 12))
    assert read_clips(tmp_path, "error") == tuple(
        Clip(
            path=f"videos/{SOURCE}.webm",
            caption=f"scene {n}",
            span=TimeSpan(start_s=n + 0.25, end_s=n + 5.5),
        )
        for n in (3, 12)
    )


def test_koala_36m_beside_its_clips_lists_these_whole(tmp_path: Path) -> None:
    _media(tmp_path, f"{SOURCE}_3.mp4", f"{SOURCE}.mp4")
    _write(tmp_path, "Koala_36M_1.csv", _koala(3, 12))
    clip, span = read_clips(tmp_path, "error")
    assert clip == Clip(path=f"{SOURCE}_3.mp4", caption="scene 3")
    assert (span.path, span.span) == (f"{SOURCE}.mp4", TimeSpan(start_s=12.25, end_s=17.5))


def test_a_koala_clip_of_which_no_file_is_there_is_rejected_by_its_id(tmp_path: Path) -> None:
    _write(tmp_path, "Koala_36M_1.csv", _koala(3))
    (row,) = inspect_dataset(tmp_path, RULES, WAN, "error", 1).rows
    assert row.reason == f"path '{SOURCE}_3.mp4' is not a file in the dataset's folder"


def test_a_clip_without_times_is_not_its_whole_source_video(tmp_path: Path) -> None:
    _media(tmp_path, f"{SOURCE}.mp4")
    _write(tmp_path, "koala.csv", f"videoID,caption\n{SOURCE}_3,a cat\n")
    assert [clip.path for clip in read_clips(tmp_path, "error")] == [f"{SOURCE}_3.mp4"]


@pytest.mark.parametrize("source", ["abc_1", SOURCE])
def test_an_id_that_only_looks_like_a_clips_names_a_source_video(
    tmp_path: Path, source: str
) -> None:
    _media(tmp_path, f"{source}.mp4")
    _write(tmp_path, "a.csv", f"videoID,timestamp,caption\n{source},\"['0:01', '0:02']\",a cat\n")
    assert read_clips(tmp_path, "error") == (
        Clip(path=f"{source}.mp4", caption="a cat", span=TimeSpan(start_s=1.0, end_s=2.0)),
    )


def test_the_tables_of_one_dataset_count_together_in_the_order_of_their_numbers(
    tmp_path: Path,
) -> None:
    for number in range(1, 11):
        _write(tmp_path, f"Koala_36M_{number}.csv", _koala(number))
    assert detected_layout(tmp_path).name == "10 tables Koala_36M_1.csv to Koala_36M_10.csv"
    captions = [clip.caption for clip in read_clips(tmp_path, "error")]
    assert captions == [f"scene {number}" for number in range(1, 11)]


@pytest.mark.parametrize(
    "tables",
    [
        {"a_1.csv": "video,caption\n", "a_2.csv": "video,text\n"},
        {"a_1.csv": "video,caption\n", "a_3.csv": "video,caption\n"},
        {"a_2023.csv": "video,caption\n", "a_2024.csv": "video,caption\n"},
        {"a_1.csv": "video,caption\n", "b_2.csv": "video,caption\n"},
        {"a_1.csv": "video,caption\n", "a_2.jsonl": ""},
        {"a_1.csv": "video,caption\n", "a_01.csv": "video,caption\n"},
        {"a_0.csv": "video\n", "a_1.csv": "video\n", "a.csv": "video\n"},
    ],
)
def test_tables_that_may_be_versions_of_each_other_are_refused(
    tmp_path: Path, tables: dict[str, str]
) -> None:
    for name, text in tables.items():
        _write(tmp_path, name, text)
    with pytest.raises(DataError, match=rf"holds {len(tables)} tables: .*; name the one"):
        read_clips(tmp_path, "error")


def test_panda_70m_has_a_list_of_clips_in_each_row(tmp_path: Path) -> None:
    _media(tmp_path, "abc.mp4")
    _write(
        tmp_path,
        "panda70m_training.csv",
        "videoID,url,timestamp,caption,matching_score,desirable_filtering,"
        "shot_boundary_detection\n"
        "abc,https://example.org,\"[['0:00:01.000', '0:00:03.500'], ['0:00:04', '0:00:09']]\","
        '"[""a cat"", \'it\\\'s a dog\']","[0.4, 0.5]","[\'desirable\', \'still\']","[[], []]"\n',
    )
    assert read_clips(tmp_path, "error") == (
        Clip(path="abc.mp4", caption="a cat", span=TimeSpan(start_s=1.0, end_s=3.5)),
        Clip(path="abc.mp4", caption="it's a dog", span=TimeSpan(start_s=4.0, end_s=9.0)),
    )


def test_a_row_that_lists_no_span_is_rejected_and_not_trained_whole(tmp_path: Path) -> None:
    _write(tmp_path, "panda.csv", "videoID,timestamp,caption\na,[],[]\nb,,a dog\n")
    none, whole = read_clips(tmp_path, "error")
    assert none.fault == "panda.csv line 2 lists no span in 'timestamp'"
    assert (whole.span, whole.fault) == (None, "")


def test_spans_may_be_decimals(tmp_path: Path) -> None:
    times = {"start": [Decimal("0.5")], "end": [Decimal("1.25")]}
    table = pyarrow.table({"video": ["a.mp4"], "caption": ["x"], **times})
    pyarrow.parquet.write_table(table, tmp_path / "metadata.parquet")
    (clip,) = read_clips(tmp_path, "error")
    assert clip.span == TimeSpan(start_s=0.5, end_s=1.25)


MIRA = (
    "index,video_id,start_frame,end_frame,main_object_caption,background_caption,"
    "style_caption,camera_caption,short_caption,dense_caption,fps,start_timestep,end_timestep\n"
)
MIRA_ROW = (
    "000000008783_AJp_ANXoGoM-000114,AJp_ANXoGoM,163272,166872,x,x,x,x,short,dense words,{fps},"
    "1:30:42,1:32:42\n"
)


@pytest.mark.parametrize(
    "path",
    [
        "raw_video/000000008/000000008783_AJp_ANXoGoM.mp4",
        "AJp_ANXoGoM.mp4",
    ],
)
def test_miradata_uses_the_dense_caption_and_exact_times_of_the_source_video(
    tmp_path: Path, path: str
) -> None:
    _media(tmp_path, path)
    _write(tmp_path, "miradata.csv", MIRA + MIRA_ROW.format(fps=30) + MIRA_ROW.format(fps=""))
    exact, rounded = read_clips(tmp_path, "error")
    assert exact == Clip(
        path=path, caption="dense words", span=TimeSpan(start_s=5442.4, end_s=5562.4)
    )
    assert rounded.span == TimeSpan(start_s=5442.0, end_s=5562.0)


def test_clips_that_miradatas_tool_has_cut_train_whole(tmp_path: Path) -> None:
    cut = "clip_video/000000008/000000008783_AJp_ANXoGoM-000114.mp4"
    _media(tmp_path, "raw_video/000000008/000000008783_AJp_ANXoGoM.mp4", cut)
    _write(tmp_path, "miradata.csv", MIRA + MIRA_ROW.format(fps=30))
    assert read_clips(tmp_path, "error") == (Clip(path=cut, caption="dense words"),)


def test_an_index_that_counts_rows_names_no_file(tmp_path: Path) -> None:
    _media(tmp_path, "0.mp4", "000.mp4")
    _write(tmp_path, "a.csv", "index,video_id,caption,start,end\n0,000,a cat,1,2\n")
    assert [clip.path for clip in read_clips(tmp_path, "error")] == ["000.mp4"]


@pytest.mark.parametrize("fps", ["0", "fast", "1e-320"])
def test_frames_that_are_no_times_are_refused(tmp_path: Path, fps: str) -> None:
    _write(tmp_path, "miradata.csv", MIRA + MIRA_ROW.format(fps=fps))
    (clip,) = read_clips(tmp_path, "error")
    assert re.search(r"line 2 .*(write numbers|write seconds)", clip.fault)


def test_a_hugging_face_video_column_holds_a_path(tmp_path: Path) -> None:
    row = {"video": {"path": "a.mp4", "bytes": None}, "caption": "a cat"}
    _write(tmp_path, "metadata.jsonl", json.dumps(row))
    assert read_clips(tmp_path, "error") == (Clip(path="a.mp4", caption="a cat"),)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"metadata.json": "{"}, r"metadata\.json is not JSON"),
        ({"metadata.json": "3"}, r"is not a list of objects"),
        ({"metadata.json": "[3]"}, r"item 0 is not an object"),
        ({"metadata.jsonl": '{"video": "a.mp4"}\n{"video'}, r"line 2 is not JSON"),
        ({"metadata.jsonl": "[" * 100_000}, r"line 1 is not JSON"),
        ({"metadata.json": '[{"film": "a.mp4"}]'}, r"no column for the file .* found: film"),
        ({"metadata.json": '[{"video": "a", " Video": "b"}]'}, r"2 columns 'video'"),
        ({"metadata.parquet": "no"}, r"metadata\.parquet cannot be read as Parquet"),
        ({"metadata.csv": "video\n", "metadata.json": "[]"}, r"holds 2 tables: metadata\.csv, met"),
        ({"a.csv": "video\n", "b.jsonl": ""}, r"2 tables: a\.csv, b\.jsonl; name the one"),
        ({"videos.txt": "a.mp4\n", "prompts.txt": "x\ny\n"}, r"1 line but prompts\.txt 2"),
        ({"videos.txt": "a.mp4\n\nb.mp4", "prompts.txt": "x\ny\nz"}, r"line 2 names no file"),
        (
            {"videos.txt": "a.mp4", "prompts.txt": "x", "captions.txt": "y"},
            r"holds prompts\.txt and captions\.txt beside",
        ),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        _write(tmp_path, name, text)
    with pytest.raises(DataError, match=message):
        read_clips(tmp_path, "empty")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"metadata.json": '[{"video": null, "caption": "x"}]'}, r"item 0 names no file"),
        ({"metadata.json": '[{"video": true, "caption": "x"}]'}, r"item 0 names no file"),
        ({"metadata.json": '[{"video": "a", "caption": 7}]'}, r"has 7 as its caption"),
        ({"metadata.json": '[{"video": "a", "caption": ["x", 7]}]'}, r"must be text"),
        ({"metadata.json": '[{"video": "a", "end": true}]'}, r"write seconds"),
        ({"koala.csv": "videoID,timestamp\na,\"['0:01']\"\n"}, r"has 1 times in 'timestamp'"),
        ({"koala.csv": "videoID,timestamp\na,{[1]}\n"}, r"line 2 .*'\{\[1\]\}' where a list is"),
        (
            {"koala.csv": f"videoID,timestamp\na,0x{'f' * 5000}\n"},
            r"line 2 .* has a number of thousands of digits, .* where a list is needed",
        ),
        (
            {"koala.csv": f'videoID,timestamp\na,"[0x{"f" * 5000}, 2]"\n'},
            r"line 2 .* has span a number of thousands of digits, .* to 2; write seconds",
        ),
        (
            {"panda.csv": f'videoID,timestamp,caption\na,"[[1, 2]]","[0x{"f" * 5000}]"\n'},
            r"line 2 .* has a number of thousands of digits, .* as its caption",
        ),
        ({"koala.csv": "videoID,timestamp\na,soon\n"}, r"'soon' where a list is needed"),
        ({"koala.csv": 'videoID,timestamp\na,"[[1, 2, 3]]"\n'}, r"a span of 3 times"),
        (
            {"panda.csv": 'videoID,timestamp,caption\na,"[[1, 2], [3, 4]]","[\'x\']"\n'},
            r"has 2 spans but 1 captions",
        ),
    ],
)
def test_a_malformed_row_is_a_rejected_clip(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    for name, text in files.items():
        _write(tmp_path, name, text)
    (clip,) = read_clips(tmp_path, "error")
    assert re.search(message, clip.fault), clip.fault


def test_an_id_that_only_looks_like_a_clip_s_keeps_its_spans(tmp_path: Path) -> None:
    _media(tmp_path, "recording01_3.mp4")
    rows = "recording01_3,0,2,a\nrecording01_3,4,6,b\n"
    _write(tmp_path, "metadata.csv", f"video_id,start,end,caption\n{rows}")
    assert [clip.span for clip in read_clips(tmp_path, "error")] == [
        TimeSpan(start_s=0.0, end_s=2.0),
        TimeSpan(start_s=4.0, end_s=6.0),
    ]


def test_frames_that_are_not_there_leave_the_rounded_times(tmp_path: Path) -> None:
    _media(tmp_path, "AJp_ANXoGoM.mp4")
    _write(tmp_path, "miradata.csv", MIRA + MIRA_ROW.format(fps="nan"))
    (clip,) = read_clips(tmp_path, "error")
    assert clip.span is not None
    assert clip.span.start_s == round(clip.span.start_s)


def test_captions_that_are_no_numbers_are_none(tmp_path: Path) -> None:
    _media(tmp_path, "a.mp4")
    _write(tmp_path, "metadata.jsonl", '{"video": "a.mp4", "caption": NaN}\n')
    (clip,) = read_clips(tmp_path, "empty")
    assert (clip.fault, clip.captions) == ("", ("",))
