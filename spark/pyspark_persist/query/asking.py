"""``pyspark_persist.sql``: a query over names as a DataFrame, planned by persist at one checked time.

Source: docs/spark.md, SQL over names.
"""

import weakref
from typing import TYPE_CHECKING

from pyspark_persist.application import check_python
from pyspark_persist.options.parsing import parse_read
from pyspark_persist.query.frames import answer_of, session_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def sql(
    spark: "SparkSession",
    text: str,
    params: object = None,
    *,
    as_of: int | None = None,
    at_least: int | None = None,
    isolation: str | None = None,
    environment: str = "default",
    role: str = "persist",
    **options: object,
) -> "DataFrame":
    """A query over names of an environment, read at one time of one timeline: the same rows whenever it is shown.

    What it reads is held as long as the DataFrame is there: keep it while others are made of it. ``params``: as of
    ``client.sql``. ``as_of``: at this time or an error; ``at_least``: at it or later; else as AS OF in the text says,
    or as ``isolation`` demands. ``options``: where, as ``location=`` or ``endpoint=``. It runs in a session beside the
    given one, with settings under which it answers as DuckDB does. Needs the extra ``sql``. Raises MultipleTimelines,
    UnknownObject, PrivilegeMissing, NotReadable, BelowHold, NotYetAvailable, SqlError and those of it (SqlNotSupported
    where Spark might answer otherwise), InvalidArgument (Spark Connect).
    """
    session = session_of(spark)
    check_python(spark.sparkContext)
    target = parse_read({**{name: str(value) for name, value in options.items()}, "table": "t"}).target
    with target.client().session(environment, role=role) as asked:
        query = asked.planned(text, params, as_of=as_of, at_least=at_least, isolation=isolation)
    frame = answer_of(session, query)
    weakref.finalize(frame, _kept, query)
    return frame


def _kept(query: object) -> None:
    """Referred to by a DataFrame, so that what it reads is held for as long as that is there."""
