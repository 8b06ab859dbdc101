"""What ``persist shard finalize`` does, given a client."""

import persist
from persist_cli.terminal import frontier, note, print_json, print_table


def finalize(client: "persist.Client", shard: str, *, force: bool, commit: bool, timeout: float, json: bool) -> None:
    """Finalize a shard through a client, or show what that would take away. Raises InvalidArgument: an item has it."""
    done = client.finalize(shard, force=force, dry_run=not commit, timeout=timeout)
    row = {
        "shard": str(done.shard),
        "upper": frontier(done.upper),
        "since": frontier(done.since),
        "rows": done.rows,
        "readers": done.readers,
        "writers": done.writers,
        "finalized": done.finalized,
    }
    if json:
        print_json({"committed": commit, **row})
        return
    print_table(tuple(row), [list(row.values())])
    if not commit:
        note("nothing was changed: --commit does it")
