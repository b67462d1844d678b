"""Errors that a user can act on.

ArachneError            printed as one line, without a traceback; exit code 2
├── ConfigError         a setting is unknown, or has a value that cannot work
├── DataError           a dataset, file or clip cannot be used
│   └── DamagedFileError    its content is none that was written
├── InfeasibleError     no plan exists for this workload on this cluster
├── CheckpointError     a checkpoint is missing, damaged, or of another model
├── LostRankError       a rank ended, or stopped answering, before the run was over
└── RankMemoryError     a rank ran out of memory where nothing goes on without it

Interrupted             a signal ended the work; exit code 128 + the signal's number
Any other exception is a bug of ours; exit code 1.
"""


class Interrupted(KeyboardInterrupt):
    """A signal ended the work.

    Args:
        number: The signal's number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class ArachneError(Exception):
    """Base of every error that Arachne raises on purpose; the message says found, needed, fix.

    Args:
        message: Becomes one line. It may quote names from files, so line ends and all else that
            does not print, such as what moves a terminal's cursor, are written out (`\\n`).
    """

    def __init__(self, message: str) -> None:
        super().__init__(visible(message))


def visible(text: str) -> str:
    """One line of what prints: line ends, and what moves a terminal's cursor, are written out."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def first_line(error: Exception) -> str:
    """The first line of what an error of a library says, or its class where it says nothing."""
    return next(filter(None, str(error).splitlines()), type(error).__name__)


class ConfigError(ArachneError):
    """A setting is unknown, or has a value that cannot work."""


class DataError(ArachneError):
    """A dataset, file or clip cannot be used."""


class DamagedFileError(DataError):
    """A file's content is none that was written."""


class InfeasibleError(ArachneError):
    """No plan exists for this workload on this cluster."""


class CheckpointError(ArachneError):
    """A checkpoint is missing, damaged, or of another model."""


class LostRankError(ArachneError):
    """A rank ended, or stopped answering, before the run was over."""


class RankMemoryError(ArachneError):
    """A rank, or a process that prepares, ran out of memory where nothing goes on without it."""
