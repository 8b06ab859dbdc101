"""What a MySQL source was made of: enough to open it again, and to see that its upstream was exchanged.

Source: design 003; sources.md section 1, semantics seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final, Self

import pyarrow as pa

from persist import VersionMismatch
from persist.typed import Fields
from persist_ingest.sources.mysql.column_types import MySqlType, ZeroDates
from persist_ingest.sources.mysql.session import Server
from persist_ingest.sources.tables.definition import SourceTable, TableColumn, TablesDefinition
from persist_ingest.sources.tables.patterns import Named

FORMAT: Final = 1
RENAMING: Final = 2
"""The format of definitions that call columns otherwise, or are of patterns: earlier releases would forget that."""
FILE_BITS: Final = 32
"""A position is the number of a file of the log, then where in it: so it grows over rotations and restarts."""


def position(file: int, place: int) -> int:
    """The position at that place of that file."""
    return file << FILE_BITS | place


def file_of(offset: int) -> int:
    """The number of the file that a position is in."""
    return offset >> FILE_BITS


def place_of(offset: int) -> int:
    """Where in its file a position is."""
    return offset & (1 << FILE_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlColumn(TableColumn):
    """A column as it was declared."""

    type: MySqlType

    @property
    def arrow(self) -> pa.DataType:
        return self.type.arrow

    def to_json(self) -> dict[str, object]:
        """JSON-ready."""
        return {"name": self.name, "type": self.type.to_json(), "field": self.field}

    @staticmethod
    def from_json(given: Mapping[str, object]) -> "MySqlColumn":
        """What ``to_json`` gave, also after JSON."""
        fields: Fields = given
        return MySqlColumn(name=fields["name"], type=MySqlType.from_json(fields["type"]), field=fields["field"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(SourceTable[MySqlColumn]):
    """A table. ``columns``: as they were at position ``since``, up to which what was read of it has the log."""

    database: str
    since: int = 0

    @property
    def export(self) -> str:
        return f"{self.database}.{self.name}"

    @property
    def place(self) -> Named:
        """Its database and name."""
        return self.database, self.name

    def read_up_to(self, offset: int) -> Self:
        return replace(self, since=offset)

    def to_json(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "database": self.database,
            "name": self.name,
            "key": list(self.key),
            "columns": [column.to_json() for column in self.columns],
            "excluded": list(self.excluded),
            "since": self.since,
            "altered_ms": list(self.altered_ms),
        }

    @staticmethod
    def from_json(plain: Mapping[str, object]) -> "Table":
        """What ``to_json`` gave, also after JSON."""
        given: Fields = plain
        return Table(
            database=given["database"],
            name=given["name"],
            key=tuple(given["key"]),
            columns=tuple(map(MySqlColumn.from_json, given["columns"])),
            excluded=tuple(given["excluded"]),
            since=given["since"],
            altered_ms=tuple(given["altered_ms"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A position of the log and the GTIDs that are before it: another log has others there."""

    offset: int
    gtids: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlDefinition(TablesDefinition[Table]):
    """A source. ``number``: the server's id; ``base``: what files of its log are called, before their number.

    ``begun``: where it began; ``mark``: the last place at which the log was looked at to be the one it was.
    ``server_id``: as which the log is asked for; 0: another one each time. ``withheld``: by exports that it had,
    columns that were left out of them. ``renames``: by exports, also those that are not there now, what columns are
    called otherwise than upstream. ``patterns``: of tables that it takes in as they come, but for those that are
    ``left_out``, by name or by pattern.
    """

    server: Server
    number: int
    base: str
    begun: Mark
    mark: Mark
    server_id: int = 0
    zero_dates: ZeroDates = ZeroDates.FAIL
    withheld: tuple[tuple[str, tuple[str, ...]], ...] = ()
    renames: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    patterns: tuple[Named, ...] = ()
    left_out: tuple[Named, ...] = ()

    @property
    def incarnation(self) -> str:
        """Which life of the upstream this is: another server, or another log, is another one."""
        return f"{self.number}/{self.base}/{self.begun.offset:x}/{self.begun.gtids}"

    def file_name(self, number: int) -> str:
        """What the file of that number is called."""
        return f"{self.base}.{number:06d}"

    @classmethod
    def of_log(cls, server: Server, number: int, base: str) -> Self:
        """One without tables, to read a log with."""
        mark = Mark(offset=0, gtids="")
        return cls(server=server, number=number, base=base, begun=mark, mark=mark, tables=())

    def joined(self, table: Table) -> "MySqlDefinition":
        """The same with one table more."""
        others = tuple(each for each in self.tables if each.export != table.export)
        withheld = tuple(each for each in self.withheld if each[0] != table.export)
        left_out = tuple(each for each in self.left_out if each != table.place)
        return replace(self, tables=(*others, table), withheld=withheld, left_out=left_out)

    def parted(self, export: str) -> "MySqlDefinition":
        """The same without a table, which is not taken in again."""
        places = tuple(each.place for each in self.tables if each.export == export and self.patterns)
        tables = tuple(each for each in self.tables if each.export != export)
        gone = tuple((each.export, each.excluded) for each in self.tables if each.export == export and each.excluded)
        return replace(self, tables=tables, withheld=(*self.withheld, *gone), left_out=(*self.left_out, *places))

    def to_json(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "format": RENAMING if self.renames or self.patterns else FORMAT,
            "server": self.server.to_json(),
            "number": self.number,
            "base": self.base,
            "begun": asdict(self.begun),
            "mark": asdict(self.mark),
            "tables": [table.to_json() for table in self.tables],
            "server_id": self.server_id,
            "takes_over": self.takes_over,
            "zero_dates": self.zero_dates.value,
            "withheld": {export: list(names) for export, names in self.withheld},
            **({"renames": {export: dict(names) for export, names in self.renames.items()}} if self.renames else {}),
            **({"patterns": list(map(list, self.patterns))} if self.patterns else {}),
            **({"left_out": list(map(list, self.left_out))} if self.patterns else {}),
        }

    @classmethod
    def from_json(cls, given: Fields) -> Self:
        """What ``to_json`` gave, also after JSON. Raises VersionMismatch."""
        if given.get("format") not in (FORMAT, RENAMING):
            raise VersionMismatch("this definition has an unknown format", hint="update persist", got=given)
        withheld: Mapping[str, Sequence[str]] = given["withheld"]
        return cls(
            server=Server.from_json(given["server"]),
            number=given["number"],
            base=given["base"],
            begun=Mark(**given["begun"]),
            mark=Mark(**given["mark"]),
            tables=tuple(map(Table.from_json, given["tables"])),
            server_id=given["server_id"],
            takes_over=given["takes_over"],
            zero_dates=ZeroDates(given["zero_dates"]),
            withheld=tuple((export, tuple(names)) for export, names in withheld.items()),
            renames=given.get("renames", {}),
            patterns=tuple((database, name) for database, name in given.get("patterns", ())),
            left_out=tuple((database, name) for database, name in given.get("left_out", ())),
        )
