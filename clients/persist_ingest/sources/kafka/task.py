"""One task of a Kafka source: offset ranges of a topic's partitions, read and made into rows.

Source: design 003; sources.md section 3.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from persist import Schema, UsageError
from persist.arrow import ArrowArray, array_of
from persist.arrow.exact import cast_exactly
from persist.sources import UpstreamLost
from persist.typed import Record
from persist_ingest.sources.divert import BadRow, diverted
from persist_ingest.sources.kafka.cluster import Fetched, KafkaCluster
from persist_ingest.sources.kafka.envelopes import Envelope, Meaning, included
from persist_ingest.sources.kafka.schemas.decoder import ColumnsGrew, Incompatible
from persist_ingest.sources.port import Changes, Event, SchemaGrew, SourceFailure, Upserts
from persist_ingest.sources.ranges import MessageRange
from persist_ingest.sources.renames import Renames

MESSAGE_BYTES: Final = 200
"""What a message counts for in the weight of a task: brokers do not report sizes."""
LEAST_PER_TASK: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTask:
    """Ranges of offsets of some partitions. ``topic``: before partitions, in sources of many."""

    cluster: KafkaCluster
    envelope: Envelope
    include: tuple[str, ...]
    export: str
    schema: Schema
    renames: Renames
    bad_rows: str
    pieces: tuple[MessageRange, ...]
    topic: str = ""

    @property
    def weight(self) -> int:
        return sum(piece.length for piece in self.pieces) * MESSAGE_BYTES

    @property
    def ordered(self) -> bool:
        return False

    @property
    def upserts(self) -> bool:
        """See Divisible."""
        return self.envelope.upserts

    def read(self) -> Iterator[Event]:
        # SUBTLE: partitions read together come in an order that is another one each time. Only Changes may do that.
        groups = [(piece,) for piece in self.pieces] if self.upserts else [self.pieces]
        for group in groups:
            for fetched in self._fetched(group):
                yield from self._events(fetched)

    def _fetched(self, group: tuple[MessageRange, ...]) -> Iterator[Fetched]:
        """What fails of one of many topics is about its export."""
        try:
            yield from self.cluster.read(group)
        except (UpstreamLost, SourceFailure) as error:
            if not self.topic:
                raise
            raise type(error)(error.message, hint=error.hint, **{**error.details, "export": self.export}) from error

    def _events(self, fetched: Fetched) -> Iterator[Event]:
        meaning = self._meaning(fetched)
        if meaning.bad:
            yield diverted(self.export, self._bad(fetched, meaning), self.bad_rows, self._keys)
        if not len(meaning.places):
            return
        further = {name: included(name, fetched, meaning.places) for name in self.include}
        named = self.renames.named({**meaning.columns, **further})
        fields = pa.schema([*self.schema.key, *self.schema.val])
        columns = [_plain(named[each.name], each.type) for each in fields]
        event: Record = {
            "export": self.export,
            "rows": pa.RecordBatch.from_arrays(columns, schema=fields),
            "offsets": pa.array(np.asarray(fetched.offsets, dtype=np.uint64)[meaning.places]),
            "partitions": self._partitions(fetched.partition, len(meaning.places)),
        }
        if self.envelope.upserts:
            yield Upserts(**event, present=meaning.signs)
        else:
            yield Changes(**event, diffs=meaning.signs)

    def _meaning(self, fetched: Fetched) -> Meaning:
        try:
            return self.envelope.meaning(fetched)
        except ColumnsGrew as grown:
            try:
                schema = Schema(self.schema.key, pa.schema([*self.schema.val, *grown.fields]))
            except UsageError as cause:
                raise self._no_rows(fetched, cause) from cause
            raise SchemaGrew(self.export, schema) from None
        except Incompatible as cause:
            raise self._no_rows(fetched, cause) from cause

    def _no_rows(self, fetched: Fetched, cause: Exception) -> SourceFailure:
        return SourceFailure(
            f"messages of the topic cannot be rows of this table: {cause}",
            hint="register a schema that the table's columns can hold, or make a new source",
            export=self.export,
            partition=fetched.partition,
            offsets=f"{fetched.offsets[0]} to {fetched.offsets[-1]}",
        )

    def _bad(self, fetched: Fetched, meaning: Meaning) -> list[BadRow]:
        return [
            BadRow(self._called(fetched.partition), fetched.offsets[each.index], each.error, fetched.values[each.index])
            for each in meaning.bad
        ]

    @property
    def _keys(self) -> pa.DataType:
        return pa.string() if self.topic else pa.int64()

    def _partitions(self, partition: int, count: int) -> ArrowArray:
        if not self.topic:
            return pa.array(np.full(count, partition, np.int64))
        name = array_of([self._called(partition)], pa.string())
        return pa.DictionaryArray.from_arrays(array_of(np.zeros(count, np.int32)), name)

    def _called(self, partition: int) -> str | int:
        return f"{self.topic}/{partition}" if self.topic else partition


def columns_of(schema: Schema) -> pa.Schema:
    """All of a table's."""
    return pa.schema([*schema.key, *schema.val])


def _plain(column: ArrowArray, kind: pa.DataType) -> ArrowArray:
    return cast_exactly(column, kind)
