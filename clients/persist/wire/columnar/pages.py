"""What the pages of a column chunk say of themselves, before anything in them is decoded.

The footer's word for how long values are is only a word. The header of each page, in front of its bytes, says how it is
encoded and how much its bytes make, and a decoder holds it to that: values that lie in pages as they are (PLAIN) are no
more bytes than their pages. Source: the Parquet format, PageHeader; the Thrift compact protocol.
"""

from collections.abc import Callable
from typing import Final

HEADER_BYTES_MAX: Final = 4096
"""Of a longer header, with long bounds in it, nothing is said."""

_TYPE, _SIZE, _ENCODED_SIZE, _DATA_PAGE = 1, 2, 3, 5
_ROWS, _ENCODING = 1, 2
_PAGE_OF_VALUES: Final = 0
_PLAIN: Final = 0
_TRUE, _FALSE, _I32, _I64, _BINARY, _STRUCT = 1, 2, 5, 6, 8, 12
_DEPTH_MAX: Final = 3
_NUMBER_BYTES_MAX: Final = 5
_NUMBER_MAX: Final = 1 << 31

Struct = dict[int, "int | Struct | None"]
"""Numbers and structs by their ids; None for what else there is."""


class _Unusual(Exception):
    """A header that no writer we know writes: another reader may take it for something else."""


def plain_bytes(read: Callable[[int, int], bytes], start: int, end: int, values: int) -> int | None:
    """The decoded bytes of the pages from ``start`` to ``end``, if each holds its values as they are.

    ``read``: bytes of the file, from and to. ``values``: how many the footer promises. None where a page is of another
    kind or encoding, or anything about it is unusual; never raises for what the bytes are.
    """
    at, total, found = start, 0, 0
    while at < end:
        try:
            header = _Header(read(at, min(end, at + HEADER_BYTES_MAX)))
            fields = header.fields()
            page = fields[_DATA_PAGE]
            if fields[_TYPE] != _PAGE_OF_VALUES or not isinstance(page, dict) or page[_ENCODING] != _PLAIN:
                return None
            size, encoded, rows = _number(fields[_SIZE]), _number(fields[_ENCODED_SIZE]), _number(page[_ROWS])
        except (_Unusual, IndexError, KeyError):
            return None
        at += header.at + encoded
        total, found = total + size, found + rows
        if not rows or found > values:
            return None
    return total if at == end and found == values else None


def _number(value: "int | Struct | None") -> int:
    if not isinstance(value, int) or not 0 <= value < _NUMBER_MAX:
        raise _Unusual
    return value


class _Header:
    """A struct at the beginning of some bytes. ``at``: where it ends, once its fields were read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def fields(self, depth: int = 0) -> Struct:
        """Each field once, in the order of ids, as all writers have them. Raises _Unusual, IndexError (cut off)."""
        if depth > _DEPTH_MAX:
            raise _Unusual
        found: Struct = {}
        last = 0
        while byte := self._byte():
            step, kind = byte >> 4, byte & 15
            if not step:
                raise _Unusual
            last += step
            found[last] = self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> "int | Struct | None":
        if kind in (_TRUE, _FALSE):
            return None
        if kind == _I32:
            return self._signed(_NUMBER_BYTES_MAX)
        if kind == _I64:
            self._unsigned(2 * _NUMBER_BYTES_MAX)
            return None
        if kind == _BINARY:
            size = self._unsigned(_NUMBER_BYTES_MAX)
            self.at += size
            return None
        if kind == _STRUCT:
            return self.fields(depth + 1)
        raise _Unusual

    def _signed(self, bytes_max: int) -> int:
        number = self._unsigned(bytes_max)
        return (number >> 1) ^ -(number & 1)

    def _unsigned(self, bytes_max: int) -> int:
        number = 0
        for place in range(bytes_max):
            byte = self._byte()
            number |= (byte & 127) << (7 * place)
            if byte < 128:
                return number
        raise _Unusual

    def _byte(self) -> int:
        byte = self._data[self.at]
        self.at += 1
        return byte
