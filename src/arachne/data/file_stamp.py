"""What changes whenever a file does, without reading it."""

import hashlib

from arachne.data.remote_path import DatasetPath, RemotePath

Stamp = tuple[int | str, ...]


def stamp_of(path: DatasetPath) -> Stamp:
    """Device, inode, size, modification time and change time of a file.

    The kernel sets the change time, and no copy restores it. Of a remote file, what its server
    tells of it.
    """
    if isinstance(path, RemotePath):
        return (path.stamp(),)
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def lasting_stamp(path: DatasetPath) -> str:
    """What of that ledgers remember: `SIZE-MODIFIED:CHANGED`, times in ns; of a remote file
    `DIGEST:`, since addresses may hold what nobody else should read.

    Without device and inode, which a network file system may number anew each time.
    """
    if isinstance(path, RemotePath):
        return hashlib.sha256(path.stamp().encode()).hexdigest()[:32] + ":"
    stat = path.stat()
    return f"{stat.st_size}-{stat.st_mtime_ns}:{stat.st_ctime_ns}"


def may_be_copy(stamp: str, other: str) -> bool:
    """Whether two lasting stamps agree in what a copy keeps: size and modification time."""
    return stamp.partition(":")[0] == other.partition(":")[0]


def num_bytes_of(path: DatasetPath) -> int:
    """How many bytes a file has."""
    return path.num_bytes() if isinstance(path, RemotePath) else path.stat().st_size
