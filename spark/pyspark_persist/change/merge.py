"""MERGE: a source joined to the table, and what becomes of rows by the first clause whose condition holds.

A row of the table that several rows of the source would change is refused: changed rows are brought together by the
number they have in the read, so two of a kind are neighbours at any size. Source: spark.md section 3.
"""

import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, Unpack

from pyspark.sql import Column
from pyspark.sql import functions as sf

from persist import InvalidArgument, SchemaMismatch
from pyspark_persist.change.expressions import (
    HIDDEN_ACTION,
    HIDDEN_COUNT,
    HIDDEN_ROW,
    HIDDEN_SOURCE,
    Condition,
    Values,
    assigned,
    cast,
    check_conditions,
    condition,
    understood,
)
from pyspark_persist.change.pairing import Pairing, Straight, paired
from pyspark_persist.change.rows import before, quoted
from pyspark_persist.change.running import Change, ChangeResult, Compute, How, Made
from pyspark_persist.change.source import ChangeSource
from pyspark_persist.change.target import COUNT, ROW, Base, Reach
from pyspark_persist.change.tasks import DELETE, INSERT, KIND, UPDATE, new
from pyspark_persist.change.touching import ANYTHING, About, about_keys, equated
from pyspark_persist.naming import find, found, shown_fields
from pyspark_persist.spark_types import fits

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame

    import persist

On: TypeAlias = str | Column | Sequence[str]
"""How rows match: SQL text or a Column about both sides, or the columns that must be equal."""

TABLE_BYTES: Final = 1 << 20
"""Encoded bytes of a table that may be broadcast: about Spark's own 10 MB of rows."""

MATCHED, NOT_MATCHED, NOT_BY_SOURCE = "matched", "not matched", "not matched by source"
_KIND_NAMES: Final = {DELETE: "deleted", UPDATE: "updated", INSERT: "inserted"}
_JOINS: Final = {(False, False): "inner", (True, False): "left", (False, True): "right", (True, True): "full"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """What becomes of rows of one case for which the condition holds. ``values`` None: of all columns the source's."""

    case: str
    kind: int
    when: Condition
    values: Values | None = None

    @property
    def told(self) -> dict[str, object]:
        """The clause, for the table's audit."""
        said = {"rows": self.case, "become": _KIND_NAMES[self.kind], "when": self.when, "values": self.values}
        return {name: each for name, each in said.items() if each is not None}


class MergeBuilder:
    """A merge as it is put together: clauses of one case are tried in their order, and ``execute`` runs it."""

    def __init__(
        self,
        change: "Callable[[How, Mapping[str, object]], Change]",
        source: ChangeSource,
        on: On,
        *,
        target: str,
        alias: str,
        clauses: Sequence[Clause] = (),
    ) -> None:
        if target.lower() == alias.lower():
            raise InvalidArgument(
                "both sides have one alias, so a name is of either", hint="give targetAlias another", alias=alias
            )
        self._change = change
        self._given = source
        self._on = on
        self._sides = target, alias
        self._clauses = tuple(clauses)

    def whenMatchedUpdate(self, condition: Condition = None, *, set: Values) -> "MergeBuilder":
        """Give columns of a row that the source matches other values."""
        return self._with(Clause(case=MATCHED, kind=UPDATE, when=condition, values=set))

    def whenMatchedUpdateAll(self, condition: Condition = None) -> "MergeBuilder":
        """Give every column of a row that the source matches the source's value."""
        return self._with(Clause(case=MATCHED, kind=UPDATE, when=condition))

    def whenMatchedDelete(self, condition: Condition = None) -> "MergeBuilder":
        """Take away a row that the source matches."""
        return self._with(Clause(case=MATCHED, kind=DELETE, when=condition))

    def whenNotMatchedInsert(self, condition: Condition = None, *, values: Values) -> "MergeBuilder":
        """Add a row for one of the source that matches none; columns without a value are null."""
        return self._with(Clause(case=NOT_MATCHED, kind=INSERT, when=condition, values=values))

    def whenNotMatchedInsertAll(self, condition: Condition = None) -> "MergeBuilder":
        """Add a row of the source that matches none."""
        return self._with(Clause(case=NOT_MATCHED, kind=INSERT, when=condition))

    def whenNotMatchedBySourceUpdate(self, condition: Condition = None, *, set: Values) -> "MergeBuilder":
        """Give columns of a row that no row of the source matches other values."""
        return self._with(Clause(case=NOT_BY_SOURCE, kind=UPDATE, when=condition, values=set))

    def whenNotMatchedBySourceDelete(self, condition: Condition = None) -> "MergeBuilder":
        """Take away a row that no row of the source matches."""
        return self._with(Clause(case=NOT_BY_SOURCE, kind=DELETE, when=condition))

    def execute(self, **how: Unpack[How]) -> ChangeResult:
        """Run it as one append. ``how``: see ``How``. The source is computed once.

        Raises InvalidArgument (several rows of the source would change one row; no clause; what Spark does not
        understand), SchemaMismatch, InvalidBounds (a write came between, and it is not to be computed anew),
        ShardClosed, LocationError, and what Spark raises when a task fails. Then nothing has changed, unless it is
        Indeterminate: with a transaction, run it again.
        """
        if not self._clauses:
            raise InvalidArgument("a merge without clauses does nothing", hint="add whenMatchedUpdateAll() or another")
        return self._change(how, {"on": self._on, "clauses": [each.told for each in self._clauses]}).run(
            self._compute()
        )

    def _compute(self) -> Compute:
        fixed: list[MergeBuilder] = []

        def compute(reach: Reach) -> Made:
            if not fixed:
                # What is wrong with it is said before the source is computed.
                small = self._by_pairs(reach) is not None
                if not small:
                    self._by_join(reach)
                fixed.append(self._of(self._given.fixed(small=small), self._clauses))
            return fixed[0]._by_pairs(reach) or fixed[0]._by_join(reach)

        return compute

    def _with(self, clause: Clause) -> "MergeBuilder":
        return self._of(self._given, [*self._clauses, clause])

    def _of(self, source: ChangeSource, clauses: Sequence[Clause]) -> "MergeBuilder":
        target, alias = self._sides
        return MergeBuilder(self._change, source, self._on, target=target, alias=alias, clauses=clauses)

    @property
    def _source(self) -> "DataFrame":
        return self._given.frame

    # ---- the DataFrame of changes --------------------------------------------------------------------------------

    def _by_pairs(self, reach: Reach) -> Made | None:
        """Without a join, if it may be: rows of the table that the source does not match do not matter."""
        pairs = self._equal(reach.names)
        if pairs is None or NOT_BY_SOURCE in self._cases:
            return None
        about = functools.cache(lambda: about_keys(self._given.definite, pairs, reach.schema))
        once, rest = MATCHED in self._cases, NOT_MATCHED in self._cases
        columns = self._source.columns
        keys = [(mine, columns.index(theirs)) for mine, theirs in pairs]
        values = self._straight(reach)
        if values is not None:
            needed = sorted({place for _, place in keys} | {columns.index(name) for name in values})
            keys = [(mine, needed.index(place)) for mine, place in keys]
            pairing = paired(reach, self._given, needed, keys, rest=rest)
            if pairing is None:
                return None
            kind = next((clause.kind for clause in self._clauses if clause.case == MATCHED), None)
            places = tuple(needed.index(columns.index(name)) for name in values)

            def straight(found: Pairing) -> Made:
                first = Straight(task=found.task, kind=kind, values=places)
                return Made(base=found.base_of(found.source), frame=found.source, once=once, first=first, about=about)

            return _with_rest(pairing, straight)
        pairing = paired(reach, self._given, self._given.all_places, keys, rest=rest)
        if pairing is None:
            return None

        def decided(found: Pairing) -> Made:
            changed = self._changes(reach, found.shown(columns, self._sides), sf.lit(True))
            return Made(base=found.base_of(changed), frame=changed, once=once, about=about)

        try:
            return _with_rest(pairing, decided)
        except InvalidArgument:
            # Such as a column that is not called by its side: that a join would show.
            return None

    def _straight(self, reach: Reach) -> list[str] | None:
        """Where rows are taken as they are, the columns of the source that take the place of the table's, if any do."""
        cases = [clause.case for clause in self._clauses]
        if any(clause.when is not None or clause.values is not None for clause in self._clauses):
            return None
        if len(set(cases)) < len(cases):
            return None  # a second clause never counts, but may be wrong
        if all(clause.kind == DELETE for clause in self._clauses):
            return []
        with self._understood(reach):
            self._values(self._clauses[0], reach, self._source.alias(self._sides[1]))
        taken = found(self._source.columns, reach.names)
        if not all(
            fits(self._source.schema[name].dataType, reach.types[mine])
            for name, mine in zip(taken, reach.names, strict=True)
        ):
            return None  # a cast decides
        return taken

    def _by_join(self, reach: Reach) -> Made:
        about = ANYTHING if self._given.rows is None else self._about(reach.schema)
        base = reach.contents(about)
        target, source = self._sides
        given = self._given.definite.alias(source)
        given = given.select(*_sided(given.columns, source), sf.lit(True).alias(HIDDEN_SOURCE))
        marks = [sf.col(name).alias(name) for name in (HIDDEN_COUNT, HIDDEN_ROW)]
        rows = base.rows.alias(target).select(*_sided(base.names, target), *marks)
        if self._is_large(reach):
            # SUBTLE: to Spark what tasks read is as small as their numbers: it would send all of it to each process.
            rows = rows.hint("merge")
        if (small := self._given.is_small) is not None and (self._is_large(reach) or not small):
            # Spark would decide by what it estimates.
            given = given.hint("broadcast" if small else "merge")
        how = _JOINS[NOT_BY_SOURCE in self._cases, NOT_MATCHED in self._cases]
        with self._understood(reach):
            matching = self._matching(base)
            check_conditions(rows.crossJoin(given), [matching])
            joined = rows.join(given, matching, how)
        # Rows that are added have no number: those of one task stay together.
        apart = sf.coalesce(sf.col(HIDDEN_ROW), -1 - sf.spark_partition_id()).alias("place")
        changed = self._changes(reach, joined, sf.col(HIDDEN_SOURCE).isNotNull(), apart)
        once = MATCHED in self._cases
        if once:
            changed = changed.repartition("place").sortWithinPartitions(ROW)
        return Made(base=base, frame=changed, once=once, about=lambda: about)

    def _is_large(self, reach: Reach) -> bool:
        """Whether the table is more than Spark should hold in every process."""
        snapshot = reach.snapshot()
        return snapshot is not None and snapshot.encoded_bytes > TABLE_BYTES

    def _changes(self, reach: Reach, joined: "DataFrame", there: Column, *more: Column) -> "DataFrame":
        """The changes that clauses make of rows of both sides. ``there``: the source's is. Raises InvalidArgument."""
        target = self._sides[0]
        with self._understood(reach):
            decided, action = self._decided(reach, joined, there)
            after = self._after(reach, decided, action)
            kinds = sf.element_at(sf.array(*[sf.lit(clause.kind) for clause in self._clauses]), action + 1)
            marks = [kinds.alias(KIND), sf.col(HIDDEN_COUNT).alias(COUNT), sf.col(HIDDEN_ROW).alias(ROW)]
            return decided.where(action.isNotNull()).select(*marks, *before(reach.names, target), *after, *more)

    def _understood(self, reach: Reach) -> "AbstractContextManager[None]":
        target, source = self._sides
        mine = [f"{target}.{name}" for name in reach.names]
        return understood([*mine, *(f"{source}.{name}" for name in self._source.columns)])

    @property
    def _cases(self) -> set[str]:
        return {clause.case for clause in self._clauses}

    def _about(self, schema: "persist.Schema") -> About:
        """The rows of the table that matter: those that one of the source may match, unless others are changed, too."""
        pairs = self._equal([field.name for field in shown_fields(schema)])
        if pairs is None or NOT_BY_SOURCE in self._cases:
            return ANYTHING
        return about_keys(self._given.definite, pairs, schema)

    def _equal(self, names: Sequence[str]) -> list[tuple[str, str]] | None:
        """The columns that must be equal where that is all that must hold."""
        pairs = self._pairs(names)
        if pairs is None and isinstance(self._on, str):
            pairs = equated(self._on, self._sides, names, self._source.columns)
        return pairs

    def _decided(self, reach: Reach, joined: "DataFrame", there: Column) -> "tuple[DataFrame, Column]":
        """Rows of both sides, and which clause's each is, null for none."""
        here = sf.col(HIDDEN_ROW).isNotNull()
        holds = {MATCHED: here & there, NOT_MATCHED: ~here, NOT_BY_SOURCE: ~there}
        conditions = [condition(clause.when) for clause in self._clauses]
        check_conditions(joined, conditions)
        chosen = [
            sf.when(holds[clause.case] & when, place)
            for place, (clause, when) in enumerate(zip(self._clauses, conditions, strict=True))
        ]
        return joined.withColumn(HIDDEN_ACTION, sf.coalesce(*chosen)), sf.col(HIDDEN_ACTION)

    def _matching(self, base: Base) -> Column:
        pairs = self._pairs(base.names)
        if pairs is None:
            assert isinstance(self._on, str | Column)
            return condition(self._on)
        mine, theirs = self._sides
        return functools.reduce(operator.and_, [quoted(left, mine) == quoted(right, theirs) for left, right in pairs])

    def _pairs(self, names: Sequence[str]) -> list[tuple[str, str]] | None:
        """The columns that must be equal, of the table and of the source; None when a condition was given."""
        on = self._on
        if isinstance(on, str):
            on = [name] if (name := find(names, on)) is not None else on
        if isinstance(on, str | Column):
            return None
        if not on:
            raise InvalidArgument("nothing says which rows match", hint="name columns, or give a condition")
        return list(zip(found(names, on), found(self._source.columns, on), strict=True))

    def _after(self, reach: Reach, joined: "DataFrame", action: Column) -> list[Column]:
        """What is to be there, by place; nothing where all that is done is to take away."""
        given = {
            place: self._values(clause, reach, joined)
            for place, clause in enumerate(self._clauses)
            if clause.kind != DELETE
        }
        if not given:
            return []
        return [
            sf.coalesce(*[sf.when(action == clause, values[name]) for clause, values in given.items()]).alias(
                new(place)
            )
            for place, name in enumerate(reach.names)
        ]

    def _values(self, clause: Clause, reach: Reach, joined: "DataFrame") -> dict[str, Column]:
        """The value that a clause gives each column."""
        target, source = self._sides
        if clause.values is None:
            known = self._source.columns
            missing = [name for name in reach.names if find(known, name) is None]
            if missing:
                raise SchemaMismatch(
                    "the source lacks columns of the table",
                    hint="give each column its value, as with set=, or add them",
                    columns=", ".join(missing),
                )
            spelled = found(known, reach.names)
            values = {name: quoted(theirs, source) for name, theirs in zip(reach.names, spelled, strict=True)}
        else:
            values = assigned(clause.values, reach.names)
        values = cast(joined, values, reach.types)
        if clause.kind == INSERT:
            return {name: values.get(name, sf.lit(None)) for name in reach.names}
        return {name: values.get(name, quoted(name, target)) for name in reach.names}


def _with_rest(pairing: Pairing, made: "Callable[[Pairing], Made]") -> Made:
    """What is made of pairs, and later of the rows that turned out to match nothing."""

    def rest() -> Made | None:
        left = pairing.rest()
        return None if left is None else made(left)

    return dataclasses.replace(made(pairing), rest=rest)


def _sided(names: Sequence[str], side: str) -> list[Column]:
    """The columns of a side, which still belong to it: what comes beside them does not."""
    return [quoted(name, side) for name in names]
