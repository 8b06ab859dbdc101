"""A caller with nothing but the generated stubs: what a client in any language does, in the words of Python.

It writes rows as an inline part, reads them back, and follows the shard. The form of parts, schemas and keys is in
docs/formats.md.

python grpc_stubs.py HOST:PORT
"""

import struct
import sys
import uuid

import google_crc32c
import grpc
import pyarrow as pa

from persist.v1 import shard_pb2 as pb
from persist.v1 import types_pb2 as types
from persist.v1.shard_pb2_grpc import PersistShardStub

SECONDS = 30  # every call has a deadline
ZSTD = pa.Codec("zstd", compression_level=1)

KEY, VAL = pa.field("id", pa.int64()), pa.field("name", pa.string())
TS, DIFF = pa.field("ts", pa.uint64(), nullable=False), pa.field("diff", pa.int64(), nullable=False)
UPDATES = pa.schema([KEY, VAL, TS, DIFF])


def frontier(*times: int) -> types.Antichain:
    return types.Antichain(elements=times)


def schema() -> bytes:
    """The Arrow IPC schema, with the role of each column."""
    columns = [KEY.with_metadata({"persist.role": "key"}), VAL.with_metadata({"persist.role": "val"})]
    return pa.schema(columns, {"persist.codec": "arrow", "persist.schema": "1"}).serialize().to_pybytes()


def canonical(number: int) -> bytes:
    """A key of one int64: 02, then big-endian with its sign bit flipped."""
    return b"\x02" + struct.pack(">Q", (number + 2**63) % 2**64)


def part(rows: list[tuple[int, str, int, int]]) -> types.Part:
    """Rows (id, name, ts, diff), which are sorted and consolidated, as an inline part."""
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), UPDATES, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, schema=UPDATES)
    message = batch.serialize()
    data = b"PIB1" + struct.pack("<I", message.size) + ZSTD.compress(message, asbytes=True)
    return types.Part(
        inline=data,
        encoded_bytes=len(data),
        decoded_bytes=batch.nbytes,
        rows=len(rows),
        checksum=google_crc32c.value(data),
        key_lower=canonical(rows[0][0]),
        key_upper=canonical(rows[-1][0]),
        min_ts=min(ts for _, _, ts, _ in rows),
        max_ts=max(ts for _, _, ts, _ in rows),
        diffs_sum=sum(diff for _, _, _, diff in rows),
        schema_id=0,
        format=1,
        order_version=1,
    )


def rows_of(batch: types.HollowBatch) -> list[dict[str, object]]:
    """The updates of a batch whose parts are inline; larger ones are Parquet files in Blob, at the URI from Open."""
    found = []
    for each in (each for run in batch.runs for each in run.parts):
        assert google_crc32c.value(each.inline) == each.checksum
        (size,) = struct.unpack_from("<I", each.inline, 4)
        message = ZSTD.decompress(pa.py_buffer(each.inline)[8:], decompressed_size=size)
        found += pa.ipc.read_record_batch(message, UPDATES).to_pylist()
    return found


def main(endpoint: str) -> None:
    shard, writer = f"s{uuid.uuid4()}", f"w{uuid.uuid4()}"
    route = (("persist-shard-id", shard),)  # for load balancers
    with grpc.insecure_channel(endpoint) as channel:
        stub = PersistShardStub(channel)
        stub.Open(pb.OpenRequest(shard_id=shard, create=True), timeout=SECONDS, metadata=route)
        register = pb.RegisterSchemaRequest(shard_id=shard, schema=schema(), codec="arrow")
        stub.RegisterSchema(register, timeout=SECONDS, metadata=route)

        # The token makes it one append, however often the call is repeated, as after a lost answer.
        append = pb.CompareAndAppendRequest(
            shard_id=shard,
            writer_id=writer,
            token=f"t{uuid.uuid4()}",
            batch=types.HollowBatch(
                desc=types.Description(lower=frontier(0), upper=frontier(5), since=frontier(0)),
                runs=[types.Run(parts=[part([(1, "Ada", 3, 1), (2, "Grace", 3, 1)])])],
            ),
        )
        for _ in range(2):
            done = stub.CompareAndAppend(append, timeout=SECONDS, metadata=route)
            print(f"upper {list(done.appended.upper.elements)}, again: {done.appended.already_committed}")

        # A lost race is an outcome, not an error: it names the upper to go on from.
        append.token = f"t{uuid.uuid4()}"
        lost = stub.CompareAndAppend(append, timeout=SECONDS, metadata=route)
        print(f"{lost.WhichOneof('outcome')}: {list(lost.upper_mismatch.upper.elements)}")

        read = pb.SnapshotRequest(shard_id=shard, as_of=frontier(4))
        for piece in stub.Snapshot(read, timeout=SECONDS, metadata=route):
            for batch in piece.plan.chunk.batches:
                for row in rows_of(batch):
                    print(row)

        # Watch goes on until its deadline, or until it is cancelled.
        watch = stub.Watch(pb.WatchRequest(shard_id=shard, frontier=frontier(0)), timeout=SECONDS, metadata=route)
        for told in watch:
            for batch in told.change.chunk.batches:
                print(f"watched {len(rows_of(batch))} rows before {list(batch.desc.upper.elements)}")
            if told.change.chunk.last:
                watch.cancel()
                break


if __name__ == "__main__":
    main(sys.argv[1])
