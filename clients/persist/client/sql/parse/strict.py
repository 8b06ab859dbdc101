"""What the parser lets pass and PostgreSQL does not: statements that were cut off, or have a comma too few or too many.

They would be carried out in part: rows that are left out, or a join of everything with everything.
Source: docs/sql.md, queries.
"""

import itertools
from collections.abc import Sequence
from typing import Final

from persist.client.sql.parse.tokens import TEXTS, Tokens
from persist.extras import extra

with extra("sql"):
    from sqlglot.tokenizer_core import Token, TokenType

_CLAUSE_WORDS: Final = "WHERE FROM GROUP HAVING LIMIT OFFSET ORDER UNION INTERSECT EXCEPT RETURNING WINDOW"
_CLAUSES: Final = frozenset(_CLAUSE_WORDS.split())
_NO_OPERAND: Final = _CLAUSES | {"ON", "USING", "JOIN"}
"""Words that begin no value."""
_OPEN: Final = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET})
_CLOSE: Final = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET})


def check_whole(tokens: Tokens) -> None:
    """Nothing, unless a statement stops where more has to come. Raises SqlSyntax."""
    joins, values, before = [0], [False], ""
    listed = _without_options(tokens.raw)
    for at, token in enumerate(listed):
        word = _word(token)
        after = listed[at + 1] if at + 1 < len(listed) else None
        if token.token_type is TokenType.COMMA or (word in ("ON", "USING") and joins[-1]):
            _check(after is not None and not _is_end(after), tokens, after, "a value")
        if word == "JOIN" and before not in ("CROSS", "NATURAL") and not _is_natural(listed, at):
            joins[-1] += 1
        elif word in ("ON", "USING"):
            joins[-1] = max(0, joins[-1] - 1)
        elif word in _CLAUSES or token.token_type is TokenType.COMMA or token.token_type in _CLOSE:
            _check(not joins[-1], tokens, token, "ON or USING")
            joins[-1] = 0
        if token.token_type in _OPEN:
            is_empty = before in ("IN", "VALUES") and after is not None and after.token_type in _CLOSE
            _check(not is_empty, tokens, after, "a value")
            joins.append(0)
            values.append(False)
        elif token.token_type in _CLOSE and len(joins) > 1:
            joins.pop()
            values.pop()
        elif word is not None and word != "VALUES":
            values[-1] = False
        values[-1] = values[-1] or word == "VALUES"
        is_row = token.token_type is TokenType.R_PAREN or tokens.is_row(token)
        if values[-1] and is_row and after is not None:
            _check(after.token_type is not TokenType.L_PAREN, tokens, after, "a comma")
        before = word or ""
    _check(not any(joins), tokens, None, "ON or USING")


def _without_options(listed: "Sequence[Token]") -> "list[Token]":
    """The tokens but what stands in WITH (…): options have names of any words, and may end in a comma."""
    found: list[Token] = []
    depth = 0
    for before, token in itertools.pairwise([None, *listed]):
        assert token is not None
        if depth or (token.token_type is TokenType.L_PAREN and before is not None and _word(before) == "WITH"):
            depth += (token.token_type in _OPEN) - (token.token_type in _CLOSE)
        else:
            found.append(token)
    return found


def _check(holds: bool, tokens: Tokens, token: "Token | None", expected: str) -> None:
    if not holds:
        tokens.fail_at(expected, token)


def _is_end(token: "Token") -> bool:
    return token.token_type in _CLOSE or token.token_type is TokenType.COMMA or _word(token) in _NO_OPERAND


def _is_natural(listed: "list[Token]", at: int) -> bool:
    """NATURAL LEFT OUTER JOIN, and the like."""
    return any(_word(each) == "NATURAL" for each in listed[max(0, at - 3) : at])


def _word(token: "Token") -> str | None:
    """A word without quotes, in capital letters."""
    if token.token_type in TEXTS or token.token_type is TokenType.IDENTIFIER or not token.text[:1].isalpha():
        return None
    return token.text.upper()
