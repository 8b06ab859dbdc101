"""The type ``files``: options, watermarks from listings, tasks of whole files.

What is remembered of 20,000 files: their keys in the frontier and an entry each in a few dictionaries, about 14 MB.
Source: design 003; sources.md section 5.
"""

import base64
import contextlib
import fnmatch
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from persist import InvalidArgument, LocationError, Schema
from persist.arrow import ArrowArray, array_of
from persist.arrow.exact import cast_exactly
from persist.runtime import system
from persist.sources import OFFSET_MAX, Point, Probe, SourceFrontier, SourceKind
from persist.typed import Fields
from persist_ingest.given import Given
from persist_ingest.sources.divert import DIVERT, FAIL, BadRow, diverted, errors_schema
from persist_ingest.sources.files.footers import inferred, row_count
from persist_ingest.sources.files.formats import AnyFormat, Block, Csv, JsonLines, Parquet
from persist_ingest.sources.files.objects import check_name, otherwise, place_of, unnamed
from persist_ingest.sources.files.places import NOTHING_KNOWN, FilesPlace, Found, path_of
from persist_ingest.sources.options import check_options, columns, listed, number, one_of, required
from persist_ingest.sources.port import ERRORS, Beginning, Changes, Event, SourceFailure, UpstreamStatus
from persist_ingest.sources.ranges import MessageRange
from persist_ingest.sources.renames import AS_THEY_ARE, OPTION, Renames

SPLIT_BYTES: Final = 32 << 20
"""A Parquet file is cut for several tasks into parts not smaller than this."""

_OPTIONS: Final = (
    "path",
    "format",
    "schema",
    "key",
    "include",
    OPTION,
    "export",
    "pattern",
    "settleSeconds",
    "badRows",
    "header",
    "delimiter",
)
_FORMATS: Final = ("csv", "json", "parquet")
_INCLUDED: Final = {
    "path": pa.field("path", pa.string(), nullable=False),
    "row": pa.field("row", pa.int64(), nullable=False),
}
_KEYS: Final = pa.string()
IDENTIFY_SECONDS: Final = 1.0
"""Of one probe, to find out what new files are: the others are there at the next one."""

MANY_FILES: Final = 1_000
"""So many are not listed at each step, but as seldom as the place says."""

BY_TIME: Final = "time"
BY_ETAG: Final = "etag"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesDefinition:
    """What ``create`` fixed, JSON-ready but for ``fields``: the columns of the files."""

    uri: str
    format: str
    fields: pa.Schema
    key: tuple[str, ...]
    include: tuple[str, ...]
    export: str
    pattern: str
    settle_seconds: float
    bad_rows: str
    header: bool
    delimiter: str
    renames: Renames = AS_THEY_ARE
    identity: str = BY_TIME
    """Of objects: sources of earlier releases, which do not say it, know them by size and time."""

    def to_json(self) -> dict[str, object]:
        """As ``from_json`` takes it."""
        named = {name: getattr(self, name) for name in self.__slots__}
        fields = base64.b64encode(self.fields.serialize().to_pybytes()).decode()
        lists = {"key": list(self.key), "include": list(self.include)}
        return {**named, "fields": fields, **lists, "renames": self.renames.to_json()}

    @classmethod
    def from_json(cls, given: Fields) -> "FilesDefinition":
        """What ``to_json`` gave."""
        fields = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(given["fields"])))
        lists = {"key": tuple(given["key"]), "include": tuple(given["include"])}
        return cls(**{**given, "fields": fields, **lists, "renames": Renames.from_json(given.get("renames"))})

    @property
    def schema(self) -> Schema:
        """Of the export: the columns of the files, then those included."""
        return self.renames.keyed(pa.schema([*self.fields, *(_INCLUDED[name] for name in self.include)]), self.key)

    def how(self) -> AnyFormat:
        """How the files are read."""
        if self.format == "csv":
            return Csv(fields=self.fields, header=self.header, delimiter=self.delimiter)
        return JsonLines(self.fields) if self.format == "json" else Parquet(self.fields, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesTask:
    """Rows of some files."""

    place: FilesPlace
    how: AnyFormat
    export: str
    schema: Schema
    renames: Renames
    bad_rows: str
    pieces: tuple[MessageRange, ...]
    bytes: int

    @property
    def weight(self) -> int:
        return self.bytes

    @property
    def ordered(self) -> bool:
        return False

    def read(self) -> Iterator[Event]:
        opened = self.place.opened([piece.partition for piece in self.pieces])
        for piece, opening in zip(self.pieces, opened, strict=True):
            with opening as content:
                for block in self.how.blocks(content, path_of(piece.partition), piece.begin, piece.end):
                    if block.bad:
                        bad = [BadRow(piece.partition, *each) for each in block.bad]
                        yield diverted(self.export, bad, self.bad_rows, _KEYS)
                    if len(block.offsets):
                        yield self._changes(piece.partition, block)

    def _changes(self, key: str, block: Block) -> Changes:
        count = len(block.offsets)
        named = dict(zip(block.rows.schema.names, block.rows.columns, strict=True))
        named.setdefault("row", pa.array(block.offsets))
        named.setdefault("path", pa.repeat(path_of(key), count))
        named = self.renames.named(named)
        fields = pa.schema([*self.schema.key, *self.schema.val])
        return Changes(
            export=self.export,
            rows=pa.RecordBatch.from_arrays([_plain(named[each.name], each.type) for each in fields], schema=fields),
            offsets=pa.array(block.offsets.astype(np.uint64)),
            partitions=pa.DictionaryArray.from_arrays(array_of(np.zeros(count, np.int32)), array_of([key], _KEYS)),
            diffs=pa.array(np.ones(count, np.int64)),
        )


class FilesReader:
    """Watermarks: every complete file, finished. Files that are durable are left out of later probes."""

    def __init__(self, definition: FilesDefinition) -> None:
        self._definition = definition
        self._schema = definition.schema
        self._place = place_of(definition.uri, by_etag=definition.identity == BY_ETAG)
        self._settle_seconds = max(definition.settle_seconds, self._place.settle_seconds)
        self._bound: dict[str, str] = {}  # by path, the key it was bound under
        self._bound_keys: set[object] = set()
        self._bound_last: tuple[object, ...] = ()
        self._seen: dict[str, Found] = {}  # by path, what was listed and is not to be looked at again as it is
        self._there: list[Found] = []  # what is not durable of what was listed last
        self._listed_at = self._list_at = float("-inf")  # when it was listed last, and when to list again
        self._committed: SourceFrontier | None = None
        self._durable: set[str] = set()  # keys
        self._known: dict[str, Found] = {}  # by path, what was listed last
        self._sizes: dict[str, int] = {}  # by key, of what is not durable
        self._settling: dict[str, float] = {}  # by key, when it was first seen
        self._identified: dict[str, tuple[Found, Found]] = {}  # by path, as listed and as opened, of what is not bound
        self._vanished: dict[Found, float] = {}  # listed, and not there; by when it was listed first

    @property
    def kind(self) -> SourceKind:
        return SourceKind.FILES

    @property
    def incarnation(self) -> str:
        return f"files-{hashlib.sha256(self._definition.uri.encode()).hexdigest()[:16]}"

    def exports(self) -> Mapping[str, Schema]:
        exports = {self._definition.export: self._schema}
        return {**exports, ERRORS: errors_schema(_KEYS)} if self._definition.bad_rows == DIVERT else exports

    def probe(self) -> Probe:
        there = self._listed()
        ready = self._all_identified([found for found in there if self._has_settled(found)])
        paths = {found.path for found in ready} if self._settling else set()
        unready = {found.key for found in there if found.path not in paths} if self._settling else set()
        self._settling = {key: since for key, since in self._settling.items() if key in unready}
        self._sizes = {found.key: found.size for found in ready}
        high = tuple(Point(key, OFFSET_MAX) for key in self._sizes)
        return Probe(kind=self.kind, incarnation=self.incarnation, high=high)

    def plan(self, begin: SourceFrontier, end: SourceFrontier, tasks: int) -> Sequence[FilesTask]:
        self._bind(end)
        begun = dict(zip(begin.keys, begin.bounds, strict=True))
        wanted = [
            MessageRange(key, begun.get(key, 0), bound)
            for key, bound in zip(end.keys, end.bounds, strict=True)
            if begun.get(key, 0) < bound and not begin.is_closed
        ]
        if any(piece.partition not in self._sizes for piece in wanted):
            self._sizes.update((found.key, found.size) for found in self._listed())
        weighed = [(piece, self._sizes.get(piece.partition, 0)) for piece in wanted]
        if self._definition.format == "parquet" and len(weighed) < tasks:
            weighed = [part for piece, size in weighed for part in self._split(piece, size, tasks)]
        return [self._task(group, size) for group, size in _groups(weighed, tasks)]

    def remember(self, frontier: SourceFrontier) -> None:
        self._bind(frontier)

    def adopt(self, export: str, schema: Schema) -> None:
        if self.exports().get(export) != schema:
            raise SourceFailure("the columns of files are declared once", export=export)

    def commit(self, frontier: SourceFrontier) -> None:
        self._bind(frontier)
        self._committed = frontier
        finished = (key for key, bound in zip(frontier.keys, frontier.bounds, strict=True) if bound == OFFSET_MAX)
        self._durable.update(finished)
        self._sizes = {key: size for key, size in self._sizes.items() if key not in self._durable}

    def status(self) -> UpstreamStatus:
        sizes = {found.key: found.size for found in self._listed()}
        details = {"files": len(sizes), "settling": len(self._settling)}
        return UpstreamStatus(committed=self._committed, bytes_behind=sum(sizes.values()), details=details)

    def close(self) -> None:
        """Nothing is open."""

    def _split(self, piece: MessageRange, size: int, tasks: int) -> list[tuple[MessageRange, int]]:
        """A large Parquet file in parts of about equal numbers of rows; others stay as they are."""
        parts = min(tasks, size // SPLIT_BYTES)
        if parts < 2:
            return [(piece, size)]
        with self._place.open(piece.partition) as content:
            rows = row_count(content)
        edges = [max(piece.begin, rows * part // parts) for part in range(1, parts)]
        cuts = [piece.begin, *(min(edge, piece.end) for edge in edges), piece.end]
        return [
            (MessageRange(piece.partition, low, high), size // parts)
            for low, high in itertools.pairwise(cuts)
            if low < high
        ]

    def _task(self, group: tuple[MessageRange, ...], size: int) -> FilesTask:
        return FilesTask(
            place=self._place,
            how=self._definition.how(),
            export=self._definition.export,
            schema=self._schema,
            renames=self._definition.renames,
            bad_rows=self._definition.bad_rows,
            pieces=group,
            bytes=size,
        )

    def _listed(self) -> list[Found]:
        """Files that match and are not durable yet. Raises SourceFailure for one that was bound with other content.

        As they were listed last, while that is less long ago than the number of all files suggests.
        """
        began = system().monotonic()
        if began < self._list_at:
            return [found for found in self._there if self._bound.get(found.path) not in self._durable]
        self._known = {found.path: found for found in self._place.list(self._known)}
        self._listed_at = began
        seen = self._seen
        looked = (self._wanted(found) for path, found in self._known.items() if seen.get(path) is not found)
        self._there = [found for found in looked if found is not None]
        count = len(self._known)
        self._list_at = began + (count * self._place.seconds_each if count >= MANY_FILES else 0.0)
        return self._there

    def _wanted(self, found: Found) -> Found | None:
        """A file under the key it is bound with, if it is; None: it does not match, or is durable."""
        if fnmatch.fnmatchcase(found.path, self._definition.pattern):
            key = self._bound.get(found.path)
            if key is None:
                check_name(found.path)
                return found
            if not found.may_be(key):
                raise _changed(found.path)
            if key not in self._durable:
                return found if found.key == key else Found(found.path, found.stamp, key)
        self._seen[found.path] = found
        return None

    def _all_identified(self, ready: Sequence[Found]) -> list[Found]:
        """With all that says what they are. What is bound does: it is checked when it is opened."""
        known, bound = self._identified, self._bound
        fresh = [each for each in ready if each.path not in bound and known.get(each.path, (None,))[0] is not each]
        self._identified = {each.path: known[each.path] for each in ready if known.get(each.path, (None,))[0] is each}
        if fresh:
            self._identify(fresh)
        else:
            self._vanished.clear()
        found = (each if each.path in bound else self._identified.get(each.path, (each, None))[1] for each in ready)
        return [each for each in found if each is not None]

    def _identify(self, fresh: Sequence[Found]) -> None:
        """As many as there is time for. Raises LocationError only where none could be identified.

        So each probe gets on, however many files there are, and however many requests fail.
        """
        self._vanished = {each: self._vanished[each] for each in fresh if each in self._vanished}
        count = 0
        with contextlib.closing(self._place.identified(fresh, IDENTIFY_SECONDS)) as looked:
            try:
                for listed, named in looked:
                    is_other = named is not None and not listed.may_be(named.key)
                    if named is None or is_other:  # replaced or removed since it was listed
                        if self._vanished.setdefault(listed, self._listed_at) < self._listed_at:
                            raise otherwise(listed.path) if is_other else unnamed(listed.path)
                    else:
                        self._identified[listed.path] = (listed, named)
                    count += 1
            except LocationError:
                if not count:
                    raise

    def _has_settled(self, found: Found) -> bool:
        if self._settle_seconds == 0 or found.path in self._bound:
            return True
        if self._identified.get(found.path, (None,))[0] is found:
            return True
        # SUBTLE: what it is now is only known of when it was listed.
        return self._listed_at - self._settling.setdefault(found.key, self._listed_at) >= self._settle_seconds

    def _bind(self, frontier: SourceFrontier) -> None:
        if frontier.keys is self._bound_last:
            return
        for key in frontier.keys:
            if key not in self._bound_keys:
                if self._bound.setdefault(path_of(key), key) != key:
                    raise _changed(path_of(key))
                self._bound_keys.add(key)
        self._bound_last = frontier.keys


class FilesType:
    """Options. ``path``: a directory, or ``s3://bucket/prefix``. ``format``: csv, json (lines) or parquet.

    ``schema``: columns such as ``id bigint not null, name string``; for Parquet the first file by name decides when
    it is not given. ``key``: names of key columns. ``include``: further columns ``path``, ``row``. ``renameColumns``:
    names in the table, as ``name:title``. ``export``: the collection's name, ``rows`` by default. ``pattern``: of
    paths below the root, as in a shell. ``settleSeconds``: a file is complete when it did not change for so long, not
    when it appears. ``badRows``: fail, or divert to the export ``errors``. ``header`` and ``delimiter``: of CSV files.
    Names ending in gz, bz2, zst, lz4 are unpacked.
    """

    @contextmanager
    def create(self, options: Mapping[str, str], *, source: str) -> Iterator[Beginning]:
        definition = _defined(check_options(options, _OPTIONS, "a source of files"))
        bound = SourceFrontier.minimum(SourceKind.FILES)
        yield Beginning(definition=definition.to_json(), reader=FilesReader(definition), bound=bound)

    def open(self, definition: Fields, schemas: Mapping[str, Schema]) -> FilesReader:
        return FilesReader(FilesDefinition.from_json(definition))

    def drop(self, definition: Mapping[str, object]) -> None:
        """Nothing was set up."""


def _defined(given: Given) -> FilesDefinition:
    kind = one_of(given, "format", _FORMATS, "") or required(given, "format", "csv")
    uri, pattern = required(given, "path", "/data/orders"), given.get("pattern") or "*"
    delimiter = given.get("delimiter") or ","
    if kind != "csv" and ("header" in given.values or "delimiter" in given.values):
        raise InvalidArgument("options header and delimiter are about CSV files", hint=f"drop them for {kind}")
    if len(delimiter) != 1 or not delimiter.isascii():
        raise InvalidArgument("option delimiter must be one character", got=delimiter)
    export = given.get("export") or "rows"
    if export == ERRORS:
        raise InvalidArgument("the export errors is for bad rows", hint="choose another name for export")
    include = listed(given, "include")
    if unknown := [name for name in include if name not in _INCLUDED]:
        raise InvalidArgument("option include knows path and row", got=", ".join(unknown))
    declared = columns(given.values["schema"]) if given.get("schema") else _from_first(uri, pattern, kind)
    if twice := [name for name in include if name in declared.names]:
        raise InvalidArgument("a column is both in the files and included", hint="rename it", column=twice[0])
    required(given, "key", "id")
    definition = FilesDefinition(
        uri=uri,
        format=kind,
        fields=declared,
        key=listed(given, "key"),
        include=include,
        export=export,
        pattern=pattern,
        settle_seconds=number(given, "settleSeconds", 0.0) or 0.0,
        bad_rows=one_of(given, "badRows", (FAIL, DIVERT), FAIL),
        header=given.flag("header", True),
        delimiter=delimiter,
        renames=Renames.of(given),
        identity=BY_ETAG if uri.startswith("s3:") else BY_TIME,
    )
    return _stored(definition)


def _stored(definition: FilesDefinition) -> FilesDefinition:
    """With the types shards have: a shard's rows are what files are read to."""
    schema = definition.schema
    kinds = {each.name: each for each in definition.renames.upstream(pa.schema([*schema.key, *schema.val]))}
    fields = pa.schema([kinds[name] for name in definition.fields.names])
    named = {name: getattr(definition, name) for name in definition.__slots__}
    return FilesDefinition(**{**named, "fields": fields})


def _from_first(uri: str, pattern: str, kind: str) -> pa.Schema:
    if kind != "parquet":
        raise InvalidArgument(f"{kind} files need option schema", hint="such as schema=id bigint, name string")
    place = place_of(uri)
    found = [each for each in place.list(NOTHING_KNOWN) if fnmatch.fnmatchcase(each.path, pattern) and each.size]
    if not found:
        hint = "add option schema, or put a file there first"
        raise InvalidArgument("there is no Parquet file to learn the columns from", hint=hint, path=uri)
    first = min(found, key=lambda each: each.path)
    with place.open(first.key) as content:
        try:
            return inferred(content, ())
        except (pa.ArrowException, OSError) as cause:
            raise SourceFailure("this is no Parquet file", hint="remove it", path=first.path, cause=cause) from cause


def _groups(weighed: Sequence[tuple[MessageRange, int]], tasks: int) -> Iterator[tuple[tuple[MessageRange, ...], int]]:
    """Pieces in order, in about ``tasks`` groups of about equal size."""
    limit = max(-(-sum(weight for _, weight in weighed) // max(tasks, 1)), 1)
    group: list[MessageRange] = []
    size = 0
    for piece, weight in weighed:
        group.append(piece)
        size += weight
        if size >= limit:
            yield tuple(group), size
            group, size = [], 0
    if group:
        yield tuple(group), size


def _changed(path: str) -> SourceFailure:
    return SourceFailure(
        "a file that was ingested changed, or another one has its name",
        hint="files must never change, and names never come back: make a new source",
        path=path,
    )


def _plain(column: ArrowArray, kind: pa.DataType) -> ArrowArray:
    return cast_exactly(column, kind)
