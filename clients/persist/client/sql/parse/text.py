"""A text as statements."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from persist.client.sql.errors import SqlNotSupported, SqlSyntax
from persist.client.sql.parse import changing, creating, queries
from persist.client.sql.parse.literals import Cut, cuts
from persist.client.sql.parse.statements import CommitTransaction, Parsed, Rollback, Statement
from persist.client.sql.parse.strict import check_whole
from persist.client.sql.parse.tokens import Params, Tokens, place, tokens_of, tokens_without
from persist.errors import PersistError
from persist.runtime import system

TEXT_MAX: Final = 16 << 20
"""Characters of a text."""

_QUERIES: Final = ("SELECT", "WITH", "VALUES", "(", "TABLE")
_BY_WORD: Final[dict[str, Callable[[Tokens, int], Statement]]] = {
    **dict.fromkeys(_QUERIES, queries.select),
    "CREATE": creating.create,
    "ALTER": changing.alter,
    "DROP": lambda tokens, _: changing.drop(tokens),
    "GRANT": lambda tokens, _: changing.grant(tokens),
    "REVOKE": lambda tokens, _: changing.grant(tokens),
    "COMMENT": lambda tokens, _: changing.comment(tokens),
    "ACKNOWLEDGE": changing.acknowledge,
    "INSERT": lambda tokens, _: queries.insert(tokens),
    "UPDATE": lambda tokens, _: queries.update(tokens),
    "DELETE": lambda tokens, _: queries.delete(tokens),
    "COPY": queries.copy,
    "BEGIN": lambda tokens, _: changing.begin(tokens),
    "START": lambda tokens, _: changing.begin(tokens),
    "COMMIT": lambda tokens, _: _ending(tokens, CommitTransaction()),
    "END": lambda tokens, _: _ending(tokens, CommitTransaction()),
    "ROLLBACK": lambda tokens, _: _ending(tokens, Rollback()),
    "ABORT": lambda tokens, _: _ending(tokens, Rollback()),
    "SUBSCRIBE": queries.subscribe,
    "FETCH": lambda tokens, _: queries.fetch(tokens),
    "EXPLAIN": queries.explain,
    "SHOW": lambda tokens, _: changing.show(tokens),
    "SET": lambda tokens, _: changing.setting(tokens),
    "RESET": lambda tokens, _: changing.setting(tokens),
}
KNOWN: Final = tuple(word for word in _BY_WORD if word.isalpha())
"""Words that statements begin with."""

_ELSEWHERE: Final = {
    "ADVANCE": "ALTER HOLD name ADVANCE [TO time]",
    "ATTACH": "other databases are not reached from SQL",
    "CALL": "there are no procedures",
    "DESC": "SHOW COLUMNS FROM name",
    "DESCRIBE": "SHOW COLUMNS FROM name",
    "EXECUTE": "give parameters with the statement: sql(text, params)",
    "INSTALL": "DuckDB runs without extensions",
    "LOAD": "DuckDB runs without extensions",
    "MERGE": "use UPDATE, DELETE and INSERT in one transaction",
    "PRAGMA": "DuckDB's configuration is locked",
    "PREPARE": "give parameters with the statement: sql(text, params)",
    "TRUNCATE": "use DELETE FROM",
    "VACUUM": "what is not needed is given up by itself",
}


def parse(text: str, params: object = None, *, now_ms: int | None = None, kept: bool = False) -> list[Parsed]:
    """The statements of a text. ``params``: values for ``?`` and ``$1`` (a sequence), or ``:name`` (a mapping).

    Of a sequence each value has to be taken. ``kept``: it is a definition's, whose columns are called as they were
    when it was made. ``now_ms``: the clock that ``now()`` and ``'-5m'`` mean. Raises SqlSyntax and SqlNotSupported,
    with line and column, InvalidArgument, and what schemas raise (TypeNotSupported).
    """
    if len(text) > TEXT_MAX:
        raise SqlSyntax("the text is too long", hint=f"at most {TEXT_MAX} characters; COPY reads rows from files")
    now = system().now_ms() if now_ms is None else now_ms
    given, found = given_params(params), cuts(text)
    in_order = isinstance(params, list | tuple)
    statements = _statements(text, given, now, found, in_order=in_order, kept=kept) if found else None
    if statements is None:
        statements = _statements(text, given, now, (), in_order=in_order, kept=kept)
    assert statements is not None
    if not kept:
        for each in statements:
            queries.call_counts(each.statement)
    return statements


def _statements(
    text: str, params: Params, now_ms: int, found: Sequence[Cut], *, in_order: bool, kept: bool
) -> list[Parsed] | None:
    """The statements of a text. None: with the rows that were ``found`` it is not known what they are, or what is
    wrong with them. ``in_order``: values that nothing takes are refused, as another one may have been meant.
    """
    tokens = tokens_without(text, params, found) if found else tokens_of(text, params)
    if tokens is None:
        return None
    if in_order and (surplus := tokens.surplus):
        raise SqlSyntax(
            "values were given that no parameter takes",
            hint="as many as there are ? in the text, or $1, $2, …; by name, as :name of a dict, there may be more",
            given=len(params),
            surplus=", ".join(f"${name}" for name in surplus),
        )
    parsed: list[Parsed] = []
    for each in tokens.statements():
        try:
            statement = _parsed(each, now_ms)
            if not kept:
                check_whole(each)
            parsed.append(statement)
        except PersistError:
            if each.lacks:
                return None
            raise
        if each.lacks:
            return None
    return parsed


def one(text: str, params: object = None, *, now_ms: int | None = None) -> Parsed:
    """The only statement of a definition's text. Raises as ``parse``."""
    return only(parse(text, params, now_ms=now_ms, kept=True))


def only(found: Sequence[Parsed]) -> Parsed:
    """The statement, if it is the only one. Raises SqlSyntax."""
    if len(found) != 1:
        raise SqlSyntax("one statement is needed", hint="run several one after the other", got=len(found))
    return found[0]


def given_params(params: object) -> Params:
    """Values by the names statements have for them. Raises SqlSyntax."""
    if params is None:
        return {}
    if isinstance(params, dict):
        return {str(name): value for name, value in params.items()}
    if isinstance(params, list | tuple):
        return {str(at): value for at, value in enumerate(params, 1)}
    raise SqlSyntax("parameters are a list, or a dict by name", got=type(params).__name__)


def _parsed(tokens: Tokens, now_ms: int) -> Parsed:
    line, column = place(tokens.text, tokens.first.start)
    word = tokens.first.text.upper()
    known = _BY_WORD.get(word)
    if known is None:
        if word in _ELSEWHERE:
            raise SqlNotSupported(f"{word} is not supported", hint=_ELSEWHERE[word], line=line, column=column)
        raise SqlSyntax("no statement begins so", hint=near(word), line=line, column=column, at=repr(word)[:80])
    tokens.learn()
    try:
        statement = known(tokens, now_ms)
    except RecursionError as error:
        raise SqlSyntax("the statement is nested too deeply", hint="put parts of it into views", line=line) from error
    except PersistError as error:
        details: dict[str, Any] = {"line": line, "column": column, **error.details}
        raise type(error)(error.message, hint=error.hint, **details) from error
    return Parsed(statement, line, column, tokens.source)


def near(word: str) -> str:
    """What a word that begins no statement may be meant to be."""
    import difflib

    alike = difflib.get_close_matches(word, KNOWN, n=1)
    return f"{alike[0]}?" if alike else f"statements begin with {', '.join(KNOWN[:8])} …"


def _ending(tokens: Tokens, statement: Statement) -> Statement:
    tokens.at += 1
    tokens.one_of("TRANSACTION", "WORK")
    tokens.end()
    return statement
