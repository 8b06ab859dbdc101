"""What a MySQL source is made with, as values. Source: design 003; architecture.md section 8."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from persist import InvalidArgument
from persist_ingest.given import Given
from persist_ingest.sources.mysql.column_types import ZeroDates
from persist_ingest.sources.mysql.session import Server
from persist_ingest.sources.options import check_options, one_of, required
from persist_ingest.sources.secret import check_place
from persist_ingest.sources.tables.options import NamesInSql, check_rows_fail, takes_over
from persist_ingest.sources.tables.patterns import is_pattern

NAMES: Final = (
    "host",
    "port",
    "socket",
    "user",
    "password",
    "tls",
    "tlsCa",
    "tlsCert",
    "tlsKey",
    "tables",
    "excludeTables",
    "includeColumns",
    "excludeColumns",
    "renameColumns",
    "serverId",
    "zeroDates",
    "badRows",
    "onAltered",
)
_NAMES: Final = NamesInSql("`")
_TABLES: Final = "shop.orders, shop.`line items`"
_TLS: Final = ("prefer", "off", "require", "verify-ca", "verify-full")


@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlOptions:
    """``tables``: pairs of database and name, which may be a pattern; without ``exclude_tables``, which may be, too.

    ``include_columns``, ``exclude_columns``: database, table and column; of a table with any included, no others are
    read. ``renames``: database, table, column and what it is called instead. ``server_id``: 0: another one each time.
    ``takes_over``: altered tables are snapshotted again by themselves.
    """

    server: Server
    tables: tuple[tuple[str, ...], ...]
    exclude_tables: tuple[tuple[str, ...], ...] = ()
    include_columns: tuple[tuple[str, ...], ...] = ()
    exclude_columns: tuple[tuple[str, ...], ...] = ()
    renames: tuple[tuple[str, ...], ...] = ()
    server_id: int = 0
    zero_dates: ZeroDates = ZeroDates.FAIL
    takes_over: bool = False


def parse_options(raw: Mapping[str, str]) -> MySqlOptions:
    """The options of a source. Raises InvalidArgument for what is unknown, missing or malformed."""
    given = check_options(raw, NAMES, "the MySQL source")
    check_rows_fail(given)
    server_id = given.whole("serverId") or 0
    if server_id >= 1 << 32:
        raise InvalidArgument("option serverId is beyond 32 bits", hint="leave it out", got=server_id)
    return MySqlOptions(
        server=_server(given),
        tables=_NAMES.parsed(
            "tables", required(given, "tables", "shop.orders"), _NAMES.table, "shop.orders, shop.`line items`"
        ),
        exclude_tables=_NAMES.of(given, "excludeTables", _NAMES.table, "shop.log"),
        include_columns=_NAMES.of(given, "includeColumns", _NAMES.column, "shop.orders.id"),
        exclude_columns=_NAMES.of(given, "excludeColumns", _NAMES.column, "shop.orders.secret"),
        renames=_NAMES.of(given, "renameColumns", _NAMES.renamed, "shop.orders.ts:moment"),
        server_id=server_id,
        zero_dates=ZeroDates(one_of(given, "zeroDates", [each.value for each in ZeroDates], ZeroDates.FAIL.value)),
        takes_over=takes_over(given),
    )


def parse_table(text: str) -> tuple[str, str]:
    """Database and name of one table. Raises InvalidArgument."""
    found = _NAMES.one_table(text, "shop.orders, or shop.`line items`")
    if is_pattern(found[1]) and "`" not in text:
        raise InvalidArgument("one table at a time", hint="repeat it for each", tables=text)
    return found


def _server(given: Given) -> Server:
    password = given.get("password") or ""
    if password:
        check_place("password", password)
    port = given.whole("port", least=1)
    if port is not None and port > 65535:
        raise InvalidArgument("option port is no port", hint="from 1 to 65535", got=port)
    tls = one_of(given, "tls", _TLS, "prefer")
    for name in ("tlsCa", "tlsCert", "tlsKey"):
        if given.get(name) and tls in ("prefer", "off"):
            raise InvalidArgument(f"option {name} needs tls", hint="tls=verify-full, or another that asks for it")
    given.requires("tlsKey", "tlsCert")
    given.exclusive("host", "socket")
    return Server(
        host=given.get("host") or "localhost",
        port=port or 3306,
        user=required(given, "user", "persist"),
        password=password,
        socket=given.get("socket") or "",
        tls=tls,
        ca=given.get("tlsCa") or "",
        cert=given.get("tlsCert") or "",
        key=given.get("tlsKey") or "",
    )
