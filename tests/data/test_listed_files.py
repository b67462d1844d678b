"""Files that a table or list names by other paths than those they have in the dataset's folder."""

from pathlib import Path

import pytest

from arachne.core.families import family_named
from arachne.data.inspect import inspect_dataset
from arachne.data.layouts import read_clips
from arachne.data.shapes import ShapeRules

WAN = family_named("wan").geometry
RULES = ShapeRules(fps=16.0, resolution=64, frame_buckets=(1, 17))


def _dataset(root: Path, *paths: str, files: tuple[str, ...]) -> Path:
    """A folder with these files, and a table that names these paths."""
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(b"x")
    rows = "".join(f"{path},x\n" for path in paths)
    (root / "OpenVid-1M.csv").write_text("video,caption\n" + rows)
    return root


def _paths(root: Path) -> list[str]:
    return [clip.path for clip in read_clips(root, "error")]


def test_a_table_may_lie_above_the_folders_with_its_files(tmp_path: Path) -> None:
    files = ("video/a.mp4", "more/sub/b.mp4", "more/b.txt", "other/xc.mp4", ".trash/a.mp4")
    root = _dataset(tmp_path, "a.mp4", "sub/b.mp4", "c.mp4", files=files)
    assert _paths(root) == ["video/a.mp4", "more/sub/b.mp4", "c.mp4"]
    (root / "videos.txt").write_text("a.mp4\n")
    assert [clip.path for clip in read_clips(root, "empty")] == ["video/a.mp4"]


def test_a_path_may_be_spelled_with_other_code_points_than_its_file(tmp_path: Path) -> None:
    composed, apart = "caf\u00e9.mp4", "cafe\u0301.mp4"
    both = ("s/\u00e4.mp4", "s/a\u0308.mp4")
    root = _dataset(tmp_path, composed, "a.mp4", "\u00e9.mp4", *both, files=(apart, "a.mp4", *both))
    assert _paths(root) == [apart, "a.mp4", "\u00e9.mp4", *both]


def test_a_path_that_may_mean_two_files_below_is_a_rejected_row(tmp_path: Path) -> None:
    root = _dataset(tmp_path, "1.mp4", "2.mp4", files=("a/1.mp4", "b/1.mp4", "b/2.mp4"))
    first, second = read_clips(root, "error")
    assert first.fault == (
        "path '1.mp4' is no file in the dataset's folder, but 2 below it end so: a/1.mp4, b/1.mp4; "
        "write the path of the one that is meant, or rename the others"
    )
    assert (second.path, second.fault) == ("b/2.mp4", "")


def test_a_file_that_was_moved_away_does_not_train_while_others_are_in_their_place(
    tmp_path: Path,
) -> None:
    root = _dataset(tmp_path, "1.mp4", "2.mp4", files=("rejected/1.mp4", "2.mp4"))
    reasons = [row.reason for row in inspect_dataset(root, RULES, WAN, "error", 1).rows]
    assert reasons[0] == "path '1.mp4' is not a file in the dataset's folder"


def test_files_in_their_place_count_also_where_most_are_not_there(tmp_path: Path) -> None:
    paths = [f"{number}.mp4" for number in range(200)]
    root = _dataset(tmp_path, *paths, files=("199.mp4", "b/199.mp4", "b/198.mp4"))
    assert _paths(root)[197:] == ["197.mp4", "b/198.mp4", "199.mp4"]


def test_an_absolute_path_inside_the_folder_is_relative_to_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (tmp_path / "alias").symlink_to(root)
    inside = ("clips/a.mp4", "none.mp4", "../root/clips/../clips/a.mp4")
    absolute = [f"{root}/{path}" for path in inside] + [f"{tmp_path}/alias/clips/a.mp4"]
    _dataset(root, *absolute, files=("clips/a.mp4",))
    expected = ["clips/a.mp4", "none.mp4", "clips/a.mp4", "clips/a.mp4"]
    for named in (root, tmp_path / "alias", root / "OpenVid-1M.csv"):
        assert _paths(named) == expected


def test_an_absolute_path_that_leads_out_of_the_folder_is_rejected_by_name(tmp_path: Path) -> None:
    root, secret = tmp_path / "root", tmp_path / "root2" / "secret.mp4"
    secret.parent.mkdir()
    secret.write_bytes(b"x")
    links = (root / "link.mp4", root / "out")
    absolute = [secret, root / "../root2/secret.mp4", root / "out/secret.mp4", root / "link.mp4"]
    _dataset(root, "a.mp4", *map(str, absolute), files=("a.mp4", "sub/secret.mp4"))
    for link, target in zip(links, (secret, secret.parent), strict=True):
        link.symlink_to(target)
    rows = inspect_dataset(root, RULES, WAN, "error", 1).rows
    for row, path in zip(rows[1:4], absolute, strict=False):
        assert (row.clip.path, row.content) == (str(path), "")
        assert (
            row.reason == f"path '{path}' is absolute; name files relative to the dataset's folder"
        )
    assert (rows[4].reason, rows[4].content) == (
        "path 'link.mp4' is a link that leaves the dataset's folder",
        "",
    )


@pytest.mark.parametrize("path", ["/", "//", "/..", "/a\\0b/c.mp4", f"/{'x' * 5000}/a.mp4"])
def test_paths_that_cannot_be_are_rejected(tmp_path: Path, path: str) -> None:
    root = _dataset(tmp_path, path.replace("\\0", "\0"), files=("a/c.mp4",))
    (row,) = inspect_dataset(root, RULES, WAN, "error", 1).rows
    assert (row.status, row.content) == ("rejected", "")
