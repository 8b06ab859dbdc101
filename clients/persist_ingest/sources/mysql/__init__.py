"""Tables of a MariaDB database, by its binlog: a snapshot, then every change.

Needs MariaDB 10.5 or newer with row logging, and whole rows and columns' names in the log.
Source: design 003; sources.md section 1; docs/adr/0025-mysql-by-position.md.
"""

from persist_ingest.sources.mysql.making.setup import MYSQL

__all__ = ["MYSQL"]
