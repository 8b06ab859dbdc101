"""What is known of sources at a location: small shards of JSON records, changed by compare_and_append.

Key: ``kind`` (``source`` or ``status``) and ``name``; val: ``record``, a JSON object with a ``version``. Sources are in
one shard, which changes seldom; what their ingesters say all the time is in one for each source.
Source: sources.md section 1 (store the identity of the upstream in the source's definition).
"""

import contextlib
import difflib
import json
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa

import persist
from persist import (
    Determinate,
    Indeterminate,
    InvalidArgument,
    OutcomeForgotten,
    PersistError,
    ShardId,
    ShardNotFound,
    UpperMismatch,
    UsageError,
    VersionMismatch,
)
from persist.runtime import system
from persist.sources import RECORDS, SILENT_MS, STATUS, MintRules, RemapSource, SourceKind, status_shard
from persist.typed import Fields, Record

DATA_SINCE: Final = "source"
"""The critical since on each data shard: its pipelines keep history readable for as long as they are to."""
VERSION: Final = 1
TIMED: Final = 2
"""The version of sources that are not simply in epoch milliseconds: earlier releases do not know what that means."""
APART: Final = 3
"""The version of sources some of whose exports stand aside, or were snapshotted again: earlier releases would go on
with them, and under an older definition."""
PIECEWISE: Final = 4
"""The version of sources some of whose exports are being read anew: earlier releases would have the upstream forget
what those need."""
_SCHEMA: Final = persist.Schema(
    key={"kind": pa.field("kind", pa.string(), nullable=False), "name": pa.field("name", pa.string(), nullable=False)},
    val={"record": pa.field("record", pa.string(), nullable=False)},
)
SERVERS: Final = "servers"
"""The kind of records of the servers that sources were read from. Earlier releases do without."""
_SINCE: Final = "sources"
_TIMED_FIELDS: Final = ("timeline", "claims_epoch", "brings_times")
_APART_FIELDS: Final = ("troubles", "turn")
_CONTENDED_SECONDS: Final = 30.0
"""For how long a change is tried while others come first."""
_PAUSE_SECONDS: Final = 0.25
_SHOWN: Final = 20
Place: TypeAlias = Callable[[Mapping[str, Any] | None], dict[str, Any] | None]
"""What a record becomes, from what it is; None: there is none."""


def is_silent(said_ms: int, now_ms: int, silent_ms: int) -> bool:
    """Nothing was said for so long; nor is a word from later than now one, which a clock that is ahead has left."""
    return not now_ms - silent_ms <= said_ms <= now_ms + SILENT_MS


class SourceExists(UsageError):
    """A source of this name exists. Choose another name, or drop that one."""

    reason = "SOURCE_EXISTS"


class SourceNotFound(UsageError):
    """No source of this name exists here. List them, or create it."""

    reason = "SOURCE_NOT_FOUND"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source as it was created. ``exports``: the shard of each; ``definition``: what its type needs to open it.

    ``timeline``: its text; ``claims_epoch``: its times are not checked to be milliseconds. ``brings_times``: they are
    those of its messages, nothing is bound, and ``remap`` is only its id. ``troubles``: of each export that does not go
    on, as ``pipeline.troubles`` has them; ``turn``: how many exports were snapshotted again.
    """

    name: str
    type: str
    kind: str
    incarnation: str
    remap: str
    exports: Mapping[str, str]
    definition: Fields
    generation: int = 1
    interval_ms: int = 1_000
    created_ms: int = 0
    version: int = VERSION
    timeline: str = "M"
    claims_epoch: bool = False
    brings_times: bool = False
    troubles: Mapping[str, Fields] = field(default_factory=dict)
    turn: int = 0

    def to_record(self) -> dict[str, object]:
        """As it is recorded: without what earlier releases do not know, where there is nothing of it."""
        record: dict[str, object] = {**asdict(self), "version": VERSION}
        if self.timeline == "M" and not self.claims_epoch and not self.brings_times:
            record = {name: value for name, value in record.items() if name not in _TIMED_FIELDS}
        else:
            record["version"] = TIMED
        if not self.troubles and not self.turn:
            return {name: value for name, value in record.items() if name not in _APART_FIELDS}
        is_piecewise = any("progress" in each for each in self.troubles.values())
        return {**record, "version": PIECEWISE if is_piecewise else APART}

    @property
    def remap_source(self) -> RemapSource:
        """The source as a minter has to know it."""
        return RemapSource(
            remap=ShardId.parse(self.remap),
            kind=SourceKind(self.kind),
            incarnation=self.incarnation,
            rules=MintRules(interval_ms=self.interval_ms),
        )

    @property
    def shards(self) -> dict[str, ShardId]:
        """The data shard of each export."""
        return {name: ShardId.parse(shard) for name, shard in self.exports.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """A source that was dropped: its next life gets other shards, as dead ids stay dead."""

    generation: int
    dropped_ms: int
    dropped: bool = True
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The records just before ``upper``, as text by kind and name, of the shard that ``place`` identifies.

    What was before an upper changes no more, and a restore begins another place: so they are right for as long as the
    shard is there and its upper is this one.
    """

    place: str
    upper: int
    texts: Mapping[tuple[str, str], str]

    def of(self, kind: str) -> dict[str, str]:
        """Those of a kind, by name."""
        return {name: text for (each, name), text in self.texts.items() if each == kind}

    def after(self, kind: str, name: str, text: str | None) -> "_Recorded":
        """What they are once that record was appended at ``upper``."""
        texts = {key: each for key, each in self.texts.items() if key != (kind, name)}
        return _Recorded(self.place, self.upper + 1, texts if text is None else {**texts, (kind, name): text})


_seen: "weakref.WeakKeyDictionary[persist.Client, dict[ShardId, _Recorded]]" = weakref.WeakKeyDictionary()
"""What each client saw last of each shard: most looks are at what did not change, and reading takes two commands to
the shard."""


class Records:
    """The records of one location. Blocking; any number of processes may use them at once."""

    def __init__(self, client: "persist.Client") -> None:
        self._client = client
        self._shard = _RecordShard(client, ShardId(RECORDS))
        self.change = self._shard.change

    def sources(self) -> dict[str, Source]:
        """Every source that exists, by name. Raises LocationError, VersionMismatch."""
        found = {name: source_of(record) for name, record in self._read("source").items()}
        return {name: source for name, source in sorted(found.items()) if source is not None}

    def source(self, name: str) -> Source:
        """One source. Raises SourceNotFound."""
        found = self.sources()
        if name not in found:
            near = difflib.get_close_matches(name, found, 3, 0.6)
            known = (
                f"did you mean {' or '.join(near)}?"
                if near
                else f"persist source create makes one; {_some(list(found))}"
            )
            raise SourceNotFound("no such source", hint=known, source=name)
        return found[name]

    def raw(self) -> dict[str, Record]:
        """What is recorded of every name: sources, those that were dropped, and attempts to create one."""
        return self._read("source")

    def revise(self, source: Source) -> None:
        """Record with what definition a source is opened from now on, if this life of it is there still.

        Not where an export was snapshotted again meanwhile: this definition is older.
        """

        def place(before: Fields | None) -> Record | None:
            if before is None or before.get("dropped") or before["generation"] != source.generation:
                return None if before is None else dict(before)
            if before.get("turn", 0) != source.turn:
                return dict(before)
            return {**before, "definition": dict(source.definition)}

        self.change("source", source.name, place)

    def remove(self, source: Source, now_ms: int) -> None:
        """Record that this life of a source is no more. Raises SourceNotFound, also where another life of it is."""

        def place(before: Fields | None) -> Record:
            if before is None or before.get("dropped"):
                raise SourceNotFound("no such source", hint="it may have been dropped already", source=source.name)
            if before["generation"] != source.generation:
                raise SourceNotFound(
                    "this source was dropped already, and another one has its name now",
                    hint="drop that one, too, if it is not wanted",
                    source=source.name,
                )
            return asdict(Tombstone(generation=source.generation, dropped_ms=now_ms))

        self.change("source", source.name, place)
        for kind in ("asked", SERVERS):
            self.change(
                kind, source.name, lambda it: None if it is None or it["generation"] <= source.generation else dict(it)
            )

    def servers(self, source: Source) -> Mapping[str, object]:
        """What is recorded of the servers that this life of a source was read from, beside it; empty: nothing."""
        record = self._read(SERVERS).get(source.name)
        return {} if record is None or record["generation"] != source.generation else record

    def asked(self, source: Source) -> str | None:
        """What this life of a source was asked for with, as ``ask`` had it; None: it is not known."""
        record = self._read("asked").get(source.name)
        if record is None or record["generation"] != source.generation:
            return None
        return str(record["digest"])

    def ask(self, name: str, generation: int, digest: str) -> None:
        """Record what a life of a source, which may come to be, is asked for with. Beside it: earlier releases do
        without."""
        record = {"generation": generation, "digest": digest, "version": VERSION}
        self.change("asked", name, lambda _: dict(record))

    def status(self, source: Source) -> dict[str, Fields]:
        """What each ingester of a source said last, by its id."""
        prefix = f"{source.name}/"
        # As earlier releases have it.
        before = {key[len(prefix) :]: each for key, each in self._read(STATUS).items() if key.startswith(prefix)}
        return {**before, **self._said(source).read(STATUS)}

    def tell(self, source: Source, ingester: str, record: Fields | None) -> None:
        """Say how an ingester of a source fares; None: forget it."""
        self._said(source).change(STATUS, ingester, lambda _: None if record is None else dict(record))

    def forget_silent(self, source: Source, ingester: str) -> None:
        """Others that failed or fell silent are history once this one gets on."""
        oldest = system().now_ms() - SILENT_MS
        for other, told in self.status(source).items():
            if other != ingester and (told["state"] == "failed" or int(told["at_ms"]) < oldest):
                self.tell(source, other, None)
                self.change(STATUS, f"{source.name}/{other}", lambda _: None)

    def forget_status(self, source: Source) -> None:
        """This life of a source is over, and so is what is said of it. Raises LocationError."""
        self._said(source).finalize()
        for key in self._read(STATUS):
            if key.startswith(f"{source.name}/"):
                self.change(STATUS, key, lambda _: None)

    def _read(self, kind: str) -> dict[str, Record]:
        return self._shard.read(kind)

    def _said(self, source: Source) -> "_RecordShard":
        return _RecordShard(self._client, ShardId(status_shard(source.name, source.generation)))


class _RecordShard:
    """JSON records in a shard, which is made by the first change."""

    def __init__(self, client: "persist.Client", id: ShardId) -> None:
        self._client = client
        self._id = id

    def read(self, kind: str) -> dict[str, Record]:
        """The records of a kind, by name. Raises LocationError."""
        found = self._now()
        return {} if found is None else {name: json.loads(text) for name, text in found.of(kind).items()}

    def finalize(self) -> None:
        """There will be none any more. Raises LocationError."""
        with contextlib.suppress(ShardNotFound):
            self._client.finalize(self._id, force=True)

    def _now(self) -> _Recorded | None:
        """What is recorded now; None: nothing was yet."""
        try:
            return self._seen() or self._looked()
        except ShardNotFound:
            return None

    def _seen(self) -> _Recorded | None:
        """What this client saw last, if nothing has changed since. Raises ShardNotFound."""
        seen = self._known.get(self._id)
        if seen is None or self._client.place(self._id) != seen.place or self._upper() != seen.upper:
            return None
        # SUBTLE: the upper is that of this place only if it is the place before and after.
        return seen if self._client.place(self._id) == seen.place else None

    @property
    def _known(self) -> dict[ShardId, _Recorded]:
        return _seen.setdefault(self._client, {})

    def _looked(self) -> _Recorded:
        """What the shard holds. Raises ShardNotFound.

        SUBTLE: the reader comes first. It holds the since where that is, at the last change or before, so however far
        others move upper and since meanwhile, what is just before an upper asked for later is readable.
        """
        place = self._client.place(self._id)
        with self._client.open_reader(self._id, purpose="records of sources") as reader:
            upper = self._upper()
            rows = reader.snapshot(upper - 1).to_pylist() if upper else []
        found = _Recorded(place, upper, {(row["kind"], row["name"]): row["record"] for row in rows})
        if self._client.place(self._id) == place:
            self._known[self._id] = found
        return found

    def _upper(self) -> int:
        upper = self._client.recent_upper(self._id).time
        if upper is None:
            raise InvalidArgument("the records of sources are closed", hint="their shard was finalized", shard=self._id)
        return int(upper)

    def change(self, kind: str, name: str, place: Place) -> Fields | None:
        """Replace one record by what ``place`` makes of the present one, which may be asked several times; the result.

        Errors of ``place``, UsageError and Determinate: nothing changed. Indeterminate: not known for now.
        """
        writer = self._client.open_writer(self._id, schema=_SCHEMA)
        since = self._client.open_since(_SINCE, self._id, purpose="records of sources")
        give_up = system().monotonic() + _CONTENDED_SECONDS
        while True:
            now = self._now()
            at = 0 if now is None else now.upper
            old = None if now is None else now.texts.get((kind, name))
            before = None if old is None else json.loads(old)
            after = place(before)
            if after == before:
                return after
            new = None if after is None else json.dumps(after, sort_keys=True)
            updates = [_update(kind, name, text, at, diff) for text, diff in ((old, -1), (new, 1)) if text is not None]
            if _appended(writer, updates, at):
                if now is not None and self._known.get(self._id) is now:
                    self._known[self._id] = now.after(kind, name, new)
                # It happened: what only releases history must not make it look as if it had not.
                with contextlib.suppress(PersistError):
                    since.compare_and_downgrade(since.opaque, [at])
                return after
            if system().monotonic() > give_up:
                raise Determinate("the records of sources change all the time", hint="again later", source=name)
            # Of many that were late at once, few are again.
            threading.Event().wait(_PAUSE_SECONDS * system().random_bytes(1)[0] / 255)


def _appended(writer: "persist.WriteHandle", updates: list[Any], at: int) -> bool:
    """Whether this append happened; if not, it never will. Raises Indeterminate when that cannot be found out now."""
    try:
        return not isinstance(writer.compare_and_append(updates, [at], [at + 1]), UpperMismatch)
    except OutcomeForgotten:
        # Nothing more comes of it: what is there says whether it happened.
        return False
    except Indeterminate as doubt:
        try:
            outcomes = writer.resolve()
        except PersistError:
            raise doubt from None
        return any(each.appended is not None for each in outcomes)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"there are {', '.join(names[:_SHOWN])}{more}" if names else "there is none yet"


def _update(kind: str, name: str, text: str, ts: int, diff: int) -> Any:
    return (({"kind": kind, "name": name}, {"record": text}), ts, diff)


def source_of(record: Mapping[str, object]) -> Source | None:
    """A source as it is recorded; None: it was dropped. Raises VersionMismatch."""
    if record.get("version") not in (VERSION, TIMED, APART, PIECEWISE):
        raise VersionMismatch("a source of another release", hint="upgrade", version=record.get("version"))
    fields: Fields = record
    return None if record.get("dropped") else Source(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an ingester says of itself. Times are milliseconds since 1970; offsets are source frontiers as text.

    ``untold``: earlier words of it that did not get here. ``definite``: it ended, and so would the next one.
    """

    state: str
    at_ms: int
    host: str = ""
    pid: int = 0
    known: str = ""
    committed: str = ""
    upper_ms: int | None = None
    lag_ms: int | None = None
    bytes_behind: int | None = None
    rows: int = 0
    bytes: int = 0
    reread: int = 0
    steps: int = 0
    untold: int = 0
    error: str = ""
    hint: str = ""
    details: Fields = field(default_factory=dict)
    definite: bool = False
    version: int = VERSION
