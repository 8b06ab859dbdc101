"""What many simulated processes make of the same bytes, made once.

Every process of a world decodes every diff and reads most parts: functions of their arguments alone, so a fresh
answer looks like a kept one. Every process still fetches its bytes itself, since fetching may fail. The
witness decodes for itself, so that what it compares is its own. Source: reliability.md bar B2.
"""

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeVar

import pyarrow as pa

from persist.core.data.schema import Schema
from persist.core.data.splits import KeyRange
from persist.core.shard.batch import Part
from persist.machine import versions
from persist.machine.parts import reading

T = TypeVar("T")


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Within this context nothing is decoded twice."""
    decoded: dict[Hashable, Any] = {}
    rows: dict[Hashable, list[pa.RecordBatch]] = {}
    with (
        swapped(versions, decode_diff=_remembered(versions.__dict__["decode_diff"], decoded)),
        swapped(versions, decode_rollup=_remembered(versions.__dict__["decode_rollup"], decoded)),
        swapped(reading, part_batches=_remembered_rows(reading.__dict__["part_batches"], rows)),
    ):
        yield


@contextlib.contextmanager
def swapped(place: object, **pieces: object) -> Iterator[None]:
    """Within this context, ``place`` has these attributes."""
    before = {name: place.__dict__[name] for name in pieces}
    for name, piece in pieces.items():
        setattr(place, name, piece)
    try:
        yield
    finally:
        for name, piece in before.items():
            setattr(place, name, piece)


def _remembered(function: Callable[..., T], known: dict[Hashable, Any]) -> Callable[..., T]:
    def call(*args: Any) -> T:
        key = (function, *args)
        found = known.get(key)
        if found is None:
            found = known[key] = function(*args)
        answer: T = found
        return answer

    return call


def _remembered_rows(
    function: Callable[..., Iterator[pa.RecordBatch]], known: dict[Hashable, list[pa.RecordBatch]]
) -> Callable[..., Iterator[pa.RecordBatch]]:
    def part_batches(
        part: Part,
        read: Callable[[int, int], Any],
        schema_of_part: Schema,
        *,
        columns: Iterable[str] | None = None,
        key_range: KeyRange | None = None,
        **limits: object,
    ) -> Iterator[pa.RecordBatch]:
        names = None if columns is None else tuple(columns)
        if key_range is not None:
            # Only some of the blob is there to be read.
            return function(part, read, schema_of_part, columns=names, key_range=key_range, **limits)
        data = None if part.inline is not None else bytes(read(0, part.encoded_bytes))
        key = (part, data, schema_of_part, names, *limits.items())
        found = known.get(key)
        if found is None:
            whole = (lambda start, end: data[start:end]) if data is not None else read
            found = known[key] = list(function(part, whole, schema_of_part, columns=names, **limits))
        return iter(found)

    return part_batches
