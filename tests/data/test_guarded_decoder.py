"""A clip that hangs, crashes or eats memory costs only itself."""

import hashlib
import multiprocessing
import time
from multiprocessing import resource_sharer
from pathlib import Path

import numpy as np
import pytest

from arachne.core.bucket import Bucket
from arachne.data import guarded_decoder
from arachne.data.decode import decode_clip
from arachne.data.guarded_decoder import Decoded, DecodeJob, GuardedDecoder, Refusal
from tests.data.media import Look, grey_frames, write_ramp, write_video

BUCKET = Bucket(width=64, height=48, frames=17)


def job(root: Path, name: str, bucket: Bucket = BUCKET) -> DecodeJob:
    content = hashlib.sha256((root / name).read_bytes()).hexdigest()
    return DecodeJob(root=root, path=name, content=content, span=None, bucket=bucket, fps=16.0)


def decoded(decoder: GuardedDecoder, of: DecodeJob) -> np.ndarray | Refusal:
    decoder.start(of)
    found = decoder.result()
    return found if isinstance(found, Refusal) else found.pixels


def kill_decoders() -> int:
    children = [child for child in multiprocessing.active_children() if child.name == "decoder"]
    for child in children:
        child.kill()
    return len(children)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_ramp(tmp_path / "a.mp4", 20)
    write_ramp(tmp_path / "b.mp4", 24)
    return tmp_path


def test_it_gives_what_decoding_here_gives_for_clips_of_any_size(root: Path) -> None:
    small = Bucket(width=32, height=32, frames=5)
    with GuardedDecoder(time_limit_s=60.0) as decoder:
        for name, bucket in (("a.mp4", small), ("b.mp4", BUCKET), ("a.mp4", small)):
            found = decoded(decoder, job(root, name, bucket))
            assert isinstance(found, np.ndarray), found
            assert np.array_equal(found, decode_clip(root / name, None, bucket, 16.0))
    assert kill_decoders() == 0, "it ended with the context"


def test_a_clip_that_takes_too_long_is_refused_and_the_next_one_decoded(root: Path) -> None:
    look = Look(width=640, height=480)
    write_video(root / "long.mp4", grey_frames([99] * 400, look), look)
    long = job(root, "long.mp4", Bucket(width=640, height=480, frames=400))
    with GuardedDecoder(time_limit_s=0.1) as decoder:
        refusal = decoded(decoder, long)
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "decoding it took longer than 0.1 s"
        assert refusal.is_lasting
        decoder._time_limit_s = 60.0  # a busy machine needs longer than 0.1 s for any clip
        assert isinstance(decoded(decoder, job(root, "a.mp4", Bucket.parse("32x32x1"))), np.ndarray)


def test_a_clip_that_needs_too_much_memory_is_refused(root: Path) -> None:
    write_ramp(root / "large.mp4", 3, Look(width=1920, height=1080))
    large = job(root, "large.mp4", Bucket(width=1920, height=1072, frames=1))
    with GuardedDecoder(time_limit_s=60.0, memory_bytes=2**20) as decoder:
        # Whether it is called memory or invalid data is up to FFmpeg.
        assert isinstance(decoded(decoder, large), Refusal)
    with GuardedDecoder(time_limit_s=60.0) as decoder:
        assert isinstance(decoded(decoder, large), np.ndarray)


def test_a_decoder_that_is_killed_once_is_started_again(root: Path) -> None:
    with GuardedDecoder(time_limit_s=60.0) as decoder:
        decoder.start(job(root, "a.mp4"))
        assert kill_decoders() == 1
        assert isinstance(decoder.result(), Decoded)
        assert kill_decoders() == 1, "while it is idle"
        time.sleep(0.1)
        assert isinstance(decoded(decoder, job(root, "b.mp4")), np.ndarray)


def test_a_clip_with_which_two_decoders_ended_is_refused(root: Path, monkeypatch) -> None:
    send = GuardedDecoder._send

    def send_and_kill(decoder: GuardedDecoder, job: DecodeJob) -> None:
        send(decoder, job)
        decoder._process.kill()  # before it has imported what it decodes with

    with GuardedDecoder(time_limit_s=60.0) as decoder:
        with monkeypatch.context() as patch:
            patch.setattr(GuardedDecoder, "_send", send_and_kill)
            decoder.start(job(root, "a.mp4"))
            assert decoder.result() == Refusal(
                reason="decoding it ended the process twice (SIGKILL)", is_lasting=True
            )
        assert isinstance(decoded(decoder, job(root, "a.mp4")), np.ndarray)


def test_why_a_decoder_could_not_be_started_is_not_hidden(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: int) -> None:
        raise OSError("Too many open files")

    monkeypatch.setattr(guarded_decoder, "DupFd", refused)
    with (
        pytest.raises(OSError, match="Too many open files"),
        GuardedDecoder(time_limit_s=60.0) as decoder,
    ):
        decoder.start(job(root, "a.mp4"))


def test_it_needs_no_socket_whose_path_the_temporary_folder_could_make_too_long(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource_sharer.stop()  # of another test
    monkeypatch.setitem(multiprocessing.current_process()._config, "tempdir", "/" + 150 * "t")
    with GuardedDecoder(time_limit_s=60.0) as decoder:
        assert isinstance(decoded(decoder, job(root, "a.mp4")), np.ndarray)


def test_a_frame_takes_the_memory_of_the_one_before(root: Path) -> None:
    """Pages that glibc gave back after each frame were touched anew for the next: 300 of 1.2 MB."""
    look = Look(width=832, height=480)
    write_video(root / "wide.mp4", grey_frames([99] * 40, look), look)
    wide = job(root, "wide.mp4", Bucket(width=832, height=480, frames=33))
    with GuardedDecoder(time_limit_s=60.0) as decoder:
        assert isinstance(decoded(decoder, wide), np.ndarray)
        before = decoder_faults()
        assert isinstance(decoded(decoder, wide), np.ndarray)
        assert decoder_faults() - before < 33 * 60


def decoder_faults() -> int:
    """Pages that the decoder has touched for the first time."""
    (child,) = (child for child in multiprocessing.active_children() if child.name == "decoder")
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[7])


def test_what_is_wrong_with_the_path_may_pass_and_what_is_wrong_with_the_file_lasts(
    root: Path,
) -> None:
    (root / "text.mp4").write_text("no video at all")
    gone = job(root, "a.mp4")
    with GuardedDecoder(time_limit_s=60.0) as decoder:
        bad = decoded(decoder, job(root, "text.mp4"))
        (root / "a.mp4").unlink()
        missing = decoded(decoder, gone)
    assert isinstance(bad, Refusal)
    assert isinstance(missing, Refusal)
    assert (bad.is_lasting, missing.is_lasting) == (True, False)
