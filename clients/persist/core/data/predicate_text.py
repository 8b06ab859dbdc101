"""Predicates as text: ``id >= 5 and name = 'x' and kind in ('a', 'b') and gone is null``.

Columns are bare names, or quoted with double quotes or backticks. Values are numbers, 'text' ('' for a quote), true and
false. Dates and times are written as text.
"""

import decimal
import re
from typing import Any, Final

from persist.errors import InvalidArgument
from persist.typed import AnyValue

Triple = tuple[str, str, Any]

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)
      | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])
      | (?P<op><=|>=|<>|!=|==|=|<|>)
      | (?P<mark>[(),])
      | (?P<word>[^\W\d][\w.]*)
    )""",
    re.VERBOSE,
)
_EXAMPLE: Final = "expected the form \"id >= 5 and name = 'x'\""


def parse_text(text: str) -> list[Triple]:
    """The (column, op, value) triples of a text. Raises InvalidArgument saying where it stopped making sense."""
    parser = _Parser(text)
    triples = [parser.condition()]
    while parser.accept("word", "and"):
        triples.append(parser.condition())
    if not parser.at_end:
        raise parser.error("expected 'and'")
    return triples


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        at, self._text = 0, text
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise InvalidArgument("the predicate cannot be read", hint=_EXAMPLE, at=repr(text[at : at + 20]))
            self._tokens.append((match.lastgroup, match.group(match.lastgroup), at))
            at = match.end()
        self._next = 0

    @property
    def at_end(self) -> bool:
        return self._next >= len(self._tokens)

    def condition(self) -> Triple:
        column = self._column()
        if self.accept("word", "is"):
            negated = self.accept("word", "not")
            self._expect("null")
            return column, "is not null" if negated else "is null", None
        if self.accept("word", "in"):
            return column, "in", self._list()
        kind, op = self._take()
        if kind != "op":
            raise self.error("expected an operator", back=1)
        return column, op, self._value()

    def accept(self, kind: str, word: str) -> bool:
        if self.at_end:
            return False
        found, text, _ = self._tokens[self._next]
        if found != kind or text.lower() != word:
            return False
        self._next += 1
        return True

    def error(self, message: str, back: int = 0) -> InvalidArgument:
        index = self._next - back
        at = self._tokens[index][2] if index < len(self._tokens) else len(self._text)
        return InvalidArgument(
            f"the predicate cannot be read: {message}", hint=_EXAMPLE, at=repr(self._text[at : at + 20])
        )

    def _take(self) -> tuple[str, str]:
        if self.at_end:
            raise self.error("it ends too early")
        kind, text, _ = self._tokens[self._next]
        self._next += 1
        return kind, text

    def _expect(self, word: str) -> None:
        if not self.accept("word", word):
            raise self.error(f"expected {word!r}")

    def _column(self) -> str:
        kind, text = self._take()
        if kind == "quoted":
            mark = text[0]
            return text[1:-1].replace(mark * 2, mark)
        if kind != "word" or text.lower() in ("and", "or", "not"):
            raise self.error("expected a column", back=1)
        return text

    def _list(self) -> list[AnyValue]:
        if not self.accept("mark", "("):
            raise self.error("expected '('")
        values = [self._value()]
        while self.accept("mark", ","):
            values.append(self._value())
        if not self.accept("mark", ")"):
            raise self.error("expected ')'")
        return values

    def _value(self) -> AnyValue:
        kind, text = self._take()
        if kind == "text":
            return text[1:-1].replace("''", "'")
        if kind == "number":
            return int(text) if re.fullmatch(r"[+-]?\d+", text) else decimal.Decimal(text)
        if kind == "word" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise self.error("expected a value", back=1)
