"""WebDataset shards: clips inside tars, read in place."""

import bz2
import gzip
import io
import json
import lzma
import re
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from arachne.core.bucket import Bucket
from arachne.core.clip import Clip
from arachne.core.errors import DataError
from arachne.core.families import family_named
from arachne.core.ledger import Ledger
from arachne.data import shard_clips, tar_index
from arachne.data.decode import decode_clip
from arachne.data.file_identity import content_of
from arachne.data.inspect import inspect_dataset
from arachne.data.layouts import detected_layout, read_clips
from arachne.data.media_file import MediaFile, whole_file
from arachne.data.probe import probe
from arachne.data.shapes import ShapeRules
from arachne.data.source_media import source_media
from tests.data.media import Look, frame_numbers, write_ramp

WAN = family_named("wan").geometry
RULES = ShapeRules(fps=16.0, resolution=64, frame_buckets=(1, 17, 33))


def _shard(path: Path, members: Mapping[str, bytes | str], style: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=style) as tar:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def _odd_member(path: Path, name: str, kind: bytes, target: str = "") -> None:
    """Add a member that is no regular file."""
    with tarfile.open(path, "a") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        tar.addfile(info)


def _inspect(root: Path, num_workers: int = 1) -> Ledger:
    return inspect_dataset(root, RULES, WAN, "empty", num_workers)


@pytest.fixture
def video(tmp_path: Path) -> bytes:
    return write_ramp(tmp_path / "made" / "a.mp4", 40).read_bytes()


@pytest.mark.parametrize("style", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_members_are_clips_with_the_caption_of_their_key(tmp_path: Path, style: int) -> None:
    members = {
        "./000.jpg": b"",
        "./000.json": json.dumps({"Caption ": "a cat", "clips": [[1, 2]]}),
        "deep/er/001.MP4": b"",
        "deep/er/001.txt": b"\xef\xbb\xbfa dog\r\n",
        "deep/er/001.json": json.dumps({"caption": "not this one"}),
        "002.v2.webm": b"",
        "002.txt": "of the key",
        "003.v2.png": b"",
        "003.v2.txt": "of the whole stem",
        "003.txt": "not this one",
        "._003.png": b"AppleDouble",
        "stats.json": "[]",
    }
    root = tmp_path / "data"
    _shard(root / "s-1.tar", {"猫.png": b"", "猫.txt": "猫"}, style)
    _shard(root / "s-0.tar", members, style)
    assert detected_layout(root).name == "2 shards *.tar"
    assert read_clips(root, "error") == (
        Clip(path="s-0.tar/000.jpg", caption="a cat"),
        Clip(path="s-0.tar/deep/er/001.MP4", caption="a dog"),
        Clip(path="s-0.tar/002.v2.webm", caption="of the key"),
        Clip(path="s-0.tar/003.v2.png", caption="of the whole stem"),
        Clip(path="s-1.tar/猫.png", caption="猫"),
    )


def test_names_longer_than_a_header_are_read(tmp_path: Path) -> None:
    name = "folder/" * 30 + "a.png"
    for style in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = _shard(tmp_path / f"{style}.tar", {name: b"x", name[:-4] + ".txt": "long"}, style)
        assert read_clips(path, "error") == (Clip(path=f"{path.name}/{name}", caption="long"),)


def test_a_member_is_read_in_place_and_is_what_the_file_is(tmp_path: Path, video: bytes) -> None:
    alone = tmp_path / "made" / "a.mp4"
    photo = io.BytesIO()
    Image.new("RGB", (64, 48), (200, 0, 0)).save(photo, "PNG")
    root = tmp_path / "data"
    _shard(root / "s.tar", {"0.png": photo.getvalue(), "1.mp4": video, "1.txt": "a"})
    before = sorted(root.rglob("*"))
    rows = _inspect(root).rows
    assert [(row.clip.name, row.status, str(row.bucket)) for row in rows] == [
        ("s.tar/0.png", "kept", "64x48x1"),
        ("s.tar/1.mp4", "trimmed", "64x48x33"),
    ]
    assert rows[1].content == content_of(alone)
    assert probe(source_media(root, "s.tar/1.mp4")) == probe(alone)
    bucket = Bucket(width=64, height=48, frames=17)
    pixels = decode_clip(source_media(root, "s.tar/1.mp4"), None, bucket, 16.0)
    assert np.array_equal(pixels, decode_clip(alone, None, bucket, 16.0))
    assert frame_numbers(pixels) == pytest.approx(list(range(17)), abs=1)
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "codec"), [("a.mkv", "libx264"), ("a.avi", "mpeg4"), ("a.ts", "libx264")]
)
def test_a_video_between_others_does_not_see_its_neighbours(
    tmp_path: Path, name: str, codec: str
) -> None:
    video = write_ramp(tmp_path / name, 20, Look(codec=codec)).read_bytes()
    _shard(tmp_path / "s.tar", {f"0{name}": video, f"1{name}": video, f"2{name}": video})
    facts = probe(source_media(tmp_path, f"s.tar/1{name}"))
    assert facts == probe(tmp_path / name)
    assert facts.num_frames == 20


def test_processes_give_the_same_ledger_as_one_process(tmp_path: Path, video: bytes) -> None:
    for shard in range(2):
        _shard(tmp_path / "data" / f"{shard}.tar", {f"{k}.mp4": video for k in range(2)})
    ledger = _inspect(tmp_path / "data", 2)
    assert ledger == _inspect(tmp_path / "data")
    assert ledger.counts == {"kept": 0, "trimmed": 4, "rejected": 0}


def test_a_table_may_name_members(tmp_path: Path, video: bytes) -> None:
    _shard(tmp_path / "data" / "s.tar", {"a.mp4": video})
    (tmp_path / "data" / "metadata.csv").write_text(
        "video,caption,start,end\ns.tar/a.mp4,x,1,2.0625\ns.tar/b.mp4,x,,\n"
    )
    rows = _inspect(tmp_path / "data").rows
    assert rows[0].arithmetic == "17f@16 → 17f@16 → 17"
    assert rows[1].reason == "'s.tar' has no member 'b.mp4'"


def test_tables_that_lie_beside_shards_are_not_the_dataset(tmp_path: Path) -> None:
    for shard in ("00000", "00001"):
        _shard(tmp_path / f"{shard}.tar", {"0.png": b"", "0.txt": shard})
        (tmp_path / f"{shard}.parquet").touch()
    assert [clip.caption for clip in read_clips(tmp_path, "error")] == ["00000", "00001"]


def test_a_folder_may_be_called_like_a_tar(tmp_path: Path) -> None:
    write_ramp(tmp_path / "a.tar" / "b.mp4", 17)
    (row,) = _inspect(tmp_path).rows
    assert (row.clip.name, row.status) == ("a.tar/b.mp4", "kept")


def test_what_is_no_regular_file_is_refused_by_name(tmp_path: Path, video: bytes) -> None:
    (tmp_path / "secret.mp4").write_bytes(video)
    path = _shard(
        tmp_path / "data" / "s.tar",
        {"ok.mp4": video, "/abs.mp4": video, "../up.mp4": video, "a/../b.mp4": video},
    )
    _odd_member(path, "sym.mp4", tarfile.SYMTYPE, str(tmp_path / "secret.mp4"))
    _odd_member(path, "hard.mp4", tarfile.LNKTYPE, "ok.mp4")
    _odd_member(path, "dev.mp4", tarfile.CHRTYPE)
    _odd_member(path, "pipe.mp4", tarfile.FIFOTYPE)
    _odd_member(path, "folder.mp4", tarfile.DIRTYPE)
    _odd_member(path, "odd.mp4", b"V")
    reasons = {row.clip.path.removeprefix("s.tar/"): row.reason for row in _inspect(path).rows}
    assert "absolute name" in reasons.pop("/abs.mp4")
    assert "'..'" in reasons.pop("../up.mp4")
    assert "'..'" in reasons.pop("a/../b.mp4")
    assert "is a symbolic link; only regular" in reasons.pop("sym.mp4")
    assert "is a hard link" in reasons.pop("hard.mp4")
    assert "is a device" in reasons.pop("dev.mp4")
    assert "is a pipe" in reasons.pop("pipe.mp4")
    assert "is a folder" in reasons.pop("folder.mp4")
    assert "is of a kind that is not read" in reasons.pop("odd.mp4")
    assert list(reasons) == ["ok.mp4"]
    assert "not used" in reasons["ok.mp4"]


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a.mp4")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
    content = b"1\n0\n512\n".ljust(512, b"\0") + bytes(512)
    info.size = len(content)
    with tarfile.open(tmp_path / "s.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(content))
    (row,) = _inspect(tmp_path).rows
    assert "only regular files are read" in row.reason


def test_a_member_that_is_there_twice_is_refused(tmp_path: Path, video: bytes) -> None:
    path = _shard(tmp_path / "s.tar", {"a.mp4": video})
    with tarfile.open(path, "a") as tar:
        tar.addfile(tarfile.TarInfo("a.mp4"), io.BytesIO(b""))
    (row,) = _inspect(tmp_path).rows
    assert row.reason == "member 'a.mp4' of 's.tar' is there twice; keep one"


def test_captions_that_are_links_are_not_read(tmp_path: Path) -> None:
    path = _shard(tmp_path / "s.tar", {"a.mp4": b""})
    _odd_member(path, "a.txt", tarfile.SYMTYPE, "/etc/hostname")
    (row,) = _inspect(tmp_path).rows
    assert row.clip.caption == ""
    assert "'a.txt' of 's.tar' is a symbolic link" in row.reason


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", r"s\.tar/a\.json is not JSON"),
        ("a.json", "[" * 100_000, r"s\.tar/a\.json is not JSON"),
        ("a.json", "[]", r"s\.tar/a\.json is not an object"),
        ("a.json", '{"caption": ["x", 7]}', r"has 7 as its caption"),
        ("a.txt", b"caf\xe9", r"'s\.tar/a\.txt' is not UTF-8"),
        ("a.txt", "x" * (2**20 + 1), r"1,048,577 bytes; too long for a caption"),
    ],
)
def test_a_clip_whose_caption_cannot_be_read_is_rejected_and_the_others_go_on(
    tmp_path: Path, video: bytes, name: str, content: bytes | str, message: str
) -> None:
    members = {"a.mp4": video, name: content, "ok.mp4": video, "ok.txt": "words"}
    _shard(tmp_path / "data" / "s.tar", members)
    bad, good = inspect_dataset(tmp_path / "data", RULES, WAN, "error", 1).rows
    assert (bad.clip.path, bad.status, bad.clip.fault) == ("s.tar/a.mp4", "rejected", "")
    assert re.search(message, bad.reason)
    assert (good.clip.path, good.clip.caption) == ("s.tar/ok.mp4", "words")
    assert good.status != "rejected"


@pytest.mark.parametrize(
    ("members", "captions"),
    [
        ({"k.txt": "one", "k.2.txt": "two", "k.3.txt": "three", "k.5.txt": "five"}, 3),
        ({"k.txt": "one", "k.2.txt": "two", "k.json": '{"caption": "not this one"}'}, 2),
        ({"k.txt": "one", "k.2.txt": "of another", "k.2.jpg": "", "k.3.txt": "its second"}, 1),
        ({"k.json": '{"caption": ["one", "", "two "]}'}, 2),
        ({"k.json": '{"caption": "one", "caption_2": "two", "caption_4": "four"}'}, 2),
        ({"k.json": '{"caption": null, "text": "one"}'}, 1),
        ({"k.json": '{"caption": " ", "prompt": [], "text": "one"}'}, 1),
        ({"k.txt": "\n", "k.json": '{"caption": "one"}'}, 1),
        ({"k.v2.txt": "", "k.v2.json": "{}", "k.txt": "one"}, 1),
    ],
)
def test_captions_of_a_sample_are_all_that_say_anything(
    tmp_path: Path, members: dict[str, str], captions: int
) -> None:
    name = "k.v2.mp4" if "k.v2.txt" in members else "k.mp4"
    _shard(tmp_path / "s.tar", {name: b"", **members})
    clips = {clip.path: clip.captions for clip in read_clips(tmp_path, "empty")}
    assert clips[f"s.tar/{name}"] == ("one", "two", "three")[:captions]


def test_a_shard_of_zeros_alone_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "0.tar").write_bytes(bytes(10240))
    _shard(tmp_path / "1.tar", {"a.png": b"", "a.txt": "a cat"})
    empty, clip = read_clips(tmp_path, "error")
    assert (clip.caption, clip.fault) == ("a cat", "")
    assert (empty.path, empty.fault) == (
        "0.tar",
        "the shard is empty: it has no member; write it again, or remove it",
    )


@pytest.mark.parametrize(("name", "content"), [("b.txt", "x"), ("a.json", '{"url": "x"}')])
def test_a_caption_that_is_not_there_stops_the_run(tmp_path: Path, name: str, content: str) -> None:
    _shard(tmp_path / "s.tar", {"a.mp4": b"", name: content})
    with pytest.raises(DataError, match=r"clip 's\.tar/a\.mp4' has no caption"):
        read_clips(tmp_path, "error")


@pytest.mark.parametrize("kept_share", [0.0, 0.001, 0.2, 0.4, 0.5, 0.75, 0.9])
def test_a_shard_that_was_cut_short_keeps_what_is_whole_and_says_what_is_lost(
    tmp_path: Path, video: bytes, kept_share: float
) -> None:
    path = _shard(tmp_path / "data" / "s.tar", {f"{k}.mp4": video for k in range(4)})
    member_bytes = 512 + -(-len(video) // 512) * 512
    kept_bytes = round(4 * member_bytes * kept_share)
    path.write_bytes(path.read_bytes()[:kept_bytes])
    *clips, rest = _inspect(tmp_path / "data").rows
    num_whole = kept_bytes // member_bytes
    assert [row.status for row in clips[:num_whole]] == ["trimmed"] * num_whole
    assert all("cut short" in row.reason for row in clips[num_whole:])
    assert len(clips) in (num_whole, num_whole + 1)
    assert (rest.clip.name, rest.status) == ("s.tar", "rejected")
    assert "the shard cannot be read to its end" in rest.reason


def test_a_caption_that_was_lost_with_a_shard_s_end_rejects_its_clip_alone(
    tmp_path: Path, video: bytes
) -> None:
    path = _shard(tmp_path / "s.tar", {"a.mp4": video, "a.txt": "x", "b.mp4": video, "b.txt": "y"})
    path.write_bytes(path.read_bytes()[: 512 + -(-len(video) // 512) * 512 + 1024 + 600])
    whole, lost, rest = read_clips(tmp_path, "error")
    assert (whole.caption, whole.fault) == ("x", "")
    assert lost.fault == "s.tar is damaged, and no caption is in what can be read of it"
    assert rest.path == "s.tar"


def test_a_shard_that_stops_between_two_members_is_noticed(tmp_path: Path) -> None:
    path = _shard(tmp_path / "s.tar", {"a.png": b"", "b.png": b""})
    path.write_bytes(path.read_bytes()[:512])
    assert "no end marker follows member 'a.png'" in _inspect(tmp_path).rows[-1].reason


def test_a_shard_with_a_damaged_header_is_noticed(tmp_path: Path) -> None:
    path = _shard(tmp_path / "s.tar", {"a.png": b"", "b.png": b"", "c.png": b""})
    content = bytearray(path.read_bytes())
    content[600] ^= 255
    path.write_bytes(content)
    assert "damaged after member 'a.png'" in _inspect(tmp_path).rows[-1].reason


def test_shards_that_were_joined_are_noticed(tmp_path: Path) -> None:
    path = _shard(tmp_path / "s.tar", {"a.png": b""})
    path.write_bytes(path.read_bytes() * 2)
    rows = _inspect(tmp_path).rows
    assert [row.clip.name for row in rows] == ["s.tar/a.png", "s.tar"]
    assert "data follow its end marker" in rows[1].reason


def test_a_long_name_cannot_claim_gigabytes(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2**33
    path = tmp_path / "s.tar"
    with path.open("wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.truncate(2**33)
    begin_s = time.monotonic()
    (row,) = _inspect(tmp_path).rows
    assert "a header of 8,589,934,592 bytes" in row.reason
    assert time.monotonic() - begin_s < 5.0


@pytest.mark.parametrize("num_bytes", [10**15, 2**62, 2**63])
def test_a_member_that_is_larger_than_any_file_is_rejected(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("a.png"))
        info = tarfile.TarInfo("b.png")
        info.size = num_bytes
        tar.fileobj.write(info.tobuf(tarfile.GNU_FORMAT))  # pyright: ignore[reportOptionalMemberAccess]
    rows = _inspect(tmp_path).rows
    assert [row.clip.name for row in rows] in (
        ["s.tar/a.png", "s.tar/b.png", "s.tar"],
        ["s.tar/a.png", "s.tar"],
    )
    assert "damaged or cut short after member" in rows[-1].reason


def test_a_shard_of_too_many_members_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar_index, "MAX_MEMBERS", 2)
    _shard(tmp_path / "s.tar", {f"{k}.png": b"" for k in range(3)})
    rows = _inspect(tmp_path).rows
    assert len(rows) == 3
    assert "more than 2 members" in rows[2].reason


def test_a_shard_that_was_replaced_is_read_again(tmp_path: Path, video: bytes) -> None:
    path = tmp_path / "s.tar"
    _shard(path, {"a.mp4": video})
    first = _inspect(tmp_path).rows[0].content
    other = write_ramp(tmp_path / "made" / "b.mp4", 20).read_bytes()
    _shard(path, {"pad.txt": "x" * 3000, "a.mp4": other})
    (row,) = _inspect(tmp_path).rows
    assert row.content != first
    assert row.arithmetic == "20f@16 → 20f@16 → 17"


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz"])
def test_compressed_shards_are_refused_with_the_fix(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    for dataset in (tmp_path, tmp_path / name):
        with pytest.raises(DataError, match=r"is compressed.* decompress it to a \.tar"):
            read_clips(dataset, "error")


@pytest.mark.parametrize(
    ("pack", "name"), [(gzip, "gzip"), (bz2, "bzip2"), (lzma, "xz")], ids=["gz", "bz2", "xz"]
)
def test_a_compressed_shard_that_does_not_say_so_is_rejected_with_the_fix(
    tmp_path: Path, pack: Any, name: str
) -> None:
    (tmp_path / "a.tar").write_bytes(pack.compress(bytes(10240)))
    (row,) = _inspect(tmp_path).rows
    assert row.reason == (
        f"the shard cannot be read to its end: it is compressed by {name}; decompress it"
    )


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 5 * 512 - 1), st.integers(0, 255)), min_size=1, max_size=4
    ),
    length=st.integers(0, 20 * 512),
    is_resummed=st.booleans(),
)
def test_any_damage_gives_slices_within_the_file_or_a_reason(
    tmp_path: Path, changes: list[tuple[int, int]], length: int, is_resummed: bool
) -> None:
    members = {"a.png": b"x" * 100, "a.txt": b"y" * 100, "b.gif": b"z" * 600}
    content = bytearray(_shard(tmp_path / "s.tar", members, tarfile.GNU_FORMAT).read_bytes())
    for at, value in changes:
        content[at] = value
    if is_resummed:  # so that the damage is not found by the header's check sum
        for at in (0, 1024, 2048):
            header = content[at : at + 512]
            total = sum(header) - sum(header[148:156]) + 8 * 32
            content[at + 148 : at + 156] = b"%06o\0 " % total
    path = tmp_path / "s.tar"
    path.write_bytes(content[:length])
    index = tar_index.tar_index(path)
    for member in index.members.values():
        if member.refusal is None:
            assert 0 <= member.offset <= member.offset + member.num_bytes <= length
    said = ""
    try:
        clips = shard_clips.shard_clips(tmp_path, ["s.tar"])
        assert clips or index.fault is None
    except DataError as error:
        said = str(error)
    assert "\n" not in said


@given(
    offset=st.integers(0, 20),
    num_bytes=st.integers(0, 20),
    steps=st.lists(
        st.tuples(st.sampled_from(["set", "cur", "end", "read"]), st.integers(-9, 30)), max_size=12
    ),
)
def test_a_slice_reads_like_a_file_of_its_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    offset: int,
    num_bytes: int,
    steps: list[tuple[str, int]],
) -> None:
    path = tmp_path_factory.getbasetemp() / "forty"
    path.write_bytes(bytes(range(40)))
    model = io.BytesIO(bytes(range(40))[offset : offset + num_bytes])
    with MediaFile(path=path, offset=offset, num_bytes=num_bytes).open() as opened:
        for kind, value in steps:
            if kind == "read":
                assert opened.read(value if value >= 0 else None) == model.read(
                    value if value >= 0 else None
                )
                continue
            whence = ("set", "cur", "end").index(kind)
            base = (0, model.tell(), num_bytes)[whence]
            target = max(0, base + value)
            assert opened.seek(target - base, whence) == target
            model.seek(target)
            assert opened.tell() == model.tell()


def test_a_whole_file_ends_where_it_ended_when_it_was_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1234")
    file = whole_file(path)
    path.write_bytes(b"12345678")
    with file.open() as opened:
        assert opened.read() == b"1234"
