"""Statements in which something is missing, and which sqlglot takes all the same: cut off, or a word was forgotten.

What is carried out then is another statement than was meant: a join without its condition is all pairs, and what stood
behind the last comma is not changed. PostgreSQL refuses all of these.
"""

from collections.abc import Sequence
from typing import Final

from persist.extras import extra

with extra("sql"):
    from sqlglot.tokenizer_core import Token, TokenType

_CLAUSES: Final = frozenset(
    {
        TokenType.FROM, TokenType.WHERE, TokenType.GROUP_BY, TokenType.ORDER_BY, TokenType.HAVING, TokenType.LIMIT,
        TokenType.OFFSET, TokenType.FETCH, TokenType.WINDOW, TokenType.QUALIFY, TokenType.RETURNING, TokenType.UNION,
        TokenType.EXCEPT, TokenType.INTERSECT,
    }
)  # fmt: skip
"""What begins the next part of a query."""
_JOINS: Final = frozenset({TokenType.JOIN, TokenType.ON, TokenType.USING, TokenType.SET})
_SIDES: Final = frozenset({TokenType.LEFT, TokenType.RIGHT, TokenType.FULL, TokenType.INNER, TokenType.OUTER})
_WITHOUT: Final = frozenset({TokenType.CROSS, TokenType.NATURAL})
"""Joins that have no condition."""


def cut_off(tokens: Sequence[Token]) -> tuple[str, int] | None:
    """What is missing in a query or a part of a statement, and before which token; None: nothing is known to be."""
    found = [each for each in (_listed(tokens), _joined(tokens)) if each is not None]
    return min(found, key=lambda each: each[1], default=None)


def _listed(tokens: Sequence[Token]) -> tuple[str, int] | None:
    kinds = [each.token_type for each in tokens]
    for at, kind in enumerate(kinds):
        before = kinds[at - 1] if at else None
        after = kinds[at + 1] if at + 1 < len(kinds) else None
        if kind is TokenType.COMMA:
            if before in (None, TokenType.L_PAREN, TokenType.SELECT, TokenType.SET):
                return "an expression before the comma", at
            ends = after is None or after in _CLAUSES or after in _JOINS
            if ends or after in (TokenType.COMMA, TokenType.R_PAREN, TokenType.R_BRACKET):
                return "something behind the comma", at + 1
        elif kind is TokenType.SET and (after is None or after in _CLAUSES) and at == 0:
            return "column = expression", at + 1
        elif kind is TokenType.L_PAREN and after is TokenType.R_PAREN and before in (TokenType.IN, TokenType.VALUES):
            return "an expression", at + 1
    return None


def _joined(tokens: Sequence[Token]) -> tuple[str, int] | None:
    open_ = [0]
    """Joins that have no condition yet, by depth of parentheses."""
    for at, token in enumerate(tokens):
        kind = token.token_type
        if kind is TokenType.JOIN:
            open_[-1] += not _is_without(tokens, at)
        elif kind in (TokenType.ON, TokenType.USING):
            open_[-1] -= open_[-1] > 0
        elif kind is TokenType.L_PAREN:
            open_.append(0)
        elif kind is TokenType.R_PAREN or kind is TokenType.COMMA or kind in _CLAUSES:
            if open_[-1]:
                return "ON or USING, the condition of the join (CROSS JOIN has none)", at
            if kind is TokenType.R_PAREN and len(open_) > 1:
                open_.pop()
    return ("ON or USING, the condition of the join (CROSS JOIN has none)", len(tokens)) if open_[-1] else None


def _is_without(tokens: Sequence[Token], at: int) -> bool:
    while at and tokens[at - 1].token_type in _SIDES:
        at -= 1
    return bool(at) and tokens[at - 1].token_type in _WITHOUT
