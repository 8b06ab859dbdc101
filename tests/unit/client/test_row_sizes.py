"""A row that is larger than any may be is refused before anything is done with it."""

import pyarrow as pa
import pytest

import persist
from persist import RequestTooLarge
from persist.client.table import rows
from persist.wire.columnar.encode import GROUP_BYTES_MAX

NESTED = pa.list_(pa.string())
SCHEMA = persist.Schema(key={"id": pa.int64()}, val={"name": pa.string(), "raw": pa.binary(), "tags": NESTED})


def table(*values: tuple[object, ...]) -> pa.Table:
    fields = [*SCHEMA.key, *SCHEMA.val]
    return pa.Table.from_pylist(
        [dict(zip([each.name for each in fields], row, strict=True)) for row in values], pa.schema(fields)
    )


@pytest.mark.parametrize(
    "large",
    [
        (1, "x" * 1_000, None, None),
        (1, None, b"x" * 1_000, []),
        (1, "x" * 400, b"x" * 300, ["x" * 300, None]),
        (1, None, None, ["x"] * 1_000),
    ],
)
def test_a_row_that_is_too_large_is_refused_first(monkeypatch: pytest.MonkeyPatch, large):
    monkeypatch.setattr(rows, "ROW_BYTES_MAX", 1_000)
    small = [(id, "y" * 50, b"y", ["z"]) for id in range(2, 200)]
    assert rows.updates_of(table(*small), SCHEMA).num_rows == 198
    refused = pa.concat_tables([table(*small), table(large), table(*small)])
    for given in (refused, refused.combine_chunks(), refused.slice(150, 100)):
        with monkeypatch.context() as nothing:
            nothing.setattr(rows, "normalise", None)
            with pytest.raises(RequestTooLarge, match="a row is larger") as error:
                rows.updates_of(given, SCHEMA)
        assert int(error.value.details["bytes"]) > 1_000


def test_what_is_accepted_fits_what_it_is_written_with():
    assert rows.ROW_BYTES_MAX < GROUP_BYTES_MAX
