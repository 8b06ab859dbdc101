"""Schema: the key and val columns of a shard, how objects map to them, and how they may evolve.

Source: architecture.md section 4; kernel.md section 1, rule set.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from persist.arrow import ArrowField
from persist.core.data.codec import ArrowCodec, Codec, UnknownCodec, built_in
from persist.core.data.types import Role, storage_type
from persist.core.data.values import requires
from persist.errors import CodecMismatch, InvalidArgument, PersistError, SchemaMismatch

TS: Final = pa.field("ts", pa.uint64(), nullable=False)
DIFF: Final = pa.field("diff", pa.int64(), nullable=False)

FieldsLike: TypeAlias = Any
"""A mapping of column names to Arrow types or fields, or a pyarrow Schema."""

RESERVED: Final = frozenset({TS.name, DIFF.name, "_change_type", "_commit_version", "_commit_timestamp"})
"""What no column may be called, in whatever case: what updates and change feeds have beside the columns."""

_ROLE, _CODEC, _VERSION = b"persist.role", b"persist.codec", b"persist.schema"


class Schema:
    """Key and val columns in storage types. Immutable, picklable, hashable.

    ``key`` and ``val`` map names to Arrow types (nullable) or fields. At least one key column is needed. All names
    differ by more than case, as SQL engines find columns without regard to it; those in RESERVED are taken. What is
    inside of a column is nullable in the shard; where it is declared not to be, who writes with this very schema is
    refused nulls there.
    Raises TypeNotSupported, InvalidArgument.
    """

    __slots__ = ("_codec", "_declared", "_key", "_updates", "_val")

    def __init__(self, key: FieldsLike, val: FieldsLike | None = None, *, codec: Codec | None = None) -> None:
        self._key = _fields(key, "key")
        self._val = _fields({} if val is None else val, "val")
        self._declared = _declared(key, self._key) + _declared({} if val is None else val, self._val)
        names = [*self._key.names, *self._val.names]
        if not len(self._key):
            raise InvalidArgument("a schema needs a key column", hint="name what identifies a row")
        alike = _alike(names)
        if alike:
            raise InvalidArgument(
                "column names must differ by more than case", hint=f"rename one of {', '.join(alike)}", column=alike[-1]
            )
        self._codec = self._bind(codec)
        self._updates = pa.schema([*self._key, *self._val, TS, DIFF])

    @classmethod
    def of(cls, codec: Codec) -> "Schema":
        """The schema of what a codec writes. Raises TypeNotSupported, InvalidArgument."""
        return cls(codec.key, codec.val, codec=codec)

    @classmethod
    def from_arrow(cls, fields: pa.Schema, key: Sequence[str]) -> "Schema":
        """The schema of tables with these columns: those named in ``key`` are the key, in that order, the rest the val.

        Raises InvalidArgument (a column that is not there, or named twice; no key), TypeNotSupported.
        """
        if not isinstance(fields, pa.Schema) or isinstance(key, str):  # type: ignore[redundant-expr]  # callers without a type checker
            raise InvalidArgument(
                "an Arrow schema and the names of key columns are needed",
                hint='Schema.from_arrow(table.schema, ["id"])',
            )
        wrong = [name for name in key if fields.names.count(name) != 1 or list(key).count(name) != 1]
        if wrong:
            raise InvalidArgument("not a column, or there twice", hint=f"of {fields.names}", column=repr(wrong[0])[:80])
        vals = [field for field in fields if field.name not in set(key)]
        return cls(pa.schema([fields.field(name) for name in key]), pa.schema(vals))

    @property
    def key(self) -> pa.Schema:
        """The key columns."""
        return self._key

    @property
    def val(self) -> pa.Schema:
        """The val columns; may be none."""
        return self._val

    @property
    def declared(self) -> tuple[ArrowField, ...]:
        """The key and val columns in the types that were given. The shard does not keep them; equality ignores them."""
        return self._declared

    @property
    def stored(self) -> "Schema":
        """The same without what was declared beyond it: as others find it in the shard."""
        return Schema(self._key, self._val, codec=self._codec)

    @property
    def updates(self) -> pa.Schema:
        """Columns of stored updates: key…, val…, ``ts`` u64, ``diff`` i64."""
        return self._updates

    @property
    def rows(self) -> pa.Schema:
        """Columns of a snapshot: key…, val…, ``diff`` i64."""
        return pa.schema([*self._key, *self._val, DIFF])

    @property
    def codec(self) -> Codec:
        """Maps objects to these columns and back."""
        return self._codec

    @property
    def codec_name(self) -> str:
        """The codec's stable name, kept with the shard."""
        return self._codec.name

    def project(self, columns: Iterable[str] | None) -> "Schema":
        """The schema of updates with all key columns and only the val columns named. None: this schema."""
        if columns is None:
            return self
        wanted = set(columns)
        kept = sum(field.name in wanted for field in self._val)
        keys = len(self._key)
        vals = [field for field in self._declared[keys:] if field.name in wanted]
        return self if kept == len(self._val) else Schema(pa.schema(self._declared[:keys]), pa.schema(vals))

    def to_bytes(self) -> bytes:
        """The Arrow IPC schema of the columns with their roles, and the codec's name."""
        fields = [field.with_metadata({_ROLE: b"key"}) for field in self._key]
        fields += [field.with_metadata({_ROLE: b"val"}) for field in self._val]
        metadata = {_CODEC: self.codec_name.encode(), _VERSION: b"1"}
        return bytes(pa.schema(fields, metadata).serialize().to_pybytes())  # type: ignore[arg-type]  # no nulls here

    @classmethod
    def from_bytes(cls, data: bytes, codec: Codec | None = None) -> "Schema":
        """The schema ``to_bytes`` wrote. ``codec`` is needed only to encode or decode objects with a user's codec.

        Raises InvalidArgument (not a schema), CodecMismatch (``codec`` has another name), TypeNotSupported.
        """
        if codec is None:
            # Bytes are looked up; what is none is found out by who parses it.
            return _known(data) if isinstance(data, bytes) else _parsed(data)  # type: ignore[redundant-expr]  # callers without a type checker
        name, key, val = _stored(data)
        if codec.name != name:
            raise CodecMismatch("written with another codec", hint=f"open it with {name}", got=codec.name, codec=name)
        return cls(key, val, codec=codec)

    def check_evolution(self, newer: "Schema") -> None:
        """Accept ``newer`` if it only adds nullable val columns at the end. Raises SchemaMismatch, CodecMismatch."""
        if newer.codec_name != self.codec_name:
            raise CodecMismatch("a codec cannot change", hint=f"use {self.codec_name}", got=newer.codec_name)
        if newer.key != self._key:
            raise SchemaMismatch("key columns cannot change", hint=f"keep {_names(self._key)}", got=_names(newer.key))
        known = len(self._val)
        if list(newer.val)[:known] != list(self._val):
            raise SchemaMismatch(
                "val columns can only be added, at the end",
                hint=f"start with {_names(self._val)}",
                got=_names(newer.val),
            )
        for field in list(newer.val)[known:]:
            if not field.nullable:
                raise SchemaMismatch(
                    "an added column must be nullable", hint="rows before it have none", column=field.name
                )

    def upgrade(self, table: pa.Table, target: "Schema", columns: Iterable[str] | None = None) -> pa.Table:
        """Rows of this schema as ``target`` has them: in its order, nulls in the val columns added since.

        A table that lacks some columns of this schema (a projection) goes on lacking them. ``columns``: only these of
        the key and val columns. Raises SchemaMismatch when ``target`` is no evolution of this schema.
        """
        if target is not self and target != self:
            self.check_evolution(target)
        wanted = None if columns is None else {*columns, TS.name, DIFF.name}
        arrays, fields = [], []
        added = set(target.val.names) - set(self._val.names)
        for field in target.updates:
            if wanted is not None and field.name not in wanted:
                continue
            if field.name in table.schema.names:
                arrays.append(table.column(field.name))
            elif field.name in added:
                arrays.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
            else:
                continue
            fields.append(field)
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def _bind(self, codec: Codec | None) -> Codec:
        if codec is None or isinstance(codec, ArrowCodec):
            return ArrowCodec(self._key, self._val)
        key, val = _fields(codec.key, "key"), _fields(codec.val, "val")
        if key != self._key or val != self._val:
            raise SchemaMismatch(
                "the codec writes other columns",
                hint="use Schema.of(codec)",
                codec=codec.name,
                writes=_names(key) + _names(val),
            )
        return codec

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return self._key == other._key and self._val == other._val and self.codec_name == other.codec_name

    def __hash__(self) -> int:
        return hash((tuple(self._key.names), tuple(self._val.names), self.codec_name))

    def __repr__(self) -> str:
        return f"Schema(key={_names(self._key)}, val={_names(self._val)}, codec={self.codec_name})"

    def __reduce__(self) -> tuple[Callable[..., "Schema"], tuple[bytes, Codec | None, bytes]]:
        kept = None if built_in(self.codec_name, self._key, self._val) else self._codec
        # SUBTLE: not the fields themselves, of which some forget when pickled that an item must not be null.
        is_strict = any(requires(each.type) for each in self._declared)
        declared = pa.schema(self._declared).serialize().to_pybytes() if is_strict else b""
        return _unpickled, (self.to_bytes(), None if isinstance(kept, UnknownCodec) else kept, declared)


@functools.lru_cache(maxsize=256)
def _known(data: bytes) -> Schema:
    """The schema in stored bytes: those of a shard are asked for with each batch."""
    return _parsed(data)


def _parsed(data: bytes) -> Schema:
    name, key, val = _stored(data)
    return Schema(key, val, codec=built_in(name, key, val) or UnknownCodec(name, key, val))


def _unpickled(data: bytes, codec: Codec | None, declared: bytes) -> Schema:
    if not declared:
        return Schema.from_bytes(data, codec)
    # Another object than others have: what is declared is its own.
    found = _parsed(data) if codec is None else Schema.from_bytes(data, codec)
    found._declared = tuple(pa.ipc.read_schema(pa.py_buffer(declared)))
    return found


def _stored(data: bytes) -> tuple[str, pa.Schema, pa.Schema]:
    """The codec's name and the key and val columns in stored bytes. Raises InvalidArgument, TypeNotSupported."""
    try:
        stored = pa.ipc.read_schema(pa.py_buffer(data))
        name = (stored.metadata or {}).get(_CODEC, b"").decode(errors="replace")
        roles: dict[bytes, list[ArrowField]] = {b"key": [], b"val": []}
        for field in stored if name else ():
            roles[(field.metadata or {})[_ROLE]].append(field)
        # Arrow reads texts when they are asked for: by now all names, also those inside columns, were.
        key, val = _fields(pa.schema(roles[b"key"]), "key"), _fields(pa.schema(roles[b"val"]), "val")
    except PersistError:
        raise
    except Exception as error:
        # Bytes of others: what Arrow and Python raise on them is many things.
        raise InvalidArgument("these bytes are not a schema", hint="pass what Schema.to_bytes gave") from error
    if not name:
        raise InvalidArgument("these bytes are not a schema", hint="pass what Schema.to_bytes gave")
    return name, key, val


def _fields(given: FieldsLike, role: Role) -> pa.Schema:
    if not isinstance(given, pa.Schema | Mapping):
        raise InvalidArgument(
            "columns are given as a dict", hint="such as {'id': pyarrow.int64()}", got=repr(given)[:80]
        )
    items = [(field.name, field) for field in given] if isinstance(given, pa.Schema) else list(given.items())
    return pa.schema([_field(name, item, role) for name, item in items])


def _declared(given: pa.Schema | Mapping[str, pa.DataType | ArrowField], stored: pa.Schema) -> tuple[ArrowField, ...]:
    """The columns, which are sound, in the types that were given."""
    kinds = [given.field(name) if isinstance(given, pa.Schema) else given[name] for name in stored.names]
    types = [kind.type if isinstance(kind, pa.Field) else kind for kind in kinds]
    return tuple(field.with_type(kind) for field, kind in zip(stored, types, strict=True))


def _field(name: Any, given: Any, role: Role) -> ArrowField:
    if not isinstance(name, str) or not name:
        raise InvalidArgument("a column needs a name", hint="give a text that is not empty", column=repr(name))
    if name.lower() in RESERVED:
        raise InvalidArgument("this column name is taken", hint=_rename(name), column=repr(name))
    if isinstance(given, pa.Field):
        return pa.field(name, storage_type(given.type, role, name), nullable=given.nullable)
    if not isinstance(given, pa.DataType):
        raise InvalidArgument(
            "a column needs an Arrow type", hint="such as pyarrow.int64()", column=name, got=repr(given)
        )
    return pa.field(name, storage_type(given, role, name))


def _rename(name: str) -> str:
    if name.lower() in (TS.name, DIFF.name):
        return f"{name} is a column of every update: rename it, to _{name} for instance, which Spark shows as {name}"
    return "change feeds have a column of that name: rename it"


def _alike(names: list[str]) -> list[str]:
    """The first names that are equal without regard to case; none when all differ."""
    known: dict[str, str] = {}
    for name in names:
        if name.lower() in known:
            return [known[name.lower()], name]
        known[name.lower()] = name
    return []


def _names(fields: pa.Schema) -> str:
    return "{" + ", ".join(f"{f.name}: {f.type}{'' if f.nullable else ' not null'}" for f in fields) + "}"
