"""persist, Delta and Iceberg inside Spark, on the same files and rows, each in a Python and a JVM of its own.

place.py      an environment for each lake: PySpark and its jars, made once and kept in .lakes
data.py       the rows, as Parquet files that all of them read
systems.py    what each calls writing, reading, merging, streaming
program.py    the process that does it: needs PySpark and nothing else
"""
