"""What the machine refuses to files of newest rows, as the library's own error."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from persist import Determinate, InvalidArgument

_NEVER: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}
)
"""Why a folder cannot be made with all above it, whatever is waited for: a file is there, or it is another's place."""


_OTHERS: Final = {
    "consensus.db": "a location of persist is in that folder",
    "kept.json": "the state of one export's upserts is kept right in that folder",
    "lock": "the state of one export's upserts, or what another program locks, is right in that folder",
}
"""What shows, by a file's name, that a folder is another's."""


def check_folder(path: str | Path) -> Path:
    """The folder, made if need be. Raises InvalidArgument where it can never be, or is another's, and OSError for what
    may pass."""
    folder = Path(path)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in _NEVER:
            raise
        raise InvalidArgument(
            "the state of upserts cannot be kept there: no such folder can be made",
            hint="name a folder of your own with --state-dir",
            path=folder,
            cause=error,
        ) from error
    for name, what in _OTHERS.items():
        if (folder / name).exists():
            raise InvalidArgument(what, hint="name an empty folder, or the one above, with --state-dir", path=folder)
    return folder


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Have a full disk, too many open files, or a folder that is gone, be waited for. Raises Determinate."""
    try:
        yield
    except OSError as error:
        raise Determinate(
            "the state of upserts cannot be kept on this machine",
            hint="free space, or name other folders: --state-dir, and TMPDIR for large steps",
            cause=error,
        ) from error
