"""Claims: one owner at a time, taken over when the owner is gone, never from one that lives."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from arachne.data.claims import Claims
from arachne.data.process_identity import has_ended, own_identity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "claims"


@pytest.fixture
def other(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which has claimed `work`."""
    code = (
        "import sys, time; from pathlib import Path; from arachne.data.claims import Claims\n"
        "with Claims(Path(sys.argv[1]), expires_s=0.5) as claims:\n"
        "    print(claims.take('work'), flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def test_a_piece_of_work_has_one_owner_until_it_is_given_up(folder: Path) -> None:
    with Claims(folder) as mine, Claims(folder) as yours:
        assert mine.take("a")
        assert not yours.take("a")
        assert yours.take("b")
        mine.release("a")
        assert yours.take("a")
    assert not any(folder.iterdir())


def test_an_owner_that_lives_keeps_its_claim_by_touching_it(
    folder: Path, other: subprocess.Popen[str]
) -> None:
    with Claims(folder, expires_s=0.5) as claims:
        for _ in range(15):
            assert not claims.take("work")
            time.sleep(0.1)


def test_a_claim_of_a_killed_process_is_taken_over_at_once(
    folder: Path, other: subprocess.Popen[str]
) -> None:
    with Claims(folder, expires_s=1000.0) as claims:
        assert not claims.take("work")
        other.kill()
        time.sleep(0.2)
        assert claims.take("work")


def test_a_claim_of_a_suspended_process_is_taken_over_after_a_while_and_stays_so(
    folder: Path, other: subprocess.Popen[str]
) -> None:
    other.send_signal(signal.SIGSTOP)
    with Claims(folder, expires_s=0.5) as claims:
        assert not claims.take("work")
        time.sleep(0.7)
        assert claims.take("work")
        other.send_signal(signal.SIGCONT)
        other.terminate()
        other.wait()
        assert (folder / "work").read_text() == own_identity()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the watcher's clock says; it stands still."""
    now_s = [100.0]
    monkeypatch.setattr("arachne.data.claims.time.monotonic", lambda: now_s[0])
    return now_s


def test_a_claim_from_elsewhere_expires_by_the_watchers_clock(
    folder: Path, clock: list[float]
) -> None:
    folder.mkdir()
    (folder / "work").write_text("another-boot pid:[1] 1 1")
    # The other machine's clock is far ahead: what counts is that the file does not change.
    os.utime(folder / "work", (4e9, 4e9))
    with Claims(folder, expires_s=30.0) as claims:
        assert not claims.take("work")
        clock[0] += 20.0
        os.utime(folder / "work", (5e9, 5e9))
        assert not claims.take("work")
        clock[0] += 20.0
        assert not claims.take("work")
        clock[0] += 20.0
        assert claims.take("work")


def test_a_claim_that_was_cut_short_by_a_kill_expires_too(folder: Path, clock: list[float]) -> None:
    folder.mkdir()
    (folder / "work").touch()
    with Claims(folder, expires_s=20.0) as claims:
        assert not claims.take("work")
        clock[0] += 30.0
        assert claims.take("work")


def test_only_one_of_many_takes_an_abandoned_claim_over(folder: Path) -> None:
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        identity = _identity_of(process)
    (folder / "work").write_text(identity)
    code = (
        "import sys, time; from pathlib import Path; from arachne.data.claims import Claims\n"
        "with Claims(Path(sys.argv[1])) as claims:\n"
        "    sys.stdin.readline(); print(claims.take('work'), flush=True); sys.stdin.readline()"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for word in ("take\n", "end\n"):
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(word)
            process.stdin.flush()
        if word == "take\n":
            found = [process.stdout.readline() for process in processes if process.stdout]
    for process in processes:
        process.communicate()
    assert sorted(found) == ["False\n"] * 3 + ["True\n"]


def test_a_claim_that_changed_hands_meanwhile_is_not_taken_over(folder: Path) -> None:
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        identity = _identity_of(process)
    (folder / "work").write_text(identity)
    with Claims(folder) as slow, Claims(folder) as fast:
        mark = slow._abandoned("work")
        assert mark is not None
        assert fast.take("work")
        assert not slow._take_over(folder / "work", mark)
        assert (folder / "work").read_text() == own_identity()
        assert slow._abandoned("work") is None


def _identity_of(process: subprocess.Popen[bytes]) -> str:
    """As the process would have written it; its number may be in use again, its start is not."""
    namespace = own_identity().rpartition(" ")[0].rpartition(" ")[0]
    return f"{namespace} {process.pid} 1"


def test_a_process_knows_itself_alive_and_another_boot_unknown() -> None:
    assert not has_ended(own_identity())
    assert not has_ended("another-boot pid:[1] 1 1")
    assert not has_ended("")
    assert has_ended(own_identity() + "0"), "the same number, started at another time"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"no process", b"boot pid:[1] x 7", b"a b c d"])
def test_what_is_no_claim_is_waited_for_like_an_unknown_owner(tmp_path, content) -> None:
    namespace = own_identity().rsplit(" ", 2)[0].encode()
    for junk in (content, namespace + b" x 1"):
        (tmp_path / "work").write_bytes(junk)
        with Claims(tmp_path, expires_s=0.2) as claims:
            assert not claims.take("work")
            time.sleep(0.3)
            assert claims.take("work")
