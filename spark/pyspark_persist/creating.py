"""Distinguishing ``saveAsTable`` from ``save``, which look the same to a data source.

A table of Spark's catalog cannot be read again: Spark keeps its options, and hands none of them to Python sources. But
``saveAsTable`` hands them to the writer, so the rows would be committed all the same. Nothing that a planner is passed
gives it away; the driver's process alone knows which call of Spark it is waiting for, so the keeper there is asked.
"""

import sys
from types import FrameType

from py4j.protocol import Py4JError
from pyspark.sql.readwriter import DataFrameWriter


def saves_table() -> bool:
    """Whether a thread of this process waits for ``saveAsTable`` of this format."""
    return any(_saves_table(frame) for frame in sys._current_frames().values())


def _saves_table(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is DataFrameWriter.saveAsTable.__code__:
            try:
                return bool(frame.f_locals["self"]._jwrite.source() == "persist")
            except (AttributeError, KeyError, Py4JError):
                return False
        frame = frame.f_back
    return False
