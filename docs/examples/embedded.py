"""Plain Python, without any server: write a shard, read it at different times, and follow what changes.

python embedded.py DIRECTORY
"""

import sys

import pyarrow as pa

import persist


def main(directory: str) -> None:
    schema = persist.Schema(key={"city": pa.string()}, val={"degrees": pa.int64()})
    with persist.embedded(directory) as client:
        writer, reader = client.open(persist.ShardId.new(), schema=schema)

        # Every row of an append may have a time of its own. What was so, and is not any more, has diff -1.
        writer.append(pa.table({"city": ["Oslo", "Rome"], "degrees": [3, 17], "ts": [10, 10]}), new_upper=11)
        writer.append(
            pa.table({"city": ["Oslo", "Oslo"], "degrees": [3, 5], "ts": [20, 20], "diff": [-1, 1]}), new_upper=21
        )

        for as_of in (10, 20):
            found = {row["city"]: row["degrees"] for row in reader.snapshot(as_of).to_pylist()}
            print(f"at {as_of}: {found}")

        # What changed after 10, until everything before 21 has been given out.
        with reader.listen(as_of=10) as changes:
            for event in changes:
                if isinstance(event, persist.Updates):
                    for row in event.table.to_pylist():
                        print(f"{row['diff']:+} {row['city']} {row['degrees']}")
                elif event.upper.time == 21:
                    break


if __name__ == "__main__":
    main(sys.argv[1])
