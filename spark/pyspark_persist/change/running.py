"""A change from the first read to the one append: compared at the upper it was computed from, made again or refused.

Every attempt reads the shard at its upper, computes what is to be taken back and what is to be added, and appends it at
exactly that upper. A write that came between makes the attempt void: nothing of it happened, and its parts stay in Blob
for a sweep. Source: architecture.md section 7.
"""

import dataclasses
import difflib
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from pyspark.sql import types as st

from persist import Antichain, Determinate, InvalidArgument, InvalidBounds, ShardClosed, Transaction
from persist.runtime import system
from pyspark_persist.application import application_of, query_of
from pyspark_persist.audit.entry import author_of, shown_time
from pyspark_persist.change.target import COUNT, Base, Reach
from pyspark_persist.change.tasks import RESULT, Batches, WriteChanges
from pyspark_persist.change.touching import ANYTHING, About
from pyspark_persist.finding import check_written, current_schema
from pyspark_persist.naming import shown_fields
from pyspark_persist.options.options import WriteOptions
from pyspark_persist.options.parsing import check_time
from pyspark_persist.read.planning import TIMES_END, current_upper
from pyspark_persist.spark_types import spark_schema
from pyspark_persist.write.commit import CommitResult
from pyspark_persist.write.writing import TaskOutput, Write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


ATTEMPTS: Final = 20
"""How often a change is computed before it gives up: each is a job over the whole table."""
FOLLOWED: Final = 100
"""How often a computed change follows an upper that moves without rows that matter, before it is computed anew."""
RETRY, REFUSE = "retry", "refuse"
NAMES: Final = ("deleted", "updated", "inserted")
"""What becomes of rows, as tasks and results count it."""


class How(TypedDict, total=False):
    """How a change is made. All may be left out.

    ``readAt``: what it was computed from was read at this time; a write that came after refuses it. ``onConflict``:
    what a write that comes between does, ``retry`` (compute it anew) or ``refuse``. ``commitTime``, ``txnAppId``,
    ``txnVersion``, ``txnNewSince``, ``userMetadata``: as the options of batch writes.
    """

    readAt: int | None
    onConflict: Literal["retry", "refuse"]
    commitTime: int | None
    txnAppId: str | None
    txnVersion: int | None
    txnNewSince: int | None
    userMetadata: str | None


_OF_WRITES: Final = ("commitTime", "txnAppId", "txnVersion", "txnNewSince", "userMetadata")


def options_of(how: How) -> dict[str, str]:
    """Those that are options of batch writes, too, as text. Raises InvalidArgument for what is none, or no value."""
    unknown = sorted(set(how) - set(How.__annotations__))
    if unknown:
        near = difflib.get_close_matches(unknown[0], How.__annotations__, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(How.__annotations__)}"
        raise InvalidArgument("no such option of a change", hint=hint, option=unknown[0])
    if how.get("onConflict", RETRY) not in (RETRY, REFUSE):
        raise InvalidArgument(f"onConflict is {RETRY} or {REFUSE}", got=how.get("onConflict"))
    read_at = how.get("readAt")
    if read_at is not None:
        check_time(read_at, "readAt")
    return {name: str(value) for name, value in how.items() if name in _OF_WRITES and value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeResult(CommitResult):
    """What a change did. ``rows_*`` count rows of the table, as often as they are there; of one that an earlier attempt
    had committed they are not known any more, and 0.

    ``rows``, ``bytes``, ``parts``: what was written. ``read_at``: the time it was computed from, None if none.
    ``rows_read``: distinct rows that Spark looked at, None with Spark Connect. ``attempts``: how often it was computed.
    """

    read_at: int | None = None
    rows_read: int | None = None
    rows_deleted: int = 0
    rows_updated: int = 0
    rows_inserted: int = 0
    attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A change as a DataFrame: rows as ``tasks`` takes them, or those that ``first`` makes these of in the tasks.

    ``once``: refuse rows of the table that come twice.

    ``about``: asked when a write came between: every row that matters to it; one of others leaves it as it is.
    ``rest``: asked when all tasks are done, what belongs to the same change and only shows then; None: nothing.
    """

    base: Base
    frame: "DataFrame"
    once: bool = False
    first: Batches | None = None
    about: Callable[[], About] = lambda: ANYTHING
    rest: "Callable[[], Made | None]" = lambda: None


Compute = Callable[[Reach], Made]
"""One kind of change: what it makes of a shard."""


class Change:
    """One change of one shard. ``kind``: its name, which a repetition under the same transaction must have, too.

    ``told``: what was asked for, for the shard's audit.
    """

    def __init__(
        self, spark: "SparkSession", options: WriteOptions, kind: str, how: How, told: Mapping[str, object]
    ) -> None:
        self._spark = spark
        self._options = options
        self._target = options.target
        self._kind = kind
        self._told = {name: each for name, each in told.items() if each is not None}
        self._read_at = how.get("readAt")
        self._refuses = how.get("onConflict", RETRY) == REFUSE

    def run(self, compute: Compute) -> ChangeResult:
        """Compute it and commit it once, or raise and change nothing. Raises InvalidBounds (a write came between, and
        it is not to be computed anew), ShardClosed, what ``compute`` raises, and as ``Write.commit``.
        """
        target, transaction = self._target, self._transaction()
        check_written(target)
        with target.client().open_reader(target.shard_id, purpose="spark change", timeout=target.timeout) as reader:
            for attempt in range(1, ATTEMPTS + 1):
                upper = current_upper(target)
                write = self._plan()
                if attempt == 1 and transaction is not None and (known := write.happened(transaction)) is not None:
                    return ChangeResult(upper=known.upper, rows=0, bytes=0, parts=0, already_committed=True)
                reach = Reach(spark=self._spark, target=target, reader=reader, upper=upper, schema=write.schema)
                self._check(reach)
                done = self._attempt(write, reach, compute(reach), transaction)
                if done is not None:
                    return dataclasses.replace(done, attempts=attempt)
        raise Determinate(
            "the shard's upper moved at every attempt: nothing was changed",
            hint="change it when fewer writers are at work, or stop them",
            attempts=ATTEMPTS,
        )

    def _transaction(self) -> Transaction | None:
        options = self._options
        if options.txn_app_id is None or options.txn_version is None:
            return None
        # SUBTLE: not the sum of its diffs: computed again it finds nothing more to change.
        return Transaction(
            app_id=options.txn_app_id,
            version=options.txn_version,
            owner=Transaction.owner_of(query_of(self._spark), self._kind),
            new_since=options.txn_new_since,
        )

    def _plan(self) -> Write:
        schema = current_schema(self._target)
        frame = st.StructType([*spark_schema(shown_fields(schema)).fields, st.StructField(COUNT, st.LongType())])
        author = author_of(application_of(self._spark))
        write = Write.plan(self._options, frame, overwrite=False, author=author, operation=self._kind)
        return dataclasses.replace(write, entry=write.entry.told(self._told))

    def _pinned(self, write: Write, upper: int) -> Write:
        """The write at this upper or not at all. Its token is unused: what was refused did not happen."""
        time = self._options.commit_time
        time = max(upper, system().now_ms()) if time is None else time
        return dataclasses.replace(
            write,
            options=dataclasses.replace(self._options, expected_upper=upper, commit_time=time),
            entry=dataclasses.replace(write.entry, read_at=shown_time(upper - 1) if upper else None),
        )

    def _check_time(self, upper: int) -> None:
        time = self._options.commit_time
        if time is not None and time < upper:
            raise InvalidBounds(
                "commitTime is complete already: nothing was changed",
                hint="change it at or beyond the upper, or leave the time to the commit",
                time=time,
                upper=upper,
            )

    def _check(self, reach: Reach) -> None:
        """Refuse a change that came too late, for its ``commitTime`` or for its ``readAt``."""
        if reach.upper == TIMES_END:
            raise ShardClosed("the shard is closed for writes", hint="write to another one", **self._target.described)
        self._check_time(reach.upper)
        if self._read_at is not None and reach.updates(self._read_at, option="readAt").rows:
            raise InvalidBounds(
                "rows were written after readAt: nothing was changed",
                hint="read the table again, and compute the change from that",
                read_at=self._read_at,
                upper=reach.upper,
            )

    def _attempt(self, write: Write, reach: Reach, made: Made, transaction: Transaction | None) -> ChangeResult | None:
        """The outcome; None when a write came between and it may be computed anew."""
        rows = _tasks(write, made)
        if (more := made.rest()) is not None:
            rows += _tasks(write, more)
        messages = [write.message(bytes(row["message"])) for row in rows]
        upper = reach.upper
        pinned = transaction is not None or self._options.commit_time is not None
        if not pinned and not any(message.prepared.rows for message in messages):
            done = CommitResult(upper=Antichain.of(reach.upper), rows=0, bytes=0, parts=0)
        else:
            counted = {f"rows_{name}": sum(row[name] for row in rows) for name in NAMES}
            entry = dataclasses.replace(write.entry, **counted)
            committed, upper = self._commit(dataclasses.replace(write, entry=entry), reach, made, messages, transaction)
            if committed is None:
                return None
            done = committed
        names = () if done.already_committed else NAMES
        return ChangeResult(
            **dataclasses.asdict(done) | {"upper": done.upper},
            read_at=upper - 1 if upper else None,
            rows_read=made.base.read,
            **{f"rows_{name}": sum(row[name] for row in rows) for name in names},
        )

    def _commit(
        self,
        write: Write,
        reach: Reach,
        made: Made,
        messages: list[TaskOutput],
        transaction: Transaction | None,
    ) -> tuple[CommitResult | None, int]:
        """Commit it at the upper it was computed from, or at a later one if no row was written in between that matters
        to it; and which upper that was.
        """
        upper = reach.upper
        for _ in range(FOLLOWED):
            try:
                return self._pinned(write, upper).commit(messages, transaction), upper
            except InvalidBounds:
                before, upper = upper, current_upper(self._target)
                if upper == before:
                    raise
                self._check_time(upper)
                if upper < TIMES_END:
                    # What another engine made of its read is not known: every row matters to it.
                    about = made.about() if self._read_at is None else ANYTHING
                    came = reach.reader.diffs(before, upper, timeout=self._target.timeout)
                    if not came.rows or not any(
                        about.rows(batch).num_rows for batch in came.to_batches(where=list(about.where))
                    ):
                        continue
                if not self._refuses:
                    return None, upper
                raise InvalidBounds(
                    "a write came between the read and the commit: nothing was changed",
                    hint="run it again, or leave onConflict at retry",
                    read_at=reach.upper - 1,
                    upper=upper,
                ) from None
        return None, upper


def _tasks(write: Write, made: Made) -> "list[Row]":
    """What the tasks answered. Raises what one of them refused."""
    rows: list[Row] = made.frame.mapInArrow(
        WriteChanges(write=write, names=made.base.names, once=made.once, first=made.first), RESULT
    ).collect()
    for row in rows:
        if row["refusal"] is not None:
            raise pickle.loads(row["refusal"])
    return rows
