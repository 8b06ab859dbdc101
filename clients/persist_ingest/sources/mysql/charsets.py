"""Text in the character sets of columns, as UTF-8: the binlog has it as it is stored.

What a byte means in a set of single bytes is asked of the server, which is what a snapshot is converted by, too.
Source: MariaDB documentation, character sets.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from persist.arrow import ArrowArray, frombuffer, py_buffer
from persist_ingest.sources.mysql.column_types import LEFT_OUT
from persist_ingest.sources.mysql.session import Server, lent
from persist_ingest.sources.port import BadRows, SourceFailure
from persist_ingest.sources.tables.gathering import Ints

_SAME: Final = frozenset({"utf8", "utf8mb3", "utf8mb4"})
_WIDE: Final = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}
_COLLATIONS: Final = "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
_SINGLE: Final = "SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS WHERE MAXLEN = 1"


@dataclass(frozen=True, slots=True)
class Charset:
    """A character set. ``table``: by byte the UTF-8 of it, of a set of single bytes; ``codec``: of a wide one."""

    name: str
    table: tuple[bytes, ...] = ()
    codec: str = ""

    @property
    def _is_ascii(self) -> bool:
        """Its first half is ASCII."""
        return all(each == bytes([byte]) for byte, each in enumerate(self.table[:0x80]))

    def text(self, array: ArrowArray) -> ArrowArray:
        """Its bytes, as ``gathering.gather`` gives them, as text. Raises BadRows."""
        _, offsets, content = array.buffers()
        if content is None or not len(array):
            return array
        ends = frombuffer(offsets, np.int32)[: len(array) + 1].astype(np.int64)
        data = frombuffer(content, np.uint8)[: ends[-1]]
        if self.codec:
            return self._wide(array)
        if not self.table or not len(data) or (self._is_ascii and int(data.max()) < 0x80):
            return array
        lengths = np.array([len(each) for each in self.table], np.int64)
        matrix = np.zeros((256, 4), np.uint8)
        for byte, each in enumerate(self.table):
            matrix[byte, : len(each)] = list(each)
        sizes = lengths[data]
        if not sizes.all():
            raise BadRows("a byte means nothing in the character set of its column", hint="correct it", set=self.name)
        places: Ints = np.cumsum(sizes) - sizes
        out = np.empty(int(sizes.sum()), np.uint8)
        for byte in range(int(sizes.max())):
            longer = sizes > byte
            out[places[longer] + byte] = matrix[data[longer], byte]
        bounds = np.append(places, len(out))[ends].astype(np.int32)
        mask = array.buffers()[0]
        return pa.Array.from_buffers(
            pa.string(), len(array), [mask, py_buffer(bounds), py_buffer(out)], array.null_count
        )

    def _wide(self, array: ArrowArray) -> ArrowArray:
        try:
            values = [
                None if value is None else value.decode(self.codec) for value in array.view(pa.binary()).to_pylist()
            ]
            return pa.array(values, pa.string())
        except UnicodeError as error:
            raise BadRows(
                "a text is not in the character set of its column", hint="correct it", detail=str(error)
            ) from None


class Charsets:
    """Those of a server, by collation; what was asked is kept for as long as the process."""

    def __init__(self, server: Server) -> None:
        """Nothing is asked yet."""
        self._server = server
        self._names: Mapping[int, str] = {}
        self._single: frozenset[str] = frozenset()
        self._made: dict[str, Charset] = {}

    @staticmethod
    def at(server: Server) -> "Charsets":
        """Those of this server, with what this process knows of them."""
        return _known.setdefault(server, Charsets(server))

    def of(self, collation: int) -> Charset:
        """That of a collation. Raises SourceFailure for one that is not read."""
        if collation not in self._names:
            self._ask()
        name = self._names.get(collation)
        if name is None:
            raise SourceFailure("a collation that the server does not have", hint="snapshot it again", number=collation)
        return self.named(name)

    def named(self, name: str) -> Charset:
        """That of a name. Raises SourceFailure for one that is not read."""
        if name not in self._made:
            self._made[name] = self._new(name)
        return self._made[name]

    def _new(self, name: str) -> Charset:
        if name in _SAME:
            return Charset(name)
        if name in _WIDE:
            return Charset(name, codec=_WIDE[name])
        if not self._single:
            self._ask()
        if name not in self._single or not name.isalnum():
            raise SourceFailure(
                "text in this character set cannot be read from the binlog",
                hint=f"convert the column to utf8mb4; or {LEFT_OUT}",
                set=name,
            )
        asked = ", ".join(f"HEX(CONVERT(_{name} X'{byte:02x}' USING utf8mb4))" for byte in range(256))
        with lent(self._server) as session:
            found = session.row(f"SELECT {asked}")
        return Charset(name, table=tuple(bytes.fromhex(str(each or "")) for each in found))

    def _ask(self) -> None:
        with lent(self._server) as session:
            self._names = {int(str(number)): str(name) for number, name in session.rows(_COLLATIONS)}
            self._single = frozenset(str(name) for (name,) in session.rows(_SINGLE))


_known: Final[dict[Server, Charsets]] = {}
