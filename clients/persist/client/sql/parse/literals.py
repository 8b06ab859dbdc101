"""Lists of rows that are nothing but literals, cut out of a text before it becomes tokens and expressions.

A row that is parsed costs a millisecond, and kilobytes; here it costs its characters. What is cut out is taken only
where the tokens of the rest say that it stood between tokens at all, and not within a text or a comment.
Source: docs/sql.md, INSERT.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from persist.extras import extra

with extra("sql"):
    from sqlglot.tokenizer_core import Token, TokenType

ROWS_MIN: Final = 16
"""Fewer rows than these are parsed as everything else is."""
COLUMNS_MAX: Final = 1000

MARK: Final = " 0 "
"""What stands in the place of rows that were cut out: one token."""

_BLANK: Final = r"[ \t\r\n]*"
_LITERAL: Final = r"-?(?:0|[1-9]\d{0,37})(?:\.\d{1,37})?|'[^'\0]*(?:''[^'\0]*)*'|true|false|null"
_VALUES: Final = re.compile(rf"\bvalues{_BLANK}(?=\()", re.IGNORECASE | re.ASCII)
_FIRST: Final = re.compile(rf"{_BLANK}(?:{_LITERAL}){_BLANK}([,)])", re.IGNORECASE | re.ASCII)
_NEXT: Final = re.compile(rf"{_BLANK},{_BLANK}(?=\()", re.ASCII)
_MORE: Final = re.compile(rf"{_BLANK},", re.ASCII)


@dataclass(frozen=True, slots=True)
class Literals:
    """``VALUES (…), (…)`` of numbers, texts, true, false and null. ``source``: as it was written.

    ``columns``: each with its literals as they were written.
    """

    source: str
    columns: tuple[tuple[str, ...], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Cut:
    """Characters of a text that are rows: those from ``start`` to ``end``."""

    start: int
    end: int
    rows: Literals


def cuts(text: str) -> list[Cut]:
    """Where a text may have lists of literal rows that are long. Some may stand within texts or comments."""
    found: list[Cut] = []
    at = 0
    while (values := _VALUES.search(text, at)) is not None:
        at = values.end()
        if (cut := _cut(text, values.start(), at)) is not None:
            found.append(cut)
            at = cut.end
    return found


def _cut(text: str, values: int, start: int) -> Cut | None:
    """The rows that begin at ``start``; None: they are few, of different lengths, or not of literals alone."""
    width = _width(text, start)
    if width is None:
        return None
    row = re.compile(
        rf"\({_BLANK}({_LITERAL})" + rf"{_BLANK},{_BLANK}({_LITERAL})" * (width - 1) + rf"{_BLANK}\)",
        re.IGNORECASE | re.ASCII,
    )
    found: list[Sequence[str]] = []
    at = end = start
    while (match := row.match(text, at)) is not None:
        found.append(match.groups())
        end = match.end()
        more = _NEXT.match(text, end)
        if more is None:
            break
        at = more.end()
    if len(found) < ROWS_MIN or _MORE.match(text, end):
        return None
    return Cut(start, end, Literals(text[values:end], tuple(zip(*found, strict=True))))


def _width(text: str, start: int) -> int | None:
    """How many literals the row has that begins here."""
    at = start + 1
    for width in range(1, COLUMNS_MAX + 1):
        literal = _FIRST.match(text, at)
        if literal is None:
            return None
        if literal[1] == ")":
            return width
        at = literal.end()
    return None


def shortened(text: str, found: Sequence[Cut]) -> str:
    """The text with a mark in the place of each."""
    ends = [0, *(cut.end for cut in found)]
    starts = [*(cut.start for cut in found), len(text)]
    return MARK.join(text[end:start] for end, start in zip(ends, starts, strict=True))


def restored(
    text: str, tokens: Sequence[Token], found: Sequence[Cut]
) -> tuple[list[Token], dict[int, Literals]] | None:
    """Tokens of the shortened text with their places in the whole one, and what was cut out by where its mark stands.

    None: a mark is no token behind VALUES, so it stood within something else.
    """
    marks = {mark: cut for mark, cut in zip(_marks(found), found, strict=True)}
    rows: dict[int, Literals] = {}
    put: list[Token] = []
    moved = _Moved()
    for token in tokens:
        cut = marks.get(token.start)
        if cut is None:
            put.append(moved.place(token))
            continue
        if token.end != token.start or not put or put[-1].token_type is not TokenType.VALUES:
            return None
        rows[cut.start] = cut.rows
        put.append(Token(token.token_type, token.text, token.line, token.col, cut.start, cut.start))
        moved = moved.behind(token, cut, text)
    return (put, rows) if len(rows) == len(found) else None


def _marks(found: Sequence[Cut]) -> Iterator[int]:
    """Where the tokens of the marks are in the shortened text."""
    gone = 0
    for cut in found:
        yield cut.start - gone + 1
        gone += cut.end - cut.start - len(MARK)


class _Moved(NamedTuple):
    """How much further on tokens stand in the whole text: characters, lines, and columns where the line is ``line``."""

    characters: int = 0
    lines: int = 0
    columns: int = 0
    line: int = 0

    def place(self, token: Token) -> Token:
        if not self.characters:
            return token
        return Token(
            token.token_type,
            token.text,
            token.line + self.lines,
            token.col + (self.columns if token.line == self.line else 0),
            token.start + self.characters,
            token.end + self.characters,
            token.comments,
        )

    def behind(self, mark: Token, cut: Cut, text: str) -> "_Moved":
        """Of what comes after a mark."""
        lines = text.count("\n", cut.start, cut.end)
        if lines:
            column = cut.end - text.rfind("\n", cut.start, cut.end)
        else:
            column = self.place(mark).col - 1 + cut.end - cut.start
        return _Moved(cut.end - mark.start - 2, self.lines + lines, column - mark.col - 2, mark.line)
