"""``python -m persist_shard LISTEN BLOB CONSENSUS``: a bare PersistShard, settings from ``PERSIST_...``."""

import os
import sys

from persist.errors import PersistError
from persist.settings import Settings
from persist_shard.serve import serve_shard


def main() -> int:
    """Serve and return the exit code."""
    if len(sys.argv) != 4:
        print("usage: python -m persist_shard HOST:PORT BLOB_URI CONSENSUS_URI", file=sys.stderr)
        return 2
    try:
        settings = Settings.from_env(os.environ)
    except PersistError as error:
        print(f"persist: {error}", file=sys.stderr)
        return 2
    listen, blob, consensus = sys.argv[1:]
    return serve_shard(listen, blob, consensus, settings, log_level=os.environ.get("PERSIST_LOG_LEVEL", "warning"))


if __name__ == "__main__":
    sys.exit(main())
