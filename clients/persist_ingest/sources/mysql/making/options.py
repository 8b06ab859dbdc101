"""What a MySQL source is made with, as values. Source: design 003; architecture.md section 8."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from persist import InvalidArgument
from persist_ingest.given import Given
from persist_ingest.sources.mysql.column_types import ZeroDates
from persist_ingest.sources.mysql.session import Server
from persist_ingest.sources.options import check_options, one_of, required
from persist_ingest.sources.secret import check_place

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
    "serverId",
    "zeroDates",
    "badRows",
    "onAltered",
)
STALL: Final = "stall"
RESNAPSHOT: Final = "resnapshot"
EVERY: Final = "*"
"""In place of a table's name: all that the database has when the source is made."""
_PART: Final = r"\s*(?:`((?:[^`]|``)+)`|([^\s`.,]+))\s*"
_TABLE: Final = re.compile(rf"{_PART}\.{_PART}(?:,|$)")
_COLUMN: Final = re.compile(rf"{_PART}\.{_PART}\.{_PART}(?:,|$)")
_TLS: Final = ("prefer", "off", "require", "verify-ca", "verify-full")


@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlOptions:
    """``tables``: pairs of database and name, which may be EVERY; without ``exclude_tables``.

    ``include_columns``, ``exclude_columns``: database, table and column; of a table with any included, no others are
    read. ``server_id``: 0: another one each time. ``takes_over``: altered tables are snapshotted again by themselves.
    """

    server: Server
    tables: tuple[tuple[str, ...], ...]
    exclude_tables: tuple[tuple[str, ...], ...] = ()
    include_columns: tuple[tuple[str, ...], ...] = ()
    exclude_columns: tuple[tuple[str, ...], ...] = ()
    server_id: int = 0
    zero_dates: ZeroDates = ZeroDates.FAIL
    takes_over: bool = False


def parse_options(raw: Mapping[str, str]) -> MySqlOptions:
    """The options of a source. Raises InvalidArgument for what is unknown, missing or malformed."""
    given = check_options(raw, NAMES, "the MySQL source")
    if one_of(given, "badRows", ("fail", "divert"), "fail") != "fail":
        raise InvalidArgument("the MySQL source can only fail on bad rows", hint="leave badRows out")
    server_id = given.whole("serverId") or 0
    if server_id >= 1 << 32:
        raise InvalidArgument("option serverId is beyond 32 bits", hint="leave it out", got=server_id)
    return MySqlOptions(
        server=_server(given),
        tables=_parsed("tables", required(given, "tables", "shop.orders"), _TABLE, "shop.orders, shop.`line items`"),
        exclude_tables=_names(given, "excludeTables", _TABLE, "shop.log"),
        include_columns=_names(given, "includeColumns", _COLUMN, "shop.orders.id"),
        exclude_columns=_names(given, "excludeColumns", _COLUMN, "shop.orders.secret"),
        server_id=server_id,
        zero_dates=ZeroDates(one_of(given, "zeroDates", [each.value for each in ZeroDates], ZeroDates.FAIL.value)),
        takes_over=one_of(given, "onAltered", (STALL, RESNAPSHOT), STALL) == RESNAPSHOT,
    )


def parse_table(text: str) -> tuple[str, str]:
    """Database and name of one table. Raises InvalidArgument."""
    found = _parsed("tables", text, _TABLE, "shop.orders, or shop.`line items`")
    if len(found) > 1 or EVERY in found[0]:
        raise InvalidArgument("one table at a time", hint="repeat it for each", tables=text)
    return found[0][0], found[0][1]


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


def _names(given: Given, name: str, form: re.Pattern[str], such: str) -> tuple[tuple[str, ...], ...]:
    text = given.get(name)
    return () if text is None else _parsed(name, text, form, such)


def _parsed(name: str, text: str, form: re.Pattern[str], such: str) -> tuple[tuple[str, ...], ...]:
    found, at = list[tuple[str, ...]](), 0
    while at < len(text):
        match = form.match(text, at)
        if match is None:
            raise InvalidArgument(f"option {name} is malformed", hint=f"such as {such}", at=text[at : at + 60])
        found.append(tuple(_unquoted(match, first) for first in range(1, form.groups, 2)))
        at = match.end()
    if not found or len(set(found)) < len(found):
        raise InvalidArgument(f"option {name} names none, or one twice", hint="name each once", **{name: text})
    return tuple(found)


def _unquoted(match: re.Match[str], first: int) -> str:
    quoted: str | None = match[first]
    return match[first + 1] if quoted is None else quoted.replace("``", "`")
