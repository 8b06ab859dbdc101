"""What is asked of a Kafka cluster: watermarks of one topic, and its messages by partition and offset.

Source: sources.md section 3.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from persist_ingest.sources.ranges import MessageRange

Header: TypeAlias = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """A topic now. ``bounds``: for each partition that answered the first offset still there, and the first one that
    is not there yet or still in an open transaction. ``topic_id``: None where brokers do not say."""

    cluster_id: str
    topic_id: str | None
    bounds: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Some messages of one partition in order, as columns. ``timestamps``: milliseconds since 1970, -1 for none."""

    partition: int
    offsets: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Sequence[int]
    headers: Sequence[Sequence[Header] | None]


class Topic(Protocol):
    """A connection for a driver. Calls raise LocationError (away), SourceFailure (the topic is gone)."""

    def watermarks(self) -> Watermarks:
        """As they are now."""
        ...

    def committed(self) -> Mapping[int, int]:
        """What the group has committed, for partitions where it has."""
        ...

    def commit(self, bounds: Mapping[int, int]) -> None:
        """Commit these offsets for the group."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class KafkaCluster(Protocol):
    """Where a topic is and how to connect. Picklable."""

    def connect(self, *, identify: bool) -> Topic:
        """For a driver. ``identify``: ask for the topic's id as well."""
        ...

    def read(self, pieces: Sequence[MessageRange]) -> Iterator[Fetched]:
        """All messages there are in these ranges; those of one partition in order.

        Offsets without a message (compaction, transactions) are passed over. Raises UpstreamLost (the beginning is
        not there any more), LocationError, SourceFailure.
        """
        ...
