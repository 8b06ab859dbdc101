"""What a pipeline asks of an upstream. What implements this can be ingested, from outside this package, too.

A pipeline probes, has the watermarks bound to times, reads what was bound and writes it. So a reader never decides
about time: it says what exists, gives out the same messages for the same range every time it is asked, and learns
what it may forget. Nothing it gives out is kept anywhere but in shards: there is no other checkpoint.
Source: design 003; sources.md; catalog-semantics.md sections 4.2 and 5.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from persist import Determinate, Schema, UsageError
from persist.arrow import ArrowArray
from persist.sources import CounterTimeline, Partition, Probe, SourceFrontier, SourceKind
from persist.typed import Fields, Record
from persist_ingest.sources.lives import ServerRun

ERRORS: str = "errors"
"""The export that bad rows go to when the source is made to divert them."""


class SourceFailure(UsageError):
    """The upstream or its data cannot be ingested as declared. Definite: every retry says the same.

    With a detail ``export`` it is about that export alone.
    """

    reason = "SOURCE_FAILURE"


class Unforeseen(SourceFailure):
    """What reads a source failed in a way that it does not know: a defect of it, or of a library that it uses.

    What is durable stays right. The details say where, and with what; the log has all of it.
    """

    reason = "UNFORESEEN"

    @classmethod
    def of(cls, cause: Exception, **details: object) -> "Unforeseen":
        """As which any error is raised that is none of persist's."""
        return cls(
            f"reading the source failed in a way that is not known: {type(cause).__name__}: {cause}"[:1000],
            hint="what was read so far is right; report this, with its traceback, as a defect",
            **details,
        )


class BadRows(SourceFailure):
    """A message does not have the declared form. Make another source: declared otherwise, or with badRows=divert."""

    reason = "BAD_ROWS"


class TableAltered(SourceFailure):
    """What was read before need not be what the upstream holds now, as it changed its form without a message.

    Nothing that is durable was read after the change. Snapshot it again (``persist source resnapshot``).
    """

    reason = "TABLE_ALTERED"


class ExportEmptied(TableAltered):
    """An export that is being read anew was emptied upstream: what was read of it so far is void."""

    reason = "EMPTIED"


class HeldUp(Determinate):
    """Another session's lock or transaction is in the way: a pipeline waits for as long as that takes.

    The details say what to look at. Nothing was written.
    """

    reason = "HELD_UP"


class AlteredMeanwhile(HeldUp):
    """What was there a moment ago is not: a table was altered while it was looked at. Looked at again, it shows how.

    What reads by what it knows of the table, as a snapshot does, has to begin anew.
    """


class UpstreamNotOurs(SourceFailure):
    """What has the name upstream that this source's slot had was made by another. Nothing was dropped."""

    reason = "UPSTREAM_NOT_OURS"


class SchemaGrew(SourceFailure):
    """An export has new nullable columns from some message on: evolve it, ``adopt`` the schema, and plan again."""

    reason = "SCHEMA_GREW"

    def __init__(self, export: str, schema: Schema) -> None:
        super().__init__("the upstream's columns grew", hint="the pipeline evolves the shard by itself", export=export)
        self.export = export
        self.schema = schema

    def __reduce__(self) -> tuple[object, ...]:
        return SchemaGrew, (self.export, self.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Updates of one export, in the upstream's order. All columns have one length.

    ``rows``: key fields, then val fields, as in the export's schema. ``offsets``: u64, of the message each row stems
    from. ``partitions``: its partition, int64 or string or a dictionary of those; None for a log. ``diffs``: int64.
    """

    export: str
    rows: pa.RecordBatch
    offsets: ArrowArray
    partitions: ArrowArray | None = None
    diffs: ArrowArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserts:
    """The newest value of keys, in the upstream's order; columns as in ``Changes``, without diffs.

    ``present``: bool; false says that the key has no value any more, and its val fields are null.
    """

    export: str
    rows: pa.RecordBatch
    offsets: ArrowArray
    partitions: ArrowArray | None = None
    present: ArrowArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """Versions of rows by their keys, in the upstream's order, all of it: what they replace is what the export holds.

    ``present``: bool; false says that the key's row is gone, and its val fields are null. ``fresh``: bool; the key had
    no row before, else it had one. ``unchanged``: by columns, bool; where true, the value is that of the row's earlier
    version, under the key of the row at ``before`` (int64, a place in these rows), or its own (-1).
    """

    export: str
    rows: pa.RecordBatch
    offsets: ArrowArray
    present: ArrowArray
    fresh: ArrowArray
    before: ArrowArray
    unchanged: Mapping[str, ArrowArray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated:
    """Everything an export held before this message is gone. Comes in order between other events."""

    export: str
    offset: int
    partition: Partition | None = None
    keyed: bool = False
    """Its rows come as ``Keyed``."""


Event: TypeAlias = Changes | Upserts | Keyed | Truncated


@dataclass(frozen=True, slots=True)
class Stated:
    """What an upstream says of one of its times: ``rows``, each with its diff, counted as one under ``mark``.

    Said again with the same mark it is the same, and counts once. Rows are dicts of the export's columns.
    """

    time: int
    mark: str
    rows: tuple[tuple[Record, int], ...]


@dataclass(frozen=True, slots=True)
class StatedProgress:
    """For every time in ``[lower, upper)`` there are as many ``Stated`` as ``counts`` has, and none where it has none.

    ``upper`` None: there will be no time at or beyond ``lower`` besides those counted.
    """

    lower: int
    upper: int | None
    counts: Mapping[int, int]


class ReadTask(Protocol):
    """A range of messages to be read, by whatever process. Picklable; reads the same whenever and wherever it runs."""

    @property
    def weight(self) -> int:
        """About how many bytes there are to read: small plans are not worth a Spark job."""
        ...

    @property
    def ordered(self) -> bool:
        """Only one task may read this export's range: events refer to earlier ones (Upserts, Keyed, Truncated)."""
        ...

    def read(self) -> Iterator[Event]:
        """The messages in ``[begin, end)`` of the plan, in bounded memory.

        Raises SourceFailure (definite), LocationError (the upstream is away: again later), UpstreamLost.
        """
        ...


@runtime_checkable
class Divisible(Protocol):
    """A ReadTask, not ``ordered``, of Upserts that several tasks may read: they are brought together by their keys.

    Its events are Upserts and Changes. Those of a key count in order of (time, partition, offset), whatever read them.
    """

    @property
    def upserts(self) -> bool:
        """Whether it gives Upserts; without, it is as any other that is not ordered."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamStatus:
    """What the upstream says of this reader. ``bytes_behind``: retained for it; None where that is not known."""

    committed: SourceFrontier | None = None
    bytes_behind: int | None = None
    details: Fields = field(default_factory=dict)


class SourceReader(Protocol):
    """One life of an upstream, as a pipeline's driver sees it. Calls block, and are made by one thread at a time."""

    @property
    def kind(self) -> SourceKind:
        """What its source times are made of."""
        ...

    @property
    def incarnation(self) -> str:
        """Which life of the upstream this is about: fixed when the source was created."""
        ...

    def exports(self) -> Mapping[str, Schema]:
        """The collections it makes, by name, with their schemas."""
        ...

    def probe(self) -> Probe:
        """The watermarks now, with the incarnation the upstream has now. Cheap; asked several times a second.

        ``high`` must cover every message that was acknowledged to its producer before the call, and none that may
        still change. Raises SourceFailure (slot, topic or table gone, ...), LocationError (away: again later).
        """
        ...

    def plan(self, begin: SourceFrontier, end: SourceFrontier, tasks: int) -> Sequence[ReadTask]:
        """About ``tasks`` tasks that together read every message at or beyond ``begin`` and before ``end`` once."""
        ...

    def adopt(self, export: str, schema: Schema) -> None:
        """Read an export under this newer schema from now on."""
        ...

    def commit(self, frontier: SourceFrontier) -> None:
        """Everything before ``frontier`` is durable: the upstream may forget it. Called late and repeatedly, in order.

        Never moves the upstream backwards. Raises as ``probe``.
        """
        ...

    def status(self) -> UpstreamStatus:
        """For ``persist source status``. Raises as ``probe``."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


@runtime_checkable
class BringsTimes(Protocol):
    """A SourceReader whose messages bring their own times, and say themselves when a time is complete.

    Nothing is bound then: what is appended follows from what was said, in whatever order and however often. A pipeline
    asks ``exports`` (there is one), ``follow``, ``status`` and ``close``, and neither ``plan`` nor ``commit``.
    """

    @property
    def counter(self) -> CounterTimeline | None:
        """What counts the times; None: they mean something to this source alone."""
        ...

    def follow(self) -> Iterator[Stated | StatedProgress]:
        """All that came since the call before; at the first call, all that there is. Errors as those of ``probe``."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """A SourceReader that says what there is by what was bound of it already."""

    def remember(self, frontier: SourceFrontier) -> None:
        """So much is bound. Called before each ``probe``. Raises as that does."""
        ...


@runtime_checkable
class Revised(Protocol):
    """A SourceReader that learns things about its upstream which it has to know after a restart, too."""

    def revised(self) -> Mapping[str, object] | None:
        """The definition it is to be opened with from now on; None while it is the one it was opened with.

        A reader that was opened with an older one must come to the same data, or fail.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """A source that was just set up upstream, and what it begins with.

    ``definition``: all that is needed to open it again, JSON-ready, without secrets. ``bound``: the first frontier to
    bind: all that ``snapshot`` reads lies before it, and so has the first time that was minted. ``snapshot``: tasks
    that can be read only while the context lasts; their offsets lie before ``bound``. Empty where history is upstream.
    ``pieces``: exports that it does not read, of a ReadsApart type: those are read anew once the source is recorded.
    ``settle``: makes what the definition names and only that distinguishes from another's, once it is recorded.
    """

    definition: Fields
    reader: SourceReader
    bound: SourceFrontier
    snapshot: Sequence[ReadTask] = ()
    pieces: Sequence[str] = ()
    settle: Callable[[], None] = lambda: None


class Piece(Protocol):
    """Rows of an export that were there at one moment: those with keys up to one, behind that of the piece before."""

    @property
    def last(self) -> tuple[str, ...] | None:
        """The key of its last row, in a form that the upstream understands; None: it goes to the end."""
        ...

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Its rows, with the columns of the schema; only while its context lasts. Raises as a ReadTask's ``read``."""
        ...

    def changes(self, begin: SourceFrontier, end: SourceFrontier) -> Iterator[Changes | Keyed]:
        """What the log comes to in ``[begin, end)``, for keys up to ``last``, beside what the piece has of that.

        ``begin``: as far as the log was taken into account before the piece was opened; ``end``: at or beyond what
        ``Anew.high`` says afterwards. Raises ExportEmptied, SchemaGrew, and as a ReadTask's ``read``.
        """
        ...


class Anew(Protocol):
    """An export that is read anew, piece by piece, while it changes; pieces lie in order of keys.

    All pieces, and the log from when the first one was opened, together are what the export holds where that ends.
    """

    @property
    def schema(self) -> Schema:
        """Its shard's, with what came since."""
        ...

    @property
    def keyed(self) -> bool:
        """Its log comes as ``Keyed``."""
        ...

    @property
    def begun(self) -> Mapping[str, object]:
        """What another process goes on with, JSON-ready, without secrets."""
        ...

    def begin(self) -> SourceFrontier:
        """Where in the log it begins: what commits before is in all pieces. Raises as ``high``."""
        ...

    def about(self) -> int:
        """How many rows there are, if only roughly; 0: unknown."""
        ...

    def high(self) -> SourceFrontier:
        """Everything that can be seen now lies before it, in a log that is safely written. Raises as ``probe``."""
        ...

    def piece(self, after: tuple[str, ...] | None, rows: int) -> AbstractContextManager[Piece]:
        """The next about ``rows`` rows behind a key; None: from the first on. Where keys have no order: all of them."""
        ...

    def changes(self, begin: SourceFrontier, end: SourceFrontier) -> Iterator[Changes | Keyed]:
        """What the log comes to in ``[begin, end)`` once all pieces were read. Raises as ``Piece.changes``."""
        ...

    def renewed(self, given: Mapping[str, object], through: SourceFrontier) -> Mapping[str, object]:
        """A definition of the source, as others may have revised it meanwhile, with this export's part as it is now.

        ``through``: nothing that the log has before is read for this export any more.
        """
        ...


class SourceType(Protocol):
    """A kind of upstream. Named ``postgres``, ``kafka``, ``files``, ``loadgen``, or by ``package.module:attribute``."""

    def create(self, options: Mapping[str, str], *, source: str) -> AbstractContextManager[Beginning]:
        """Check the options and set the source up upstream; on an exception inside, undo that.

        Unknown options are refused with a suggestion. Raises InvalidArgument, SourceFailure, LocationError.
        """
        ...

    def open(self, definition: Fields, schemas: Mapping[str, Schema]) -> SourceReader:
        """The reader of a source that was created earlier. ``schemas``: of its exports, as the shards have them now."""
        ...

    def drop(self, definition: Fields) -> None:
        """Remove what ``create`` set up upstream (a replication slot, ...). Doing it again does nothing.

        Only what the ``create`` that made this definition set up: a drop may come late, when another source that was
        created meanwhile has things of the same names.
        """
        ...


@runtime_checkable
class DropsWithin(Protocol):
    """A SourceType that knows what it made from what another made under the same name by how far that was read."""

    def drop_within(self, definition: Mapping[str, object], bound: SourceFrontier | None) -> None:
        """``drop``, of a source that never committed beyond ``bound``; None: nothing of it was ever committed.

        Raises as ``drop``, and UpstreamNotOurs.
        """
        ...


@runtime_checkable
class ReadsApart(Protocol):
    """A SourceType some of whose exports can stand aside while the others go on, and be snapshotted again.

    ``open`` is then given the schemas of those that are to be read, and its reader has no others.
    """

    def snapshot_again(
        self, definition: Mapping[str, object], export: str, schema: Schema, begun: Mapping[str, object] | None = None
    ) -> AbstractContextManager[Anew]:
        """Make sure an export can be read on from now, and read what it holds.

        ``schema``: that of its shard. ``begun``: what an earlier call began with, which is to be gone on with under the
        schema it had. Raises SourceFailure (nothing but a correction upstream helps), LocationError.
        """
        ...


@runtime_checkable
class StandsApart(Protocol):
    """A SourceType some of whose sources have exports that can stand aside while the others go on, without snapshots.

    One that joins (Joins) is read from where the definition says, and is bound once it runs. ``open`` is given the
    schemas of those that are to be read, and its reader has no others.
    """

    def stands_apart(self, definition: Mapping[str, object]) -> bool:
        """Whether a source of this definition is one of these."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """An export is going to be snapshotted again by itself, no sooner than ``at_ms`` (milliseconds since 1970).

    ``definition``: of the source, which remembers that; ``hint``: what a person may do.
    """

    definition: Mapping[str, object]
    at_ms: int
    hint: str


@runtime_checkable
class TakesOver(Protocol):
    """A SourceType (ReadsApart, too) whose altered exports may be snapshotted again by themselves."""

    def taken_over(self, definition: Mapping[str, object], export: str, now_ms: int) -> TakenOver | None:
        """What is to be done about an export that was altered now; None: it waits for a person.

        It does so where the source was made to, and where it happens too often: this ends, whatever the upstream does.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """An export that a source is to have, too. ``schema``: what its shard begins with.

    ``renewed``: a definition of the source, as others may have revised it meanwhile, with this export. ``run``: in
    which it was found, where the upstream is a server whose runs are known.
    """

    export: str
    schema: Schema
    renewed: Callable[[Mapping[str, object]], Mapping[str, object]]
    run: ServerRun | None = None


@runtime_checkable
class Joins(Protocol):
    """A SourceType (ReadsApart, too) whose sources get exports, and lose them, while the others go on."""

    def joined(self, definition: Mapping[str, object], name: str, *, lenient: bool = False) -> Joined:
        """What has this name upstream, as an export. It is snapshotted afterwards.

        ``lenient``: also what cannot be snapshotted as it is now, which then says why. Raises InvalidArgument (it is
        one already, no such name), SourceFailure (it cannot be one), LocationError.
        """
        ...

    def parted(self, definition: Mapping[str, object], export: str) -> Mapping[str, object]:
        """The definition without an export."""
        ...

    def part(self, definition: Mapping[str, object], export: str) -> None:
        """Remove upstream what was set up for an export that the definition still has; doing it again does nothing."""
        ...

    def joinable(self, definition: Mapping[str, object]) -> Sequence[str]:
        """Names of what came upstream since, where the source is one of everything there. Raises as ``joined``."""
        ...


@runtime_checkable
class Announces(Protocol):
    """A SourceType that says what it is about to make upstream, so that a process that dies inside leaves nothing."""

    def create_announced(
        self, options: Mapping[str, str], *, source: str, announce: Callable[[Fields], None]
    ) -> AbstractContextManager[Beginning]:
        """``create``, which calls ``announce`` before anything is made upstream, and leaves ``settle`` to the caller.

        What is announced, JSON-ready and without secrets, is for ``clear``. Raises as ``create``, and what ``announce``
        raises.
        """
        ...

    def clear(self, announced: Fields) -> None:
        """Remove what the ``create`` that announced this made and did not settle, and nothing of another.

        Doing it again does nothing. Raises SourceFailure, LocationError.
        """
        ...


@runtime_checkable
class Alters(Protocol):
    """A SourceType some options of whose sources may be given otherwise later. ``alterable``: their names."""

    @property
    def alterable(self) -> Sequence[str]:
        """Names of options."""
        ...

    def altered(self, definition: Mapping[str, object], options: Mapping[str, str]) -> Mapping[str, object]:
        """The definition with these options. Nothing upstream is asked. Raises InvalidArgument."""
        ...


@runtime_checkable
class Pushed(Protocol):
    """A SourceType whose messages are sent to servers that append them: no pipeline runs such a source."""

    def pushed(self, name: str) -> str:
        """The command that serves a source of this name."""
        ...


def is_apart(kind: object, definition: Mapping[str, object]) -> bool:
    """Whether exports of such a source can stand aside while the others go on."""
    return isinstance(kind, ReadsApart) or (isinstance(kind, StandsApart) and kind.stands_apart(definition))
