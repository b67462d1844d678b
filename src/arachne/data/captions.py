"""Text files that people wrote on any system, as plain text."""

from pathlib import Path

from arachne.core.errors import DataError


def read_text(path: Path, name: str) -> str:
    """A UTF-8 file's text without its byte order mark; `name` is what messages call it.

    Raises:
        DataError: The file is not UTF-8, or cannot be read.
    """
    try:
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


def as_caption(text: str) -> str:
    """A caption without outer white space, its line ends as `\\n`."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()
