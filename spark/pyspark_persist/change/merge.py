"""MERGE: a source joined to the table, and what becomes of rows by the first clause whose condition holds.

A row of the table that several rows of the source would change is refused: changed rows are brought together by the
number they have in the read, so two of a kind are neighbours at any size. Source: spark.md section 3.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final, TypeAlias, Unpack

from pyspark.sql import Column
from pyspark.sql import functions as sf

from persist import InvalidArgument, SchemaMismatch
from pyspark_persist.change.expressions import (
    Condition,
    Values,
    assigned,
    cast,
    check_conditions,
    condition,
    understood,
)
from pyspark_persist.change.rows import before, quoted
from pyspark_persist.change.running import Change, ChangeResult, Compute, How, Made
from pyspark_persist.change.target import COUNT, ROW, Base, Reach
from pyspark_persist.change.tasks import DELETE, INSERT, KIND, UPDATE, new
from pyspark_persist.change.touching import ANYTHING, About, about_keys, equated
from pyspark_persist.naming import find, found, shown_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    import persist

On: TypeAlias = str | Column | Sequence[str]
"""How rows match: SQL text or a Column about both sides, or the columns that must be equal."""

MATCHED, NOT_MATCHED, NOT_BY_SOURCE = "matched", "not matched", "not matched by source"
_JOINS: Final = {(False, False): "inner", (True, False): "left", (False, True): "right", (True, True): "full"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """What becomes of rows of one case for which the condition holds. ``values`` None: of all columns the source's."""

    case: str
    kind: int
    when: Condition
    values: Values | None = None


class MergeBuilder:
    """A merge as it is put together: clauses of one case are tried in their order, and ``execute`` runs it."""

    def __init__(
        self,
        change: "Callable[[How], Change]",
        source: "DataFrame",
        on: On,
        *,
        target: str,
        alias: str,
        clauses: Sequence[Clause] = (),
    ) -> None:
        self._change = change
        self._source = source
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
        return self._change(how).run(self._compute())

    def _compute(self) -> Compute:
        fixed: list[MergeBuilder] = []

        def compute(reach: Reach) -> Made:
            if not fixed:
                # What is wrong with it is said before the source is computed.
                self._made(reach, ANYTHING)
                # SUBTLE: every attempt, and all that looks at it, is of one source, even where it is not definite.
                fixed.append(self._of(self._source.localCheckpoint(), self._clauses))
            return fixed[0]._made(reach, fixed[0]._about(reach.schema))

        return compute

    def _with(self, clause: Clause) -> "MergeBuilder":
        return self._of(self._source, [*self._clauses, clause])

    def _of(self, source: "DataFrame", clauses: Sequence[Clause]) -> "MergeBuilder":
        target, alias = self._sides
        return MergeBuilder(self._change, source, self._on, target=target, alias=alias, clauses=clauses)

    # ---- the DataFrame of changes --------------------------------------------------------------------------------

    def _made(self, reach: Reach, about: About) -> Made:
        base = reach.contents(about)
        (target, source), place = self._sides, _free("_place", self._source.columns, base.names)
        named = [f"{target}.{name}" for name in base.names] + [f"{source}.{name}" for name in self._source.columns]
        with understood(named):
            joined, action = self._joined(base)
            after = self._after(base, joined, action)
            kinds = sf.element_at(sf.array(*[sf.lit(clause.kind) for clause in self._clauses]), action + 1)
            marks = [kinds.alias(KIND), quoted(COUNT, target).alias(COUNT), quoted(ROW, target).alias(ROW)]
            # Rows that are added have no number: those of one task stay together.
            apart = sf.coalesce(quoted(ROW, target), -1 - sf.spark_partition_id()).alias(place)
            changed = joined.where(action.isNotNull()).select(*marks, *before(base, target), *after, apart)
        once = any(clause.case == MATCHED for clause in self._clauses)
        if once:
            changed = changed.repartition(place).sortWithinPartitions(ROW)
        return Made(
            base=base,
            frame=changed,
            once=once,
            about=about,
        )

    def _about(self, schema: "persist.Schema") -> About:
        """The rows of the table that matter: those that one of the source may match, unless others are changed, too."""
        if any(clause.case == NOT_BY_SOURCE for clause in self._clauses):
            return ANYTHING
        names = [field.name for field in shown_fields(schema)]
        pairs = self._pairs(names)
        if pairs is None and isinstance(self._on, str):
            pairs = equated(self._on, self._sides, names, self._source.columns)
        return ANYTHING if pairs is None else about_keys(self._source, pairs, schema)

    def _joined(self, base: Base) -> "tuple[DataFrame, Column]":
        """Rows of both sides, those that no clause is about left out; and which clause's each is, null for none."""
        target, source = self._sides
        present = _free("_present", self._source.columns)
        given = self._source.withColumn(present, sf.lit(True)).alias(source)
        cases = {clause.case for clause in self._clauses}
        how = _JOINS[NOT_BY_SOURCE in cases, NOT_MATCHED in cases]
        joined = base.rows.alias(target).join(given, self._matching(base), how)
        here, there = quoted(ROW, target).isNotNull(), quoted(present, source).isNotNull()
        holds = {MATCHED: here & there, NOT_MATCHED: ~here, NOT_BY_SOURCE: ~there}
        conditions = [condition(clause.when) for clause in self._clauses]
        check_conditions(joined, conditions)
        action = _free("_action", self._source.columns, base.names)
        chosen = [
            sf.when(holds[clause.case] & when, place)
            for place, (clause, when) in enumerate(zip(self._clauses, conditions, strict=True))
        ]
        return joined.withColumn(action, sf.coalesce(*chosen)), sf.col(f"`{action}`")

    def _matching(self, base: Base) -> Column:
        pairs = self._pairs(base.names)
        if pairs is None:
            assert isinstance(self._on, str | Column)
            return condition(self._on)
        mine, theirs = self._sides
        return reduce(operator.and_, [quoted(left, mine) == quoted(right, theirs) for left, right in pairs])

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

    def _after(self, base: Base, joined: "DataFrame", action: Column) -> list[Column]:
        """What is to be there, by place; nothing where all that is done is to take away."""
        given = {
            place: self._values(clause, base, joined)
            for place, clause in enumerate(self._clauses)
            if clause.kind != DELETE
        }
        if not given:
            return []
        return [
            sf.coalesce(*[sf.when(action == clause, values[name]) for clause, values in given.items()]).alias(
                new(place)
            )
            for place, name in enumerate(base.names)
        ]

    def _values(self, clause: Clause, base: Base, joined: "DataFrame") -> dict[str, Column]:
        """The value that a clause gives each column."""
        target, source = self._sides
        if clause.values is None:
            known = self._source.columns
            missing = [name for name in base.names if find(known, name) is None]
            if missing:
                raise SchemaMismatch(
                    "the source lacks columns of the table",
                    hint="give each column its value, as with set=, or add them",
                    columns=", ".join(missing),
                )
            spelled = found(known, base.names)
            values = {name: quoted(theirs, source) for name, theirs in zip(base.names, spelled, strict=True)}
        else:
            values = assigned(clause.values, base.names)
        values = cast(joined, values, base.types)
        if clause.kind == INSERT:
            return {name: values.get(name, sf.lit(None)) for name in base.names}
        return {name: values.get(name, quoted(name, target)) for name in base.names}


def _free(name: str, *taken: Sequence[str]) -> str:
    """A name like this one that no column has."""
    while any(find(names, name) is not None for names in taken):
        name += "_"
    return name
