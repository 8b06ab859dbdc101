"""What kind of file system a path lies on. Source: reliability.md section 4, SQLite."""

import os
from typing import Final

FILE_MODE: Final = 0o640
FOLDER_MODE: Final = 0o750
"""Modes of what is made: the owner writes, the group reads, others see nothing. The umask may take away more."""
VOLATILE: Final = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
"""File systems that are empty after a power cut."""

_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "virtiofs", "vboxsf"}
)


File = tuple[int, int]
"""Device and inode: they distinguish a file or folder from another one that has its path now."""


def file_at(path: str) -> File | None:
    """What is at ``path`` now; None: nothing."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def filesystem_of(path: str, mounts: str | None = None) -> str | None:
    """The type of the file system ``path`` lies on; None where the system does not say.

    ``mounts``: the text of ``/proc/self/mountinfo``, read unless given.
    """
    if mounts is None:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
                mounts = file.read()
        except OSError:
            return None
    real = os.path.realpath(path)
    best, kind = "", None
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        where = _unescape(left.split(" ")[4])
        inside = real == where or real.startswith(where.rstrip("/") + "/")
        # The last of equal mount points is the one on top.
        if inside and len(where) >= len(best):
            best, kind = where, right.split(" ")[0]
    return kind


def is_network(kind: str | None) -> bool:
    """Whether it is a network file system, whose locks and fsync cannot be relied upon."""
    return kind is not None and (kind in _NETWORK or kind == "fuse" or kind.startswith("fuse."))


def _unescape(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text
