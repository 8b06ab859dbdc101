"""The commit of a write, on the driver: where it lands, and one compare_and_append for everything its tasks prepared.

Only here does a write change its shard: what it would add to the schema, and a shard that does not exist yet, are made
just before the append, once nothing more is known that would refuse it. Source: architecture.md section 7.
"""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from persist import (
    Antichain,
    Determinate,
    InvalidBounds,
    SchemaMismatch,
    ShardNotFound,
    Token,
    Transaction,
    UpperMismatch,
    WriterId,
)
from persist.runtime import system
from persist.typed import AnyOutcome
from persist_ingest.location import Target
from pyspark_persist.audit.recording import Identity, recorded
from pyspark_persist.write.planned import PlannedWrite

if TYPE_CHECKING:
    import persist

ATTEMPTS: Final = 100
"""How often a commit follows a moving upper before it gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """What a write did. ``upper``: the shard's, after it. ``already_committed``: an earlier attempt had done it."""

    upper: Antichain
    rows: int
    bytes: int
    parts: int
    already_committed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a commit lands: ``at_time`` None when the rows carry their own times.

    ``late``: the shard has passed ``expected``, so this write has happened before, or is refused with this error.
    """

    expected: int
    new_upper: int
    at_time: int | None = None
    late: InvalidBounds | None = None


class WriteCommit:
    """One commit: place it, try, and follow the upper while the options leave it free."""

    def __init__(
        self,
        write: PlannedWrite,
        writer_id: str,
        prepared: "list[persist.PreparedBatch]",
        transaction: Transaction | None,
    ) -> None:
        self._write = write
        self._options = write.options
        self._target = write.options.target
        self._writer_id = WriterId.parse(writer_id)
        self._prepared = prepared
        self._transaction = transaction
        self._writer: Any = None

    def run(self) -> CommitResult:
        """Make the batches part of the shard, or raise and change nothing. Raises as ``Write.commit``."""
        identity = Identity(writer=str(self._writer_id), token=self._token(), transaction=self._transaction)
        return recorded(self._target, self._write.entry, identity, self._commit, partial(known_commit, self._target))

    def _commit(self) -> CommitResult:
        upper = self._fetch_upper()
        for _ in range(ATTEMPTS):
            placement = self._place(upper)
            if placement.late is not None:
                return self._happened(placement.late)
            batches = self._registered()
            batches += self._retractions(placement)
            outcome = self._append(self._writer, batches, placement)
            if not isinstance(outcome, UpperMismatch):
                return self._result(outcome, batches)
            upper = outcome.upper
        # Each attempt was refused for certain: nothing happened.
        raise Determinate(
            "the shard's upper moved at every attempt to commit",
            hint="fewer writers, or a later run",
            attempts=ATTEMPTS,
        )

    def _append(
        self, writer: "persist.WriteHandle", batches: "list[persist.PreparedBatch]", placement: Placement
    ) -> AnyOutcome:
        return writer.compare_and_append_batches(
            batches,
            expected_upper=placement.expected,
            new_upper=placement.new_upper,
            token=self._token(),
            transaction=self._transaction,
            at_time=placement.at_time,
            timeout=self._target.timeout,
        )

    def happened(self) -> CommitResult | None:
        """The outcome of an earlier attempt at this write, None when there was none."""
        if self._fetch_upper().time == 0:
            return None
        return known_commit(self._target, self._writer_id, self._token(), self._transaction)

    def _happened(self, refusal: InvalidBounds) -> CommitResult:
        """The outcome of an earlier attempt at this write. Raises the refusal when there was none."""
        known = known_commit(self._target, self._writer_id, self._token(), self._transaction)
        if known is None:
            raise refusal
        return known

    def _token(self) -> Token:
        """The same at every attempt: a mismatch is certain not to have happened, so the token is still unused."""
        if self._transaction is None:
            return Token.parse(self._write.token)
        return Token.named("transaction", self._transaction.app_id, self._transaction.version)

    def _fetch_upper(self) -> Antichain:
        try:
            client = self._target.client(create=self._write.is_new)
            upper: Antichain = client.recent_upper(self._target.shard_id, timeout=self._target.timeout)
        except ShardNotFound:
            if not self._write.is_new:
                raise
            return Antichain.of(0)
        return upper

    # ---- where it lands ------------------------------------------------------------------------------------------

    def _place(self, upper: Antichain) -> Placement:
        """Raises InvalidBounds when the upper has not reached the one the write is pinned to."""
        options, pinned = self._options, self._options.expected_upper
        if upper.time is None:
            # The shard says so itself, unless this very write closed it or came before.
            return Placement(expected=pinned or 0, new_upper=(pinned or 0) + 1, late=self._late(upper, 0))
        if pinned is not None and pinned != upper.time:
            refusal = InvalidBounds(
                "the shard's upper is not the expected one: nothing was written",
                hint="read what was committed in between, then write again from the new upper",
                expected=pinned,
                upper=upper,
            )
            if upper.time < pinned:
                raise refusal
            return Placement(expected=pinned, new_upper=options.new_upper or pinned + 1, late=refusal)
        if self._write.columns.times is not None:
            return self._place_rows(upper, upper.time)
        if options.new_upper is not None:
            time = options.new_upper - 1
        elif options.commit_time is not None:
            time = options.commit_time
        else:
            time = max(upper.time, system().now_ms())
        late = self._late(upper, time) if time < upper.time else None
        return Placement(expected=min(time, upper.time), new_upper=time + 1, at_time=time, late=late)

    def _place_rows(self, upper: Antichain, expected: int) -> Placement:
        """The placement at the rows' own times."""
        times = [(int(batch.min_ts), int(batch.max_ts)) for batch in self._prepared if batch.rows]  # type: ignore[arg-type]  # batches with rows have times
        earliest = min([expected, *(first for first, _ in times)])
        new_upper = self._options.new_upper
        if new_upper is None:
            new_upper = max([expected, *(last + 1 for _, last in times)])
        late = self._late(upper, earliest) if earliest < expected else None
        return Placement(expected=earliest, new_upper=new_upper, late=late)

    def _late(self, upper: Antichain, time: int) -> InvalidBounds:
        return InvalidBounds(
            "commitTime is complete already: nothing was written"
            if self._write.columns.times is None
            else "the rows' times are complete already: nothing was written",
            hint="write at or beyond the upper, or leave the time to the commit",
            time=time,
            upper=upper,
        )

    # ---- what is committed ---------------------------------------------------------------------------------------

    def _registered(self) -> "list[persist.PreparedBatch]":
        """The tasks' batches under the id that the shard has for their schema, which is registered now if needed.

        Raises SchemaMismatch when another process has changed the schema since the write was planned.
        """
        if self._writer is None:
            self._writer = self._open()
        schema_id = self._writer.batch_spec().schema_id
        return [batch.registered(schema_id) for batch in self._prepared]

    def _open(self) -> "persist.WriteHandle":
        write, target = self._write, self._target
        client = target.client(create=write.is_new)

        def opened() -> "persist.WriteHandle":
            return client.open_writer(
                target.shard_id, schema=write.schema, writer_id=self._writer_id, timeout=target.timeout
            )

        try:
            return opened()
        except SchemaMismatch as other:
            if not self._options.merge_schema:
                raise _changed(other) from other
        try:
            client.evolve_schema(target.shard_id, write.schema, timeout=target.timeout)
        except SchemaMismatch as other:
            raise _changed(other) from other
        return opened()

    def _retractions(self, placement: Placement) -> "list[persist.PreparedBatch]":
        """For an overwrite, everything that is there just before the commit time, taken back."""
        if not self._write.overwrite or placement.expected == 0:
            return []
        target = self._target
        client = target.client()
        reader = client.open_reader(target.shard_id, purpose="spark overwrite", timeout=target.timeout)
        try:
            snapshot = reader.snapshot(placement.expected - 1, timeout=target.timeout)
            # SUBTLE: not the write's own spec: what is there may have columns that the write knows nothing of.
            newest = client.open_writer(target.shard_id, writer_id=self._writer_id, timeout=target.timeout)
            spec = newest.batch_spec()
            if spec.schema_id != self._writer.batch_spec().schema_id:
                # Inline parts of an append are all of the schema of who appends them.
                spec = dataclasses.replace(spec, settings=dataclasses.replace(spec.settings, inline_part_bytes_max=0))
            builder = spec.open()
            for split in snapshot.splits(max(1, snapshot.encoded_bytes >> 26)):
                for batch in split.read():
                    if batch.num_rows:
                        builder.add(_negated(batch))
            return [builder.finish()]
        finally:
            reader.expire(timeout=target.timeout)

    def _result(self, outcome: AnyOutcome, batches: "list[persist.PreparedBatch]") -> CommitResult:
        already = bool(outcome.already_committed)
        used = [] if already else batches
        return CommitResult(
            upper=outcome.upper,
            rows=sum(batch.rows for batch in used),
            bytes=sum(batch.encoded_bytes for batch in used),
            parts=sum(batch.parts for batch in used),
            already_committed=already,
        )


def known_commit(target: Target, writer_id: str, token: Token, transaction: Transaction | None) -> CommitResult | None:
    """What the shard knows of a commit, of whichever process; None: nothing.

    SUBTLE: only the shard knows. It is asked with an upper it no longer has, at which nothing can be committed, and
    without any part and any body: those may be of a schema that it does not have, and not at hand any more.
    """
    asked = None if transaction is None else transaction.with_body("")
    time = target.client().recent_upper(target.shard_id, timeout=target.timeout).time
    if time == 0:
        return None  # of a shard that begins, nothing was ever committed; and what is asked at its upper is committed
    past = (1 if time is None else time) - 1
    writer = target.client().open_writer(target.shard_id, writer_id=writer_id, timeout=target.timeout)
    outcome = writer.compare_and_append_batches(
        [], expected_upper=past, new_upper=past + 1, token=token, transaction=asked, timeout=target.timeout
    )
    if isinstance(outcome, UpperMismatch):
        return None
    return CommitResult(upper=outcome.upper, rows=0, bytes=0, parts=0, already_committed=True)


def _changed(other: SchemaMismatch) -> SchemaMismatch:
    return SchemaMismatch(
        "the shard's columns have changed since the write was planned: nothing was written",
        hint="run it again",
        reason=other.message,
        **other.details,
    )


def _negated(batch: pa.RecordBatch) -> pa.RecordBatch:
    index = batch.schema.get_field_index("diff")
    return batch.set_column(index, batch.schema.field(index), pc.negate_checked(batch.column(index)))
