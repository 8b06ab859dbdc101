"""A server's part in one webhook: takes deliveries, appends many at once, and answers each when it is durable.

One thread appends, so what comes while an append is under way goes with the next one. Whatever waits is bounded, and
what does not fit is refused at once. Source: reliability.md section 5, overload; catalog-semantics.md section 4.1.
"""

import contextlib
import dataclasses
import logging
import os
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import pyarrow as pa

from persist import ClockAhead, Determinate, Indeterminate, LocationError, PersistError, ShardClosed, UsageError
from persist.runtime import system
from persist_ingest.location import Location, client
from persist_ingest.pipeline.records import Records, Source, Told
from persist_ingest.pipeline.state import History
from persist_ingest.pipeline.work import together
from persist_ingest.receiving.memory import Memory
from persist_ingest.receiving.room import Budget, Room
from persist_ingest.receiving.table import WebhookTable
from persist_ingest.sources.port import Pushed
from persist_ingest.sources.registry import source_type
from persist_ingest.sources.webhook.kind import definition_of
from persist_ingest.sources.webhook.refusals import (
    DROPPED,
    FAILED,
    IN_DOUBT,
    KEY_REUSED,
    UNAVAILABLE,
    Refused,
)
from persist_ingest.sources.webhook.rows import Delivery, Rows, Taken
from persist_ingest.sources.webhook.signatures import Checker

_log = logging.getLogger(__name__)

BATCH_BYTES: Final = 16 << 20
BATCH_DELIVERIES: Final = 4_096
BEAT_SECONDS: Final = 1.0
"""How long a word that nothing comes is tried, while deliveries may wait behind it."""
BEGIN_SECONDS: Final = 30.0
FORGET_SECONDS: Final = 5.0
TOLD_SECONDS: Final = 2.0
Labels: TypeAlias = tuple[tuple[str, str], ...]
Figure: TypeAlias = tuple[str, Labels, float]

HELP: Final = {
    "persist_webhook_answers_total": "answers given to senders, by status and, of what was refused, the reason",
    "persist_webhook_rows_total": "rows that this process appended",
    "persist_webhook_bytes_total": "bytes of the bodies that they were in",
    "persist_webhook_repeated_total": "deliveries that were in the table already, and were answered so",
    "persist_webhook_appends_total": "appends of this process, each of many deliveries",
    "persist_webhook_append_seconds_total": "seconds spent in them",
    "persist_webhook_waiting_bytes": "bytes of bodies that are read or wait to be appended",
    "persist_webhook_waiting_limit_bytes": "how many there may be",
    "persist_webhook_remembered_deliveries": "deliveries whose repetition is recognised",
    "persist_webhook_lag_seconds": "how long ago the table was complete",
    "persist_webhook_failures_total": "what was waited for, by the reason of the error",
    "persist_webhook_connections": "senders that are connected, by whether a request of theirs was right",
    "persist_webhook_sent_away_total": "connections that were ended because others came and there were too many",
}
"""What each metric of a server is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverOptions:
    """How a server takes deliveries; none of it changes what it appends.

    ``answer_seconds``: so long a sender waits at most. ``waiting_bytes``: bodies of all that wait. ``retain_ms``: how
    far back the table stays readable. ``minter``: endpoints of TimestampMinter, or empty.
    """

    answer_seconds: float = 20.0
    waiting_bytes: int = 64 << 20
    retain_ms: int = 600_000
    minter: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A delivery is in the table: with so many rows at this time; 0: at one that is not known any more.

    ``repeated``: it was there before.
    """

    rows: int
    time: int
    repeated: bool = False


@dataclass(slots=True)
class _Waiting:
    delivery: Delivery
    until: float
    outcome: "Future[Answer]" = field(default_factory=Future)


class Receiver:
    """Serves one source until it is closed. ``offer`` is for any thread; everything it answers is durable."""

    def __init__(self, location: Location, name: str, *, options: ReceiverOptions | None = None) -> None:
        """Raises SourceNotFound, UsageError (it is not served; its secret is not there), LocationError."""
        self.options = options or ReceiverOptions()
        self._client = client(location.resolved(), patient=True)
        self._records = Records(self._client)
        self.source: Source = self._records.source(name)
        if not isinstance(source_type(self.source.type), Pushed):
            raise UsageError("this source is no webhook", hint=f"persist source run {name}", source=name)
        self.definition = definition_of(self.source.definition)
        self.checker = Checker(self.definition.check)
        self._runtime = system()
        self._ingester = f"{self._runtime.hostname}-{os.getpid()}-{self._runtime.random_bytes(3).hex()}"
        memory = Memory(self.definition.remember_hours) if self.definition.once_by else None
        self._stop, self._arrived = threading.Event(), threading.Condition()
        self._table = WebhookTable(self._client, self.source, self.definition.export, memory, self._stop.wait)
        self._rows = Rows(self.definition)
        self._minter = self._client.minter(self.options.minter)
        self._history = History(self._client, self.options.retain_ms)
        self._queue: deque[_Waiting] = deque()
        self._budget = Budget(self.options.waiting_bytes)
        self._dropped = self._closing = False
        self._beat_at = self._told_at = self._forgot_at = float("-inf")
        self._counts: defaultdict[tuple[str, Labels], float] = defaultdict(float)
        self._error: PersistError | None = None
        self._thread = threading.Thread(target=self._run, name=f"webhook {name}", daemon=True)
        # Beside it: what only keeps things in order keeps no sender waiting.
        self._keeping = threading.Thread(target=self._keep, name=f"upkeep of webhook {name}", daemon=True)

    @property
    def is_dropped(self) -> bool:
        """Its source was dropped while it was served; another one may have the name by now."""
        return self._dropped

    def begin(self) -> None:
        """Look at the table, which is complete up to now from here on. Raises LocationError, ShardClosed."""
        self._table.beat(self._runtime.now_ms(), BEGIN_SECONDS)
        self._thread.start()
        self._keeping.start()

    def room(self, announced: int) -> Room:
        """Room for a body that is going to be read, as it comes; of one event loop. Raises Refused."""
        with self._arrived:
            if self._dropped:
                raise Refused(DROPPED, "this source was dropped")
            if self._closing:
                raise Refused(UNAVAILABLE, "this server is about to end")
        return self._budget.enter(announced)

    def offer(self, delivery: Delivery) -> "Future[Answer]":
        """Have a delivery appended whose signature is right; the answer comes when that is durable. Raises nothing.

        The future raises Refused.
        """
        waiting = _Waiting(delivery, self._runtime.monotonic() + self.options.answer_seconds)
        with self._arrived:
            if self._closing or self._dropped:
                kind = DROPPED if self._dropped else UNAVAILABLE
                waiting.outcome.set_exception(Refused(kind, "this source is not served here any more"))
            else:
                self._queue.append(waiting)
                self._arrived.notify()
        return waiting.outcome

    def answered(self, status: int, reason: str = "") -> None:
        """Count an answer that was given."""
        self._count("answers_total", 1, status=str(status), **({"reason": reason} if reason else {}))

    def close(self) -> None:
        """Append what waits, and end. What was offered has its answer afterwards. Raises nothing."""
        with self._arrived:
            self._closing = True
            self._arrived.notify()
        for thread in (self._thread, self._keeping):
            if thread.is_alive():
                thread.join()
        self._table.close()
        with contextlib.suppress(PersistError):
            self._records.tell(self.source, self._ingester, None)
        self._minter.close()

    def figures(self) -> Iterator[Figure]:
        """What is counted, as it is now. From any thread."""
        named = (("source", self.source.name),)
        for (name, labels), value in self._counts.copy().items():
            yield name, labels, value
        yield "persist_webhook_waiting_bytes", named, self._budget.held
        yield "persist_webhook_waiting_limit_bytes", named, self._budget.limit
        memory, upper = self._table.memory, self._table.upper
        if memory is not None:
            yield "persist_webhook_remembered_deliveries", named, len(memory)
        if upper is not None:
            yield "persist_webhook_lag_seconds", named, max(0, self._runtime.now_ms() - upper) / 1000

    def _run(self) -> None:
        while True:
            batch = self._next()
            if batch is None:
                return
            try:
                if batch:
                    self._carry(batch)
                self._beat()
                self._error = None
            except ShardClosed as error:
                self._error, self._dropped = error, True
                self._refuse([*batch, *self._rest()], Refused(DROPPED, "this source was dropped"))
                return
            except PersistError as error:
                self._error = error
                self._count("failures_total", 1, reason=error.reason)
                _log.warning("webhook %s: %s", self.source.name, error)
                self._stop.wait(0.2)
            except Exception:
                _log.exception("webhook %s could not carry on, and tries again", self.source.name)
                self._stop.wait(0.2)
            finally:
                self._refuse(batch, Refused(FAILED, "it may be in the table: see the server's log"))

    def _next(self) -> list[_Waiting] | None:
        """What is appended next, perhaps nothing; None: no more comes."""
        with self._arrived:
            if not self._queue and not self._closing:
                due = self._beat_at + self.source.interval_ms / 1000 - self._runtime.monotonic()
                self._arrived.wait(max(0.0, due))
            if not self._queue and self._closing:
                return None
            batch: list[_Waiting] = []
            size = 0
            while self._queue and len(batch) < BATCH_DELIVERIES and size < BATCH_BYTES:
                first = self._queue.popleft()
                # One whose sender was answered that it had waited for too long is not appended any more.
                if first.outcome.set_running_or_notify_cancel():
                    batch.append(first)
                    size += len(first.delivery.body)
        return batch

    def _rest(self) -> list[_Waiting]:
        with self._arrived:
            rest, self._queue = list(self._queue), deque()
        return rest

    def _carry(self, batch: Sequence[_Waiting]) -> None:
        """Append a batch, and answer each of it. Raises what it is answered with, too."""
        taken = self._rows.of([each.delivery for each in batch])
        for at, refusal in taken.refused.items():
            self._refuse([batch[at]], refusal)
        counts, memory = taken.counts(len(batch)), self._table.memory
        repeated: dict[int, Answer | Refused] = {}

        def wanted() -> pa.RecordBatch:
            if memory is not None:
                repeated.clear()
                repeated.update(self._known(batch, taken, memory))
            return taken.without(list(repeated))

        begun, until = self._runtime.monotonic(), max(each.until for each in batch)
        try:
            time = self._table.append(wanted, until)
        except Indeterminate as error:
            self._refuse(batch, Refused(IN_DOUBT, "it may be in the table: repeat it under the same key"))
            raise error
        except ClockAhead:
            self._refuse(batch, Refused(UNAVAILABLE, "the table is ahead of this server's clock: nothing was appended"))
            raise
        except (Determinate, LocationError):
            self._refuse(batch, Refused(UNAVAILABLE, "the table cannot be reached: nothing was appended"))
            raise
        self._count("append_seconds_total", self._runtime.monotonic() - begun)
        for at, each in enumerate(batch):
            if each.outcome.done():
                continue
            told = repeated.get(at)
            if isinstance(told, Refused):
                self._refuse([each], told)
                continue
            if told is None:
                self._count("rows_total", int(counts[at]))
                self._count("bytes_total", len(each.delivery.body))
            else:
                self._count("repeated_total", 1)
            each.outcome.set_result(told or Answer(int(counts[at]), time or 0))
        if time is not None:
            self._count("appends_total", 1)

    def _known(self, batch: Sequence[_Waiting], taken: Taken, memory: Memory) -> "dict[int, Answer | Refused]":
        """Which of a batch are in the table already, or come in it twice."""
        now, found, first = self._runtime.now_ms(), dict[int, Answer | Refused](), dict[str, int]()
        counts = taken.counts(len(batch))
        for at, each in enumerate(batch):
            if at in taken.refused:
                continue
            delivery = each.delivery
            earlier = first.setdefault(delivery.key, at)
            known = memory.of(delivery.key, now)
            fingerprint, time = (known.fingerprint, known.time) if known is not None else (None, 0)
            if fingerprint is None and earlier != at:
                fingerprint = batch[earlier].delivery.fingerprint
            if fingerprint is None:
                continue
            same = fingerprint == delivery.fingerprint
            found[at] = (
                Answer(int(counts[at]), time, repeated=True)
                if same
                else Refused(KEY_REUSED, "another body was delivered under this key")
            )
        return found

    def _refuse(self, batch: Sequence[_Waiting], refusal: Refused) -> None:
        for each in batch:
            # Its sender may have been answered meanwhile that it had waited for too long.
            with contextlib.suppress(InvalidStateError):
                each.outcome.set_exception(refusal)

    def _beat(self) -> None:
        """Say that nothing more comes before now, where it is time to."""
        now = self._runtime.monotonic()
        if now - self._beat_at >= self.source.interval_ms / 1000:
            self._table.beat(self._runtime.now_ms(), BEAT_SECONDS)
            self._beat_at = now

    def _keep(self) -> None:
        """Complete the bindings, release history, and say how it fares: until the other thread ends."""
        while self._thread.is_alive():
            try:
                if not self._dropped:
                    self._minter.mint(self.source.remap_source)
                    self._forget()
                    self._tell()
            except PersistError as error:
                _log.warning("upkeep of webhook %s: %s", self.source.name, error)
            except Exception:
                _log.exception("upkeep of webhook %s failed, and is tried again", self.source.name)
            self._thread.join(self.source.interval_ms / 1000)

    def _forget(self) -> None:
        now = self._runtime.monotonic()
        if now - self._forgot_at >= FORGET_SECONDS:
            self._forgot_at = now
            self._minter.compact(self.source.remap_source, self.source.shards)
            upper = self._client.recent_upper(self._table.shard)
            together(self._history.keeper(upper), self.source.shards.values())

    def _tell(self) -> None:
        """A word for ``source status``. What only reports how it fares ends nothing."""
        now = self._runtime.monotonic()
        if now - self._told_at < TOLD_SECONDS:
            return
        is_first, self._told_at = self._told_at == float("-inf"), now
        try:
            if is_first:
                self._records.forget_silent(self.source, self._ingester)
            self._records.tell(self.source, self._ingester, dataclasses.asdict(self._told()))
        except Exception as untold:
            _log.warning("status of webhook %s not reported: %s", self.source.name, untold)

    def _told(self) -> Told:
        now, upper, error = self._runtime.now_ms(), self._table.upper, self._error
        return Told(
            state="running" if error is None else "stalled",
            at_ms=now,
            host=self._runtime.hostname,
            pid=os.getpid(),
            upper_ms=upper,
            lag_ms=None if upper is None else max(0, now - upper),
            rows=self._sum("rows_total"),
            bytes=self._sum("bytes_total"),
            steps=self._sum("appends_total"),
            error="" if error is None else f"{type(error).__name__}: {error}",
        )

    def _count(self, name: str, by: float, **labels: str) -> None:
        named = (("source", self.source.name), *labels.items())
        self._counts[f"persist_webhook_{name}", named] += by

    def _sum(self, name: str) -> int:
        return int(self._counts[f"persist_webhook_{name}", (("source", self.source.name),)])
