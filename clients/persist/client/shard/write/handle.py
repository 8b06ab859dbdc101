"""WriteHandle: appending to a shard.

Source: design 001, WriteHandle; persist-semantics.md section 2.5; reliability.md I4 and I9.
"""

import dataclasses
from collections.abc import Sequence
from typing import assert_never

from persist.client.shard.handles import Stays
from persist.client.shard.location import Location
from persist.client.shard.numbers import Caller
from persist.client.shard.times import FrontierLike, TimeLike, frontier_of, time_of
from persist.client.shard.write.append import Appender, Appending, Parts, TokenUse
from persist.client.shard.write.batch import BatchBuilder, Bounds, PartsTarget
from persist.client.shard.write.bodies import Fingerprint, body_of
from persist.client.shard.write.doubts import Doubts, OwnCall, Resolved
from persist.client.shard.write.inputs import UpdatesLike
from persist.client.shard.write.kept import Beside, KeptBatch
from persist.client.shard.write.prepared import BatchSpec, PreparedBatch, completed, moved, placed
from persist.client.shard.write.room import Room, Waiting
from persist.client.shard.write.writer_ids import WriterIds
from persist.core.data.schema import Schema
from persist.core.frontier import TIME_MAX, Antichain, AntichainLike, check_time
from persist.core.ids import ShardId, Token, WriterId
from persist.core.shard.batch import Run
from persist.core.shard.closed import not_writable
from persist.core.shard.commands import Appended, ExpireWriter, Transaction, UpperMismatch
from persist.errors import InvalidBounds, LocationError, ShardClosed, VersionMismatch
from persist.retry.deadline import Deadline

_TOKENS_MAX = 10_000
"""Tokens a handle knows it has used, in case they are repeated."""


class WriteHandle(Stays):
    """Writes one shard under one writer id. Not registered anywhere: dropping it costs nothing.

    Calls of one handle may overlap. ``timeout`` is in seconds, None means ``settings.timeout_ms``; it bounds the
    commit, and each upload by itself, not the time that sorting and encoding a large input take. Where the shard
    refused rows because compaction is behind, it bounds the wait before the first upload, too (a look each second).
    """

    schema: Schema
    """What rows look like."""

    def __init__(
        self,
        location: Location,
        *,
        shard: ShardId,
        writer_id: WriterId,
        schema: Schema,
        schema_id: int,
        upper: Antichain,
        seqno: int,
        incarnation: int,
        fence_ms: int,
        owns_id: bool,
        behind: str = "",
    ) -> None:
        """``owns_id``: no other handle writes under this writer id. ``fence_ms``, ``behind``: see ShardInfo."""
        self._shard = shard
        self._ids = WriterIds(
            writer_id, owned=owns_id, fence_ms=fence_ms, settings=location.settings, runtime=location.runtime
        )
        self.schema = schema
        self.schema_id = schema_id
        self._location = location
        self._upper = upper
        self._tokens: dict[Token, TokenUse] = {}
        self._doubts = Doubts()
        self._room = Room(location, shard, behind)
        self._caller = Caller(location, shard, seqno=seqno, incarnation=incarnation)
        self._appender = Appender(location, shard, self._caller, lambda the_id: self._builder(the_id, None, None))

    @property
    def shard(self) -> ShardId:
        """The shard."""
        return self._shard

    @property
    def writer_id(self) -> WriterId:
        """The id this handle writes under. Asking fixes it: until then an idle handle of its own id takes a new one."""
        return self._ids.fixed()

    @property
    def incarnation(self) -> int:
        """The history of its location that this writes. A restore begins another one, to which it adds nothing."""
        return self._caller.incarnation

    @property
    def upper(self) -> Antichain:
        """Where this handle's next append begins: the newest upper it has written or was returned. No RPC."""
        return self._upper

    async def append(self, updates: UpdatesLike, new_upper: FrontierLike, *, timeout: float | None = None) -> Appended:
        """Make sure that the updates of ``[self.upper, new_upper)`` are in the shard, no matter which process wrote
        them.

        Several writers may append the same definite data at once: the shard takes each time interval from the first
        one, and an upper that has passed it says that its updates are there. Not so ``[]``: where another process
        closed or finalized the shard nothing says whose updates are there, and this is ShardClosed. ``[]`` as
        ``new_upper`` closes the shard for writes; empty updates move the upper only, and with ``new_upper == upper``
        are a heartbeat. Rows are Arrow, dicts of columns or ``((key, val), time, diff)``; a
        column ``diff`` may be missing (+1), and ``ts`` in an interval of one time. Cost: one RPC, one upload per part
        unless inline; bounded memory (see BatchBuilder). Raises InvalidBounds, EmptyInterval, SchemaMismatch,
        InvalidArgument, ShardClosed (nothing was appended now; read whether it is there), LocationError (repeat the
        call: it only promises that these bounds are written).
        """
        lower, upper = self._upper, frontier_of(new_upper, self._now())
        _check_bounds(lower, upper)
        writer_id = self._ids.for_append()
        room = self._room.waiting((lower, upper), timeout)
        deadline, builder, runs = await self._build(writer_id, updates, (lower, upper), timeout, room=room)
        append = Appending(writer_id=writer_id, runs=runs, bounds=(lower, upper), builder=builder, definite=True)
        with self._doubts.call() as call:
            appended = await self._append_definite(append, call, deadline)
            # Also of what others have written: its caller need not write it any more.
            call.settle(appended)
            self._upper = upper
            return appended

    async def compare_and_append(
        self,
        updates: UpdatesLike,
        expected_upper: FrontierLike,
        new_upper: FrontierLike,
        *,
        token: Token | str | None = None,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> Appended | UpperMismatch:
        """Append the updates of ``[expected_upper, new_upper)`` iff the shard's upper is ``expected_upper``.

        The outcome is a value, and final: after UpperMismatch nothing of this call is or ever will be in the shard.
        Any number of calls may overlap. Give a ``token`` to make calls of several processes one (the shard remembers
        its last 1024, for an hour; other updates under one it remembers are refused), or a ``transaction`` to make an
        append of an application happen once for ever: other updates under its version, the same ones in another order,
        and a version before the newest, are refused (batches that were prepared are compared by the sum of their diffs,
        and only with prepared ones). Cost: one RPC (two when the upper lies before ``expected_upper``), one upload per
        part unless inline; bounded memory. Raises as ``append`` does, and
        InvalidArgument (other updates under the token, as far as can be distinguished: small ones by their rows, all by
        the sum of their diffs; or under the transaction), OutcomeForgotten (an earlier attempt may be forgotten:
        nothing happened now). After any other Indeterminate repeat the call if it has a token or a transaction; without
        one it may still happen: ``resolve`` ends that, and reports whether it did. So does this handle's next append,
        before it sends anything.
        """
        now = self._now()
        bounds = frontier_of(expected_upper, now), frontier_of(new_upper, now)
        with self._doubts.call() as call:
            return await self.compare_and_append_as(
                call, updates, *bounds, token=token, transaction=transaction, timeout=timeout
            )

    async def compare_and_append_as(
        self,
        call: OwnCall,
        updates: UpdatesLike,
        expected_upper: AntichainLike,
        new_upper: AntichainLike,
        *,
        token: Token | str | None = None,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> Appended | UpperMismatch:
        """``compare_and_append`` as a part of another owner's write, which reports its outcome. Raises as that does."""
        bounds = (Antichain.coerce(expected_upper), Antichain.coerce(new_upper))
        _check_bounds(*bounds, expected=True)
        writer_id = self._ids.for_append()
        room = self._room_of(token, transaction, bounds, timeout)
        deadline, builder, runs, transaction = await self._build_of(
            transaction, writer_id, updates, bounds, timeout, room
        )
        return await self._once(call, writer_id, runs, bounds, token, transaction, deadline, builder)

    async def keep(self, updates: UpdatesLike, *, timeout: float | None = None) -> KeptBatch:
        """Sort, encode and upload updates once, for appends that follow each other until one is taken.

        Columns ``ts`` and ``diff`` may be missing; every row is at time 0. The caller calls ``release`` at the end.
        Raises as ``compare_and_append`` does before it sends anything.
        """
        writer_id = self._ids.for_append()
        rows, room = completed(updates, self.schema), self._room.waiting(None, timeout)
        _, builder, runs = await self._build(writer_id, rows, _bounds_until(0), timeout, room=room)
        location = self._location
        return KeptBatch(builder, runs, writer_id, runtime=location.runtime, lease_ms=location.settings.writer_lease_ms)

    async def compare_and_append_kept_as(
        self,
        call: OwnCall,
        kept: KeptBatch,
        expected_upper: int,
        at_time: int,
        *,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> Appended | UpperMismatch:
        """``compare_and_append_as`` of a batch kept by this handle, all of it at one time.

        ``transaction``: has what distinguishes its updates. Raises as that does.
        """
        bounds = Antichain.of(expected_upper), Antichain.of(at_time + 1)
        _check_bounds(*bounds, expected=True)
        self._location.check_open()
        runs = tuple(moved(run, at_time) for run in kept.runs)
        deadline = self._location.attempts.deadline(timeout)
        return await self._once(call, kept.writer_id, runs, bounds, None, transaction, deadline, kept.named())

    async def compare_and_append_kept(
        self,
        kept: KeptBatch,
        expected_upper: int,
        at_time: int,
        *,
        beside: UpdatesLike | None = None,
        timeout: float | None = None,
    ) -> Appended | UpperMismatch:
        """``compare_and_append`` of a batch kept by this handle, all of it at one time.

        ``beside``: a few more updates, at times up to this one, which were not known when it was kept. Raises as that
        does.
        """
        with self._doubts.call() as call:
            if beside is None:
                return await self.compare_and_append_kept_as(call, kept, expected_upper, at_time, timeout=timeout)
            bounds = Antichain.of(expected_upper), Antichain.of(at_time + 1)
            _check_bounds(*bounds, expected=True)
            deadline, builder, more = await self._build(kept.writer_id, beside, bounds, timeout)
            runs = *[moved(run, at_time) for run in kept.runs], *more
            parts = Beside(kept.named(), builder)
            return await self._once(call, kept.writer_id, runs, bounds, None, None, deadline, parts)

    def batch_spec(self) -> BatchSpec:
        """What another process needs to write parts for this shard: picklable and small.

        No RPC. Raises UsageError once the client is closed.
        """
        location = self._location
        location.check_open()
        return BatchSpec(
            blob_uri=location.blob.uri,
            shard=self.shard,
            writer_id=self.writer_id,
            schema=self.schema.to_bytes(),
            schema_id=self.schema_id,
            settings=location.settings,
        )

    async def compare_and_append_batches(
        self,
        batches: Sequence[PreparedBatch],
        expected_upper: FrontierLike,
        new_upper: FrontierLike,
        *,
        token: Token | str | None = None,
        transaction: Transaction | None = None,
        at_time: TimeLike | None = None,
        timeout: float | None = None,
    ) -> Appended | UpperMismatch:
        """Append what other processes prepared, all of it in one commit, iff the shard's upper is ``expected_upper``.

        ``at_time``: every time t is read as max(t, at_time), so rows prepared without times happen at ``at_time``.
        Nothing that was prepared is ever deleted: after UpperMismatch call again with other bounds. Cost: one RPC.
        Raises as ``compare_and_append`` does, InvalidArgument for batches of another shard, and RequestTooLarge for
        more than ``settings.parts_per_append_max`` parts: nothing was sent, prepare fewer and larger batches.
        """
        now = self._now()
        bounds = frontier_of(expected_upper, now), frontier_of(new_upper, now)
        _check_bounds(*bounds, expected=True)
        self._location.check_open()
        runs = placed(batches, self.shard, bounds, None if at_time is None else time_of(at_time, now))
        transaction = _of_batches(transaction, batches)
        deadline = self._location.attempts.deadline(timeout)
        with self._doubts.call() as call:
            return await self._once(call, self._ids.fixed(), runs, bounds, token, transaction, deadline, None)

    async def append_at_upper(
        self,
        updates: UpdatesLike,
        *,
        not_before: TimeLike = 0,
        token: Token | str | None = None,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> Appended:
        """Append all updates at one time: ``not_before``, or the shard's upper when that has passed it.

        ``not_before``: a number, or what ``time_of`` understands, such as ``now``.
        Writers never contend: the server places each append behind the one before it, and many share one commit. The
        rows are read at the time before ``Appended.upper``. Columns ``ts`` (default 0; at most ``not_before``) and
        ``diff`` (default +1) may be missing. No updates move the upper only. ``token`` and ``transaction`` are as in
        ``compare_and_append``. Cost: one RPC, and uploads as there. Raises as that does.
        """
        begin = time_of(not_before, self._now())
        with self._doubts.call() as call:
            return await self.append_at_upper_as(
                call, updates, not_before=begin, token=token, transaction=transaction, timeout=timeout
            )

    async def append_at_upper_as(
        self,
        call: OwnCall,
        updates: UpdatesLike,
        *,
        not_before: int = 0,
        token: Token | str | None = None,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> Appended:
        """``append_at_upper`` as a part of another owner's write, which reports its outcome. Raises as that does."""
        bounds = _bounds_until(not_before)
        writer_id = self._ids.for_append()
        updates = completed(updates, self.schema)
        room = self._room_of(token, transaction, None, timeout)
        deadline, builder, runs, transaction = await self._build_of(
            transaction, writer_id, updates, bounds, timeout, room
        )
        runs = tuple(moved(run, not_before) for run in runs)
        return await self._append_moved(call, writer_id, runs, bounds, token, transaction, deadline, builder)

    async def append_batches_at_upper(
        self,
        batches: Sequence[PreparedBatch],
        *,
        not_before: TimeLike = 0,
        token: Token | str | None = None,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> Appended:
        """Append what other processes prepared, all at one time. See ``append_at_upper``. Cost: one RPC.

        Nothing that was prepared is ever deleted. Raises InvalidBounds for batches with times beyond ``not_before``,
        and RequestTooLarge as ``compare_and_append_batches`` does.
        """
        begin = time_of(not_before, self._now())
        bounds = _bounds_until(begin)
        self._location.check_open()
        transaction = _of_batches(transaction, batches)
        deadline = self._location.attempts.deadline(timeout)
        runs = tuple(moved(run, begin) for run in placed(batches, self.shard, bounds, None))
        with self._doubts.call() as call:
            return await self._append_moved(call, self._ids.fixed(), runs, bounds, token, transaction, deadline, None)

    def _now(self) -> int:
        return self._location.runtime.now_ms()

    async def resolve(self, *, timeout: float | None = None) -> tuple[Resolved, ...]:
        """The outcome of this handle's calls that ended without an answer, each reported once.

        Those are calls that may have applied (Indeterminate), cancelled and interrupted ones. Being reported does
        not mean that it happened. Look at each: with ``appended`` it is in the shard; without, it is not and never will
        be, unless it is ``forgotten``, which only reading the shard can show. What is not reported did not happen
        either, and nothing more comes of any. Those that later appends or ``expire`` resolved are reported, too; of
        more than 10,000 the newest. Cost: one RPC for each call in doubt, all at once; none without one. Raises
        LocationError: repeat it.
        """
        self._location.check_open()
        return await self._doubts.resolve(self._location.attempts.deadline(timeout))

    async def expire(self, *, timeout: float | None = None) -> None:
        """Let what this writer left in Blob and nothing names be swept early. Optional. One RPC.

        Nothing more comes of calls in doubt afterwards: see ``resolve``. Raises LocationError: repeat it.
        """
        self._location.check_open()
        deadline = self._location.attempts.deadline(timeout)
        await self._appender.resolve_earlier(deadline)
        command = ExpireWriter(writer_id=self._ids.current)
        await self._location.attempts.repeat(
            deadline,
            lambda seconds: self._location.shards.apply(self.shard, command, timeout=seconds),
        )
        self._ids.renew()

    def __repr__(self) -> str:
        return f"<WriteHandle of {self.shard} upper={self._upper}>"

    async def _append_definite(self, append: Appending, call: OwnCall, deadline: Deadline) -> Appended:
        upper = append.bounds[1]
        while True:
            try:
                outcome = await self._commit(append, call, deadline)
            except ShardClosed:
                # SUBTLE: its upper proves nothing. The process that closed or finalized it may not have had these
                # updates.
                closed = self._appender.closed
                if closed is None or not upper.is_empty:
                    raise
                # This handle did, with a call that ended in doubt: this is its repetition.
                outcome = closed
            begin = append.bounds[0]
            match outcome:
                case Appended():
                    return dataclasses.replace(outcome, upper=upper)
                case UpperMismatch(upper=current) if current.is_empty:
                    await append.discard()
                    raise not_writable(self._shard, since=Antichain.of(0))
                case UpperMismatch(upper=current, seqno=seqno) if upper.less_equal(current):
                    await append.discard()
                    return Appended(upper=upper, seqno=seqno, already_committed=True)
                case UpperMismatch(upper=current) if current.less_than(begin):
                    await append.discard()
                    raise InvalidBounds(
                        "the shard ends before this handle's upper",
                        hint="open a new writer",
                        upper=current,
                        lower=begin,
                    )
                case UpperMismatch(upper=current):
                    append = dataclasses.replace(append, bounds=(current, upper), truncated=bool(append.runs))
                case unreachable:
                    assert_never(unreachable)

    async def _once(
        self,
        call: OwnCall,
        writer_id: WriterId,
        runs: tuple[Run, ...],
        bounds: Bounds,
        token: Token | str | None,
        transaction: Transaction | None,
        deadline: Deadline,
        builder: Parts | None,
        *,
        rebase: bool = False,
    ) -> Appended | UpperMismatch:
        """``builder`` None: the parts belong to another owner and are never deleted."""
        append = Appending(
            writer_id=writer_id, runs=runs, bounds=bounds, builder=builder, transaction=transaction, rebase=rebase
        )
        if token is not None:
            append = self._named(append, Token.parse(token))
        outcome = await self._commit(append, call, deadline)
        if isinstance(outcome, Appended):
            self._upper = self._upper.join(outcome.upper)
        else:
            await append.discard()
            self._upper = outcome.upper
        return outcome

    def _named(self, append: Appending, token: Token) -> Appending:
        """The append under the caller's token, which may have been used before: by this handle, or by another one."""
        use = self._tokens.setdefault(token, TokenUse(self._caller.seqno))
        use.calls += 1
        if len(self._tokens) > _TOKENS_MAX:
            del self._tokens[next(iter(self._tokens))]
        # Of what others prepared only the sum of diffs is known, and retractions beside it are made anew each time.
        body = body_of(append.runs, self.schema, timed=not append.rebase) if append.builder else b""
        return dataclasses.replace(append, token=token, token_use=use, known_seqno=use.known_seqno, body=body)

    async def _commit(self, append: Appending, call: OwnCall, deadline: Deadline) -> Appended | UpperMismatch:
        begun, committed = self._ids.begin(), False
        try:
            outcome = await self._appender.commit(append, deadline, call)
            committed = isinstance(outcome, Appended) and append.writer_id == self._ids.current
            if isinstance(outcome, Appended) and append.runs and not outcome.already_committed:
                self._room.taken()
            return outcome
        except LocationError as error:
            self._room.refused(error)
            raise
        finally:
            self._ids.end(begun, committed=committed)

    async def _append_moved(
        self,
        call: OwnCall,
        writer_id: WriterId,
        runs: tuple[Run, ...],
        bounds: Bounds,
        token: Token | str | None,
        transaction: Transaction | None,
        deadline: Deadline,
        builder: BatchBuilder | None,
    ) -> Appended:
        outcome = await self._once(call, writer_id, runs, bounds, token, transaction, deadline, builder, rebase=True)
        if isinstance(outcome, Appended):
            return outcome
        raise VersionMismatch(
            "the server cannot move a batch to the upper", hint="upgrade it, or use compare_and_append"
        )

    def _room_of(
        self, token: Token | str | None, transaction: Transaction | None, bounds: Bounds | None, timeout: float | None
    ) -> Waiting | None:
        """What an append waits for before it uploads. Not what may have happened before: the shard says of that so."""
        return self._room.waiting(bounds, timeout) if token is None and transaction is None else None

    async def _build_of(
        self,
        transaction: Transaction | None,
        writer_id: WriterId,
        updates: UpdatesLike,
        bounds: Bounds,
        timeout: float | None,
        room: Waiting | None,
    ) -> tuple[Deadline, BatchBuilder, tuple[Run, ...], Transaction | None]:
        """``_build``, and the transaction with what distinguishes these updates from others under its version."""
        if transaction is None or transaction.has_body:
            return *await self._build(writer_id, updates, bounds, timeout, room=room), transaction
        fingerprint = Fingerprint(self.schema)
        transaction.with_body(fingerprint.text)  # an owner that leaves it no room is refused before any upload
        built = await self._build(writer_id, updates, bounds, timeout, fingerprint, room)
        return *built, transaction.with_body(fingerprint.text)

    async def _build(
        self,
        writer_id: WriterId,
        updates: UpdatesLike,
        bounds: Bounds,
        timeout: float | None,
        fingerprint: Fingerprint | None = None,
        room: Waiting | None = None,
    ) -> tuple[Deadline, BatchBuilder, tuple[Run, ...]]:
        self._location.check_open()
        self._location.attempts.deadline(timeout)  # a bad timeout is refused before any upload
        builder = self._builder(writer_id, bounds, timeout, fingerprint, room)
        runs = await builder.consume(updates)
        return self._location.attempts.deadline(timeout), builder, runs

    def _builder(
        self,
        writer_id: WriterId,
        bounds: Bounds | None,
        timeout: float | None,
        fingerprint: Fingerprint | None = None,
        room: Waiting | None = None,
    ) -> BatchBuilder:
        location = self._location
        target = PartsTarget(
            blob=location.blob,
            shard=self.shard,
            writer_id=writer_id,
            schema=self.schema,
            schema_id=self.schema_id,
        )
        return BatchBuilder(
            target,
            settings=location.settings,
            runtime=location.runtime,
            bounds=bounds,
            timeout=timeout,
            fingerprint=fingerprint,
            room=room,
        )


def _of_batches(transaction: Transaction | None, batches: Sequence[PreparedBatch]) -> Transaction | None:
    """The transaction with what is known of the updates that others prepared."""
    return None if transaction is None else transaction.with_body(str(sum(batch.diffs_sum for batch in batches)))


def _bounds_until(time: int) -> Bounds:
    """Every time up to ``time``."""
    if check_time(time) == TIME_MAX:
        raise InvalidBounds("the last time cannot be passed", hint="give an earlier not_before", not_before=time)
    return Antichain.of(0), Antichain.of(time + 1)


def _check_bounds(lower: Antichain, upper: Antichain, *, expected: bool = False) -> None:
    """Refuse what no shard could take, before anything is uploaded."""
    if lower.is_empty:
        name = "expected_upper is []" if expected else "the shard is closed for writes"
        raise ShardClosed(name, hint="nothing can be appended at or beyond []", upper=upper)
    if not lower.less_equal(upper):
        raise InvalidBounds(
            "new_upper lies below the batch's lower", hint="times only move forward", lower=lower, new_upper=upper
        )
