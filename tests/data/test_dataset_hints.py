"""What newcomers do with a folder that Arachne cannot read as it is, and what they are told."""

from pathlib import Path

import pytest

from arachne.core.errors import DataError
from arachne.data.layouts import read_clips


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.mp4": "", "a.json": "{}"}, r"no caption .* 'a\.json' is there, but captions beside"),
        (
            {"x/a.mp4": "", "x/a.caption": "x"},
            r"'x/a\.caption' is there, .* read from \.txt, or set",
        ),
        (
            {"a.mp4": "", "captions.xlsx": ""},
            r"'captions\.xlsx' is there, .*: save it as CSV, or set",
        ),
        ({"captions.tsv": "a.mp4\tx"}, r"holds no clip; 'captions\.tsv' is there, but only \.csv"),
        ({"clips.zip": "PK"}, r"holds no clip; 'clips\.zip' is an archive, .*: unpack it"),
        (
            {"train/00000.tar": ""},
            r"holds no clip; 'train/00000\.tar' is a shard: name '.*/train' as the dataset$",
        ),
        ({"a.mp4": "", "a.TXT": "x"}, r"'a\.TXT' is there, but captions .* from \.txt, or set"),
        ({"readme.md": ""}, r"holds no clip; add metadata\.csv with columns video and caption"),
        (
            {"train/a.mp4": "", "train/metadata.csv": "video,caption\na.mp4,x\n"},
            r"'train/metadata\.csv' lists clips: name '.*/train' as the dataset, or set",
        ),
        ({"metadata.csv": "video;caption\na.mp4;x\n"}, r"; a semicolon stands between its columns"),
        ({"metadata.csv": "video\tcaption\na.mp4\tx\n"}, r"; a tabulator stands between"),
        ({"metadata.csv": "film,words\na.mp4,x\n"}, r"found: film, words$"),
        (
            {"metadata.csv": "path\n../a.mp4\n"},
            r"clip '\.\./a\.mp4' has no caption .* add it, or set",
        ),
    ],
)
def test_the_message_says_what_is_there_and_what_to_do(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    (tmp_path / "a.json").write_text("outside")
    root = tmp_path / "data"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_clips(root, "error")
    assert "\n" not in str(caught.value)


def test_captions_of_its_own_are_enough_for_a_folder_with_datasets_below(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "metadata.csv").write_text("video,caption\nb.mp4,x\n")
    (tmp_path / "a.mp4").touch()
    (tmp_path / "a.txt").write_text("a cat")
    assert [clip.caption for clip in read_clips(tmp_path, "error")] == ["a cat"]
