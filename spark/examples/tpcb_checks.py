"""What has to be true of the bank in shards: at every time the four sums agree; in the end every row is upstream's."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from examples.tpcb_bank import MONEY
from persist import PersistError, ShardId
from persist.runtime import system

if TYPE_CHECKING:
    import persist


LAG_SECONDS: Final = 0.1
"""Between two looks at how far behind the collections are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The four sums at one time, and how many transactions had happened."""

    as_of: int
    sums: Mapping[str, int]
    transactions: int

    @property
    def agrees(self) -> bool:
        """All four are the same."""
        return len(set(self.sums.values())) == 1


class Snapshots:
    """Reads the bank at any time from now on: it holds the collections readable."""

    def __init__(self, client: "persist.Client", shards: Mapping[str, ShardId]) -> None:
        self._client = client
        self._shards = dict(shards)
        self._readers = {
            name: client.open_reader(shard, purpose="tpcb checks", use_critical_since=True)
            for name, shard in shards.items()
        }
        self.begin = self.upper() - 1

    def upper(self) -> int:
        """Everything before this is complete in all four."""
        return min(self._client.recent_upper(shard).time or 0 for shard in self._shards.values())

    def random_time(self) -> int:
        """Any time that is readable."""
        return self.begin + int(system().random() * max(1, self.upper() - self.begin))

    def look(self, as_of: int) -> Look:
        """The sums at ``as_of``."""
        sums, transactions = {}, 0
        for name, reader in self._readers.items():
            rows = reader.snapshot(as_of).to_arrow(columns=[MONEY[name]])
            products = pc.multiply(rows[MONEY[name]].cast(pa.int64()), rows["diff"])
            sums[name] = int(pc.sum(products).as_py() or 0)
            if name.endswith("history"):
                transactions = int(pc.sum(rows["diff"]).as_py() or 0)
        return Look(as_of=as_of, sums=sums, transactions=transactions)

    def rows(self, name: str, as_of: int) -> pa.Table:
        """All rows of one table at ``as_of``, each as often as its diff says."""
        found = self._readers[name].snapshot(as_of).to_arrow()
        counts = found["diff"].to_numpy()
        plain = found.drop_columns(["diff"])
        return plain if (counts == 1).all() else plain.take(pa.array(counts.argsort().repeat(counts)))

    def close(self) -> None:
        """Release the history."""
        for reader in self._readers.values():
            reader.expire()


@dataclass(slots=True)
class Watching:
    """What was seen while the workload went on."""

    looks: list[Look] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    error: PersistError | None = None

    def lag(self, share: float) -> float:
        """Seconds that the collections were behind at most, in this share of all looks."""
        ordered = sorted(self.lags)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class Watcher(threading.Thread):
    """Looks at random times of the past, again and again, until stopped."""

    def __init__(self, snapshots: Snapshots, *, pause_seconds: float) -> None:
        super().__init__(name="watcher", daemon=True)
        self.seen = Watching()
        self._snapshots = snapshots
        self._pause = pause_seconds
        self._end = threading.Event()

    def run(self) -> None:
        """Look, and remember; lags in between."""
        next_look = 0.0
        try:
            while not self._end.wait(LAG_SECONDS):
                upper = self._snapshots.upper()
                self.seen.lags.append(max(0.0, system().now_ms() - upper) / 1000)
                if system().monotonic() >= next_look:
                    self.look(upper)
                    next_look = system().monotonic() + self._pause
        except PersistError as error:
            self.seen.error = error

    def look(self, upper: int) -> None:
        """One random time before ``upper``; every fourth is the newest there is."""
        newest = len(self.seen.looks) % 4 == 3
        as_of = upper - 1 if newest else self._snapshots.random_time()
        self.seen.looks.append(self._snapshots.look(as_of))

    def stop(self) -> Watching:
        """End, and return what was seen."""
        self._end.set()
        self.join()
        return self.seen


def same_rows(left: pa.Table, right: pa.Table) -> bool:
    """The two tables hold the same rows, each as often, in whatever order."""
    names = sorted(left.schema.names)
    if names != sorted(right.schema.names) or left.num_rows != right.num_rows:
        return False
    order = [(name, "ascending") for name in names]
    one, two = (table.select(names).sort_by(order).combine_chunks() for table in (left, right))  # type: ignore[arg-type]  # narrower than Arrow is
    return all(one[name].cast(two[name].type).equals(two[name]) for name in names)
