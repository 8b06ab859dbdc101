"""What lies where in the directory of an embedded location."""

from typing import Final

BLOB_NAME: Final = "blob"
"""The folder of Blob."""
CONSENSUS_NAME: Final = "consensus.db"
"""The file of Consensus."""
