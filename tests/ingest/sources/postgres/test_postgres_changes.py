"""What happens to a table comes out as changes, definite and in order, on real PostgreSQL servers."""

from decimal import Decimal
from typing import Any

import pyarrow as pa

from persist.sources import SourceFrontier, SourceKind
from persist_ingest.sources.port import Changes, Truncated

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(10, 2))"
FULL = "ALTER TABLE items REPLICA IDENTITY FULL"
SELECT = "SELECT * FROM items"


def flat(events: list[Any]) -> list[Any]:
    """Each row with its diff, and truncations."""
    found: list[Any] = []
    for event in events:
        if isinstance(event, Truncated):
            found.append("truncated")
        else:
            rows = zip(event.rows.to_pylist(), event.diffs.to_pylist(), strict=True)
            found += [(*row.values(), diff) for row, diff in rows]
    return found


def test_rows_of_the_snapshot_and_all_kinds_of_changes_come_out(upstream: Any) -> None:
    upstream.run(ITEMS, FULL, "INSERT INTO items VALUES (1, 'a', 1.5), (2, NULL, NULL)")
    with upstream.create("public.items") as beginning:
        upstream.run("INSERT INTO items VALUES (3, 'during', 0)")
        reader = upstream.begin(beginning)
        assert set(reader.exports()) == {"public.items"}
        assert set(upstream.rows["public.items"]) == {(1, "a", Decimal("1.50")), (2, None, None)}
    upstream.run(
        "UPDATE items SET name = 'b' WHERE id = 1",
        "UPDATE items SET id = 5 WHERE id = 2",
        "DELETE FROM items WHERE id = 1",
    )
    events = upstream.follow(reader)
    assert [(row[0], row[1], row[-1]) for row in flat(events)] == [
        (3, "during", 1), (1, "a", -1), (1, "b", 1), (2, None, -1), (5, None, 1), (1, "b", -1),
    ]  # fmt: skip
    assert upstream.holds("public.items", SELECT)


def test_truncation_is_told_in_order(upstream: Any) -> None:
    upstream.run(ITEMS, FULL, "INSERT INTO items VALUES (1, 'a', 1)")
    with upstream.create("public.items") as beginning:
        reader = upstream.begin(beginning)
    upstream.run("INSERT INTO items VALUES (2, 'b', 2)", "TRUNCATE items", "INSERT INTO items VALUES (3, 'c', 3)")
    events = upstream.follow(reader)
    assert [row if row == "truncated" else row[0] for row in flat(events)] == [2, "truncated", 3]
    assert upstream.holds("public.items", SELECT)


def test_a_range_always_reads_the_same(upstream: Any, read_events: Any) -> None:
    upstream.run(ITEMS, FULL)
    with upstream.create("public.items") as beginning:
        reader = upstream.begin(beginning)
    for number in range(5):
        upstream.run(f"INSERT INTO items VALUES ({number}, 'x', 0)")
    begin = upstream.at
    first = upstream.follow(reader)
    (whole,) = first
    offsets = whole.offsets.to_pylist()
    assert offsets == sorted(offsets)
    assert len(set(offsets)) == 5
    assert read_events(reader, begin, upstream.at) == first
    # Cut behind each transaction, as far inside the next one's record as there is room: each part has its own rows.
    for cut in (*offsets, *(offset + 1 for offset in offsets)):
        middle = SourceFrontier.at(SourceKind.LSN, {0: cut})
        before, after = read_events(reader, begin, middle), read_events(reader, middle, upstream.at)
        parts = [event.offsets.to_pylist() for event in (*before, *after)]
        assert [offset for part in parts for offset in part] == offsets
        assert all(offset < cut for event in before for offset in event.offsets.to_pylist())
        assert all(offset >= cut for event in after for offset in event.offsets.to_pylist())


def test_values_stored_out_of_line_are_whole_after_an_update_of_others(upstream: Any) -> None:
    upstream.run(
        "CREATE TABLE notes (id int PRIMARY KEY, counter int, body text)",
        "ALTER TABLE notes ALTER body SET STORAGE EXTERNAL",
        "ALTER TABLE notes REPLICA IDENTITY FULL",
        "INSERT INTO notes SELECT n, 0, repeat(n::text, 20000) FROM generate_series(1, 5) n",
    )
    with upstream.create("public.notes") as beginning:
        reader = upstream.begin(beginning)
    upstream.run("UPDATE notes SET counter = counter + 1", "INSERT INTO notes VALUES (9, 0, NULL)")
    upstream.run("UPDATE notes SET counter = 7, body = 'short' WHERE id = 3")
    upstream.follow(reader)
    assert upstream.holds("public.notes", "SELECT * FROM notes")
    assert all(count in (0, 1) for count in upstream.rows["public.notes"].values())


def test_a_transaction_larger_than_many_chunks_comes_in_parts(upstream: Any) -> None:
    upstream.run("CREATE TABLE big (id int PRIMARY KEY, body text)", "ALTER TABLE big REPLICA IDENTITY FULL")
    with upstream.create("public.big") as beginning:
        reader = upstream.begin(beginning)
    upstream.run("INSERT INTO big SELECT n, repeat('x', 20) FROM generate_series(1, 100000) n")
    upstream.run("INSERT INTO big VALUES (0, 'last')")
    events = upstream.follow(reader)
    assert len(events) > 3
    assert max(event.rows.num_rows for event in events) < 30_000
    offsets = pa.concat_arrays([event.offsets for event in events])
    assert offsets.value_counts().field("counts").to_pylist() == [100_000, 1]
    assert upstream.holds("public.big", "SELECT * FROM big")


def test_tables_that_are_not_named_are_left_out(upstream: Any) -> None:
    upstream.run(ITEMS, FULL, "CREATE TABLE other (id int PRIMARY KEY)", "ALTER TABLE other REPLICA IDENTITY FULL")
    upstream.run("CREATE PUBLICATION twofold FOR TABLE items, other")
    with upstream.create("public.items", publication="twofold") as beginning:
        reader = upstream.begin(beginning)
    upstream.run("INSERT INTO other VALUES (1)", "INSERT INTO items VALUES (1, 'a', 1)", "TRUNCATE other")
    assert {event.export for event in upstream.follow(reader)} == {"public.items"}


def test_a_table_without_primary_key_keeps_equal_rows_apart_by_diffs(upstream: Any) -> None:
    upstream.run("CREATE TABLE log (line text)", "ALTER TABLE log REPLICA IDENTITY FULL")
    upstream.run("INSERT INTO log VALUES ('a'), ('a'), (NULL)")
    with upstream.create("public.log") as beginning:
        reader = upstream.begin(beginning)
        assert reader.exports()["public.log"].key.names == ["line"]
    upstream.run("DELETE FROM log WHERE ctid = (SELECT min(ctid) FROM log)", "INSERT INTO log VALUES ('a'), ('b')")
    upstream.follow(reader)
    assert upstream.holds("public.log", "SELECT * FROM log")


def test_rolled_back_work_is_never_seen(upstream: Any) -> None:
    upstream.run(ITEMS, FULL)
    with upstream.create("public.items") as beginning:
        reader = upstream.begin(beginning)
    upstream.run("BEGIN", "INSERT INTO items VALUES (1, 'a', 1)", "ROLLBACK")
    upstream.run("BEGIN", "INSERT INTO items VALUES (2, 'b', 1)", "SAVEPOINT s", "INSERT INTO items VALUES (3, 'c', 1)")
    assert upstream.follow(reader) == []
    upstream.run("ROLLBACK TO s", "COMMIT")
    (event,) = upstream.follow(reader)
    assert isinstance(event, Changes)
    assert event.rows.column("id").to_pylist() == [2]
