"""Processes of ours that run one of our modules in a Python of their own."""

import os
import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line; no module in the folder that the user stands in is imported in its place.

    That may be a dataset's folder, with files of any name.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment() -> dict[str, str]:
    """The environment, with which it finds all modules that this process finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
