"""One write as values, which every part of it reads."""

from dataclasses import dataclass
from typing import Any

from pyspark_persist.audit.entry import Entry
from pyspark_persist.options.options import WriteOptions
from pyspark_persist.write.columns import Columns


@dataclass(frozen=True, kw_only=True)
class PlannedWrite:
    """What is written where. ``token`` makes it happen once.

    ``schema``: what the shard has by the time of the commit. ``is_new``: there was no shard when it was planned.
    ``entry``: what the shard's audit says of it, if there is one.
    """

    options: WriteOptions
    columns: Columns
    schema: Any
    is_new: bool
    spec: Any
    writer_id: str
    token: str
    overwrite: bool
    entry: Entry
