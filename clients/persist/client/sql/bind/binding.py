"""A query with every name in full: what it reads, and as what DuckDB finds it.

Each place where a collection is named is a relation of its own, so that columns and conditions are pushed into each
by itself. Views are put in the place of their names. Source: collections: queries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from persist.client.sql.bind import functions
from persist.client.sql.bind.checks import Named, checked
from persist.client.sql.bind.exact import check_quoted
from persist.client.sql.bind.meaning import meant
from persist.client.sql.errors import SqlError, SqlNotSupported
from persist.client.sql.parse.positions import where
from persist.client.sql.parse.statements import Select
from persist.client.sql.parse.text import one
from persist.core.catalog.ddl.described import Described, Session
from persist.core.catalog.ddl.statements import QualifiedName
from persist.core.catalog.errors import UnknownObject
from persist.core.catalog.values import KnownColumns, ObjectType
from persist.core.data.predicates.condition import Condition
from persist.core.data.schema import Schema
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp
    from sqlglot.errors import ErrorLevel, UnsupportedError

PREFIX: Final = "persist_relation_"
TARGET: Final = "persist_target"
"""What the table is marked with that a statement changes."""

DEPTH_MAX: Final = 32
"""Views that are made of views."""
VIEWS_MAX: Final = 200
"""Views in one query, each as often as it is named: of views that name another one twice there are twice as many with
each level."""

_NODE_CHARACTERS: Final = 8
"""Of which a node of a query has a few."""
_TABLE_PARTS: Final = frozenset({"this", "db", "catalog", "alias", "joins", "laterals", "pivots", "sample"})
_BYTES: Final = {"uint1": "utinyint", "uint2": "usmallint", "uint4": "uinteger", "uint8": "ubigint"}


class TooLarge(Exception):  # no error: the same is asked for elsewhere
    """A query has more nodes, with the views in it, than it may have here."""


class Resolving(Protocol):
    """Where names are looked up."""

    def resolve(self, name: QualifiedName, session: Session) -> Described:
        """The item of a name. Raises UnknownObject."""
        ...


@dataclass(frozen=True, slots=True)
class BoundRelation:
    """A place where a query names a collection. ``columns`` None: all of them; ``conditions``: rows that are enough.

    ``target``: it is what the statement changes.
    """

    name: str
    described: Described
    columns: tuple[str, ...] | None = None
    conditions: tuple[Condition, ...] = ()
    target: bool = False

    @property
    def schema(self) -> Schema:
        """Of its rows."""
        assert self.described.schema is not None
        return self.described.schema


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundQuery:
    """A query whose names are known.

    ``named``: as it was written, with names in full, in the dialect of PostgreSQL. ``query``: over ``relations``.
    ``reads``: what it names, each once, in order. ``nodes``: how large it is, with the views in it.
    """

    named: str
    query: exp.Expr
    reads: tuple[Described, ...]
    relations: Mapping[str, BoundRelation] = field(default_factory=dict)
    asks_time: bool = False
    nodes: int = 0

    def sql(self, ts: int, named: Named) -> str:
        """The query as DuckDB has it, read at a time. ``named``: see ``run.engine.named``.

        Raises SqlNotSupported: it cannot be said there; SqlFailed: a text in it is no whole number, and has to be one.
        """
        try:
            query = functions.with_time(self.query, ts) if self.asks_time else self.query
            query = checked(query, (each.schema for each in self.relations.values()), named)
            return query.sql(dialect="duckdb", unsupported_level=ErrorLevel.RAISE)
        except UnsupportedError as error:
            raise SqlNotSupported(
                "this is not supported", hint="say it in another way", why=str(error)[:200]
            ) from error


def bind(
    query: exp.Expr,
    names: Resolving,
    session: Session,
    *,
    definite: bool = False,
    is_view: bool = False,
    nodes_max: int | None = None,
    known: Sequence[KnownColumns] = (),
    is_kept: bool = False,
) -> BoundQuery:
    """The query, with what its names mean to the session.

    ``definite``: it gives the same rows whenever it is computed, or it is refused. ``is_view``: it is to be that of a
    view, which has to be readable. ``is_kept``: it was bound before, perhaps by a release that took quoted names of
    columns in any case. ``known``: the columns it was made of where what it reads has got more since.
    Raises UnknownObject, with near names and the place; SqlNotSupported; SqlError (a name that has no rows); TooLarge.
    """
    binding = _Binding(names, session, DEPTH_MAX - is_view, VIEWS_MAX - is_view, nodes_max, is_exact=not is_kept)
    binding.count(query)
    functions.check(query, definite=definite)
    named, bound = binding.bound(query.copy(), 0, known)
    return BoundQuery(
        named=named.sql(dialect="postgres", copy=False),
        query=meant(bound),
        reads=tuple({each.id: each for each in binding.reads}.values()),
        relations=binding.relations,
        asks_time=functions.asks_time(bound),
        nodes=binding.nodes,
    )


class _Binding:
    def __init__(
        self,
        names: Resolving,
        session: Session,
        depth_max: int,
        views_max: int,
        nodes_max: int | None,
        *,
        is_exact: bool,
    ) -> None:
        self.nodes = 0
        self._is_exact = is_exact
        self._nodes_max = nodes_max
        self._depth_max = depth_max
        self._views_left = views_max
        self._names = names
        self._session = session
        self._of_view: Described | None = None
        self.relations: dict[str, BoundRelation] = {}
        self.reads: list[Described] = []

    def count(self, query: exp.Expr) -> None:
        """What is bound from now on. Raises TooLarge, before more is looked at than that takes."""
        todo: list[object] = [query]
        while todo:
            node = todo.pop()
            if isinstance(node, exp.Expr):
                self.nodes += 1
                for value in node.args.values():
                    todo += value if isinstance(value, list) else [value]
            if self._nodes_max is not None and self.nodes + len(todo) // 4 > self._nodes_max:
                raise TooLarge

    def bound(self, query: exp.Expr, depth: int, known: Sequence[KnownColumns]) -> tuple[exp.Expr, exp.Expr]:
        """The query with names in full, and over relations. ``known``: see ``bind``, of this query."""
        if depth > self._depth_max:
            raise SqlError("views are made of views too deeply", hint=f"at most {DEPTH_MAX} levels")
        found = []
        for lateral in query.find_all(exp.Lateral):
            self._check_rows(lateral.this)
        for table in list(query.find_all(exp.Table)):
            self._check(table)
            if isinstance(table.this, exp.Identifier) and not _is_local(table):
                found.append((table, self._resolved(table).narrowed(known)))
        for table, described in found:
            _name(table, described)
            if depth == 0:
                self.reads.append(described)
        if depth == 0 and self._is_exact:
            check_quoted(query, (name for _, described in found for name in described.column_names))
        _unqualified(query)
        named = query.copy() if depth == 0 else query
        # Before views take the places of their names: what is in these has been through it.
        query = query.transform(_types, copy=False)
        for table, described in found:
            self._place(table, described, depth)
        return named, query

    def _inner(self, query: exp.Query, view: Described, depth: int) -> exp.Expr:
        """The query of a view over relations. Raises SqlError where it reads what the view does not depend on."""
        former, self._of_view = self._of_view, view
        try:
            return self.bound(query.copy(), depth + 1, view.known)[1]
        finally:
            self._of_view = former

    def _check(self, table: exp.Table) -> None:
        strange = sorted(name for name, value in table.args.items() if value and name not in _TABLE_PARTS)
        if strange:
            hint = "times are given at the end: … AS OF t" if "version" in strange else ""
            raise SqlNotSupported("this way to name a table is not supported", hint=hint, got=_text(table))
        if not isinstance(table.this, exp.Identifier):
            self._check_rows(table.this)

    def _check_rows(self, source: exp.Expr) -> None:
        """Whatever stands where rows do, and is no name: a query, or a function that gives rows."""
        while isinstance(source, exp.Subquery):
            source = source.this
        if not isinstance(source, exp.Query | exp.Values | exp.Table) and not functions.is_table(source):
            raise SqlNotSupported(
                "this function gives no rows here",
                hint="COPY reads files; generate_series and unnest give rows",
                got=_text(source),
                **where(source),
            )

    def _resolved(self, table: exp.Table) -> Described:
        try:
            described = self._names.resolve(name_of(table), self._session)
        except UnknownObject as error:
            raise UnknownObject(error.message, hint=error.hint, **error.details, **where(table)) from error
        if self._of_view is not None and described.id not in self._of_view.depends_on:
            raise SqlError(
                "a view reads what it was not made of", hint=_ANEW, name=self._of_view.name, reads=described.name
            )
        if described.schema is None or described.kind in (ObjectType.SINK, ObjectType.HOLD, ObjectType.CURSOR):
            raise SqlError(
                "this has no rows to read",
                hint="name a table, source, view or index",
                name=described.name,
                kind=described.kind,
                **where(table),
            )
        return described

    def _place(self, table: exp.Table, described: Described, depth: int) -> None:
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(described.name.item, quoted=True)))
        if described.kind is ObjectType.VIEW:
            self._views_left -= 1
            if self._views_left < 0:
                raise SqlError(
                    "the query is made of too many views",
                    hint=f"at most {VIEWS_MAX}, each as often as it is named; make materialized views of some",
                )
            if self._nodes_max is not None and len(described.query) > self._nodes_max * _NODE_CHARACTERS:
                raise TooLarge
            query = query_of(described)
            self.count(query)
            # SUBTLE: a catalog takes a text from any client: what it says is looked at here, not where it was made.
            functions.check(query, definite=True)
            inner = self._inner(query, described, depth)
            rest = {name: value for name, value in table.args.items() if name not in ("this", "db", "catalog")}
            columns = described.schema
            if columns is not None and not (rest.get("alias") and rest["alias"].args.get("columns")):
                names = [exp.to_identifier(name, quoted=True) for name in _names(columns)]
                rest["alias"] = exp.TableAlias(this=rest["alias"].this, columns=names)
            table.replace(exp.Subquery(this=inner, **rest))
            return
        relation = BoundRelation(f"{PREFIX}{len(self.relations)}", described, target=bool(table.meta.get(TARGET)))
        self.relations[relation.name] = relation
        table.set("this", exp.to_identifier(relation.name))
        table.set("db", None)
        table.set("catalog", None)


def query_of(view: Described) -> exp.Query:
    """The query of a view, from its text. Raises SqlError: that is none, as what no statement made may be."""
    try:
        statement = one(view.query).statement
    except SqlError as error:
        why = str(error)[:200]
        raise SqlError("the text of a view is no query", hint=_ANEW, name=view.name, why=why) from error
    if not isinstance(statement, Select) or statement.as_of is not None:
        raise SqlError("the text of a view is no query", hint=_ANEW, name=view.name)
    return statement.query


_ANEW: Final = "DROP VIEW it, and CREATE VIEW it anew"


def name_of(table: exp.Table) -> QualifiedName:
    """The name that a table of a query goes by there."""
    return QualifiedName(*(_part(table.args.get(part)) for part in ("this", "db", "catalog")))  # type: ignore[arg-type]  # the first is there


def _names(schema: Schema) -> list[str]:
    return [*schema.key.names, *schema.val.names]


def _part(identifier: exp.Expr | None) -> str | None:
    if identifier is None:
        return None
    return str(identifier.this) if identifier.args.get("quoted") else str(identifier.this).lower()


def _text(node: exp.Expr) -> str:
    return node.sql(dialect="postgres")[:80]


def _name(table: exp.Table, described: Described) -> None:
    """The full name: what goes by the item's name in the query still does."""
    for part, text in zip(("this", "db", "catalog"), described.name, strict=True):
        table.set(part, exp.to_identifier(text, quoted=True) if text else None)


def _unqualified(query: exp.Expr) -> None:
    """``schema.table.column`` as ``table.column``: every table goes by its alias now."""
    for column in query.find_all(exp.Column):
        if column.args.get("db") or column.args.get("catalog"):
            column.set("db", None)
            column.set("catalog", None)


def _is_local(table: exp.Table) -> bool:
    """Whether a bare name is that of a WITH around it, which hides whatever else has the name."""
    if table.args.get("db") or table.args.get("catalog"):
        return False
    name = _part(table.this)
    inside: exp.Expr | None = None
    node: exp.Expr | None = table
    while node is not None:
        if isinstance(node, exp.CTE):
            inside = node
        clause = node.args.get("with_")
        if isinstance(clause, exp.With) and name in _seen(clause, inside):
            return True
        node = node.parent
    return False


def _seen(clause: exp.With, inside: exp.Expr | None) -> set[str | None]:
    """The names of a WITH, as one of its own queries sees them: those before it, and itself if it is recursive."""
    seen: set[str | None] = set()
    for each in clause.expressions:
        if each is inside and not clause.args.get("recursive"):
            return seen
        seen.add(_part(each.args["alias"].this))
        if each is inside:
            return seen
    return seen


def _types(node: exp.Expr) -> exp.Expr:
    """Unsigned integers by what they are called in PostgreSQL's manner: DuckDB counts bits there."""
    if isinstance(node, exp.DataType) and node.this == exp.DataType.Type.USERDEFINED:
        kind = node.args.get("kind")
        name = str(getattr(kind, "name", kind)).lower()
        if name in _BYTES:
            return exp.DataType(this=exp.DataType.Type.USERDEFINED, kind=exp.to_identifier(_BYTES[name]))
    return node
