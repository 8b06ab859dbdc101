"""``persist`` and ``python -m persist_cli``."""

import gc
import os
import sys
from typing import Final, NoReturn

EXIT_USAGE: Final = 2
_GARBAGE_AFTER: Final = 200_000
"""Objects, for commands that end: importing makes so many that stay, and a tenth of the CPU goes into looking through
them again and again."""


def main() -> None:
    """Run one command and exit with its code: 0 done, 1 failed, 2 wrong usage, 78 refused configuration."""
    _keep_standard_files()
    # Also of servers: what gRPC has to say for itself is for those who ask.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if sys.argv[1:2] not in (["serve"], ["dev"]):
        gc.set_threshold(_GARBAGE_AFTER)
    try:
        if sys.argv[1:3] == ["serve", "compaction"]:
            # Here, and not where the service starts: only a process that has done nothing yet may begin again.
            from persist_compaction.allocator import settle_allocator

            settle_allocator(os.environ)
        from persist_cli.app import run
    except ImportError as error:
        _lack(error)
    code = run(sys.argv[1:], os.environ)
    if "duckdb" not in sys.modules:
        # An interpreter that ends looks for garbage among all it ever imported: a fifth of the CPU of a command that
        # reads. DuckDB counts what is left of it then, and says so.
        gc.freeze()
    sys.exit(code)


def _keep_standard_files() -> None:
    """SUBTLE: of a process that begins without standard output the first file that it opens, such as a store, would be
    that, and what prints would write into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for as long as the process lives


def _lack(error: ImportError) -> NoReturn:
    """The script `persist` is in every installation, what it runs on is not. Imported here: ``--help`` is quick."""
    from persist.errors import MissingExtra
    from persist.extras import missing

    if isinstance(error, ModuleNotFoundError):
        error = missing("cli", error.name or "")
    if not isinstance(error, MissingExtra):
        raise error
    print(f"persist: {error}", file=sys.stderr)
    sys.exit(EXIT_USAGE)


if __name__ == "__main__":
    main()
