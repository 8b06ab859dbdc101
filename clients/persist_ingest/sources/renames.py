"""Columns that are called otherwise than upstream: option ``renameColumns``, as ``name:title,at:moment``.

Other options name columns as they are upstream; what readers of the table see has the new names.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from persist import InvalidArgument, Schema
from persist.typed import Record
from persist_ingest.given import Given
from persist_ingest.sources.options import keyed, listed

OPTION: Final = "renameColumns"


@dataclass(frozen=True, slots=True)
class Renames:
    """Pairs of names: upstream, and in the table. Picklable."""

    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, given: Given) -> "Renames":
        """From options. Raises InvalidArgument for what is no such list, and for a name that is there twice."""
        pairs = []
        for each in listed(given, OPTION):
            old, colon, new = (part.strip() for part in each.partition(":"))
            if not old or not colon or not new or ":" in new:
                raise InvalidArgument(f"option {OPTION} is malformed", hint=f"such as {OPTION}=name:title", at=each)
            pairs.append((old, new))
        for at, what in ((0, "renamed twice"), (1, "a name that two columns get")):
            names = [pair[at] for pair in pairs]
            if twice := [name for name in names if names.count(name) > 1]:
                raise InvalidArgument(f"option {OPTION} has {what}", hint="keep one of them", column=twice[0])
        return cls(tuple(pairs))

    @classmethod
    def from_json(cls, given: object) -> "Renames":
        """What ``to_json`` gave; of a source of an earlier release there is nothing."""
        return cls(tuple((str(old), str(new)) for old, new in given.items()) if isinstance(given, Mapping) else ())

    def to_json(self) -> Mapping[str, str]:
        """JSON-ready."""
        return dict(self.pairs)

    def keyed(self, fields: pa.Schema, key: Sequence[str]) -> Schema:
        """The table's schema, of columns and key columns as they are called upstream.

        Raises InvalidArgument for a column that is not there, and where two get one name.
        """
        names = fields.names
        for old, new in self.pairs:
            if old not in names:
                close = difflib.get_close_matches(old, names, n=1, cutoff=0.5)
                hint = f"did you mean {close[0]}?" if close else f"columns are {', '.join(names)}"
                raise InvalidArgument(f"option {OPTION} names a column that is not there", hint=hint, column=old)
            others = {self._mine(name).lower() for name in names if name != old}
            if new.lower() in others:
                raise InvalidArgument(
                    f"option {OPTION} gives a column the name of another one",
                    hint="names differ by more than case; rename that one, too",
                    column=old,
                    name=new,
                )
        if not set(key) <= set(names):
            return keyed(fields, key)  # says which one is not there
        return keyed(self.fields(fields), [self._mine(each) for each in key])

    def fields(self, upstream: pa.Schema) -> pa.Schema:
        """Columns as they are called in the table."""
        return _called(upstream, dict(self.pairs))

    def upstream(self, fields: pa.Schema) -> pa.Schema:
        """Columns of the table as they are called upstream."""
        return _called(fields, {new: old for old, new in self.pairs})

    def named(self, row: Mapping[str, object]) -> Record:
        """What is there by names upstream, by those of the table."""
        return {self._mine(name): value for name, value in row.items()}

    def _mine(self, name: str) -> str:
        return dict(self.pairs).get(name, name)

    @property
    def new(self) -> tuple[str, ...]:
        """Names that only the table has."""
        return tuple(new for _, new in self.pairs)


AS_THEY_ARE: Final = Renames()


def _called(fields: pa.Schema, names: Mapping[str, str]) -> pa.Schema:
    return pa.schema([each.with_name(names.get(each.name, each.name)) for each in fields])
