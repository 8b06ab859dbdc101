"""What an audit says of one commit, and the shard that it is kept in.

The row of a commit is there before the commit is tried, as ``begun``, and is replaced by one that is ``committed``
after it: so no commit is without one, also of processes that die in between. Source: docs/spark.md, Audit.
"""

import dataclasses
import getpass
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa

import persist
from persist import ShardId, Token, Transaction

Row: TypeAlias = dict[str, Any]
"""A row of an audit."""

BEGUN, COMMITTED = "begun", "committed"

TIME_MAX: Final = (1 << 63) - 1

SCHEMA: Final = persist.Schema(
    key={"began_at": pa.timestamp("ms", "UTC"), "attempt": pa.string()},
    val={
        "state": pa.string(),
        "operation": pa.string(),
        "user": pa.string(),
        "application": pa.string(),
        "application_name": pa.string(),
        "host": pa.string(),
        "parameters": pa.string(),
        "user_metadata": pa.string(),
        "read_at": pa.int64(),
        "upper": pa.int64(),
        "rows": pa.int64(),
        "bytes": pa.int64(),
        "parts": pa.int64(),
        "rows_deleted": pa.int64(),
        "rows_updated": pa.int64(),
        "rows_inserted": pa.int64(),
        "writer": pa.string(),
        "token": pa.string(),
        "txn_app_id": pa.string(),
        "txn_version": pa.int64(),
        "txn_owner": pa.string(),
    },
)
"""The columns of an audit. ``attempt`` is of one try, ``token`` of the commit that it tries."""
_INNER: Final = ("attempt", "writer", "token", "txn_owner")
SHOWN: Final = tuple(name for name in (*SCHEMA.key.names, *SCHEMA.val.names) if name not in _INNER)
"""Those that say something to people."""
COLUMNS: Final = pa.schema([*SCHEMA.key, *SCHEMA.val])


def audit_shard(shard: str) -> ShardId:
    """The shard in which that one's commits are recorded, if they are."""
    return ShardId.named("persist.audit", shard)


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """Who writes. ``application``: Spark's id and name of it, None where the session did not say (``register``)."""

    user: str
    application: str | None = None
    application_name: str | None = None

    @classmethod
    def of_process(cls) -> "Author":
        """The user of this process."""
        try:
            return cls(user=getpass.getuser())
        except (OSError, KeyError):  # a uid without a name
            return cls(user=str(os.getuid()))


def author_of(application: tuple[str, str, str] | None) -> Author:
    """The author by what ``register`` said: the session's user, its application's id and name; else this process's."""
    if application is None:
        return Author.of_process()
    user, application_id, name = application
    return Author(user=user, application=application_id, application_name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is known of a commit before it is tried. ``parameters``: what was asked for, as JSON. Counts: of changes."""

    operation: str
    author: Author
    parameters: str = "{}"
    user_metadata: str | None = None
    read_at: int | None = None
    rows_deleted: int | None = None
    rows_updated: int | None = None
    rows_inserted: int | None = None

    def told(self, parameters: Mapping[str, object]) -> "Entry":
        """The same with more parameters."""
        known = {**json.loads(self.parameters), **{name: _plain(each) for name, each in parameters.items()}}
        return dataclasses.replace(self, parameters=json.dumps(known))

    def row(self, *, began_ms: int, attempt: str, writer: str, token: Token, transaction: Transaction | None) -> Row:
        """The row of a commit that begins."""
        known = {**dataclasses.asdict(self), **dataclasses.asdict(self.author)}
        del known["author"]
        if transaction is not None:
            known |= {
                "txn_app_id": transaction.app_id,
                "txn_version": transaction.version,
                "txn_owner": transaction.owner,
            }
        return known | {
            "began_at": began_ms,
            "attempt": attempt,
            "state": BEGUN,
            "host": socket.gethostname(),
            "writer": writer,
            "token": str(token),
        }


def rows_of(changes: "list[tuple[Row, int]]") -> pa.Table:
    """Rows of an audit with their diffs."""
    table = pa.Table.from_pylist([row for row, _ in changes], schema=COLUMNS)
    return table.append_column("diff", pa.array([diff for _, diff in changes], pa.int64()))


def shown_time(time: int | None) -> int | None:
    """A time as an audit has it: none beyond what Spark's longs hold."""
    return None if time is None or time > TIME_MAX else time


def _plain(value: object) -> object:
    """What JSON can say of a parameter: its text where it is none of its kinds."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value)
