"""The peers on the same rows and the same S3 server, each at its best: deltalake and pyiceberg.

deltalake: one open handle per writer, conditional PUT as commit. pyiceberg: SQLite catalog, old metadata deleted.
"""

import logging
import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.rows import signed
from bench.stage import BUCKET

COLUMNS: dict[str, pa.DataType] = {"k": pa.binary(), "v": pa.binary(), "ts": pa.int64(), "diff": pa.int64()}
SCHEMA = pa.schema(COLUMNS)


class Delta:
    """A Delta table through one open handle."""

    name = "deltalake"

    def __init__(self, endpoint: str, table: str, *, create: bool = True, feed: bool = False) -> None:
        """``feed``: with a change data feed."""
        from deltalake import DeltaTable

        self._uri = f"s3://{BUCKET}/delta/{table}"
        self._options = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": os.environ["AWS_ACCESS_KEY_ID"],
            "AWS_SECRET_ACCESS_KEY": os.environ["AWS_SECRET_ACCESS_KEY"],
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "aws_conditional_put": "etag",
        }
        self._table: Any = (
            DeltaTable.create(
                self._uri,
                schema=SCHEMA,
                storage_options=self._options,
                configuration={"delta.enableChangeDataFeed": "true"} if feed else None,
            )
            if create
            else DeltaTable(self._uri, storage_options=self._options)
        )

    def append(self, table: pa.Table) -> None:
        """Raises CommitFailedError when its retries are used up."""
        from deltalake import write_deltalake

        write_deltalake(self._table, table, mode="append")

    def read(self) -> pa.Table:
        from deltalake import DeltaTable

        return DeltaTable(self._uri, storage_options=self._options).to_pyarrow_table()

    def changes(self, first: int) -> pa.Table:
        """The change feed from a version on."""
        from deltalake import DeltaTable

        table = DeltaTable(self._uri, storage_options=self._options)
        return pa.table(table.load_cdf(starting_version=first).read_all())

    def compact(self) -> None:
        """Its own compaction: small files into few."""
        self._table.optimize.compact()


class Iceberg:
    """An Iceberg table in a SQLite catalog under ``directory``."""

    name = "pyiceberg"

    def __init__(self, endpoint: str, table: str, directory: Path) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        logging.getLogger("pyiceberg").setLevel(logging.ERROR)
        self._catalog: Any = SqlCatalog(
            "bench",
            uri=f"sqlite:///{directory}/{table}.db",
            warehouse=f"s3://{BUCKET}/iceberg",
            **{
                "s3.endpoint": endpoint,
                "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
                "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
                "s3.region": "us-east-1",
                "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            },
        )
        self._catalog.create_namespace_if_not_exists("bench")
        tidy = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "10"}
        self._table = self._catalog.create_table(f"bench.{table}", SCHEMA, properties=tidy)
        self._name = f"bench.{table}"

    def append(self, table: pa.Table) -> None:
        self._table.append(table)

    def read(self) -> pa.Table:
        return self._catalog.load_table(self._name).scan().to_arrow()


def lake_rows(table: pa.Table) -> pa.Table:
    """Rows as lake formats take them."""
    return signed(table).cast(SCHEMA)
