"""Column definitions as schemas: types of SQL, NOT NULL and PRIMARY KEY.

Key columns are stored first, so they are declared first: what comes out of a table is then in the order it was
declared in. Source: docs/sql.md.
"""

from collections.abc import Sequence
from typing import Final, NoReturn

import pyarrow as pa

from persist.arrow import ArrowField
from persist.client.sql.errors import SqlNotSupported, SqlSyntax
from persist.client.sql.parse.positions import where
from persist.client.sql.parse.tokens import Tokens
from persist.core.data.schema import Schema
from persist.core.data.types import T
from persist.errors import UsageError
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp

_NAMED: Final[dict[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINT": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BPCHAR": pa.string(),
    "NAME": pa.string(),
    "VARBINARY": pa.binary(),
    "BINARY": pa.binary(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
}
_WRITTEN: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "REAL",
    pa.float64(): "DOUBLE PRECISION",
    pa.string(): "TEXT",
    pa.binary(): "BYTEA",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", "UTC"): "TIMESTAMPTZ",
}
_UNSIGNED: Final = {
    "utinyint": "UTINYINT",
    "usmallint": "USMALLINT",
    "uinteger": "UINT",
    "ubigint": "UBIGINT",
    "uint2": "USMALLINT",
    "uint4": "UINT",
    "uint8": "UBIGINT",
}
"""What PostgreSQL has no words for: those of DuckDB, and bytes as in ``int8``."""

_CONSTRAINTS: Final[dict[type[exp.Expr], str]] = {
    exp.PrimaryKeyColumnConstraint: "PRIMARY KEY",
    exp.NotNullColumnConstraint: "NOT NULL",
    exp.DefaultColumnConstraint: "DEFAULT",
}

DECIMAL: Final = (38, 9)
"""Digits, and how many of them behind the point, of a NUMERIC that says nothing."""


def columns(tokens: Tokens) -> tuple[Schema, bool]:
    """A list of columns in parentheses, as a schema, and whether it is without a key. Raises SqlSyntax, and others."""
    start = tokens.at
    opening = tokens.peek
    if opening is None or opening.text != "(":
        tokens.fail("columns in parentheses", hint="(id BIGINT PRIMARY KEY, name TEXT)")
    created = tokens.expression(tokens.closing() + 1, after="CREATE TABLE x")
    parsed = created.this
    if not isinstance(parsed, exp.Schema):
        tokens.at = start
        tokens.fail("columns in parentheses")
    fields: list[tuple[ArrowField, exp.Expr]] = []
    key: list[exp.Expr] = []
    for each in parsed.expressions:
        if isinstance(each, exp.ColumnDef):
            fields.append((_field(each, key), each))
        elif isinstance(each, exp.PrimaryKey):
            key += each.expressions
        else:
            _unsupported("this constraint", each)
    if not fields:
        tokens.at = start
        tokens.fail("columns")
    return _schema(fields, key)


def column(tokens: Tokens) -> tuple[ArrowField, frozenset[str]]:
    """The next column, up to a comma or the end, as a field, and what is said of it besides: PRIMARY KEY, NOT NULL,
    DEFAULT. Raises SqlSyntax, and others.
    """
    start = tokens.at
    created = tokens.expression(tokens.comma(), after="CREATE TABLE x (", before=")")
    parsed = created.this.expressions[0] if isinstance(created.this, exp.Schema) else None
    if not isinstance(parsed, exp.ColumnDef):
        tokens.at = start
        tokens.fail("a column and its type")
    found = {
        words
        for kind, words in _CONSTRAINTS.items()
        for each in parsed.args.get("constraints") or ()
        if isinstance(each.kind, kind) and not each.kind.args.get("allow_null")
    }
    rest = [each for each in parsed.args.get("constraints") or () if not isinstance(each.kind, tuple(_CONSTRAINTS))]
    plain = parsed.copy()
    plain.set("constraints", rest)
    return _field(plain, []), frozenset(found)


def _schema(columns: Sequence[tuple[ArrowField, exp.Expr]], key: Sequence[exp.Expr]) -> tuple[Schema, bool]:
    """``key``: what names its columns. Every error says where in the text the column stands that it is about."""
    fields = [field for field, _ in columns]
    names = [field.name for field in fields]
    keys = {_folded(each): each for each in key}
    if missing := [name for name in keys if name not in names]:
        hint = f"the columns are {', '.join(names)}"
        raise SqlSyntax("a key of a column that is not there", hint=hint, at=missing[0], **where(keys[missing[0]]))
    for at, (name, (_, node)) in enumerate(zip(names, columns, strict=True)):
        if name in names[:at]:
            raise SqlSyntax("two columns of one name", hint="rename one", at=name, **where(node))
    for name, (_, node) in zip(names[len(keys) :], columns[len(keys) :], strict=True):
        if name in keys:
            raise SqlSyntax(
                "the columns of the primary key come first",
                hint=f"declare {', '.join(keys)} before the others: rows are stored in that order",
                at=name,
                **where(node),
            )
    count = len(keys) or len(fields)
    kept = [field.with_nullable(False) if at < len(keys) else field for at, field in enumerate(fields)]
    try:
        return Schema(pa.schema(kept[:count]), pa.schema(kept[count:])), not key
    except UsageError as error:
        # Its details call the column by its name, where ours have a number.
        details = {"name" if each == "column" else each: value for each, value in error.details.items()}
        said = str(details.get("name", "")).strip("'")
        place = next((where(node) for field, node in columns if field.name == said), {})
        raise type(error)(error.message, hint=error.hint, **details, **place) from error


def _field(column: exp.ColumnDef, key: list[exp.Expr]) -> ArrowField:
    name = _folded(column.this)
    kind = column.args.get("kind")
    if kind is None:
        _unsupported("a column without a type", column)
    nullable = True
    for constraint in column.args.get("constraints") or ():
        match constraint.kind:
            case exp.PrimaryKeyColumnConstraint():
                key.append(column.this)
            case exp.NotNullColumnConstraint() as found:
                nullable = bool(found.args.get("allow_null"))
            case other:
                _unsupported("this constraint", other, of=column)
    return pa.field(name, arrow_type(kind, of=column), nullable=nullable)


def arrow_type(kind: exp.Expr, *, of: exp.Expr | None = None) -> pa.DataType:
    """The type of a column as Arrow has it. ``of``: what it is the type of. Raises SqlNotSupported."""
    name = getattr(kind.this, "name", "") if isinstance(kind, exp.DataType) else ""
    if name == "USERDEFINED":
        name = _UNSIGNED.get(str(kind.args["kind"].name).lower(), "")
    if name in ("DECIMAL", "NUMERIC"):
        given = [int(each.name) for each in kind.expressions]
        precision, scale = (*given, 0)[:2] if given else DECIMAL
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            _unsupported("a number of so many digits", kind, of=of)
        return pa.decimal128(precision, scale)
    if name in ("ARRAY", "LIST") and kind.expressions:
        return pa.list_(pa.field("element", arrow_type(kind.expressions[0], of=of)))
    if name in _NAMED:
        return _NAMED[name]
    _unsupported("this type", kind, of=of)


def written_type(given: pa.DataType) -> str:
    """The type of a column as statements write it."""
    if T.is_decimal(given):
        return f"NUMERIC({given.precision}, {given.scale})"
    if T.is_list(given):
        return f"{written_type(given.value_type)}[]"
    return _WRITTEN.get(given, str(given).upper())


def _folded(name: exp.Expr) -> str:
    identifier = name.find(exp.Identifier) if not isinstance(name, exp.Identifier) else name
    if identifier is None:
        _unsupported("this column", name)
    return str(identifier.this) if identifier.args.get("quoted") else str(identifier.this).lower()


def _unsupported(what: str, node: exp.Expr, *, of: exp.Expr | None = None) -> NoReturn:
    """``of``: the column that it belongs to, which stands where a reader looks for it."""
    raise SqlNotSupported(
        f"{what} is not supported",
        hint="columns have a name, a type, NOT NULL and PRIMARY KEY; see docs/sql.md",
        got=node.sql(dialect="postgres")[:80],
        **where(node if of is None else of),
    )
