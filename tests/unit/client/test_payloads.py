"""Entries of a transaction log: as many rows as fit, by rows and by bytes."""

import pyarrow as pa
import pytest

import persist
from persist.client.table.rows import PAYLOAD_BYTES, PAYLOAD_ROWS, from_payload, payloads, updates_of

SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"text": pa.string()})


@pytest.mark.parametrize("widths", [[10] * 70_000, [2_000] * 20_000, [9 << 20, *[1] * 100, 9 << 20, 17 << 20, 3]])
def test_entries_hold_all_rows_and_none_is_larger_than_it_must_be(widths):
    rows = pa.table({"id": range(len(widths)), "text": ["x" * width for width in widths]})
    updates = updates_of(rows, SCHEMA)
    entries = [from_payload(payload, 0, SCHEMA) for payload in payloads(updates)]
    assert pa.concat_tables(entries).equals(updates)
    for entry in entries:
        assert entry.num_rows == 1 or entry.nbytes <= PAYLOAD_BYTES + 16 * entry.num_rows
        assert entry.num_rows <= PAYLOAD_ROWS
