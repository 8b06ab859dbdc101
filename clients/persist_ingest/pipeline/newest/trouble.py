"""What the machine refuses to files of newest rows, as the library's own error."""

import contextlib
from collections.abc import Iterator

from persist import Determinate


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
