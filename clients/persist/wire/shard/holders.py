"""The entries of a state <-> messages of state.proto: claims, rollups, readers, writers, tokens, transactions."""

from persist.core.ids import ReaderId, ShardId, Token, WriterId, rollup_key
from persist.core.shard.commands import Rollup
from persist.core.shard.state import CriticalReader, LeasedReader, TokenOutcome, TransactionRecord, Writer
from persist.core.shard.trace import Claim
from persist.errors import check
from persist.v1 import state_pb2 as pb
from persist.wire.shard.batch import antichain_to_proto, required_antichain


def id_to_bytes(text: str) -> bytes:
    """The 16 bytes of a reader's, writer's or token's id."""
    return bytes.fromhex(text[1:].replace("-", ""))


def claim_to_proto(claim: Claim | None) -> pb.StateClaim | None:
    """The message of a claim."""
    return pb.StateClaim(start_ms=claim.start_ms, seqno=claim.seqno, owner=claim.owner) if claim else None


def claim_from_proto(message: pb.StateClaim) -> Claim:
    """The claim of a message."""
    return Claim(start_ms=message.start_ms, seqno=message.seqno, owner=message.owner)


def rollup_to_proto(seqno: int, rollup: Rollup) -> pb.StateRollupRef:
    """The message of a rollup and its seqno."""
    shard, _, name = rollup.key.partition("/rollup/")
    ids = bytes.fromhex(ShardId(shard).hex + name.rpartition("-")[2])
    return pb.StateRollupRef(seqno=seqno, ids=ids, encoded_bytes=rollup.encoded_bytes, checksum=rollup.checksum)


def rollup_from_proto(message: pb.StateRollupRef) -> tuple[int, Rollup]:
    """Seqno and rollup of a message."""
    check(len(message.ids) == 32, "a rollup names a shard and itself", seqno=message.seqno)
    key = rollup_key(ShardId.of(message.ids[:16]), message.seqno, message.ids[16:])
    rollup = Rollup(key=key, encoded_bytes=message.encoded_bytes, checksum=message.checksum)
    return message.seqno, rollup


def leased_to_proto(reader_id: str, reader: LeasedReader) -> pb.StateLeasedReader:
    """The message of a leased reader."""
    return pb.StateLeasedReader(
        reader_id=id_to_bytes(reader_id),
        since=antichain_to_proto(reader.since),
        seqno=reader.seqno,
        heartbeat_ms=reader.heartbeat_ms,
        lease_ms=reader.lease_ms,
        purpose=reader.purpose,
        hostname=reader.hostname,
    )


def leased_from_proto(message: pb.StateLeasedReader) -> tuple[str, LeasedReader]:
    """Id and leased reader of a message."""
    return ReaderId.of(message.reader_id), LeasedReader(
        since=required_antichain(message, "since"),
        seqno=message.seqno,
        heartbeat_ms=message.heartbeat_ms,
        lease_ms=message.lease_ms,
        purpose=message.purpose,
        hostname=message.hostname,
    )


def critical_to_proto(critical_id: str, reader: CriticalReader) -> pb.StateCriticalReader:
    """The message of a critical reader."""
    return pb.StateCriticalReader(
        critical_id=critical_id,
        since=antichain_to_proto(reader.since),
        opaque=reader.opaque,
        purpose=reader.purpose,
        registered=reader.registered,
    )


def critical_from_proto(message: pb.StateCriticalReader) -> tuple[str, CriticalReader]:
    """Id and critical reader of a message."""
    return message.critical_id, CriticalReader(
        since=required_antichain(message, "since"),
        opaque=message.opaque,
        purpose=message.purpose,
        registered=message.registered,
    )


def writer_to_proto(writer_id: str, writer: Writer) -> pb.StateWriter:
    """The message of a writer."""
    return pb.StateWriter(writer_id=id_to_bytes(writer_id), heartbeat_ms=writer.heartbeat_ms, lease_ms=writer.lease_ms)


def writer_from_proto(message: pb.StateWriter) -> tuple[str, Writer]:
    """Id and writer of a message."""
    return WriterId.of(message.writer_id), writer_of(message)


def writer_of(message: pb.StateWriter) -> Writer:
    """The writer of a message, whatever its id."""
    return Writer(heartbeat_ms=message.heartbeat_ms, lease_ms=message.lease_ms)


def token_to_proto(token: str, outcome: TokenOutcome) -> pb.StateToken:
    """The message of what came of a token."""
    return pb.StateToken(
        token=id_to_bytes(token),
        upper=antichain_to_proto(outcome.upper),
        seqno=outcome.seqno,
        committed_ms=outcome.committed_ms,
        body=outcome.body,
    )


def token_from_proto(message: pb.StateToken) -> tuple[str, TokenOutcome]:
    """Token and outcome of a message."""
    return Token.of(message.token), TokenOutcome(
        upper=required_antichain(message, "upper"),
        seqno=message.seqno,
        committed_ms=message.committed_ms,
        body=message.body,
    )


def transaction_to_proto(app_id: str, record: TransactionRecord) -> pb.StateTransaction:
    """The message of a transaction record."""
    return pb.StateTransaction(
        app_id=app_id,
        version=record.version,
        upper=antichain_to_proto(record.upper),
        seqno=record.seqno,
        owner=record.owner,
    )


def transaction_from_proto(message: pb.StateTransaction) -> tuple[str, TransactionRecord]:
    """Application and record of a message."""
    upper = required_antichain(message, "upper")
    return message.app_id, TransactionRecord(
        version=message.version, upper=upper, seqno=message.seqno, owner=message.owner
    )
