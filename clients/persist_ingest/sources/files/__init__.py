"""Sources of type ``files``: a growing directory, or S3 prefix, of CSV, JSON lines or Parquet files.

One file is one partition, complete when it appears: all its rows get one time. Its key is its path below the root,
``#``, and a hash of its size, time of modification and inode: what was bound is what is read again, or an error.
A file may be deleted once it was read; a file that was bound may never change, and its name is never used again.
"""

from persist_ingest.sources.files.reader import FilesType

FILES = FilesType()
