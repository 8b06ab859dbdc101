"""The layout of the directory of an embedded location."""

from typing import Final

BLOB_NAME: Final = "blob"
"""The folder of Blob."""
CONSENSUS_NAME: Final = "consensus.db"
"""The file of Consensus."""
LEADERS_NAME: Final = "leaders"
"""The folder of who leads: for each environment a file that its leader has locked, and a socket."""
