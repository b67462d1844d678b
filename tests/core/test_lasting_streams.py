"""What is printed to a stream that is closed, full or left is lost, and ends nothing."""

import errno
import subprocess
import sys

import pytest

KEPT = """
import os, sys
from arachne.core.lasting_streams import keep_standard_streams
output = keep_standard_streams()
numbers = [os.open(__file__, os.O_RDONLY)]
print("to stdout")
print("to stderr", file=sys.stderr)
for stream in (sys.stdout, sys.stderr):
    stream.flush()
    assert stream.isatty() is False
print("more", flush=True)
with open(sys.argv[1], "w") as file:
    file.write(f"{output.error.errno if output.error else 0} {min(numbers)}")
"""


@pytest.fixture
def found(tmp_path):
    """The error of standard output, and the number of a file that is opened, for a redirection."""
    script = tmp_path / "script.py"
    script.write_text(KEPT)

    def run(redirection: str) -> tuple[int, int]:
        command = f"{sys.executable} {script} {tmp_path / 'found'} {redirection}"
        ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert (ended.returncode, "Traceback" in ended.stderr, "Exception" in ended.stderr) == (
            0,
            False,
            False,
        )
        number, file = (tmp_path / "found").read_text().split()
        return int(number), int(file)

    return run


@pytest.mark.parametrize(
    ("redirection", "number"),
    [
        ("", 0),
        (">&-", errno.EBADF),
        (">/dev/full", errno.ENOSPC),
        ("2>&-", 0),
        ("2>/dev/full", 0),
        ("<&- >&- 2>&-", errno.EBADF),
    ],
)
def test_printing_goes_on_and_no_file_takes_the_number_of_a_stream(found, redirection, number):
    error, file = found(redirection)
    assert error == number
    assert file > 2
