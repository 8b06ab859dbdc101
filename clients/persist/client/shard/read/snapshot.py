"""Snapshot and Diffs: definite reads of a shard, planned once and read as often as wanted.

Source: design 001, snapshot; persist-semantics.md section 2.6.
"""

import dataclasses
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from persist.client.shard.handles import Stays
from persist.client.shard.location import Location
from persist.client.shard.read.key_ranges import KeysLike, key_range_of
from persist.client.shard.read.lease import Lease, Pin
from persist.client.shard.read.split import Split
from persist.client.shard.read.whole import Whole
from persist.core.data.schema import Schema
from persist.core.frontier import Antichain
from persist.extras import extra
from persist.machine.parts.reading import Reading, parse_where
from persist.machine.parts.stream import rows
from persist.typed import Record

if TYPE_CHECKING:
    import pandas


class _Read(Stays):
    """What snapshots and change feeds have in common. Keeps its parts from being deleted while it is referenced."""

    upper: Antichain
    """A snapshot: the shard's upper when it was planned. A change feed: where it ends."""

    def __init__(
        self, location: Location, lease: Lease, pin: Pin, reading: Reading, *, upper: Antichain, owner: object
    ) -> None:
        self.upper = upper
        # Dropping the handle expires its lease: not before what is read through it.
        self._kept = (pin, owner)
        self._location = location
        self._lease = lease
        self._reading = reading

    @property
    def schema(self) -> Schema:
        """The shard's newest schema when the read was planned; rows written with older ones show nulls."""
        return self._reading.schema

    @property
    def rows(self) -> int:
        """Updates in the parts to be read: an upper estimate of the rows. No RPC."""
        return self._reading.rows

    @property
    def encoded_bytes(self) -> int:
        """Bytes of the parts to be read. No RPC."""
        return self._reading.encoded_bytes

    def output(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """The columns of the rows when reading ``columns``. Raises InvalidArgument for unknown ones. No RPC."""
        return self._reading.output(columns)

    async def to_arrow(
        self, columns: Sequence[str] | None = None, where: object = None, keys: KeysLike | None = None
    ) -> pa.Table:
        """All rows as one table. Holds them all in memory. Arguments as of ``to_batches``. Raises as that does."""
        reading = self._narrowed(where, keys)
        output = reading.output(columns)
        found = [batch async for batch in rows(self._location, reading, columns, verify=self._lease.verify)]
        return pa.Table.from_batches(found, schema=output)

    def to_batches(
        self,
        columns: Sequence[str] | None = None,
        where: object = None,
        keys: KeysLike | None = None,
        *,
        consolidated: bool = True,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """The rows in key order, at most 65,536 per batch, as they are decoded.

        ``columns``: these, in this order, and diff (rows equal in them are not summed). ``where``: a condition such as
        ``"id >= 5 and name = 'x'"`` or ``[("id", ">=", 5)]``; parts that cannot hold such rows are not read. ``keys``:
        ``(lower, upper)``, half-open, each a whole key or None. Cost: one GET per part of up to 1 MiB, about one per
        4 MiB of larger ones; holds some 300 MB at most. ``consolidated`` False, for what repeats rows by their diffs or
        counts: in any order, a row perhaps in several whose diffs sum to its own, a snapshot's summed by the columns
        shown and the key; much cheaper where nothing was taken out or ``columns`` are few.

        Raises InvalidArgument, CorruptData, LeaseExpired, LocationError, UsageError (the reader was expired, or its
        client closed; asked on after an interruption).
        """
        reading = dataclasses.replace(self._narrowed(where, keys), consolidated=consolidated)
        reading.output(columns)
        return Whole(rows(self._location, reading, columns, verify=self._lease.verify))

    async def to_pandas(
        self, columns: Sequence[str] | None = None, where: object = None, keys: KeysLike | None = None
    ) -> "pandas.DataFrame":
        """All rows as a pandas DataFrame; needs pandas. Raises as ``to_arrow``, and MissingExtra."""
        found = await self.to_arrow(columns, where, keys)
        with extra("pandas"):
            return found.to_pandas()

    async def to_pylist(
        self, columns: Sequence[str] | None = None, where: object = None, keys: KeysLike | None = None
    ) -> list[Record]:
        """All rows as dicts: for small reads. Raises as ``to_arrow``."""
        found: list[Record] = (await self.to_arrow(columns, where, keys)).to_pylist()
        return found

    def splits(self, n: int, where: object = None, keys: KeysLike | None = None) -> list[Split]:
        """At most ``n`` reads of disjoint key ranges, about equal in bytes, that together are this one. No RPC.

        Raises InvalidArgument, LeaseExpired, UsageError (the reader was expired, or its client closed).
        """
        location = self._location
        uri = location.blob.uri
        return [
            Split(blob_uri=uri, settings=location.settings, reading=piece, pin=self._kept)
            for piece in self._narrowed(where, keys).split(n)
        ]

    def _narrowed(self, where: object, keys: KeysLike | None) -> Reading:
        self._lease.check()
        key_range = None if keys is None else key_range_of(keys, self.schema)
        predicate = parse_where(where)
        return self._reading.narrowed(key_range=key_range, where=predicate)


class Snapshot(_Read):
    """The contents of a shard at ``as_of``: rows key…, val…, diff with diffs summed, none zero. The same for ever."""

    as_of: int
    """The time of the contents."""

    def __init__(
        self,
        location: Location,
        lease: Lease,
        pin: Pin,
        reading: Reading,
        *,
        as_of: int,
        upper: Antichain,
        owner: object,
    ) -> None:
        super().__init__(location, lease, pin, reading, upper=upper, owner=owner)
        self.as_of = as_of

    def __repr__(self) -> str:
        return f"<Snapshot of {self._lease.shard} as_of={self.as_of}: {_held(self)}>"

    @property
    def rows_estimate(self) -> int:
        """Updates in the parts to be read: at least as many as there are rows."""
        return self.rows


class Diffs(_Read):
    """Every update at a time in ``[lower, upper)``: rows key…, val…, ts, diff."""

    lower: Antichain
    """Where the feed begins."""

    def __init__(
        self,
        location: Location,
        lease: Lease,
        pin: Pin,
        reading: Reading,
        *,
        lower: Antichain,
        upper: Antichain,
        owner: object,
    ) -> None:
        super().__init__(location, lease, pin, reading, upper=upper, owner=owner)
        self.lower = lower

    def __repr__(self) -> str:
        return f"<Diffs of {self._lease.shard} from {self.lower} to {self.upper}: {_held(self)}>"


def _held(read: _Read) -> str:
    columns = ", ".join(f"{field.name}: {field.type}" for field in read.output())
    return f"{columns}; at most {read.rows:,} rows, {read.encoded_bytes:,} bytes"
