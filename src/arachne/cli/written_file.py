"""A file that a verb writes at its end: looked at before all the work, and written in one line."""

from pathlib import Path

from arachne.core.errors import DataError
from arachne.core.new_file import written_aside
from arachne.core.refused_write import refusal


def check_place(path: Path) -> None:
    """Look whether a file can be written there.

    Raises:
        DataError: The path is a folder, or is in none, or nothing can have that name.
    """
    try:
        is_folder, has_folder = path.is_dir(), path.parent.is_dir()
    except OSError as error:
        raise _unwritable(path, error) from error
    if is_folder:
        raise DataError(f"cannot write {str(path)!r}: it is a folder; name a file in it")
    if not has_folder:
        raise DataError(
            f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}; choose another"
        )


def check_page(path: Path | None) -> None:
    """Look whether a page can be written there; None asks for no page.

    Raises:
        DataError: As `check_place`, or a file is there that is called like no page.
    """
    if path is None:
        return
    check_place(path)
    if path.is_file() and path.suffix.lower() not in (".html", ".htm"):
        raise DataError(
            f"{str(path)!r} is there and called like no page, so that it is not replaced; choose "
            "another name, such as page.html"
        )


def write_file(path: Path, text: str, *, fix: str = "choose another") -> None:
    """Write a file whole: if it cannot be, what was there stays. `fix` is what users may do then.

    Raises:
        DataError: It cannot be written.
    """
    content = text.encode(errors="replace")
    try:
        is_stream = path.is_absolute() and path.is_relative_to("/dev")  # perhaps on to a file
        if is_stream or (path.exists() and not path.is_file()):
            path.write_bytes(content)
            return
        with written_aside(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise _unwritable(path, error, fix) from error


def _unwritable(path: Path, error: OSError, fix: str = "choose another") -> DataError:
    return DataError(f"cannot write {str(path)!r}: {refusal(error)}; {fix}")
