"""Real server processes and a ledger of what was acknowledged, for the scenarios."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from forked import Fork

import persist

SCHEMA = persist.Schema(key={"writer": pa.int64(), "n": pa.int64()}, val={"note": pa.string()})
_READY = re.compile(r"listening on (\S+:\d+)")


class Server:
    """One ``persist serve shard`` process on a port of its own."""

    def __init__(self, blob: str, consensus: str, *, log: Path, port: int = 0) -> None:
        self.blob, self.consensus, self.log = blob, consensus, log
        self.endpoint = f"127.0.0.1:{port}"
        self.process: Fork | None = None

    def start(self) -> "Server":
        """Start the process, on the same port as before if there was one, and wait until it listens."""
        stores = ("--blob", self.blob, "--consensus", self.consensus)
        words = ("serve", "shard", "--listen", self.endpoint, *stores)
        self.process = Fork("persist_cli", *words, heard=("output",), log=self.log)
        assert self.process.output is not None
        for line in self.process.output:
            if found := _READY.search(line.decode()):
                self.endpoint = found.group(1)
                return self
        raise AssertionError(f"the server did not start: {self.log.read_text()[-2000:]}")

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self.process is not None:
            self.process.close()
            self.process = None


@dataclass
class Ledger:
    """What each writer got: rows acknowledged, and rows whose fate it never found out."""

    acknowledged: set[tuple[int, int]] = field(default_factory=set)
    unknown: set[tuple[int, int]] = field(default_factory=set)

    def compare(self, rows: list[dict[str, object]]) -> None:
        """Every acknowledged row is there once, no row twice, and nothing that was not written."""
        found = [(int(str(row["writer"])), int(str(row["n"]))) for row in rows]
        assert all(row["diff"] == 1 for row in rows), "a row is there more than once"
        assert len(found) == len(set(found)), "a row is there twice"
        lost = self.acknowledged - set(found)
        assert not lost, f"{len(lost)} acknowledged rows are lost: {sorted(lost)[:5]}"
        strange = set(found) - self.acknowledged - self.unknown
        assert not strange, f"{len(strange)} rows that no writer wrote: {sorted(strange)[:5]}"


def one_row(writer: int, n: int, time: int) -> pa.Table:
    """One update, unique for (writer, n)."""
    columns = {"writer": [writer], "n": [n], "note": [f"{writer}-{n}"]}
    table = pa.table(columns)
    table = table.append_column("ts", pa.array([time], pa.uint64()))
    return table.append_column("diff", pa.array([1], pa.int64()))
