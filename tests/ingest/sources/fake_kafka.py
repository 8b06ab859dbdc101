"""A topic in memory, for what librdkafka's mock cluster cannot do: growing, being made anew, open transactions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from persist import LocationError
from persist.sources import UpstreamLost
from persist_ingest.sources.kafka.cluster import Fetched, Header, Watermarks
from persist_ingest.sources.port import SourceFailure
from persist_ingest.sources.ranges import MessageRange


@dataclass(frozen=True)
class Message:
    key: bytes | None
    value: bytes | None
    timestamp: int = -1
    headers: tuple[Header, ...] | None = None


@dataclass
class Log:
    """Messages by offset; offsets without one are holes. ``stable``: the end of what is committed."""

    messages: dict[int, Message] = field(default_factory=dict)
    low: int = 0
    stable: int = 0

    def put(self, *messages: Message | None) -> None:
        """Append messages; None leaves a hole."""
        for message in messages:
            if message is not None:
                self.messages[self.stable] = message
            self.stable += 1


@dataclass
class FakeCluster:
    """The port's Cluster and Topic in one. Picklable with all it holds."""

    logs: dict[int, Log]
    cluster_id: str = "cluster"
    topic_id: str | None = "topic-1"
    offsets: dict[int, int] = field(default_factory=dict)
    commits: int = 0
    tells_ids: bool = True
    batch: int = 7

    def connect(self, *, identify: bool) -> "FakeCluster":
        return self

    def watermarks(self) -> Watermarks:
        if not self.logs:
            raise SourceFailure("the topic does not exist")
        bounds = {partition: (log.low, log.stable) for partition, log in self.logs.items()}
        topic_id = self.topic_id if self.tells_ids else None
        return Watermarks(cluster_id=self.cluster_id, topic_id=topic_id, bounds=bounds)

    def committed(self) -> Mapping[int, int]:
        return self.offsets

    def commit(self, bounds: Mapping[int, int]) -> None:
        self.commits += 1
        self.offsets.update(bounds)

    def close(self) -> None:
        pass

    def read(self, pieces: Sequence[MessageRange]) -> Iterator[Fetched]:
        for piece in pieces:
            log = self.logs[piece.partition]
            if piece.begin < log.low:
                raise UpstreamLost("the topic no longer has what was to be read")
            if piece.end > log.stable:
                raise LocationError("messages do not arrive")
            there = [at for at in range(piece.begin, piece.end) if at in log.messages]
            for start in range(0, len(there), self.batch):
                yield self._fetched(piece.partition, there[start : start + self.batch])

    def _fetched(self, partition: int, offsets: list[int]) -> Fetched:
        messages = [self.logs[partition].messages[at] for at in offsets]
        return Fetched(
            partition=partition,
            offsets=offsets,
            keys=[each.key for each in messages],
            values=[each.value for each in messages],
            timestamps=[each.timestamp for each in messages],
            headers=[each.headers for each in messages],
        )
