"""What requests ask for, understood beside the event loop where they are large: thousands of parts take their time."""

from typing import Final

from google.protobuf.message import Message

from persist.core.ids import ShardId
from persist.core.shard.batch import HollowBatch
from persist.core.shard.commands import Command
from persist.runtime import Runtime
from persist.typed import AnyOutcome
from persist.wire.rpc import command_of
from persist.wire.shard.batch import batch_to_proto

ON_LOOP_BYTES_MAX: Final = 64 << 10
"""A request of so many bytes is understood in a few milliseconds."""


async def understood(request: Message, runtime: Runtime) -> tuple[ShardId, Command[AnyOutcome]]:
    """The shard and the command. Raises InvalidArgument, InvalidId, as ``command_of`` does."""
    if request.ByteSize() <= ON_LOOP_BYTES_MAX:
        return command_of(request)
    shard, command = await runtime.offload(command_of, request)
    await runtime.offload(_encode, command)
    return shard, command


def _encode(command: object) -> None:
    for name in ("batch", "output"):
        batch = getattr(command, name, None)
        if isinstance(batch, HollowBatch):
            # Its message stays with it, and is what the commit writes.
            batch_to_proto(batch)
