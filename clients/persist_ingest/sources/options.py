"""The options of a source: text with types, unknown ones refused, and columns declared as text.

Every mistake is an InvalidArgument with the next step, raised before anything happens upstream.
Source: design 003; spark.md section 3.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from persist import InvalidArgument, Schema
from persist.arrow import ArrowField
from persist_ingest.given import Given


def check_options(raw: Mapping[str, str], known: Iterable[str], use: str) -> Given:
    """The options under their canonical spelling; case does not matter. ``use``: what they are for, as a noun.

    Raises InvalidArgument for unknown ones (with the closest known one) and for one given twice.
    """
    names = {name.lower(): name for name in known}
    values: dict[str, str] = {}
    for key, text in raw.items():
        name = names.get(key.lower())
        if name is None:
            close = difflib.get_close_matches(key.lower(), names, n=1, cutoff=0.6)
            hint = f"did you mean {names[close[0]]}?" if close else f"known for {use}: {', '.join(sorted(known))}"
            raise InvalidArgument(f"unknown option {key}", hint=hint)
        if name in values:
            raise InvalidArgument(f"option {name} is given twice", hint="keep one of them", got=key)
        if "\0" in text:
            raise InvalidArgument(f"option {name} has a zero byte", hint="nothing that it can name has one")
        values[name] = text
    return Given(use=use, values=values)


def required(given: Given, name: str, example: str) -> str:
    """The text of an option that must be there. Raises InvalidArgument."""
    text = (given.get(name) or "").strip()
    if not text:
        raise InvalidArgument(f"{given.use} needs option {name}", hint=f"such as {name}={example}")
    return text


def one_of(given: Given, name: str, choices: Sequence[str], default: str) -> str:
    """One word of ``choices``, in any case. Raises InvalidArgument with the closest one."""
    text = given.get(name)
    if text is None:
        return default
    words = {word.lower(): word for word in choices}
    found = words.get(text.strip().lower())
    if found is None:
        close = difflib.get_close_matches(text.strip().lower(), words, n=1, cutoff=0.5)
        hint = f"did you mean {words[close[0]]}?" if close else f"one of {', '.join(choices)}"
        raise InvalidArgument(f"option {name} has no such choice", hint=hint, got=text)
    return found


def number(given: Given, name: str, default: float | None = None, *, least: float = 0.0) -> float | None:
    """A number, at least ``least``. Raises InvalidArgument otherwise."""
    text = given.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf"):
        raise InvalidArgument(f"option {name} must be a number, at least {least:g}", got=text)
    return value


def listed(given: Given, name: str) -> tuple[str, ...]:
    """Names with commas between them; none when the option is not given. Raises InvalidArgument for an empty name."""
    text = given.get(name)
    if text is None:
        return ()
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise InvalidArgument(f"option {name} must be names, each once", hint=f"such as {name}=a,b", got=text)
    return names


TYPES: Final[Mapping[str, pa.DataType]] = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "text": pa.string(),
    "binary": pa.binary(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
"""Names of types in declared columns; ``decimal(p, s)`` besides."""

_COLUMN: Final = re.compile(
    r"""\s*(?P<quoted>`[^`]+`)?(?P<plain>(?(quoted)|[^\s`,:()]+))\s*[\s:]\s*
    (?P<type>[A-Za-z_]+)\s*(?:\(\s*(?P<precision>\d+)\s*(?:,\s*(?P<scale>\d+)\s*)?\))?
    (?P<required>\s+not\s+null)?\s*(?:,|$)""",
    re.IGNORECASE | re.VERBOSE,
)


def columns(text: str) -> pa.Schema:
    """Columns declared like ``id bigint not null, name string``. Raises InvalidArgument saying where it went wrong."""
    fields: list[ArrowField] = []
    at = 0
    while at < len(text.rstrip()):
        match = _COLUMN.match(text, at)
        if match is None:
            hint = "write name type, name type not null, ..."
            raise InvalidArgument("columns cannot be understood", hint=hint, at=text[at : at + 40].strip())
        name = (match["quoted"] or match["plain"]).strip("`")
        fields.append(pa.field(name, _type(match), nullable=match["required"] is None))
        at = match.end()
    if not fields or text.rstrip().endswith(","):
        raise InvalidArgument("columns cannot be understood", hint="such as id bigint, name string", got=text)
    if len({field.name for field in fields}) < len(fields):
        raise InvalidArgument("a column is declared twice", hint="rename one of them", got=text)
    return pa.schema(fields)


def keyed(fields: pa.Schema, key: Sequence[str]) -> Schema:
    """The schema with these columns, those named in ``key`` as its key. Raises InvalidArgument for an unknown one."""
    for name in key:
        if name not in fields.names:
            close = difflib.get_close_matches(name, fields.names, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else f"columns are {', '.join(fields.names)}"
            raise InvalidArgument("a key column is not among the columns", hint=hint, key=name)
    val = [field for field in fields if field.name not in key]
    return Schema(pa.schema([fields.field(name) for name in key]), pa.schema(val))


def _type(match: re.Match[str]) -> pa.DataType:
    name = match["type"].lower()
    if name in ("decimal", "numeric"):
        precision, scale = int(match["precision"] or 38), int(match["scale"] or 0)
        if not 1 <= precision <= 38 or scale > precision:
            raise InvalidArgument("a decimal has 1 to 38 digits, of which scale follow the point", got=match[0].strip())
        return pa.decimal128(precision, scale)
    found = TYPES.get(name)
    if found is None or match["precision"] is not None:
        close = difflib.get_close_matches(name, [*TYPES, "decimal"], n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(TYPES)}, decimal(p, s)"
        raise InvalidArgument("unknown type of a column", hint=hint, got=match[0].strip())
    return found
