"""Which files of a dataset's folder are meant by what its tables and lists say."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath

from arachne.core.units import names_text
from arachne.data.clip_table import FindMedia
from arachne.data.files_below import files_below, media_of, same_letters
from arachne.data.media_suffixes import has_video_name
from arachne.data.remote_path import DatasetPath
from arachne.data.source_media import has_source
from arachne.data.uncaptioned import Uncaptioned

_NUM_TRIED = 100
"""Files of a table that are looked for at their paths before others below count. *Assumption*:
where so many are not there, the paths begin at other folders."""


def media_finder(root: DatasetPath) -> FindMedia:
    """What finds media files anywhere below a folder by their names without endings."""

    @cache
    def by_stem() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path in media_of(files_below(root).files):
            found.setdefault(Path(path).stem, []).append(path)
        return found

    def find(stem: str) -> Sequence[str]:
        """A picture that is called like a video is its thumbnail."""
        found = by_stem().get(stem, [])
        return [path for path in found if has_video_name(path)] or found

    return find


def located(root: DatasetPath, clips: Sequence[Uncaptioned]) -> list[Uncaptioned]:
    """Listed clips with the paths that their files have in the dataset's folder.

    An absolute path inside the folder is relative to it, and letters may be spelled with other code
    points than the file's. Where none of the first files is at its
    path, each path is that of the one file below that ends so; with several the clip has a fault.
    What is not there keeps its path, and is rejected later, by name.
    """
    if isinstance(root, Path):
        clips = _spelled_as_files(root, _relative(root, clips))
    else:
        clips = list(clips)
    paths = list(dict.fromkeys(clip.path for clip in clips if not clip.fault))
    if not paths or any(has_source(root, path) for path in paths[:_NUM_TRIED]):
        return clips
    by_name: dict[str, list[str]] = {PurePosixPath(path).name: [] for path in paths}
    for file in files_below(root).files:
        if (name := PurePosixPath(file).name) in by_name:
            by_name[name].append(file)
    return [clip if clip.fault else _below(clip, by_name) for clip in clips]


def _relative(root: Path, clips: Sequence[Uncaptioned]) -> list[Uncaptioned]:
    """Links are resolved on the way to a file, not the file's own: the gate to files does that."""
    real_root = root.resolve()

    @cache
    def folder_in_root(folder: str) -> PurePosixPath | None:
        try:
            return PurePosixPath(Path(folder).resolve().relative_to(real_root))
        except (OSError, ValueError, RuntimeError):  # outside, or no path at all
            return None

    def relative(path: str) -> str:
        folder, slash, name = path.rpartition("/")
        inside = folder_in_root(folder + slash) if path.startswith("/") else None
        return path if inside is None else str(inside / name)

    return [replace(clip, path=relative(clip.path)) for clip in clips]


def _spelled_as_files(root: Path, clips: Sequence[Uncaptioned]) -> list[Uncaptioned]:
    paths = [clip.path for clip in clips if not clip.path.isascii() and not clip.fault]
    if all(has_source(root, path) for path in paths[:_NUM_TRIED]):
        return list(clips)
    files = frozenset(files_below(root).files)
    absent = {path for path in paths if path not in files}
    spelled: dict[str, list[str]] = {same_letters(path): [] for path in absent}
    for file in files:
        if not file.isascii() and (letters := same_letters(file)) in spelled:
            spelled[letters].append(file)

    def as_file(clip: Uncaptioned) -> Uncaptioned:
        found = spelled[same_letters(clip.path)] if clip.path in absent else []
        return replace(clip, path=found[0]) if len(found) == 1 else clip

    return list(map(as_file, clips))


def _below(clip: Uncaptioned, by_name: dict[str, list[str]]) -> Uncaptioned:
    same_name = by_name[PurePosixPath(clip.path).name]
    found = [file for file in same_name if f"/{file}".endswith(f"/{clip.path}")]
    if clip.path in found or not found:
        return clip
    if len(found) == 1:
        return replace(clip, path=found[0])
    fault = (
        f"path {clip.path!r} is no file in the dataset's folder, but {len(found)} below it end "
        f"so: {names_text(found)}; write the path of the one that is meant, or rename the others"
    )
    return replace(clip, fault=fault)
