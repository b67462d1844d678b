"""Missing arrays are made once, whoever asks, and a bad clip costs only itself."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from arachne.core.bucket import Bucket
from arachne.core.clip import TimeSpan
from arachne.core.errors import DataError
from arachne.core.families import family_named
from arachne.core.ledger import Ledger, LedgerRow
from arachne.data.cache import LatentCache, text_key
from arachne.data.inspect import inspect_dataset
from arachne.data.make_arrays import Begun, Settled, Workshop, make_arrays
from arachne.data.prepare import Latents, Store
from arachne.data.shapes import ShapeRules
from tests.data.media import write_ramp


@dataclass
class MeanEncoder:
    """One channel, every fourth frame, every eighth pixel."""

    fingerprint: str = "mean-1"
    factor: float = 1.0
    num_calls: int = 0

    def encode(self, frames: np.ndarray, /) -> np.ndarray:
        self.num_calls += 1
        return frames[None, ::4, ::8, ::8, 0].astype(np.float32) * self.factor


@dataclass
class LengthEncoder:
    fingerprint: str = "length-1"
    captions: list[str] = field(default_factory=list)

    def encode(self, caption: str, /) -> np.ndarray:
        self.captions.append(caption)
        return np.full((2, 3), len(caption), np.float32)


@dataclass
class SeeingEncoder(LengthEncoder):
    """Its states are the length of the caption, and then the picture's first values."""

    def encode_seeing(self, caption: str, frame: np.ndarray, /) -> np.ndarray:
        assert frame.ndim == 3, frame.shape
        values = frame[0, :3, 0].astype(np.float32)
        return np.stack([self.encode(caption)[0], values])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for index in range(3):
        write_ramp(tmp_path / "data" / f"{index}.mp4", 20 + index)
        (tmp_path / "data" / f"{index}.txt").write_text(f"clip {index}")
    return tmp_path / "data"


def inspected(root: Path, resolution: int = 64) -> Ledger:
    rules = ShapeRules(fps=16.0, resolution=resolution, frame_buckets=(17,))
    return inspect_dataset(root, rules, family_named("wan").geometry, "error", 1)


@pytest.fixture
def workshop(root: Path, tmp_path: Path) -> Workshop:
    return workshop_in(tmp_path / "cache", root)


def workshop_in(cache_dir: Path, root: Path) -> Workshop:
    return with_encoders(
        Workshop(
            root=root,
            store=Store(cache_dir=cache_dir, fps=16.0, video_fingerprint="", text_fingerprint=""),
            video_encoder=MeanEncoder(),
            text_encoder=LengthEncoder(),
            claims_expire_s=2.0,
        ),
        MeanEncoder(),
        LengthEncoder(),
    )


def with_encoders(workshop: Workshop, video: MeanEncoder, text: LengthEncoder) -> Workshop:
    store = replace(
        workshop.store, video_fingerprint=video.fingerprint, text_fingerprint=text.fingerprint
    )
    return replace(workshop, store=store, video_encoder=video, text_encoder=text)


def make(workshop: Workshop, rows: Sequence[LedgerRow]) -> list[Settled]:
    told: list[Begun | Settled] = []
    make_arrays(workshop, workshop.store.pieces(rows), told.append)
    return [event for event in told if isinstance(event, Settled)]


def reasons(settled: list[Settled]) -> list[str]:
    return [piece.reason for piece in settled if piece.reason]


def test_latents_and_token_states_are_cached_and_so_are_those_of_no_words(
    root: Path, workshop: Workshop
) -> None:
    rows = inspected(root).rows
    settled = make(workshop, rows)
    assert len(settled) == 7
    cache = workshop.store.cache
    latents_key, states_key = workshop.store.keys_of(rows[0])
    assert cache.get(latents_key).shape == (1, 5, 6, 8)
    assert cache.get(states_key).tolist() == [[6.0] * 3] * 2
    assert cache.get(workshop.store.pieces([])[0].key).tolist() == [[0.0] * 3] * 2
    assert not any(workshop.store.claims_dir.iterdir())


def test_the_ledger_learns_how_many_frames_were_decoded(root: Path, workshop: Workshop) -> None:
    write_ramp(root / "0.mp4", 17)
    ledger = inspected(root)
    assert [(row.num_frames, row.is_decoded) for row in ledger.rows] == [
        (17, False),
        (21, False),
        (22, False),
    ]
    make(workshop, ledger.rows)
    # The others are longer than what trains of them: decoding stops there, and estimates stay.
    amended = workshop.store.amended(ledger, {})
    assert [row.is_decoded for row in amended.rows] == [True, False, False]
    assert workshop.store.amended(amended, {}) == amended
    assert replace(amended.rows[0], is_decoded=False) == ledger.rows[0]

    # Packets may promise more than there is; what an earlier run has counted is in the cache.
    wrong = replace(ledger, rows=tuple(replace(row, num_frames=19) for row in ledger.rows))
    (row, *others) = workshop.store.amended(wrong, {}).rows
    assert (row.num_frames, row.is_decoded) == (17, True)
    assert row.reason == "17 frames were decoded where the file lists 19"
    assert others == list(wrong.rows[1:])
    unknown = replace(ledger, rows=tuple(replace(row, num_frames=0) for row in ledger.rows))
    assert workshop.store.amended(unknown, {}).rows[0] == amended.rows[0]


def test_preparing_goes_on_where_it_stopped(root: Path, workshop: Workshop) -> None:
    rows = inspected(root).rows
    make(workshop, rows[1:2])
    settled = make(workshop, rows)
    own = {piece.key for piece in settled if piece.is_own}
    assert own == {*workshop.store.keys_of(rows[0]), *workshop.store.keys_of(rows[2])}
    assert not any(piece.is_own for piece in make(workshop, rows))


def test_a_cache_that_has_everything_is_only_read(root: Path, workshop: Workshop) -> None:
    rows = inspected(root).rows
    make(workshop, rows[:2])
    workshop.store.claims_dir.rmdir()
    workshop.store.claims_dir.touch()  # as good as a disk that is only for reading
    assert len(make(workshop, rows[:2])) == 5
    with pytest.raises(DataError, match="cannot write"):
        make(workshop, rows)


def test_only_what_a_change_touches_is_done_again(root: Path, workshop: Workshop) -> None:
    row = inspected(root).rows[0]
    video, text = MeanEncoder(), LengthEncoder()
    make(with_encoders(workshop, video, text), [row])
    make(with_encoders(workshop, video, LengthEncoder(fingerprint="length-2")), [row])
    assert video.num_calls == 1
    smaller = inspected(root, resolution=48).rows[0]
    assert smaller.bucket != row.bucket
    make(with_encoders(workshop, video, text), [smaller])
    assert (video.num_calls, text.captions) == (2, ["", "clip 0"])


def test_letterboxed_latents_are_others_than_cropped_ones(root: Path, workshop: Workshop) -> None:
    row = replace(inspected(root).rows[0], bucket=Bucket(width=64, height=64, frames=17))
    boxed = replace(workshop, store=replace(workshop.store, fit="letterbox"))
    make(workshop, [row])
    assert sum(event.is_own for event in make(boxed, [row])) == 1
    cropped, black = (
        each.store.cache.get(each.store.keys_of(row)[0]) for each in (workshop, boxed)
    )
    assert cropped[0, 4].min() > 50
    assert black[0, :, [0, -1]].max() == 0.0
    assert black[0, 4, 1:-1].min() > 50


def test_clips_of_the_same_bytes_and_words_are_encoded_once(root: Path, workshop: Workshop) -> None:
    (root / "copy.mp4").write_bytes((root / "0.mp4").read_bytes())
    (root / "copy.txt").write_text("clip 0")
    assert len(make(workshop, inspected(root).rows)) == 7


def test_several_decoders_make_the_same_arrays(root: Path, workshop: Workshop) -> None:
    rows = inspected(root).rows
    make(workshop, rows)
    other = replace(workshop.store, cache_dir=workshop.store.cache_dir.with_name("other"))
    make(replace(workshop, store=other, num_decoders=3), rows)
    assert arrays_of(other.cache_dir) == arrays_of(workshop.store.cache_dir)


def arrays_of(cache_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache_dir.rglob("*.safetensors")}


def test_a_damaged_clip_is_rejected_in_the_ledger_and_not_tried_again(
    root: Path, workshop: Workshop
) -> None:
    ledger = with_damaged_frames(root, "1.mp4")
    settled = make(workshop, ledger.rows)
    (reason,) = reasons(settled)
    amended = workshop.store.amended(ledger, {})
    assert [row.status == "rejected" for row in amended.rows] == [False, True, False]
    assert amended.rows[1].reason == reason
    assert amended.rows[1].clip == ledger.rows[1].clip
    assert reasons(make(workshop, ledger.rows)) == []


def with_damaged_frames(root: Path, name: str) -> Ledger:
    """The ledger of a dataset in which a file's last frames are noise, as only decoding shows."""
    whole = bytearray((root / name).read_bytes())
    start = whole.index(b"mdat") + 4
    half = (start + len(whole)) // 2
    end = whole.index(b"moov") - 4
    whole[half:end] = bytes(end - half)
    (root / name).write_bytes(whole)
    ledger = inspected(root)
    assert ledger.counts["rejected"] == 0, ledger
    return ledger


def test_a_file_that_is_gone_is_rejected_but_may_come_back(root: Path, workshop: Workshop) -> None:
    ledger = inspected(root)
    whole = (root / "0.mp4").read_bytes()
    (root / "0.mp4").unlink()
    settled = make(workshop, ledger.rows)
    assert len(reasons(settled)) == 1
    found = {piece.key: piece.reason for piece in settled if piece.reason}
    amended = workshop.store.amended(ledger, found)
    assert amended.rows[0].status == "rejected"
    assert "is not a file" in amended.rows[0].reason
    (root / "0.mp4").write_bytes(whole)
    assert reasons(make(workshop, ledger.rows)) == []
    assert workshop.store.amended(ledger, {}) == ledger


def seeing(workshop: Workshop) -> Workshop:
    made = with_encoders(workshop, MeanEncoder(), SeeingEncoder())
    return replace(made, store=replace(made.store, text_sees_clip=True))


def test_a_text_encoder_sees_the_first_frame_of_each_clip_for_each_of_its_captions(
    root: Path, workshop: Workshop
) -> None:
    for index in range(3):  # the same words for clips that begin with different pictures
        (root / f"{index}.txt").write_text("a ramp")
    write_ramp(root / "0.mp4", 40)
    rows = [
        row if index else replace(row, clip=replace(row.clip, other_captions=("rising", "")))
        for index, row in enumerate(cut_in_two(inspected(root).rows[0], root))
    ]
    at = seeing(workshop)
    assert reasons(make(at, rows)) == []
    cache = at.store.cache
    latents = [cache.get(at.store.keys_of(row)[0]) for row in rows]
    text = [cache.get(at.store.keys_of(row)[1]) for row in rows]
    assert [states[0].tolist() for states in text] == [[6.0] * 3] * 2
    for array, states in zip(latents, text, strict=True):
        assert states[1].tolist() == [array[0, 0, 0, 0]] * 3
    assert text[0][1, 0] != text[1][1, 0]
    assert sorted(at.text_encoder.captions) == ["", "", "a ramp", "a ramp", "rising"]
    assert cache.get(at.store.pieces([])[0].key).tolist() == [[0.0] * 3] * 2, "it sees nothing"
    assert make(at, rows)
    assert len(at.text_encoder.captions) == 5


def cut_in_two(row: LedgerRow, root: Path) -> list[LedgerRow]:
    """Two parts of a row's file as clips."""
    spans = (TimeSpan(start_s=0.0, end_s=1.2), TimeSpan(start_s=1.2, end_s=2.4))
    return [replace(row, clip=replace(row.clip, span=span)) for span in spans]


def test_a_clip_whose_first_frame_cannot_be_shown_is_rejected(
    root: Path, workshop: Workshop
) -> None:
    at = seeing(workshop)
    ledger = inspected(root)
    pieces = at.store.pieces(ledger.rows)
    make_arrays(at, [each for each in pieces if isinstance(each, Latents)], lambda event: None)
    (root / "0.mp4").rename(root / "away.mp4")
    settled = make(at, ledger.rows)
    found = {piece.key: piece.reason for piece in settled if piece.reason}
    assert len(found) == 1
    amended = at.store.amended(ledger, found)
    assert [row.status for row in amended.rows] == ["rejected", "trimmed", "trimmed"]
    assert "is not a file" in amended.rows[0].reason


def test_a_file_replaced_by_another_of_the_same_name_and_time_gives_no_stale_latent(
    root: Path, workshop: Workshop
) -> None:
    path = root / "0.mp4"
    row = inspected(root).rows[0]
    make(workshop, [row])
    old = path.stat()
    write_ramp(path, 18)
    padding = old.st_size - path.stat().st_size  # an mp4 box that players skip
    with path.open("ab") as file:
        file.write(padding.to_bytes(4, "big") + b"free" + bytes(padding - 8))
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))
    new = path.stat()
    assert (new.st_size, new.st_mtime_ns, new.st_ino) == (old.st_size, old.st_mtime_ns, old.st_ino)
    again = inspected(root).rows[0]
    assert not workshop.store.cache.has(workshop.store.keys_of(again)[0])
    other = with_encoders(workshop, MeanEncoder(fingerprint="mean-2"), LengthEncoder())
    (reason,) = reasons(make(other, [row]))
    assert "changed since it was inspected" in reason


def test_latents_that_are_not_finite_are_rejected(root: Path, workshop: Workshop) -> None:
    rows = inspected(root).rows[:1]
    broken = with_encoders(workshop, MeanEncoder(factor=float("nan")), LengthEncoder())
    (reason,) = reasons(make(broken, rows))
    assert "not finite" in reason
    assert not LatentCache(workshop.store.cache_dir).has(workshop.store.keys_of(rows[0])[0])


def test_a_full_disk_ends_the_work_and_gives_up_its_claims(
    root: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise DataError("cannot write: No space left on device")

    monkeypatch.setattr(LatentCache, "put", full)
    with pytest.raises(DataError, match="No space left"):
        make(workshop, inspected(root).rows)
    assert not any(workshop.store.claims_dir.iterdir())


def test_a_damaged_array_of_no_words_goes_and_is_made_again(root: Path, workshop: Workshop) -> None:
    rows = inspected(root).rows
    store = workshop.store
    store.tidy()
    make(workshop, rows)
    key = text_key("", "length-1")
    needed = store.cache.get(key)
    path = store.cache.path_of(key)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert store.cache.has(key), "only its bytes tell"
    store.tidy()
    assert [piece.is_own for piece in make(workshop, rows)].count(True) == 1
    assert np.array_equal(store.cache.get(key), needed)
    store.tidy()
    assert not any(piece.is_own for piece in make(workshop, rows))


class NoNumbersEncoder(SeeingEncoder):
    """Gives no numbers, as an encoder with damaged weights does."""

    def encode(self, caption: str, /) -> np.ndarray:
        return super().encode(caption) * np.float32(np.nan)


@pytest.mark.parametrize("sees", [False, True])
def test_token_states_that_are_not_finite_end_the_work(
    root: Path, workshop: Workshop, sees: bool
) -> None:
    rows = inspected(root).rows
    broken = with_encoders(workshop, MeanEncoder(), NoNumbersEncoder(fingerprint="nan"))
    pieces = broken.store.pieces(rows)
    if sees:
        broken = replace(broken, store=replace(broken.store, text_sees_clip=True))
        pieces = broken.store.pieces(rows)[2:]
    with pytest.raises(DataError, match=r"not finite, so its weights are damaged; name another"):
        make_arrays(broken, pieces, lambda _: None)
    assert not any(broken.store.cache.has(piece.key) for piece in pieces[:1])
