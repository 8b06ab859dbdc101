"""What is said between a process and the one that runs its queries: objects, each with its length before it."""

import pickle
import struct
from typing import Final

import pyarrow as pa

_HEAD: Final = struct.Struct(">Q")
HEAD_BYTES: Final = _HEAD.size


def frame(what: object) -> bytes:
    """The bytes of an object, length first."""
    data = pickle.dumps(what)
    return _HEAD.pack(len(data)) + data


def size_of(head: bytes) -> int:
    """How many bytes follow a head."""
    size: int = _HEAD.unpack(head)[0]
    return size


def batch_out(batch: pa.RecordBatch) -> bytes:
    """The bytes of rows, with all that is needed to read them (dictionaries, too)."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def batch_in(data: bytes) -> pa.RecordBatch:
    """The rows of bytes."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()
