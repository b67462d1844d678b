"""Text files that people wrote on any system, as plain text."""

from collections.abc import Callable, Set
from itertools import count, takewhile

from arachne.core.errors import DataError
from arachne.data.remote_path import DatasetPath, RemotePath
from arachne.data.table_room import check_text_room


def read_text(path: DatasetPath, name: str) -> str:
    """A UTF-8 file's text without its byte order mark; `name` is what messages call it.

    Raises:
        DataError: The file is not UTF-8, cannot be read, or is larger than the memory.
    """
    try:
        is_remote = isinstance(path, RemotePath)
        check_text_room(path.num_bytes() if is_remote else path.stat().st_size, name)
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {name!r}: {error.strerror or error}") from error
    return decoded_text(content, name)


def decoded_text(content: bytes, name: str) -> str:
    """UTF-8 bytes as text, without a byte order mark; `name` is what messages call them.

    Raises:
        DataError: They are not UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{name!r} is not UTF-8 (byte {error.start}); save it as UTF-8") from error


def lines_of(text: str) -> list[str]:
    """A text's lines, which end with `\\n`, `\\r` or both.

    `str.splitlines` also ends them at U+2028, U+0085 and others, which captions may hold.
    """
    return plain_ends(text).split("\n")


def as_caption(text: str) -> str:
    """A caption without outer white space, its line ends as `\\n`."""
    return plain_ends(text).strip()


def captions_in_turn(
    stem: str, stems: Set[str], text_of: Callable[[str], str | None]
) -> tuple[str, ...]:
    """The captions of a media file `a.mp4`: those of `a.txt`, `a.2.txt`, `a.3.txt`, ..., up to one
    that is not there or is another media file's own; what is empty is none.

    Args:
        stem: The media file's path without its ending.
        stems: Those of all media files.
        text_of: The text of a file as a caption; None if there is none. May raise DataError.
    """
    numbered = takewhile(lambda each: each not in stems, (f"{stem}.{n}" for n in count(2)))
    others = takewhile(bool, (text_of(f"{each}.txt") for each in numbered))
    return tuple(text for text in (text_of(f"{stem}.txt"), *others) if text)


def half_character(text: str) -> str | None:
    """The first half of a character (a lone surrogate) as it is escaped, `\\ud83d`; None if none.

    JSON can hold them, where an emoji was cut in two; UTF-8, and so a manifest, cannot.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return written_out(text[error.start])
    return None


def written_out(text: str) -> str:
    """A text whose halves of characters are escaped, so that it can be stored."""
    return text.encode("utf-8", "backslashreplace").decode()


def plain_ends(text: str) -> str:
    """A text with `\n` at the end of each line."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
