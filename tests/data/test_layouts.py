import os
import re
from pathlib import Path

import pytest

from arachne.core.clip import Clip, TimeSpan
from arachne.core.errors import ConfigError, DataError
from arachne.data.layouts import read_clips
from arachne.data.source_path import source_path


def _table(root: Path, text: str | bytes) -> Path:
    content = text.encode() if isinstance(text, str) else text
    (root / "metadata.csv").write_bytes(content)
    return root


@pytest.mark.parametrize("column", ["video", "video_path", "path", "file_name", "media_path"])
def test_a_table_lists_clips_in_its_order(tmp_path: Path, column: str) -> None:
    _table(tmp_path, f"{column},caption\nb.mp4,second\na.mp4,first\n")
    assert read_clips(tmp_path, "error") == (
        Clip(path="b.mp4", caption="second"),
        Clip(path="a.mp4", caption="first"),
    )


def test_names_of_columns_may_have_spaces_and_capitals(tmp_path: Path) -> None:
    _table(tmp_path, " Video , Prompt ,other\na.mp4, a cat ,7\n")
    assert read_clips(tmp_path, "error") == (Clip(path="a.mp4", caption="a cat"),)


def test_tables_from_any_system_are_read_right(tmp_path: Path) -> None:
    words = "word " * 5000
    text = (
        "\ufeffvideo,caption\r\n"
        'sub\\a.mp4,"two\r\nlines, and ""quotes"""\r\n'
        "b.mp4,猫が走る 🐈\r\n"
        "\r\n"
        f"c.mp4,{words}\r\n"
    )
    captions = [clip.caption for clip in read_clips(_table(tmp_path, text), "error")]
    assert captions == ['two\nlines, and "quotes"', "猫が走る 🐈", words.strip()]
    assert read_clips(tmp_path, "error")[0].path == "sub/a.mp4"


def test_a_caption_in_csv_may_be_long_and_a_quote_left_open_is_named(tmp_path: Path) -> None:
    words = "w" * 200_000
    (clip,) = read_clips(_table(tmp_path, f"video,caption\na.mp4,{words}\n"), "error")
    assert clip.caption == words
    with pytest.raises(DataError, match=r"line 2 is not CSV: .*quote that is not closed"):
        read_clips(_table(tmp_path, f'video,caption\na.mp4,"{words * 100}\n'), "error")


def test_a_sidecar_caption_that_cannot_be_read_is_a_fault_of_its_clip(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.mp4").touch()
        (tmp_path / f"{name}.txt").write_bytes(b"caf\xe9" if name == "a" else b"words")
    bad, good = read_clips(tmp_path, "error")
    assert bad.fault == "'a.txt' is not UTF-8 (byte 3); save it as UTF-8"
    assert (good.caption, good.fault) == ("words", "")


@pytest.mark.parametrize("text", ["a cat".encode("utf-16-le"), b"\0\0", b"a\0b"])
def test_a_caption_that_holds_nul_characters_is_a_fault_of_its_clip(
    tmp_path: Path, text: bytes
) -> None:
    for name in ("bad", "good"):
        (tmp_path / f"{name}.mp4").touch()
        (tmp_path / f"{name}.txt").write_bytes(text if name == "bad" else b"words")
    bad, good = read_clips(tmp_path, "error")
    assert bad.fault == "its caption holds a NUL character, as UTF-16 does; save it as UTF-8"
    assert (good.caption, good.fault) == ("words", "")


def test_spans_are_seconds_or_clock_times(tmp_path: Path) -> None:
    _table(
        tmp_path,
        "video,caption,start,end\na.mp4,x,1.5,3\na.mp4,x,,\na.mp4,x,,2\na.mp4,x,0:01:02.5,1:10\n",
    )
    assert [clip.span for clip in read_clips(tmp_path, "error")] == [
        TimeSpan(start_s=1.5, end_s=3.0),
        None,
        TimeSpan(start_s=0.0, end_s=2.0),
        TimeSpan(start_s=62.5, end_s=70.0),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("film,caption\na.mp4,x\n", r"no column for the file .* found: film, caption"),
        ("", r"found: nothing"),
        ("video,caption\na.mp4,one, two\n", r"line 2 has 3 values for 2 columns"),
        ('video,caption\na.mp4,"open\n', r"is not CSV"),
        ("video,video,caption\na,b,c\n", r"2 columns 'video'"),
        ("video,caption\n", r"holds no clip"),
        ("video,caption\na.mp4,caf\xe9\n".encode("latin-1"), r"is not UTF-8"),
        ("video,caption\na.mp4,x\n".encode("utf-16"), r"is not UTF-8"),
    ],
)
def test_a_malformed_table_is_refused_by_line(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_clips(_table(tmp_path, text), "error")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("video,caption\n,x\n", r"line 2 names no file"),
        ("video,caption,start,end\na.mp4,x,3,1\n", r"line 2 \('a.mp4'\): span"),
        ("video,caption,start,end\na.mp4,x,soon,1\n", r"write seconds"),
        ("video,caption,start,end\na.mp4,x,0,1e308\n", r"span '0' to '1e308'; write seconds"),
        ("video,caption,start,end\na.mp4,x,0,inf\n", r"write seconds"),
        ("video,caption,start,end\na.mp4,x,1,\n", r"a start but no end"),
    ],
)
def test_a_malformed_row_is_a_rejected_clip_and_the_others_are_read(
    tmp_path: Path, text: str, message: str
) -> None:
    good = "b.mp4,y,1,2\n" if ",start," in text else "b.mp4,y\n"
    bad, clip = read_clips(_table(tmp_path, text + good), "error")
    assert re.search(message, bad.fault), bad.fault
    assert (clip.path, clip.captions, clip.fault) == ("b.mp4", ("y",), "")


def test_times_that_are_no_numbers_are_none(tmp_path: Path) -> None:
    (tmp_path / "metadata.jsonl").write_text(
        '{"video": "a.mp4", "caption": "x", "start": NaN, "end": NaN}\n'
    )
    (clip,) = read_clips(tmp_path, "error")
    assert (clip.span, clip.fault) == (None, "")


@pytest.mark.parametrize("rows", ["a.mp4,x\nb.mp4,\nc.mp4, \n", "a.mp4,x\nb.mp4\nc.mp4\n"])
def test_a_missing_caption_stops_the_run_unless_the_user_chose(tmp_path: Path, rows: str) -> None:
    _table(tmp_path, "video,caption\n" + rows)
    with pytest.raises(DataError, match=r"clip 'b.mp4' has no caption \(2 clips of 3 .*'empty'"):
        read_clips(tmp_path, "error")
    assert [clip.caption for clip in read_clips(tmp_path, "empty")] == ["x", "", ""]


def test_the_choice_for_missing_captions_is_one_of_two(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be 'error' or 'empty'"):
        read_clips(tmp_path, "skip")


def test_sidecar_captions_belong_to_the_file_of_the_same_folder_and_stem(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.mp4").touch()
        (tmp_path / folder / "a.txt").write_bytes(b"\xef\xbb\xbf" + f"{folder}\r\n".encode())
    (tmp_path / "._a.mp4").touch()
    (tmp_path / "notes.md").touch()
    assert read_clips(tmp_path, "error") == (
        Clip(path="one/a.mp4", caption="one"),
        Clip(path="two/a.mp4", caption="two"),
    )


def test_a_sidecar_caption_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "a.JPG").touch()
    with pytest.raises(DataError, match=r"clip 'a.JPG' has no caption"):
        read_clips(tmp_path, "error")
    assert read_clips(tmp_path, "empty") == (Clip(path="a.JPG", caption=""),)


def test_a_dataset_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        read_clips(tmp_path / "none", "error")
    with pytest.raises(DataError, match="holds no clip"):
        read_clips(tmp_path, "error")


def _beside_a_secret(tmp_path: Path, name: str) -> Path:
    """A dataset with a link of this name that leaves it."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.mp4").touch()
    (tmp_path / "secret").write_text("video,caption\na.mp4,secret\n")
    (root / name).symlink_to(tmp_path / "secret")
    return root


def test_a_table_outside_the_root_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="leaves the dataset's folder"):
        read_clips(_beside_a_secret(tmp_path, "metadata.csv"), "error")


def test_a_caption_outside_the_root_is_not_read(tmp_path: Path) -> None:
    (clip,) = read_clips(_beside_a_secret(tmp_path, "a.txt"), "error")
    assert clip.captions == ("",)
    assert clip.fault == "path 'a.txt' is a link that leaves the dataset's folder"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../secret.mp4", r"holds '\.\.'"),
        ("a/../../secret.mp4", r"holds '\.\.'"),
        ("..\\secret.mp4", r"holds '\.\.'"),
        ("/etc/passwd", "is absolute"),
        ("\\\\server\\share", "is absolute"),
        ("C:\\a.mp4", "is an address"),
        ("concat:a.mp4|b.mp4", "is an address"),
        ("http://example.org/a.mp4", "is an address"),
        ("link.mp4", "leaves the dataset's folder"),
        ("folder/secret.mp4", "leaves the dataset's folder"),
        ("none.mp4", "is not a file"),
        (".", "is not a file"),
        ("pipe", "is not a file"),
        ("a\0.mp4", "cannot be used|is not a file"),
        ("x" * 5000, "cannot be used|is not a file"),
    ],
)
def test_paths_that_leave_the_root_are_refused_by_name(
    tmp_path: Path, path: str, message: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.mp4").touch()
    (root / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    (root / "folder").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    with pytest.raises(DataError, match=message):
        source_path(root, path)


def test_links_within_the_root_and_names_with_dots_are_all_right(tmp_path: Path) -> None:
    (tmp_path / "a..b.mp4").touch()
    (tmp_path / "link.mp4").symlink_to("a..b.mp4")
    assert source_path(tmp_path, "link.mp4") == (tmp_path / "a..b.mp4").resolve()


def test_a_clip_may_have_several_captions_in_files_columns_or_a_list(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").touch()
    for name, text in {"a.txt": "one", "a.2.txt": "two\n", "a.3.txt": "three"}.items():
        (tmp_path / name).write_text(text)
    (clip,) = read_clips(tmp_path, "error")
    assert clip.captions == ("one", "two", "three")

    (tmp_path / "metadata.csv").write_text("path,caption,caption_2,caption_4\na.mp4,one,two,four\n")
    (clip,) = read_clips(tmp_path, "error")
    assert clip.captions == ("one", "two")

    (tmp_path / "metadata.csv").unlink()
    (tmp_path / "metadata.jsonl").write_text(
        '{"path": "a.mp4", "text": ["one", "", "two "], "text_2": "three"}\n'
    )
    (clip,) = read_clips(tmp_path, "error")
    assert clip.captions == ("one", "two", "three")


def test_the_caption_of_another_clip_is_not_a_second_one(tmp_path: Path) -> None:
    for name in ("a.mp4", "a.2.mp4"):
        (tmp_path / name).touch()
    for name in ("a", "a.2", "a.3", "a.2.2"):
        (tmp_path / f"{name}.txt").write_text(f"of {name}")
    found = {clip.path: clip.captions for clip in read_clips(tmp_path, "error")}
    assert found == {"a.mp4": ("of a",), "a.2.mp4": ("of a.2", "of a.2.2")}
