"""A file or folder at an address that the user named, such as `s3://bucket/clips`.

fsspec reads it, with the driver of the address's scheme. Paths that a dataset names are parts of
the address and never addresses of their own. A `RemotePath` is words only: every process opens its
own connections, since none survives a fork.
"""

import io
import os
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from arachne.core.credentials import without_credentials
from arachne.core.errors import ConfigError, DataError, first_line
from arachne.data.window import Window

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?::|//)")
_LOCAL_SCHEMES = ("file://", "local://")
_QUERY = re.compile(r"[?].*=.*", re.DOTALL)
_CHAIN = "::"
"""Parts an archive from where it lies: `zip://clips::s3://bucket/all.zip`."""

_BLOCK_BYTES = 2**18
"""Least that is asked for at once; large reads ask for all they need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePath:
    """What lies `inside` the address `url`; what a dataset uses of `pathlib.Path`.

    Where the connection fails, questions raise DataError, and reading raises OSError; all of them
    raise ConfigError where the address cannot be used, or what reads it is not installed. As text,
    and in all of these, it is without passwords and queries.
    """

    url: str
    inside: str = ""

    @property
    def name(self) -> str:
        """The last part, without a query; of an address without a path, that of the archive."""
        if self.inside:
            return self.inside.rstrip("/").rpartition("/")[2]
        _, path, after = _parted(self.url)
        paths = [path, *(link.rpartition("://")[2] for link in after.split(_CHAIN))]
        ends = [each.rstrip("/").rpartition("/")[2] for each in paths]
        return _QUERY.sub("", next(filter(None, ends), ""))

    @property
    def suffix(self) -> str:
        """The name's ending, with its dot."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> "RemotePath":
        """The folder that holds it."""
        if self.inside:
            return replace(self, inside=self.inside.rpartition("/")[0])
        before, path, after = _parted(self.url)
        return RemotePath(url=f"{before}{path.rstrip('/').rpartition('/')[0]}{after}")

    def __truediv__(self, path: str) -> "RemotePath":
        return replace(self, inside=f"{self.inside}/{path}" if self.inside else path)

    def __str__(self) -> str:
        return without_credentials(self._address)

    @property
    def _address(self) -> str:
        before, path, after = _parted(self.url)
        parts = (path.rstrip("/"), self.inside)
        return f"{before}{'/'.join(filter(None, parts))}{after}"

    def exists(self) -> bool:
        """Whether there is anything."""
        return self._kind() is not None

    def is_file(self) -> bool:
        """Whether it is a file."""
        return self._kind() == "file"

    def is_dir(self) -> bool:
        """Whether it is a folder, or the beginning of some file's name."""
        return self._kind() == "directory"

    def iterdir(self) -> Iterator["RemotePath"]:
        """What a folder holds."""
        with self._answering():
            system, key = self._opened()
            names = _relative(system.ls(key, detail=False), key)
        return (self / name for name in names if "/" not in name)

    def files_below(self) -> list[str]:
        """All files of a folder and those below it, relative to it."""
        with self._answering():
            system, key = self._opened()
            return _relative(system.find(key), key)

    def open(self, _mode: Literal["rb"] = "rb") -> io.BufferedReader:
        """Its bytes; only those that are read are asked for."""
        with _as_os_error():
            system, key = self._opened()
            file: Any = system.open(key, "rb", block_size=_BLOCK_BYTES)

        def read_at(position: int, buffer: memoryview) -> int:
            with _as_os_error():
                file.seek(position)
                content: bytes = file.read(len(buffer))
            buffer[: len(content)] = content
            return len(content)

        window: Any = Window(read_at, self.num_bytes(), file.close)
        return io.BufferedReader(window, _BLOCK_BYTES)

    def read_bytes(self) -> bytes:
        """All its bytes."""
        with self.open() as file:
            return file.read()

    def num_bytes(self) -> int:
        """How many bytes it has."""
        with _as_os_error():
            system, key = self._opened()
            size = system.info(key)["size"]
        if size is None:
            raise OSError("the server does not say how large it is")
        return int(size)

    def times_packed(self) -> float:
        """Its size over that of what its archive holds of it; 1 where the archive does not say."""
        with _as_os_error():
            system, key = self._opened()
            info = system.info(key)
        packed = info.get("compress_size")
        return 1.0 if packed is None else info["size"] / max(packed, 1)

    def stamp(self) -> str:
        """What changes whenever the file does, as far as its server tells: size, time, tag."""
        with _as_os_error():
            system, key = self._opened()
            return str(sorted(system.info(key).items(), key=str))

    def _kind(self) -> str | None:
        with self._answering():
            system, key = self._opened()
            try:
                return system.info(key)["type"]
            except FileNotFoundError:
                return None

    def _opened(self) -> tuple[Any, str]:
        """The file system, and how it calls this path."""
        system, root = _file_system(self.url, os.getpid())
        return system, "/".join(filter(None, (root.rstrip("/"), self.inside))) or "/"

    @contextmanager
    def _answering(self) -> Generator[None, None, None]:
        try:
            with _as_os_error():
                yield
        except OSError as error:
            raise DataError(
                f"cannot read {str(self)!r}: {error.strerror or error}; check the address, the "
                "connection and its credentials"
            ) from error


DatasetPath = Path | RemotePath
"""Where a dataset lies, or a file of it."""


def dataset_path(text: str) -> DatasetPath:
    """The path that a setting means: a local one, unless it begins with a scheme."""
    for scheme in _LOCAL_SCHEMES:
        if text.lower().startswith(scheme) and _CHAIN not in text:
            return Path(text[len(scheme) :])
    return RemotePath(url=text) if _ADDRESS.match(text) else Path(text)


def _parted(url: str) -> tuple[str, str, str]:
    """An address as what comes before its path, the path, and what comes after."""
    links = url.split(_CHAIN)
    first = next((index for index, link in enumerate(links) if "://" in link), len(links) - 1)
    scheme, sign, path = links[first].rpartition("://")
    before = _CHAIN.join([*links[:first], scheme + sign])
    return before, path, "".join(_CHAIN + link for link in links[first + 1 :])


def _relative(keys: list[str], folder: str) -> list[str]:
    """Names relative to a folder; its own, and those of places elsewhere, are left out."""
    prefix = f"{folder.strip('/')}/".lstrip("/")
    paths = (key.strip("/") for key in keys)
    return [path.removeprefix(prefix) for path in paths if path and path.startswith(prefix)]


@lru_cache(maxsize=8)
def _file_system(url: str, _process: int) -> tuple[Any, str]:
    """What reads an address in this process, and how it calls the address.

    Raises:
        ConfigError: The address cannot be used, or a package is missing.
        Exception: The driver's own, where an archive's container cannot be opened.
    """
    shown = without_credentials(url)
    # fsspec ships no types.
    try:
        core: Any = import_module("fsspec.core")
        local: Any = import_module("fsspec.implementations.local")
    except ImportError as error:
        raise ConfigError(
            f"address {shown!r} needs the package fsspec, which is not installed; "
            "pip install 'arachne[remote]'"
        ) from error
    try:
        system, root = core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise ConfigError(
            f"address {shown!r} needs a package that is not installed: {_words(error)}"
        ) from error
    except ValueError as error:
        raise ConfigError(f"address {shown!r} cannot be used: {_words(error)}") from error
    if not root.strip("/") and _CHAIN not in url:
        raise ConfigError(
            f"address {shown!r} names no folder; add it, such as {_with_folder(shown)}"
        )
    innermost = system
    while (below := getattr(innermost, "fs", None)) is not None:
        innermost = below
    if isinstance(innermost, local.LocalFileSystem):
        # Links in it could lead out of it, which only the gate for local paths sees.
        raise ConfigError(f"address {shown!r} is a folder of this machine; name it by its path")
    return system, root


def _with_folder(address: str) -> str:
    scheme, sign, path = address.partition("://")
    return f"{scheme}{sign}{path.rstrip('/')}/x" if path.strip("/") else f"{scheme}{sign}x"


def _words(error: Exception) -> str:
    return without_credentials(first_line(error))


@contextmanager
def _as_os_error() -> Generator[None, None, None]:
    """Drivers raise what their libraries do; to callers a file cannot be read."""
    try:
        yield
    except ConfigError:
        raise
    except OSError as error:
        # HTTP's drivers say which address failed, with all that is in it.
        if without_credentials(str(error)) == str(error):
            raise
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
        raise kind(_words(error)) from None
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {_words(error)}") from error
