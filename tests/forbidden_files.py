"""Files and folders that a user may not read, also where the tests run as root."""

import ctypes
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_VERSION = 0x20080522  # of the two calls' structures
_BEYOND_RIGHTS = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH

_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def forbidden(path: Path, mode: int = 0) -> Generator[None, None, None]:
    """A context in which a file or folder has these rights, and this thread none beyond them."""
    before = path.stat().st_mode
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    capabilities = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    assert _libc.capget(header, capabilities) == 0
    effective = capabilities[0]
    path.chmod(mode)
    try:
        capabilities[0] = effective & ~_BEYOND_RIGHTS
        assert _libc.capset(header, capabilities) == 0
        yield
    finally:
        capabilities[0] = effective
        assert _libc.capset(header, capabilities) == 0
        path.chmod(before)
