"""What changes whenever a file does, without reading it."""

from pathlib import Path

Stamp = tuple[int, int, int, int, int]


def stamp_of(path: Path) -> Stamp:
    """Device, inode, size, modification time and change time of a file.

    The kernel sets the change time, and no copy restores it.
    """
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
