"""What the rows of a table are stored as, and whether rows that were read before still say what the table says.

A change of a table's form sends no rows. So what was read before is right afterwards only where the stored rows are the
same, and read the same: that is decided by what identifies them (the file, each attribute's number, type and version
of its catalog row, the labels of enums), between two looks that are a proof of all that happened in between. What the
catalog says of defaults at some later moment proves nothing: they come and go.
Source: sources.md section 1, semantics seen; PostgreSQL documentation, ALTER TABLE, notes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from persist.typed import Fields, Json
from persist_ingest.sources.port import TableAltered
from persist_ingest.sources.postgres.column_types import is_same

_AGAIN: Final = "drop the source and create it again, which reads the table anew"
HORIZON_AGE: Final = 1 << 24
"""Transactions after which another look at the same form is worth keeping: their numbers come round again."""
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
    ``labels``: of an enum, each as its oid, its text and the version of its row.
    """

    number: int
    name: str
    oid: int
    mod: int
    version: str
    sent: bool
    missing: bool
    labels: tuple[tuple[int, str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A table's form at one look. ``attributes``: those that are there, by number; ``numbers``: the highest ever given.

    ``file``: where its rows are; rewriting all of them makes another. ``toast``: the table of its large values (0:
    none), which ALTER TABLE exchanges when it rewrites, and VACUUM FULL, CLUSTER and TRUNCATE do not. ``coverage``: the
    versions of everything that lets its changes through (None: unknown); ``direct``: it is published by its own name,
    so it cannot become UNLOGGED. ``digest``: of all this, as the server makes it. ``horizon``: every transaction with a
    lower number had ended at this look.
    """

    digest: str
    horizon: int
    file: int
    numbers: int
    attributes: tuple[Attribute, ...]
    toast: int = 0
    coverage: str | None = None
    direct: bool = False

    @property
    def sent(self) -> list[str]:
        """The columns that changes have, in their order."""
        return [attribute.name for attribute in self.attributes if attribute.sent]

    def is_news(self, known: "Form | None") -> bool:
        """It has to be known after a restart. The horizon alone only makes more changes provable."""
        return known is None or self.digest != known.digest or self.horizon > known.horizon + HORIZON_AGE

    @staticmethod
    def of(digest: str, horizon: int, told: Sequence[Json]) -> "Form":
        """From what the catalog's query says, in the order it has there."""
        file, toast, coverage, direct, numbers, attributes = told
        return Form(
            digest=digest,
            horizon=horizon,
            file=file,
            numbers=numbers,
            attributes=tuple(_attribute(*each) for each in attributes or ()),
            toast=toast,
            coverage=coverage,
            direct=direct,
        )

    @staticmethod
    def from_json(given: Fields) -> "Form":
        """What ``asdict`` made of one, also after JSON."""
        attributes = tuple(
            Attribute(**{**each, "labels": tuple(map(_label, each["labels"]))}) for each in given["attributes"]
        )
        return Form(**{**given, "attributes": attributes})


def _attribute(
    number: int, name: str, oid: int, mod: int, version: str, sent: bool, missing: bool, labels: Json
) -> Attribute:
    return Attribute(
        number=number, name=name, oid=oid, mod=mod, version=version, sent=sent, missing=missing,
        labels=tuple(map(_label, labels or ())),
    )  # fmt: skip


def _label(given: Sequence[Json]) -> tuple[int, str, str]:
    oid, text, version = given
    return oid, text, version


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is asked of the table itself, and only where it matters, as it costs.

    ``has_old_rows``: it holds a row that was written before the look before, with nulls in these columns: a rewrite by
    ALTER TABLE writes every row anew, one by VACUUM FULL or CLUSTER none. ``was_truncated``: the last thing that was
    done to the table is a TRUNCATE, which will be read.
    """

    has_old_rows: Callable[[Sequence[str]], bool]
    was_truncated: Callable[[], bool]


def check_form(before: Form, now: Form, export: str, evidence: Evidence) -> None:
    """Raise TableAltered unless rows read under ``before`` say the same now, with nulls in the columns that are new."""
    if before.coverage is not None and before.coverage != now.coverage:
        raise TableAltered(
            "the table was taken out of the publication, if only for a while; or what that lets through was changed: "
            "its options or owner, the row filter or columns of the table, the table's schema or partitioned table",
            hint=_AGAIN,
            export=export,
        )
    found = {attribute.number: attribute for attribute in now.attributes}
    for attribute in before.attributes:
        _check_kept(attribute, found.get(attribute.number), export)
    added = [each for each in now.attributes if each.number > before.numbers and each.sent]
    for attribute in added:
        if attribute.missing:
            raise _altered(
                "a column was added with a default, and earlier rows' values were never sent",
                export, attribute, hint=_NULL_FIRST,
            )  # fmt: skip
    if added and len(found.keys() & set(range(before.numbers + 1, now.numbers + 1))) < now.numbers - before.numbers:
        raise _altered("columns were added and dropped between two looks", export, added[0])
    if now.file != before.file:
        changed = [each for each in before.attributes if _version(found.get(each.number)) != each.version]
        _check_file(before, now, export, evidence, added, changed)


def _check_file(
    before: Form,
    now: Form,
    export: str,
    evidence: Evidence,
    added: Sequence[Attribute],
    changed: Sequence[Attribute],
) -> None:
    """The rows were only moved, or taken away by a TRUNCATE that is told.

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


def _altered(message: str, export: str, attribute: Attribute, hint: str = _AGAIN) -> TableAltered:
    return TableAltered(message, hint=hint, export=export, column=attribute.name)
