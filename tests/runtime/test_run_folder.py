"""Folders of runs that were killed go; those of runs that live stay."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from arachne.runtime.run_folder import RunFolder


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def killed_with_a_child(tmp_path: Path) -> tuple[str, int]:
    """The folder of a process that was killed, and a process that it forked and that lives."""
    code = (
        "import os, signal, tempfile, time\n"
        "from arachne.runtime.run_folder import RunFolder\n"
        f"tempfile.tempdir = {str(tmp_path)!r}\n"
        "folder = RunFolder('arachne-test-')\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os.close(1)\n"
        "    time.sleep(60)\n"
        "print(folder.path, child, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert ended.returncode == -signal.SIGKILL
    path, child = ended.stdout.split()
    return path, int(child)


def test_a_folder_goes_with_its_run_and_others_only_once_all_that_used_them_have_ended(tmp_path):
    path, child = killed_with_a_child(tmp_path)
    first = RunFolder("arachne-test-")
    second = RunFolder("arachne-test-")
    assert Path(path).is_dir(), "a rank of the killed launcher still uses it"
    os.kill(child, signal.SIGKILL)
    while Path(f"/proc/{child}").exists():  # its parent is gone, so somebody else reaps it
        state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":
            break
    second.remove()
    third = RunFolder("arachne-test-")
    assert not Path(path).exists()
    assert first.path.is_dir()
    for folder in (first, third):
        folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_a_kill_left_without_its_files_goes_too_and_what_is_no_folder_of_ours_stays(tmp_path):
    (tmp_path / "arachne-test-half-removed").mkdir()
    (tmp_path / "arachne-test-file").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "arachne-test-link").symlink_to(tmp_path / "elsewhere")
    RunFolder("arachne-test-").remove()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["arachne-test-file", "arachne-test-link", "elsewhere"]


def test_a_folder_that_is_swept_up_before_it_is_held_is_made_again(tmp_path, monkeypatch):
    made: list[str] = []
    mkdtemp = tempfile.mkdtemp

    def swept_once(prefix: str) -> str:
        made.append(mkdtemp(prefix=prefix))
        if len(made) == 1:
            Path(made[0]).rmdir()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept_once)
    folder = RunFolder("arachne-test-")
    assert folder.path.is_dir()
    assert len(made) == 2
    folder.remove()
