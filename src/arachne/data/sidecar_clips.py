"""Media files anywhere below a folder, each with its caption in a text file of its name."""

from collections.abc import Callable, Sequence
from pathlib import Path

from arachne.core.errors import DataError
from arachne.data.captions import as_caption, captions_in_turn, read_text
from arachne.data.files_below import files_below, media_of, same_letters
from arachne.data.remote_path import DatasetPath
from arachne.data.source_path import source_path
from arachne.data.uncaptioned import Uncaptioned

_UNFOLLOWED = (
    "it is a symbolic link to a folder, or to nothing, and is not followed; put the clips here, or "
    "name the folder that is meant in data.others"
)


def sidecar_clips(root: DatasetPath) -> list[Uncaptioned]:
    """The media files below a folder with the captions in `a.txt`, `a.2.txt`, ..., and a clip that
    is rejected for each link that may lead to more of them.

    Raises:
        DataError: A folder cannot be read, or a name is not UTF-8.
    """
    below = files_below(root)
    texts = _Texts(below.files)

    def text_of(name: str) -> str | None:
        found = texts.find(name)
        return None if found is None else as_caption(read_text(source_path(root, found), found))

    media = {path: _stem(path) for path in media_of(below.files)}
    stems = frozenset(media.values())
    clips = [_clip(path, stem, stems, text_of) for path, stem in media.items()]
    links = [Uncaptioned(path=p, caption=None, fault=_UNFOLLOWED) for p in sorted(below.links)]
    return clips + links


def has_captioned_media(root: DatasetPath) -> bool:
    """Whether any media file below a folder has a text file of its name."""
    paths = files_below(root).files
    texts = _Texts(paths)
    return any(texts.find(f"{_stem(path)}.txt") for path in media_of(paths))


class _Texts:
    """The text files among some paths."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._names = {path for path in paths if path.endswith(".txt")}
        self._by_letters = {same_letters(path): path for path in self._names}

    def find(self, name: str) -> str | None:
        """The one of this name, or that is only spelled with other code points."""
        return name if name in self._names else self._by_letters.get(same_letters(name))


def _stem(path: str) -> str:
    return Path(path).with_suffix("").as_posix()


def _clip(
    path: str, stem: str, stems: frozenset[str], text_of: Callable[[str], str | None]
) -> Uncaptioned:
    try:
        captions = captions_in_turn(stem, stems, text_of)
    except DataError as error:
        return Uncaptioned(path=path, caption=None, fault=str(error))
    return Uncaptioned(
        path=path, caption=captions[0] if captions else None, other_captions=captions[1:]
    )
