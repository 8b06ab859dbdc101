"""What the rows of a table are stored as, and whether rows that were read before still say what the table says.

A change of a table's form sends no rows. So what was read before is right afterwards only where the stored rows are the
same, and read the same: that is decided by what identifies them (the file, each attribute's number, type and version
of its catalog row, the labels of enums), between two looks that are a proof of all that happened in between. What the
catalog says of defaults at some later moment proves nothing: they come and go.
Source: sources.md section 1, semantics seen; PostgreSQL documentation, ALTER TABLE, notes.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from persist.typed import Fields, Json
from persist_ingest.sources.port import TableAltered
from persist_ingest.sources.postgres.column_types import NAMING, is_same

_AGAIN: Final = "snapshot this table again (persist source resnapshot)"
HORIZON_AGE: Final = 1 << 24
"""Transactions after which another look at the same form is worth keeping: their numbers come round again."""
LEFT_OUT: Final = "drop the column, or make a new source that leaves it out (excludeColumns)"
_NULL_FIRST: Final = f"{_AGAIN}; next time add the column without a default, and set that afterwards"
_ONE_BY_ONE: Final = (
    f"{_AGAIN}; next time add the column without a default, and truncate or rewrite the table only once a step of the "
    "source has seen that"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """A column as the database has it. ``number``: never given twice in a table, whatever it is called.

    ``version``: of its row in the catalog, another one after any change of the column. ``sent``: the publication has
    it. ``missing``: rows from before the column have a value in it that is stored with the column, and never sent.
    ``labels``: of an enum, each as its oid, its text and the version of its row. ``within``: of an array, range or
    composite, what it is made of, in short, as all of that shows in its text; empty: nothing, or unknown.
    """

    number: int
    name: str
    oid: int
    mod: int
    version: str
    sent: bool
    missing: bool
    labels: tuple[tuple[int, str, str], ...]
    within: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A partition, of whatever depth. ``since``: the transaction that made it one; ``born``: that made the table.

    ``missing``: its columns whose values in earlier rows are stored with the column.
    """

    oid: int
    schema: str
    name: str
    kind: str
    identity: str
    persistence: str
    file: int
    since: str
    born: str
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForm:
    """A table's form at one look. ``attributes``: those that are there, by number; ``numbers``: the highest ever given.

    ``file``: where its rows are; rewriting all of them makes another. ``toast``: the table of its large values (0:
    none), which ALTER TABLE exchanges when it rewrites, and VACUUM FULL, CLUSTER and TRUNCATE do not. ``coverage``: the
    versions of everything that lets its changes through (None: unknown); ``direct``: it is published by its own name,
    so it cannot become UNLOGGED. ``parts``: where a partitioned table is. ``digest``: of all this, as the server makes
    it. ``horizon``: every transaction with a lower number had ended at this look.
    """

    digest: str
    horizon: int
    file: int
    numbers: int
    attributes: tuple[Attribute, ...]
    toast: int = 0
    coverage: str | None = None
    direct: bool = False
    parts: tuple[Part, ...] = ()

    @property
    def sent(self) -> list[str]:
        """The columns that changes have, in their order."""
        return [attribute.name for attribute in self.attributes if attribute.sent]

    def is_news(self, known: "TableForm | None") -> bool:
        """It has to be known after a restart. The horizon alone only makes more changes provable."""
        return known is None or self.digest != known.digest or self.horizon > known.horizon + HORIZON_AGE

    @staticmethod
    def of(digest: str, horizon: int, told: Sequence[Json]) -> "TableForm":
        """From what the catalog's query says, in the order it has there."""
        file, toast, coverage, direct, numbers, attributes, told_parts = told
        # In the order that the catalog's query has them.
        names = [each.name for each in fields(Part)]
        given = (dict(zip(names, each, strict=True)) for each in told_parts or ())
        parts = tuple(Part(**{**each, "missing": tuple(each["missing"] or ())}) for each in given)
        missing = {name for part in parts for name in part.missing}
        own = [_attribute(*each) for each in attributes or ()]
        return TableForm(
            digest=digest,
            horizon=horizon,
            file=file,
            numbers=numbers,
            attributes=tuple(replace(each, missing=each.missing or each.name in missing) for each in own),
            toast=toast,
            coverage=coverage,
            direct=direct,
            parts=parts,
        )

    @staticmethod
    def from_json(given: Fields) -> "TableForm":
        """What ``asdict`` made of one, also after JSON."""
        attributes = tuple(
            Attribute(**{**each, "labels": tuple(map(_label, each["labels"]))}) for each in given["attributes"]
        )
        parts = tuple(Part(**{**each, "missing": tuple(each["missing"])}) for each in given.get("parts", ()))
        return TableForm(**{**given, "attributes": attributes, "parts": parts})


def _attribute(
    number: int,
    name: str,
    oid: int,
    mod: int,
    version: str,
    sent: bool,
    missing: bool,
    labels: Json,
    within: str | None,
) -> Attribute:
    return Attribute(
        number=number, name=name, oid=oid, mod=mod, version=version, sent=sent, missing=missing,
        labels=tuple(map(_label, labels or ())), within=within or "",
    )  # fmt: skip


def _label(given: Sequence[Json]) -> tuple[int, str, str]:
    oid, text, version = given
    return oid, text, version


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is asked of the table itself, and only where it matters, as it costs.

    ``has_old_rows``: it holds a row that was written before the look before, with nulls in these columns: a rewrite by
    ALTER TABLE writes every row anew, one by VACUUM FULL or CLUSTER none. ``was_truncated``: the last thing that was
    done to the table is a TRUNCATE, which will be read. The same of a partition; ``has_no_file``: there never was a row
    in it; ``was_made_as_one``: it always was one.
    """

    has_old_rows: Callable[[Sequence[str]], bool]
    was_truncated: Callable[[], bool]
    part_has_old_rows: Callable[[Part, Sequence[str]], bool]
    part_was_truncated: Callable[[Part], bool]
    has_no_file: Callable[[Part], bool]
    was_made_as_one: Callable[[Part], bool]


def check_form(
    before: TableForm, now: TableForm, export: str, evidence: Evidence, excluded: Collection[str] = ()
) -> None:
    """Raise TableAltered unless rows read under ``before`` say the same now, with nulls in the columns that are new.

    ``excluded``: columns that are not read, whatever becomes of them.
    """
    if before.coverage is not None and before.coverage != now.coverage:
        raise TableAltered(
            "the table was taken out of the publication, if only for a while; or what that lets through was changed: "
            "its options or owner, the row filter or columns of the table, the table's schema or partitioned table",
            hint=_AGAIN,
            export=export,
        )
    found = {attribute.number: attribute for attribute in now.attributes}
    for attribute in before.attributes:
        if attribute.name in excluded:
            _check_excluded(attribute, found.get(attribute.number), export)
            continue
        _check_kept(attribute, found.get(attribute.number), export)
    added = [
        each for each in now.attributes if each.number > before.numbers and each.sent and each.name not in excluded
    ]
    for attribute in added:
        if attribute.oid in NAMING:
            raise _altered(
                "a column was added that names objects of the database, which reads otherwise when one is renamed",
                export, attribute, hint=LEFT_OUT,
            )  # fmt: skip
        if attribute.within:
            raise _altered(
                "a column was added of a type that is made of others, which may have been altered since",
                export, attribute,
            )  # fmt: skip
        if attribute.missing:
            raise _altered(
                "a column was added with a default, and earlier rows' values were never sent",
                export, attribute, hint=_NULL_FIRST,
            )  # fmt: skip
    if added and len(found.keys() & set(range(before.numbers + 1, now.numbers + 1))) < now.numbers - before.numbers:
        raise _altered("columns were added and dropped between two looks", export, added[0])
    _check_parts(before, now, export, evidence, [each.name for each in added])
    if now.file != before.file:
        changed = [each for each in before.attributes if _version(found.get(each.number)) != each.version]
        _check_file(before, now, export, evidence, added, changed)


def _check_parts(before: TableForm, now: TableForm, export: str, evidence: Evidence, added: Sequence[str]) -> None:
    """Partitions hold what they held, and new ones nothing that was not sent: their rows come and go with them."""
    there = {part.oid: part for part in now.parts}
    known = {part.oid for part in before.parts}
    for part in before.parts:
        found = there.get(part.oid)
        if found is None or (found.since, found.persistence) != (part.since, part.persistence):
            raise _moved("a partition was detached or dropped, if only for a while, and its rows with it", export, part)
        same = found.file == part.file or evidence.part_has_old_rows(found, added)
        if not same and not (not added and evidence.part_was_truncated(found)):
            raise _moved("a partition was truncated by itself, or rewritten, which sends no rows", export, part)
    _check_new_parts([part for part in now.parts if part.oid not in known], export, evidence)
    for part in now.parts:
        if part.kind not in "rp":
            raise _moved("a partition is no table", export, part)


def _check_new_parts(parts: Sequence[Part], export: str, evidence: Evidence) -> None:
    """What came into them before they were partitions of this table was not sent, nor was it if it went since then."""
    # SUBTLE: a partition that was made as one may be of a table that was attached only later.
    whole = all(evidence.was_made_as_one(part) for part in parts if part.kind == "p")
    for part in parts:
        if part.kind == "r" and not evidence.has_no_file(part) and not (whole and evidence.was_made_as_one(part)):
            raise _moved("a partition was attached that may have had rows", export, part)


def _moved(message: str, export: str, part: Part) -> TableAltered:
    return TableAltered(message, hint=_AGAIN, export=export, partition=f"{part.schema}.{part.name}")


def _check_file(
    before: TableForm,
    now: TableForm,
    export: str,
    evidence: Evidence,
    added: Sequence[Attribute],
    changed: Sequence[Attribute],
) -> None:
    """The rows were only moved, or taken away by a TRUNCATE that is reported.

    One old row with nulls in the columns that were added shows that nothing was written into any: the value that a
    column is added with is the same for all rows, or every row is written anew.
    """
    if added:
        if evidence.has_old_rows([each.name for each in added]):
            return
        raise _altered(
            "a column was added and the table rewritten or truncated: nothing shows that the column was null in all "
            "rows from before",
            export, added[0], hint=_ONE_BY_ONE,
        )  # fmt: skip
    if now.toast == before.toast != 0 or evidence.has_old_rows(()):
        return
    if changed:
        raise _altered("the table was rewritten, which sends no rows", export, changed[0])
    if not now.direct and not evidence.was_truncated():
        raise TableAltered(
            "the table was rewritten, and may have been UNLOGGED for a while, when no rows are sent",
            hint=f"{_AGAIN}; a table that the publication names cannot become UNLOGGED",
            export=export,
        )


def _version(attribute: Attribute | None) -> str | None:
    return None if attribute is None else attribute.version


def _check_excluded(before: Attribute, now: Attribute | None, export: str) -> None:
    """Under another name it would be read from now on."""
    if now is not None and now.name != before.name:
        raise _altered("a column that is left out was renamed", export, before)


def _check_kept(before: Attribute, now: Attribute | None, export: str) -> None:
    """A column that was there is there still, and its values read as they did."""
    if not before.sent:
        if now is not None and now.sent:
            raise _altered("a column is sent that was not: its earlier values are unknown", export, before)
        return
    if now is None or not now.sent or now.name != before.name:
        raise _altered("a column was dropped or renamed", export, before)
    if not is_same((before.oid, before.mod), (now.oid, now.mod)):
        raise _altered("a column was altered", export, before)
    if not set(before.labels) <= set(now.labels):
        raise _altered("values of an enum were renamed, also in the rows that were read already", export, before)
    if before.within and before.within != now.within:
        raise _altered("what the column's type is made of was altered, also in the rows that were read", export, before)


def _altered(message: str, export: str, attribute: Attribute, hint: str = _AGAIN) -> TableAltered:
    return TableAltered(message, hint=hint, export=export, column=attribute.name)
