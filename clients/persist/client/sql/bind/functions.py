"""Functions that queries may use: all that compute, none that look at the process, wait, or keep something.

DuckDB runs without access to anything outside (see ``run.engine``); this is the fence before that one.
"""

from typing import Final

from persist.client.sql.errors import SqlNotSupported
from persist.client.sql.parse.positions import where
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp

TIMES: Final = frozenset({"mz_now", "persist_now"})
"""What time a query is read at, as a number of its timeline."""

_TABLES: Final = frozenset({"explodinggenerateseries", "generateseries", "unnest", "range", "generate_series"})

_REFUSED_WORDS: Final = """
current_connection_id current_database current_query current_query_id current_schema current_schemas
current_setting current_transaction_id current_catalog session_user current_user user getenv in_search_path
currval nextval setval set_config setseed pg_sleep sleep_ms sleep stats txid_current vector_type write_log
getvariable query query_table json_execute_serialized_sql json_serialize_plan json_deserialize_sql
parse_duckdb_log_message which_secret version pragma_version pragma_platform sql_auto_complete create_sort_key
current_role pg_typeof_internal has_any_column_privilege
"""
_REFUSED: Final = frozenset(_REFUSED_WORDS.split())

_CHANGING_WORDS: Final = """
random rand uuid gen_random_uuid generate_uuid uuidv4 uuidv7 now current_timestamp current_date current_time
localtime localtimestamp today get_current_time get_current_timestamp transaction_timestamp currenttimestamp
currentdate currenttime currentdatetime systimestamp clock_timestamp statement_timestamp timeofday age
"""
_CHANGING: Final = frozenset(_CHANGING_WORDS.split())


_FENCE: Final = "queries compute with the rows of collections, and see nothing else"


def check(query: exp.Expr, *, definite: bool = False) -> None:
    """Raise SqlNotSupported for functions that may not be used; with ``definite`` also for those of chance and clock.

    What is kept, or followed, has to be the same wherever and whenever it is computed.
    """
    if definite and (sample := query.find(exp.TableSample)) is not None:
        raise SqlNotSupported(
            "a definition gives the same rows whenever it is computed", hint="leave out TABLESAMPLE", **where(sample)
        )
    for node in query.find_all(exp.Func):
        name = name_of(node)
        if name in _REFUSED or name.startswith(("pg_read", "pg_ls", "duckdb_", "pragma_", "read_")):
            raise SqlNotSupported("this function is not supported", hint=_FENCE, function=name, **where(node))
        if definite and name in _CHANGING and not (name == "age" and len(node.expressions) > 1):
            raise SqlNotSupported(
                "a definition gives the same rows whenever it is computed",
                hint="mz_now() is the time it is computed at; write the time when rows are inserted",
                function=name,
                **where(node),
            )


def name_of(function: exp.Func) -> str:
    """What a function is called, in small letters."""
    return (function.name if isinstance(function, exp.Anonymous) else function.sql_name()).lower()


def is_table(function: exp.Expr) -> bool:
    """Whether it may stand where a table does."""
    return isinstance(function, exp.Func) and name_of(function).replace("_", "") in {
        each.replace("_", "") for each in _TABLES
    }


def asks_time(query: exp.Expr) -> bool:
    """Whether the query asks what time it is read at."""
    return any(name_of(node) in TIMES for node in query.find_all(exp.Anonymous))


def with_time(query: exp.Expr, ts: int) -> exp.Expr:
    """The query, with the time it is read at in the place of whatever asks for it."""

    def replaced(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Anonymous) and name_of(node) in TIMES:
            return exp.cast(exp.Literal.number(ts), exp.DataType.build("ubigint", dialect="duckdb"))
        return node

    return query.transform(replaced)
