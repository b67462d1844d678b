"""What changes whenever a file does, without reading it."""

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


def num_bytes_of(path: DatasetPath) -> int:
    """How many bytes a file has."""
    return path.num_bytes() if isinstance(path, RemotePath) else path.stat().st_size
