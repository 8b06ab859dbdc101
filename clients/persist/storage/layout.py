"""The layout of the directory of an embedded location."""

import os
from pathlib import Path
from typing import Final

from persist.errors import InvalidArgument

BLOB_NAME: Final = "blob"
"""The folder of Blob."""
CONSENSUS_NAME: Final = "consensus.db"
"""The file of Consensus."""
LEADERS_NAME: Final = "leaders"
"""The folder of who leads: for each environment a file that its leader has locked, and a socket."""


def root_of(location: str | Path) -> Path:
    """The directory of a location, which need not be there. Raises InvalidArgument: it cannot be one."""
    root = Path(location).expanduser().absolute()
    # Links that lead nowhere are found out where they are followed.
    if os.path.exists(root) and not root.is_dir():
        raise InvalidArgument("a location is a directory, and this is a file", hint="check the path", location=root)
    if root.is_dir() and not os.access(root, os.X_OK):
        raise InvalidArgument(
            "this directory may not be entered", hint="ask its owner for the right to read and enter it", location=root
        )
    return root
