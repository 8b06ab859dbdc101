"""JSON that Arrow's parser may be given: with some texts it ends the process.

So it does with decimals whose point it would move further than it can count, with values nested very deeply whose type
it finds itself, and with a text that does not begin with an object. All JSON goes by one of these first.
Source: Arrow's own sources, Decimal::Rescale and the parsers of json.
"""

import codecs
import decimal
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.arrow.exact import DIGITS, decimal_of, holds_decimals

DEPTH_MAX: Final = 64
"""How deeply values may be nested in one another where their types are found by looking."""
_BLOCK_BYTES: Final = 1 << 20
_ODD_NUMBER: Final = (
    r'[:,\[]\s*"?[+-]?[0-9.]*([eE][+-]?[0-9]+|[0-9.]{36,})"?\s*[,}\]]'
    r'|[:,\[]\s*"[-+.0-9eE]*\\u00(3[0-9]|2[bBdDeE]|45|65)'
)
"""With an exponent, or very many digits; or a text that is a number once its escapes are read."""
_TEXT: Final = r'"(?:[^"\\]|\\.)*"'
_STEPS: Final = np.zeros(256, np.int8)
_STEPS[[ord("{"), ord("[")]] = 1
_STEPS[[ord("}"), ord("]")]] = -1
_BETWEEN: Final = np.zeros(256, np.bool_)
_BETWEEN[[*b" \t\r\n{}[]"]] = True
"""What may stand between objects, and where they begin and end."""


def odd_numbers(objects: Sequence[bytes]) -> list[int]:
    """The places of those in which a number may be that Arrow does not take for what it is."""
    found: list[int] = pc.indices_nonzero(
        pc.match_substring_regex(pa.array(objects, pa.binary()), _ODD_NUMBER)
    ).to_pylist()
    return found


def check_decimals(objects: Sequence[bytes], read_as: pa.Schema) -> None:
    """Accept JSON objects that Arrow can be given, to be read as these types.

    Raises ArrowInvalid: a decimal does not fit, or is written with more zeros or a larger exponent than Arrow counts.
    Only objects with a number that has an exponent or very many digits are looked at one by one.
    """
    if any(holds_decimals(each.type) for each in read_as):
        kind = pa.struct(list(read_as))
        for at in odd_numbers(objects):
            _check_object(objects[at], kind)


class CheckedJson(io.RawIOBase):
    """A file of JSON objects, one a line, of which nothing reaches Arrow that would end the process.

    ``read_as``: the types of those columns that are known. Reading raises ArrowInvalid, as ``check_decimals`` does; and
    for a value that is in no object, as Arrow takes null for a row of nulls, or ends the process where it begins to
    parse; and for values nested more than ``DEPTH_MAX`` deep.
    """

    def __init__(self, file: BinaryIO, read_as: Iterable["pa.Field[pa.DataType]"]) -> None:
        self._file = file
        self._read_as = pa.schema(list(read_as))
        self._checked = memoryview(b"")
        self._rest = b""
        self._depth = 0
        self._is_first = True
        self._is_over = False

    @classmethod
    def open(cls, path: str, read_as: Iterable["pa.Field[pa.DataType]"] = ()) -> BinaryIO:
        """Of a file by its name. Raises OSError."""
        return cast(BinaryIO, cls(Path(path).open("rb"), read_as))

    def close(self) -> None:
        """Close the file as well."""
        self._file.close()
        super().close()

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with what comes next and was checked. Returns how many bytes; 0 at the end. Raises as above."""
        while not self._checked and not self._is_over:
            self._checked = memoryview(self._block())
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._checked))
        view[:count] = self._checked[:count]
        self._checked = self._checked[count:]
        return count

    def _block(self) -> bytes:
        """Whole lines, checked."""
        parts = [self._rest]
        while True:
            given = self._file.read(_BLOCK_BYTES) or b""
            if self._is_first and not parts[-1]:
                given = given.removeprefix(codecs.BOM_UTF8)
            cut = given.rfind(b"\n") + 1
            parts.append(given[:cut] if cut else given)
            if cut or not given:
                self._rest, self._is_over = given[cut:], not given
                break
        block = b"".join(parts)
        self.check(block)
        return block

    def check(self, block: bytes) -> None:
        """Accept the next whole lines. Raises ArrowInvalid, as reading does."""
        if self._is_first and block.strip():
            self._is_first = False
            if not block.lstrip().startswith((b"{", b"[")):
                raise pa.ArrowInvalid("JSON parse error: this does not begin with a JSON object in row 0")
        bare = pc.replace_substring_regex(pa.array([block], pa.binary()), _TEXT, '"')[0].as_py()
        marks = np.frombuffer(bare, np.uint8)
        depths = np.cumsum(_STEPS[marks], dtype=np.int64) + self._depth
        if depths.size:
            if not _BETWEEN[marks[depths == 0]].all():
                raise pa.ArrowInvalid("JSON parse error: a value is in no object; each row is one")
            self._depth = int(depths[-1])
            if int(depths.max()) > DEPTH_MAX:
                raise pa.ArrowInvalid(f"values are nested more than {DEPTH_MAX} deep")
        if any(holds_decimals(each.type) for each in self._read_as) and odd_numbers([block]):
            check_decimals([line for line in block.split(b"\n") if line.strip()], self._read_as)


class _Pairs(list[tuple[str, object]]):
    """What stands in an object: a name may stand there twice."""


def _check_object(text: bytes, kind: pa.DataType) -> None:
    try:
        said = json.loads(text.decode(), parse_float=str, parse_int=str, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        raise pa.ArrowInvalid(str(error)) from error
    _check(said, kind)


def _check(said: object, kind: pa.DataType) -> None:
    fields = [kind.field(at) for at in range(kind.num_fields)]
    if isinstance(said, _Pairs):
        for name, value in said:
            for field in fields:
                if field.name == name:
                    _check(value, field.type)
    elif isinstance(said, list):
        item = pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else None
        for value in said:
            for each in [item] if item is not None else [field.type for field in fields]:
                _check(value, each)
    elif isinstance(said, str) and pa.types.is_decimal(kind):
        _check_number(said, kind)


def _check_number(text: str, kind: pa.DataType) -> None:
    decimal_of(text, kind)
    exponent = decimal.Decimal(text).as_tuple().exponent
    digits, scale = DIGITS[kind.bit_width], kind.scale  # type: ignore[attr-defined]  # its type says what it is
    if not isinstance(exponent, int) or exponent > digits or abs(scale - max(-exponent, 0)) > digits:
        raise pa.ArrowInvalid(f"{text[:60]!r} is written with more zeros than {kind} has digits")
