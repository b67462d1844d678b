"""What is written goes to paths of this machine's file systems, and to no address."""

import re
from argparse import ArgumentTypeError
from pathlib import Path

from arachne.core.credentials import without_credentials

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(?::|/)")
"""`s3://bucket`, `file:/tmp`, `zip::s3://…`: as a path, `s3:` would be a folder here."""


def address_fault(text: str) -> str:
    """What is wrong with an address where a path has to be, and what to do; empty for a path."""
    if not _ADDRESS.match(text):
        return ""
    return (
        f"{without_credentials(text)!r}, an address, to which nothing is written; name a path, "
        "such as one of a file system that all machines share, and copy from there afterwards"
    )


def local_path(text: str) -> Path:
    """The path that a command line names.

    Raises:
        ArgumentTypeError: It is an address.
    """
    if fault := address_fault(text):
        raise ArgumentTypeError(f"it is {fault}")
    return Path(text)
