"""Files that are written anew, or aside."""

import os
from pathlib import Path

import pytest

from arachne.core.new_file import opened_anew, written_aside
from tests.forbidden_files import forbidden


def test_what_had_the_name_goes_and_its_other_names_keep_their_content(tmp_path: Path):
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_text("before")
    os.link(path, other)
    with opened_anew(path) as file:
        file.write(b"after")
    assert (path.read_text(), other.read_text()) == ("after", "before")


def _written_half(path: Path) -> None:
    with written_aside(path) as partial:
        partial.write_text("half")
        raise OSError("full")


def test_a_file_that_cannot_be_written_to_its_end_leaves_what_was_there(tmp_path: Path):
    path = tmp_path / "page.html"
    path.write_text("before")
    with pytest.raises(OSError, match="full"):
        _written_half(path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_links_lead_where_they_led_and_modes_stay(tmp_path: Path):
    path, link = tmp_path / "page.html", tmp_path / "link.html"
    path.write_text("before")
    path.chmod(0o600)
    link.symlink_to(path)
    with written_aside(link) as partial:
        partial.write_text("after")
    assert link.is_symlink()
    assert path.read_text() == "after"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_to_itself_is_refused_as_the_system_does(tmp_path: Path):
    path = tmp_path / "loop.html"
    path.symlink_to(path)
    with pytest.raises(OSError, match="Too many levels"), written_aside(path):
        pass


def test_the_longest_names_can_be_written(tmp_path: Path):
    path = tmp_path / ("a" * 255)
    with written_aside(path) as partial:
        partial.write_text("whole")
    assert path.read_text() == "whole"


def test_where_only_the_file_itself_may_be_written_it_is_written_in_place(tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "page.html"
    path.write_text("before")
    with forbidden(folder, 0o555), written_aside(path) as partial:
        partial.write_text("after")
    assert path.read_text() == "after"
