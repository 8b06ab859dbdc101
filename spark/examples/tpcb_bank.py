"""The upstream of the TPC-B job: a real PostgreSQL with pgbench's bank, and the workload on it."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from persist import LocationError
from persist.testing.servers import Server, postgres_program, start_postgres
from persist_ingest.sources.postgres.session import UpstreamConnection

TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "public.pgbench_accounts": ("aid", "bid", "abalance", "filler"),
    "public.pgbench_branches": ("bid", "bbalance", "filler"),
    "public.pgbench_history": ("tid", "bid", "aid", "delta", "mtime", "filler"),
    "public.pgbench_tellers": ("tid", "bid", "tbalance", "filler"),
}
MONEY: Final[Mapping[str, str]] = {
    "public.pgbench_accounts": "abalance",
    "public.pgbench_branches": "bbalance",
    "public.pgbench_history": "delta",
    "public.pgbench_tellers": "tbalance",
}
"""The column of each table whose sum is the same in all of them."""


@dataclass(slots=True)
class Bank:
    """A PostgreSQL of our own with a bank in it."""

    server: Server

    @classmethod
    def open(cls, scale: int) -> "Bank":
        """Start the server and fill the tables: 100,000 accounts for each unit of ``scale``. Raises LocationError."""
        server = start_postgres({"wal_level": "logical"})
        bank = cls(server)
        try:
            bank.pgbench("-i", "-q", "-s", str(scale))
            with UpstreamConnection(bank.dsn) as session:
                for table in TABLES:
                    session.run(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        except BaseException:
            bank.close()
            raise
        return bank

    @property
    def dsn(self) -> str:
        """How to reach it: no password."""
        return f"host=127.0.0.1 port={self.server.port} user=postgres dbname=postgres"

    def pgbench(self, *arguments: str) -> str:
        """Run pgbench to its end and return what it printed. Raises LocationError."""
        done = subprocess.run(
            [postgres_program("pgbench"), *arguments, self.dsn], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise LocationError("pgbench failed", hint="see what it said", said=(done.stderr or done.stdout)[-500:])
        return done.stdout

    def workload(self, rate: int, seconds: int, log: Path) -> "subprocess.Popen[str]":
        """TPC-B transactions at about ``rate`` a second, from four connections, in the background."""
        command = [postgres_program("pgbench"), "-n", "-c", "4", "-j", "1", "-M", "prepared", "-T", str(seconds)]
        command += ["-R", str(rate)] if rate else []
        with log.open("w") as sink:
            return subprocess.Popen([*command, self.dsn], stdout=sink, stderr=subprocess.STDOUT, text=True)

    def end_of_log(self) -> int:
        """How far the write-ahead log is flushed: everything that was acknowledged lies before."""
        with UpstreamConnection(self.dsn) as session:
            [position] = session.row("SELECT pg_current_wal_flush_lsn()::text")
        high, low = str(position).split("/")
        return int(high, 16) << 32 | int(low, 16)

    def rows(self, table: str, types: pa.Schema) -> pa.Table:
        """All rows of a table as they are now."""
        columns = TABLES[table]
        with UpstreamConnection(self.dsn) as session:
            rows = session.rows(f"SELECT {', '.join(columns)} FROM {table}")
        arrays: list[Any] = list(zip(*rows, strict=True)) if rows else [() for _ in columns]
        return pa.table({n: pa.array(v, types.field(n).type) for n, v in zip(columns, arrays, strict=True)})

    def close(self) -> None:
        """Stop it and remove its data."""
        self.server.close()


def rate_of(log: Path) -> float:
    """The transactions a second that pgbench says it did."""
    found = re.search(r"tps = ([0-9.]+)", log.read_text())
    return float(found.group(1)) if found else 0.0


def transactions_of(log: Path) -> int:
    """How many transactions pgbench says it did."""
    found = re.search(r"actually processed: (\d+)", log.read_text())
    return int(found.group(1)) if found else 0
