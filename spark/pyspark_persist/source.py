"""The entry point Spark knows: one class that makes readers and writers. Light to import.

Parameter names are part of Spark's contract: the commit runner passes ``schema`` and ``overwrite`` by keyword.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_persist.read.keeper import Address


class DefaultSource(DataSource):  # type: ignore[misc]  # pyspark is untyped here
    """``format("persist")``. Every callback runs in a helper process of the driver without a session."""

    keeper: "Address | None" = None
    """Where the driver's own process holds what is planned, in the class that ``register`` makes."""

    cores: int = 1
    """How many tasks the session runs at once, in that class."""

    application: tuple[str, str, str] | None = None
    """The session's user, and its application's id and name, in that class."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "persist"

    def schema(self) -> "StructType":
        """The shard's columns and those the read adds. Raises ShardNotFound, InvalidArgument."""
        from pyspark_persist.finding import current_schema
        from pyspark_persist.options.options import METADATA
        from pyspark_persist.options.parsing import parse_schema_target
        from pyspark_persist.read.metadata import METADATA_SCHEMAS
        from pyspark_persist.read.view import schema_of
        from pyspark_persist.spark_types import spark_schema

        options = parse_schema_target(dict(self.options))
        if options.shape == METADATA:
            return spark_schema(METADATA_SCHEMAS[str(options.metadata_table)])
        return schema_of(options, current_schema(options.target))

    def reader(self, schema: "StructType") -> DataSourceReader:
        """A batch read; ``schema`` is what Spark expects, or a user's projection."""
        from pyspark_persist.options.parsing import parse_read
        from pyspark_persist.read.reading import reader_for

        return reader_for(parse_read(dict(self.options), cores=self.cores), schema, self.keeper)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        """A streaming read."""
        from pyspark_persist.options.parsing import parse_stream
        from pyspark_persist.read.streaming import StreamReader

        return StreamReader(parse_stream(dict(self.options)), schema)

    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceWriter:
        """A batch write; one token for the whole job is made here."""
        from pyspark_persist.audit.entry import author_of
        from pyspark_persist.options.names import WRITE
        from pyspark_persist.options.parsing import parse_write
        from pyspark_persist.read.keeper import check_no_table
        from pyspark_persist.write.writing import BatchWriter, Write

        check_no_table(self.keeper)
        options = parse_write(dict(self.options), WRITE)
        author = author_of(self.application)
        return BatchWriter(Write.plan(options, schema, overwrite=overwrite, author=author))

    def streamWriter(self, schema: "StructType", overwrite: bool) -> DataSourceStreamWriter:
        """A streaming write; ``overwrite`` in output mode complete."""
        from pyspark_persist.audit.entry import author_of
        from pyspark_persist.options.names import SINK
        from pyspark_persist.options.parsing import parse_write
        from pyspark_persist.write.writing import StreamWriter, Write

        options = parse_write(dict(self.options), SINK)
        checkpoint = self.options.get("checkpointLocation")
        operation = "streaming overwrite" if overwrite else "streaming append"
        author = author_of(self.application)
        return StreamWriter(
            Write.plan(options, schema, overwrite=overwrite, author=author, operation=operation), checkpoint
        )
