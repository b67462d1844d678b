"""Folders below a dataset's that are links, or that cannot be read: none is lost in silence."""

import errno
import os
from pathlib import Path

import pytest

from arachne.core.errors import DataError
from arachne.data.files_below import files_below
from arachne.data.layouts import read_clips

NOT_FOLLOWED = (
    "it is a symbolic link to a folder, or to nothing, and is not followed; put the clips here, or "
    "name the folder that is meant in data.others"
)


def _clip(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    path.with_suffix(".txt").write_text("a cat")


def test_links_to_folders_are_rejected_clips_of_their_names(tmp_path: Path) -> None:
    root = tmp_path / "root"
    _clip(root / "day1" / "a.mp4")
    _clip(tmp_path / "other" / "b.mp4")
    targets = {"day2": "../other", "day3": "day1", "day4": "../gone", "day1/in": "in"}
    for name, target in {**targets, ".hidden": "../other", "notes.md": "day1/a.txt"}.items():
        (root / name).symlink_to(target)
    clip, *links = read_clips(root, "error")
    assert (clip.path, clip.caption) == ("day1/a.mp4", "a cat")
    assert [(link.path, link.fault) for link in links] == [
        (name, NOT_FOLLOWED) for name in ("day1/in", "day2", "day3", "day4")
    ]


def test_a_folder_of_links_alone_is_a_dataset_of_rejected_clips(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "day2").symlink_to(tmp_path)
    assert [clip.fault for clip in read_clips(tmp_path / "root", "error")] == [NOT_FOLLOWED]


def test_links_to_clips_and_texts_are_files_whatever_they_lead_to(tmp_path: Path) -> None:
    _clip(tmp_path / "a.mp4")
    (tmp_path / "b.mp4").symlink_to("a.mp4")
    (tmp_path / "b.txt").symlink_to("gone")
    (tmp_path / "c.mp4").symlink_to("gone")
    found = files_below(tmp_path)
    assert sorted(found.files) == ["a.mp4", "a.txt", "b.mp4", "b.txt", "c.mp4"]
    assert found.links == []


@pytest.mark.parametrize(
    ("number", "fix"), [(errno.EACCES, "let this user read it"), (errno.ESTALE, "look at its disk")]
)
@pytest.mark.parametrize("folder", ["day2", "day2/sub", ""])
def test_a_folder_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, number: int, fix: str
) -> None:
    for name in ("day1", "day2", "day2/sub"):
        _clip(tmp_path / name / "a.mp4")
    scan, listed = os.scandir, os.listdir

    def refuse(path: str | Path) -> None:
        if Path(path) == tmp_path / folder:
            raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "scandir", lambda path=".": refuse(path) or scan(path))
    monkeypatch.setattr(os, "listdir", lambda path=".": refuse(path) or listed(path))
    with pytest.raises(DataError) as caught:
        read_clips(tmp_path, "error")
    where = str(tmp_path / folder)
    assert str(caught.value) == f"folder {where!r} cannot be read: {os.strerror(number)}; {fix}"


def test_the_systems_own_folder_is_not_looked_at(tmp_path: Path) -> None:
    _clip(tmp_path / "lost+found" / "a.mp4")
    _clip(tmp_path / "b.mp4")
    assert [clip.path for clip in read_clips(tmp_path, "error")] == ["b.mp4"]
