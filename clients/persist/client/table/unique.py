"""Primary keys: no two rows of one key, whatever comes between looking and writing.

Source: docs/sql.md; catalog-semantics.md section 4.2, table writes.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from persist.client.shard.read.snapshot import Snapshot
from persist.client.table.keyed import rows_with_keys
from persist.client.table.rows import keys_of, widened, wider
from persist.core.data.encoding import encode_key
from persist.core.data.schema import DIFF, Schema
from persist.core.data.update import consolidate
from persist.errors import InvalidArgument
from persist.runtime import Runtime
from persist.threads import computed

KEY_LETTERS: Final = 200
"""Of a key that an error shows."""


class KeyTwice(InvalidArgument):
    """Two rows with one primary key would be there: nothing was written. ``details``: the ``key``."""


def adds(updates: pa.Table) -> bool:
    """Whether updates put any row in: what only takes rows away makes no key come twice."""
    found: bool | None = pc.any(pc.greater(updates.column(DIFF.name), 0)).as_py()
    return bool(found)


def check_keys(updates: pa.Table, schema: Schema) -> None:
    """Raise KeyTwice when the rows that these come to have a key twice."""
    there = updates.filter(pc.greater(updates.column(DIFF.name), 0))
    if not there.num_rows:
        return
    keys = encode_key([there.column(name) for name in schema.key.names])
    if pc.max(there.column(DIFF.name)).as_py() == 1 and pc.count_distinct(keys).as_py() == len(keys):
        return
    counts = pc.value_counts(keys).to_pylist()
    twice = next((each["values"] for each in counts if each["counts"] > 1), None)
    at = pc.index(keys, twice).as_py() if twice is not None else _first_several(there)
    key = there.select(schema.key.names).slice(at, 1).to_pylist()[0]
    raise KeyTwice(
        "a primary key would be there twice",
        hint="change the row that has it (upsert, UPDATE), or take it away first",
        key=str(key)[:KEY_LETTERS],
    )


async def check_free(runtime: Runtime, updates: pa.Table, there: "Snapshot | None", schema: Schema) -> None:
    """Raise KeyTwice when a key is there already, of a row that ``updates`` do not take away. ``there``: what they are
    written behind; None: nothing. Reads, and does not hold, the rows between the least and the greatest of their keys.
    """
    await computed(runtime, updates.num_rows, check_keys, updates, schema)
    keys = await computed(runtime, updates.num_rows, _keys_added, updates, schema)
    if there is None or not len(keys):
        return
    # Columns may have been added since one of both was opened: a row goes only with all of its columns.
    newest = wider(schema, there.schema)
    old = await rows_with_keys(runtime, there, keys, there.schema)
    both = pa.concat_tables([widened(old, newest), widened(updates, newest)])
    await computed(runtime, both.num_rows, _check_all, both, newest)


def _keys_added(updates: pa.Table, schema: Schema) -> pa.LargeBinaryArray:
    added = updates.filter(pc.greater(updates.column(DIFF.name), 0))
    return keys_of(added.select(schema.key.names), schema)


def _check_all(updates: pa.Table, schema: Schema) -> None:
    check_keys(consolidate(updates, schema), schema)


def _first_several(rows: pa.Table) -> int:
    at: int = pc.index(pc.greater(rows.column(DIFF.name), 1), True).as_py()
    return at
