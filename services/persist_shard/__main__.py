"""``python -m persist_shard LISTEN BLOB CONSENSUS``: a bare PersistShard, settings from ``PERSIST_...``."""

import contextlib
import os
import sys
from typing import TextIO, cast

from persist.errors import PersistError
from persist.redaction import Scrubbed, learn, learn_environment
from persist.settings import Settings, not_known
from persist_host import serve
from persist_shard.spec import shard_spec


def main() -> int:
    """Serve and return the exit code."""
    learn_environment(os.environ)
    for argument in sys.argv:
        learn(argument)
    with contextlib.redirect_stderr(cast(TextIO, Scrubbed(sys.stderr))):
        return _serve()


def _serve() -> int:
    if len(sys.argv) != 4:
        print("usage: python -m persist_shard HOST:PORT BLOB_URI CONSENSUS_URI", file=sys.stderr)
        return 2
    try:
        settings = Settings.from_env(os.environ, unknown=_refuse)
    except PersistError as error:
        print(f"persist: {error}", file=sys.stderr)
        return 2
    listen, blob, consensus = sys.argv[1:]
    return serve(
        shard_spec(blob, consensus), listen, settings, log_level=os.environ.get("PERSIST_LOG_LEVEL") or "warning"
    )


def _refuse(name: str, meant: str) -> None:
    raise not_known(name, meant)


if __name__ == "__main__":
    sys.exit(main())
