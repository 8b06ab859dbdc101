"""``persist`` and ``python -m persist_cli``."""

import os
import sys

from persist_cli.app import run


def main() -> None:
    """Run one command and exit with its code: 0 done, 1 failed, 2 wrong usage, 78 refused configuration."""
    # Also of servers: what gRPC has to say for itself is for those who ask.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if sys.argv[1:3] == ["serve", "compaction"]:
        # Here, and not where the service starts: only a process that has done nothing yet may begin again.
        from persist_compaction.allocator import settle_allocator

        settle_allocator(os.environ)
    sys.exit(run(sys.argv[1:], os.environ))


if __name__ == "__main__":
    main()
