"""WriteHandle: appending to a shard.

Source: design 001, WriteHandle; persist-semantics.md section 2.5; reliability.md I4 and I9.
"""

import dataclasses
from collections.abc import Sequence
from typing import assert_never

from persist.client.batch import BatchBuilder, Bounds, Target
from persist.client.inputs import UpdatesLike
from persist.client.location import Location
from persist.client.prepared import BatchSpec, PreparedBatch, completed, moved, placed
from persist.client.window import AppendWindow
from persist.client.writer_ids import WriterIds
from persist.core.data.schema import Schema
from persist.core.frontier import TIME_MAX, Antichain, AntichainLike, Description, check_time
from persist.core.ids import ShardId, Token, WriterId
from persist.core.shard.batch import HollowBatch, Run
from persist.core.shard.commands import (
    Appended,
    CompareAndAppend,
    ExpireWriter,
    InlineBackpressure,
    Transaction,
    UpperMismatch,
)
from persist.errors import Indeterminate, InvalidBounds, ShardClosed, UsageError, VersionMismatch
from persist.machine.attempts import Doubt
from persist.machine.patience import Deadline

_DOUBTFUL_MAX = 10_000
"""Appends without an answer that a handle remembers, for whoever repeats them."""


class WriteHandle:
    """Writes one shard under one writer id. Not registered anywhere: dropping it costs nothing.

    Calls of one handle may overlap. ``timeout`` is in seconds, None means ``settings.timeout_ms``; it bounds the
    commit, and each upload by itself, not the time that sorting and encoding a large input take.
    """

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
        owns_id: bool,
    ) -> None:
        """``owns_id``: nobody else writes under this writer id."""
        self.shard = shard
        self._ids = WriterIds(writer_id, owned=owns_id, settings=location.settings, runtime=location.runtime)
        self.schema = schema
        self.schema_id = schema_id
        self._location = location
        self._upper = upper
        self._seqno = seqno
        self._doubtful: dict[Token, int] = {}
        self._owns_id = owns_id
        self._appends = 0
        self._window = AppendWindow(location.settings.token_history // 2)

    @property
    def writer_id(self) -> WriterId:
        """The id this handle writes under. Asking fixes it: until then an idle handle of its own id takes a new one."""
        return self._ids.fixed()

    @property
    def upper(self) -> Antichain:
        """Where this handle's next append begins: the newest upper it has written or been told. No RPC."""
        return self._upper

    async def append(self, updates: UpdatesLike, new_upper: AntichainLike, *, timeout: float | None = None) -> Appended:
        """Make sure that the updates of ``[self.upper, new_upper)`` are in the shard, whoever wrote them.

        Several writers may append the same definite data at once: the shard takes each time interval from whoever
        comes first. ``[]`` as ``new_upper`` closes the shard for writes; empty updates move the upper only, and with
        ``new_upper == upper`` are a heartbeat. Cost: one RPC, one upload per part unless inline; bounded memory (see
        BatchBuilder). Raises InvalidBounds, EmptyInterval, SchemaMismatch, InvalidArgument, ShardClosed (nothing
        happened), LocationError (repeat the call: it only promises that these bounds are written).
        """
        lower, upper = self._upper, Antichain.coerce(new_upper)
        _check_bounds(lower, upper)
        writer_id = self._ids.for_append()
        deadline, builder, runs = await self._build(writer_id, updates, (lower, upper), timeout)
        token, doubt, begin, begun = self._new_token(), Doubt(), lower, self._appends
        while True:
            batch = HollowBatch(
                desc=Description(lower=begin, upper=upper), runs=runs, truncated=begin != lower and bool(runs)
            )
            try:
                async with self._window.append(repeatable=False):
                    outcome = await self._commit(writer_id, batch, token, None, deadline, doubt)
            except ShardClosed:
                # Whoever closed it had written everything before; only a handle that knew it closed is mistaken.
                if lower.is_empty:
                    raise
                outcome = UpperMismatch(upper=Antichain())
            except UsageError:
                await self._give_up(builder, doubt, begun)
                raise
            match outcome:
                case Appended():
                    self._upper, self._appends = upper, self._appends + 1
                    return dataclasses.replace(outcome, upper=upper)
                case InlineBackpressure():
                    runs = await builder.spill(runs)
                case UpperMismatch(upper=current, seqno=seqno) if upper.less_equal(current):
                    await self._give_up(builder, doubt, begun)
                    self._upper = upper
                    return Appended(upper=upper, seqno=seqno, already_committed=True)
                case UpperMismatch(upper=current) if current.less_than(begin):
                    await self._give_up(builder, doubt, begun)
                    raise InvalidBounds(
                        "the shard ends before this handle's upper",
                        hint="open a new writer",
                        upper=current,
                        lower=begin,
                    )
                case UpperMismatch(upper=current):
                    begin = current
                case unreachable:
                    assert_never(unreachable)

    async def compare_and_append(
        self,
        updates: UpdatesLike,
        expected_upper: AntichainLike,
        new_upper: AntichainLike,
        *,
        token: Token | str | None = None,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> Appended | UpperMismatch:
        """Append the updates of ``[expected_upper, new_upper)`` iff the shard's upper is ``expected_upper``.

        The outcome is a value. All attempts of one call carry one token; give a ``token`` to make calls of several
        processes one (it is remembered for the writer's last 64 appends), or a ``transaction`` to make an append of an
        application happen once for ever. Cost: one RPC, one upload per part unless inline; bounded memory. Raises as
        ``append`` does; after Indeterminate, repeat the call with the same token to learn what happened.
        """
        bounds = (Antichain.coerce(expected_upper), Antichain.coerce(new_upper))
        _check_bounds(*bounds, expected=True)
        the_token = self._new_token() if token is None else Token.parse(token)
        writer_id = self._ids.for_append(named=token is not None)
        deadline, builder, runs = await self._build(writer_id, updates, bounds, timeout)
        async with self._window.append(repeatable=False):
            return await self._append_once(writer_id, runs, bounds, the_token, transaction, deadline, builder)

    def batch_spec(self) -> BatchSpec:
        """What another process needs to write parts for this shard: picklable and small. No RPC."""
        location = self._location
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
        expected_upper: AntichainLike,
        new_upper: AntichainLike,
        *,
        token: Token | str | None = None,
        transaction: Transaction | None = None,
        at_time: int | None = None,
        timeout: float | None = None,
    ) -> Appended | UpperMismatch:
        """Append what other processes prepared, all of it in one commit, iff the shard's upper is ``expected_upper``.

        ``at_time``: every time t is read as max(t, at_time), so rows prepared without times happen at ``at_time``.
        Nothing that was prepared is ever deleted: after UpperMismatch call again with other bounds. Cost: one RPC.
        Raises as ``compare_and_append`` does, and InvalidArgument for batches of another shard.
        """
        bounds = (Antichain.coerce(expected_upper), Antichain.coerce(new_upper))
        _check_bounds(*bounds, expected=True)
        the_token = self._new_token() if token is None else Token.parse(token)
        self._location.check_open()
        runs = placed(batches, self.shard, bounds, None if at_time is None else check_time(at_time))
        deadline = self._location.attempts.deadline(timeout)
        async with self._window.append(repeatable=False):
            return await self._append_once(self._ids.fixed(), runs, bounds, the_token, transaction, deadline, None)

    async def append_at_upper(
        self,
        updates: UpdatesLike,
        *,
        not_before: int = 0,
        token: Token | str | None = None,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> Appended:
        """Append all updates at one time: ``not_before``, or the shard's upper when that has passed it.

        Writers never contend: the server places each append behind the one before it, and many share one commit. The
        rows are read at the time before ``Appended.upper``. Columns ``ts`` (default 0; at most ``not_before``) and
        ``diff`` (default +1) may be missing. No updates move the upper only. A repeated ``token`` is recognised for
        the writer's last 64 appends, whichever handle made them; a ``transaction`` for ever. Cost: as
        ``compare_and_append``. Raises as that does; after Indeterminate, repeat the call of this handle with the same
        token. Raises LeaseExpired when the shard may have forgotten an earlier attempt: nothing happened now.
        """
        bounds = _bounds_until(not_before)
        the_token = self._new_token() if token is None else Token.parse(token)
        writer_id = self._ids.for_append(named=token is not None)
        deadline, builder, runs = await self._build(writer_id, completed(updates, self.schema), bounds, timeout)
        runs = tuple(moved(run, not_before) for run in runs)
        return await self._append_moved(writer_id, runs, bounds, the_token, transaction, deadline, builder)

    async def append_batches_at_upper(
        self,
        batches: Sequence[PreparedBatch],
        *,
        not_before: int = 0,
        token: Token | str | None = None,
        transaction: Transaction | None = None,
        timeout: float | None = None,
    ) -> Appended:
        """Append what other processes prepared, all at one time. See ``append_at_upper``. Cost: one RPC.

        Nothing that was prepared is ever deleted. Raises InvalidBounds for batches with times beyond ``not_before``.
        """
        bounds = _bounds_until(not_before)
        the_token = self._new_token() if token is None else Token.parse(token)
        self._location.check_open()
        deadline = self._location.attempts.deadline(timeout)
        runs = tuple(moved(run, not_before) for run in placed(batches, self.shard, bounds, None))
        return await self._append_moved(self._ids.fixed(), runs, bounds, the_token, transaction, deadline, None)

    async def expire(self, *, timeout: float | None = None) -> None:
        """Forget this writer and the tokens of its appends. Optional. One RPC."""
        command = ExpireWriter(writer_id=self._ids.current)
        await self._location.attempts.repeat(
            self._location.attempts.deadline(timeout),
            lambda seconds: self._location.shards.apply(self.shard, command, timeout=seconds),
        )
        self._ids.renew()

    async def _append_once(
        self,
        writer_id: WriterId,
        runs: tuple[Run, ...],
        bounds: Bounds,
        token: Token,
        transaction: Transaction | None,
        deadline: Deadline,
        builder: BatchBuilder | None,
        *,
        rebase: bool = False,
    ) -> Appended | UpperMismatch:
        """``builder`` None: the parts belong to somebody else and are never deleted."""
        (lower, upper), doubt, begun = bounds, Doubt(), self._appends
        while True:
            batch = HollowBatch(desc=Description(lower=lower, upper=upper), runs=runs)
            try:
                outcome = await self._commit(writer_id, batch, token, transaction, deadline, doubt, rebase=rebase)
            except UsageError:
                if builder is not None:
                    await self._give_up(builder, doubt, begun)
                raise
            match outcome:
                case Appended():
                    self._upper, self._appends = self._upper.join(outcome.upper), self._appends + 1
                    return outcome
                case InlineBackpressure():
                    runs = await (builder or self._builder(writer_id, None, None)).spill(runs)
                case UpperMismatch():
                    # SUBTLE: an upper short of ``lower`` could still reach it, and a late attempt then succeed.
                    if builder is not None and lower.less_than(outcome.upper):
                        await self._give_up(builder, doubt, begun)
                    self._upper = outcome.upper
                    return outcome
                case unreachable:
                    assert_never(unreachable)

    async def _append_moved(
        self,
        writer_id: WriterId,
        runs: tuple[Run, ...],
        bounds: Bounds,
        token: Token,
        transaction: Transaction | None,
        deadline: Deadline,
        builder: BatchBuilder | None,
    ) -> Appended:
        async with self._window.append(repeatable=True):
            outcome = await self._append_once(
                writer_id, runs, bounds, token, transaction, deadline, builder, rebase=True
            )
        if isinstance(outcome, Appended):
            return outcome
        raise VersionMismatch(
            "the server cannot move a batch to the upper", hint="upgrade it, or use compare_and_append"
        )

    async def _build(
        self, writer_id: WriterId, updates: UpdatesLike, bounds: Bounds, timeout: float | None
    ) -> tuple[Deadline, BatchBuilder, tuple[Run, ...]]:
        self._location.check_open()
        self._location.attempts.deadline(timeout)  # a bad timeout is refused before any upload
        builder = self._builder(writer_id, bounds, timeout)
        runs = await builder.consume(updates)
        return self._location.attempts.deadline(timeout), builder, runs

    def _builder(self, writer_id: WriterId, bounds: Bounds | None, timeout: float | None) -> BatchBuilder:
        location = self._location
        target = Target(
            blob=location.blob,
            shard=self.shard,
            writer_id=writer_id,
            schema=self.schema,
            schema_id=self.schema_id,
        )
        return BatchBuilder(
            target, settings=location.settings, runtime=location.runtime, bounds=bounds, timeout=timeout
        )

    async def _give_up(self, builder: BatchBuilder, doubt: Doubt, begun: int) -> None:
        """Delete the parts if no attempt can have committed them. In doubt they are left to the sweeper.

        SUBTLE: ``shards`` may itself have repeated a lost attempt under the token. Its answer counts only while the
        shard remembers the token, so not after many appends of this writer, or when others share its id.
        """
        forgotten = self._appends - begun >= self._location.settings.token_history // 2
        if not doubt.any and self._owns_id and not forgotten:
            await builder.discard()

    def _new_token(self) -> Token:
        return Token.of(self._location.runtime.random_bytes(16))

    async def _commit(
        self,
        writer_id: WriterId,
        batch: HollowBatch,
        token: Token,
        transaction: Transaction | None,
        deadline: Deadline,
        doubt: Doubt,
        *,
        rebase: bool = False,
    ) -> Appended | UpperMismatch | InlineBackpressure:
        location = self._location
        command = CompareAndAppend(
            writer_id=writer_id,
            token=token,
            batch=batch,
            lease_ms=location.settings.writer_lease_ms,
            transaction=transaction,
            rebase=rebase,
            known_seqno=self._doubtful.get(token, self._seqno) if rebase else 0,
        )
        begun, committed = self._ids.begin(), False
        try:
            outcome: Appended | UpperMismatch | InlineBackpressure = await location.attempts.repeat(
                deadline, lambda seconds: location.shards.apply(self.shard, command, timeout=seconds), doubt=doubt
            )
            committed = isinstance(outcome, Appended) and writer_id == self._ids.current
            if not isinstance(outcome, InlineBackpressure):
                self._seqno = max(self._seqno, outcome.seqno)
                self._doubtful.pop(token, None)
            return outcome
        except Indeterminate:
            # Whoever repeats it must say what was known before the first attempt.
            if rebase:
                self._doubtful.setdefault(token, command.known_seqno)
                if len(self._doubtful) > _DOUBTFUL_MAX:
                    del self._doubtful[next(iter(self._doubtful))]
            raise
        finally:
            self._ids.end(begun, committed=committed)


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
