"""Requests that no client sends: bytes made by hand, over channels that do not parse."""

from typing import Any

import grpc
import grpc.aio

from persist.v1 import catalog_pb2, compaction_pb2, minter_pb2, oracle_pb2, shard_pb2
from persist.wire.rpc_errors import DETAILS_KEY, error_of_status

FILES = (shard_pb2, catalog_pb2, minter_pb2, oracle_pb2, compaction_pb2)
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
"""Every method of every service, by full name."""


def field(number: int, inside: bytes) -> bytes:
    """A field of bytes, text or a message."""
    return varint(number << 3 | 2) + varint(len(inside)) + inside


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def empty_calls(count: int) -> bytes:
    """A SessionRequest of that many calls, two bytes each."""
    return field(1, b"") * count


def empty_parts(count: int) -> bytes:
    """A CompareAndAppendRequest whose batch has one run of that many parts, two bytes each."""
    return field(4, field(2, field(1, b"") * count))


async def send(channel: grpc.aio.Channel, method: str, data: bytes, *, timeout: float = 10) -> Any:
    """The first bytes a method answers, and its error, one of which is None."""
    kind = METHODS[method]
    call: Any
    plain: Any = channel
    try:
        if kind.client_streaming:
            call = channel.stream_stream(method)(timeout=timeout)
            await call.write(data)
            await call.done_writing()
        elif kind.server_streaming:
            call = plain.unary_stream(method)(data, timeout=timeout)
        else:
            call = plain.unary_unary(method)(data, timeout=timeout)
        return (await call.read() if kind.server_streaming else await call), None
    except grpc.aio.AioRpcError as error:
        return None, error


def meaning(error: grpc.aio.AioRpcError) -> Any:
    """The error that our detail in a status carries."""
    details = dict(error.trailing_metadata() or ()).get(DETAILS_KEY)
    return error_of_status(error.code().value[0], details)
