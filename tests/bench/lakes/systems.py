"""What each system calls writing, reading, merging and streaming, at its best. Tables lie in a folder of this machine.

No import at the top but of the standard library: each system has a Python of its own.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

KEY = "id"


class System:
    """One table format in one session."""

    name = ""

    def __init__(self, folder: Path, jars: Sequence[str]) -> None:
        self.folder = folder
        self.jars = jars
        self.spark: Any = None

    def configuration(self) -> dict[str, str]:
        """What the session is made with."""
        return {"spark.jars": ",".join(self.jars)} if self.jars else {}

    def began(self, spark: Any) -> None:
        """The session is there."""
        self.spark = spark

    def append(self, table: str, frame: Any) -> None:
        """A commit of rows; the first makes the table."""
        raise NotImplementedError

    def overwrite(self, table: str, frame: Any) -> None:
        """Rows in the place of all."""
        raise NotImplementedError

    def read(self, table: str, columns: Sequence[str] = (), where: str = "") -> Any:
        """What it holds: all columns or these, all rows or these."""
        frame = self._loaded(table)
        frame = frame.where(where) if where else frame
        return frame.select(*columns) if columns else frame

    def count(self, table: str) -> int:
        """How many rows it holds, as its users ask."""
        return int(self.read(table).count())

    def merge(self, table: str, source: Any, on: str = KEY) -> None:
        """Rows by a column: changed where they are there, added where not."""
        raise NotImplementedError

    def add(self, table: str, source: Any, summed: str) -> int:
        """Rows by ``KEY``: one column added to where they are there, added where not. How often it was computed."""
        raise NotImplementedError

    def update(self, table: str, values: dict[str, str], where: str) -> None:
        """Other values in rows that meet a condition, without writing the others anew if it can."""
        raise NotImplementedError

    def delete(self, table: str, where: str) -> None:
        """Rows that meet a condition, without writing the others anew if it can."""
        raise NotImplementedError

    def changes(self, table: str) -> Any:
        """A stream of a table's commits, one for each micro-batch."""
        raise NotImplementedError

    def sink(self, writer: Any, table: str) -> Any:
        """A stream's writer with its target."""
        raise NotImplementedError

    def _loaded(self, table: str) -> Any:
        raise NotImplementedError

    def _merged(self, table: str, source: Any, on: str) -> None:
        source.createOrReplaceTempView("changes")
        self.spark.sql(
            f"MERGE INTO {table} AS t USING changes AS s ON t.{on} = s.{on} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    def _updated(self, table: str, values: dict[str, str], where: str) -> None:
        given = ", ".join(f"{name} = {value}" for name, value in values.items())
        self.spark.sql(f"UPDATE {table} SET {given} WHERE {where}")


class Persist(System):
    """Shards of a location, without a server; keyed by ``KEY``."""

    name = "persist"

    def began(self, spark: Any) -> None:
        from pyspark_persist import register

        super().began(spark)
        register(spark)

    def append(self, table: str, frame: Any) -> None:
        self._writer(table, frame).mode("append").save()

    def overwrite(self, table: str, frame: Any) -> None:
        self._writer(table, frame).mode("overwrite").save()

    def read(self, table: str, columns: Sequence[str] = (), where: str = "") -> Any:
        options = {"columns": ",".join(columns)} if columns else {}
        options |= {"where": where} if where else {}
        return self.spark.read.format("persist").options(**self._where(table), **options).load()

    def count(self, table: str) -> int:
        return int(self.table(table).count())

    def merge(self, table: str, source: Any, on: str = KEY) -> None:
        self.table(table).merge(source, on).whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    def add(self, table: str, source: Any, summed: str) -> int:
        merge = (
            self.table(table).merge(source, KEY).whenMatchedUpdate(set={summed: f"target.{summed} + source.{summed}"})
        )
        return int(merge.whenNotMatchedInsertAll().execute().attempts)

    def update(self, table: str, values: dict[str, str], where: str) -> None:
        self.table(table).update(values, where)

    def delete(self, table: str, where: str) -> None:
        self.table(table).delete(where)

    def changes(self, table: str) -> Any:
        options = {"startingVersion": "earliest", "maxFilesPerTrigger": "1"}
        return self.spark.readStream.format("persist").options(**self._where(table), **options).load()

    def sink(self, writer: Any, table: str) -> Any:
        return writer.format("persist").options(**self._where(table), keyColumns=KEY)

    def table(self, table: str) -> Any:
        """Its changes and counts."""
        from pyspark_persist import PersistTable

        return PersistTable.forName(self.spark, table, location=str(self.folder))

    def _writer(self, table: str, frame: Any) -> Any:
        return frame.write.format("persist").options(**self._where(table), keyColumns=KEY)

    def _where(self, table: str) -> dict[str, str]:
        return {"location": str(self.folder), "table": table}


class Delta(System):
    """Tables by path, with deletion vectors."""

    name = "delta"

    def configuration(self) -> dict[str, str]:
        return {
            **super().configuration(),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
        }

    def append(self, table: str, frame: Any) -> None:
        frame.write.format("delta").mode("append").save(self._path(table))

    def overwrite(self, table: str, frame: Any) -> None:
        frame.write.format("delta").mode("overwrite").save(self._path(table))

    def merge(self, table: str, source: Any, on: str = KEY) -> None:
        self._merged(f"delta.`{self._path(table)}`", source, on)

    def update(self, table: str, values: dict[str, str], where: str) -> None:
        self._updated(f"delta.`{self._path(table)}`", values, where)

    def delete(self, table: str, where: str) -> None:
        self.spark.sql(f"DELETE FROM delta.`{self._path(table)}` WHERE {where}")

    def changes(self, table: str) -> Any:
        return self.spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(self._path(table))

    def sink(self, writer: Any, table: str) -> Any:
        return writer.format("delta").option("path", self._path(table))

    def _loaded(self, table: str) -> Any:
        return self.spark.read.format("delta").load(self._path(table))

    def _path(self, table: str) -> str:
        return str(self.folder / table)


class Iceberg(System):
    """Tables of a catalog of folders, rows taken out by deletion vectors (format 3)."""

    name = "iceberg"
    properties: Final = {
        "format-version": "3",
        "write.delete.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.merge.mode": "merge-on-read",
    }

    def configuration(self) -> dict[str, str]:
        return {
            **super().configuration(),
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(self.folder),
        }

    def append(self, table: str, frame: Any) -> None:
        if self.spark.catalog.tableExists(self._name(table)):
            frame.writeTo(self._name(table)).append()
        else:
            self._created(table, frame)

    def overwrite(self, table: str, frame: Any) -> None:
        from pyspark.sql.functions import lit

        frame.writeTo(self._name(table)).overwrite(lit(True))

    def merge(self, table: str, source: Any, on: str = KEY) -> None:
        self._merged(self._name(table), source, on)

    def update(self, table: str, values: dict[str, str], where: str) -> None:
        self._updated(self._name(table), values, where)

    def delete(self, table: str, where: str) -> None:
        self.spark.sql(f"DELETE FROM {self._name(table)} WHERE {where}")

    def changes(self, table: str) -> Any:
        reader = self.spark.readStream.format("iceberg").option("streaming-max-files-per-micro-batch", 1)
        return reader.load(self._name(table))

    def sink(self, writer: Any, table: str) -> Any:
        return writer.format("iceberg").option("path", self._name(table))

    def _created(self, table: str, frame: Any) -> None:
        writer = frame.writeTo(self._name(table)).using("iceberg")
        for name, value in self.properties.items():
            writer = writer.tableProperty(name, value)
        writer.create()

    def _loaded(self, table: str) -> Any:
        return self.spark.read.format("iceberg").load(self._name(table))

    def _name(self, table: str) -> str:
        return f"lake.bench.{table}"


class Parquet(System):
    """Spark's own files: nothing but appends."""

    name = "parquet"

    def append(self, table: str, frame: Any) -> None:
        frame.write.mode("append").parquet(str(self.folder / table))

    def _loaded(self, table: str) -> Any:
        return self.spark.read.parquet(str(self.folder / table))


class Memory(System):
    """The floor of reads: a Python source whose tasks yield Arrow batches that lie in memory. ``write`` maps a file."""

    name = "memory"

    def began(self, spark: Any) -> None:
        from bench.floor.memory_source import MemorySource

        super().began(spark)
        spark.dataSource.register(MemorySource)

    def append(self, table: str, frame: Any) -> None:
        from bench.floor.memory_source import keep

        keep(self.folder / table, frame.toArrow())

    def read(self, table: str, columns: Sequence[str] = (), where: str = "") -> Any:
        options = {"columns": ",".join(columns)} if columns else {}
        return self.spark.read.format("memory").options(path=str(self.folder / table), **options).load()


SYSTEMS: dict[str, type[System]] = {kind.name: kind for kind in (Persist, Delta, Iceberg, Parquet, Memory)}
