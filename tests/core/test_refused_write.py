"""What a refused write is called."""

import errno
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

import arachne
from arachne.cli.written_file import write_file
from arachne.core.errors import DataError
from arachne.core.refused_write import fix_of, refusal, refusal_at, refusal_of_library


@pytest.fixture
def _small_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("_small_files")
def test_a_page_over_the_limit_on_sizes_is_refused_with_the_way_to_raise_it(tmp_path: Path):
    with pytest.raises(DataError, match=r"may write files of 1,000 bytes.*ulimit -f unlimited"):
        write_file(tmp_path / "x.html", "x" * 5000)


def test_other_refusals_are_the_systems_words():
    assert refusal(OSError(errno.ENOSPC, "No space left on device")) == "No space left on device"
    assert refusal(OSError("words of a library")) == "words of a library"


def test_a_file_is_named_unless_the_message_has_it():
    error = PermissionError(errno.EACCES, "Permission denied", "run/.lock")
    assert refusal_at(error, Path("run")) == "Permission denied: 'run/.lock'"
    assert refusal_at(error, Path("run/.lock")) == "Permission denied"
    assert refusal_at(OSError(errno.ENOSPC, "No space left on device")) == "No space left on device"


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EACCES, "let this user read and write it"),
        (errno.EROFS, "mount its disk for writing"),
        (errno.EISDIR, "move it away"),
        (errno.EMFILE, "close other files, or raise ulimit -n"),
        (errno.ESTALE, "look at the disk"),
        (errno.EINVAL, "look at the disk"),
    ],
)
def test_each_refusal_is_told_with_what_helps(number: int, fix: str):
    assert fix_of(OSError(number, "words")) == fix


@pytest.mark.usefixtures("_small_files")
def test_a_library_that_tells_the_system_s_error_in_words_is_understood():
    error = RuntimeError("Error while serializing: I/O error: File too large (os error 27)")
    assert "ulimit -f unlimited" in refusal_of_library(error)
    assert refusal_of_library(RuntimeError("other words")) == "other words"


def test_no_message_of_a_refused_write_has_words_of_its_own():
    root = Path(arachne.__file__).parent
    texts = {path: path.read_text() for path in root.rglob("*.py")}
    own = re.compile(r"cannot (write|be written)[^\n]*(\n\s*f?\"[^\n]*)*strerror")
    assert [path for path, text in texts.items() if own.search(text)] == []
