"""Predicates as text: ``id >= 5 and (name like 'x%' or kind in ('a', 'b')) and year(at) between 2020 and 2024``.

Columns are bare names, or quoted with double quotes or backticks. Values are numbers (exact, or with an exponent a
double), 'text' ('' for a quote), true and false. Dates and times are written as text.
"""

import decimal
import math
import re
from typing import Any, Final, TypeAlias

from persist.errors import InvalidArgument
from persist.typed import AnyValue

Term: TypeAlias = tuple[Any, ...]
"""(column, op, value, function), or ("", "or", terms of each side): of a side all terms must hold."""

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
_EXAMPLE: Final = "expected the form \"id >= 5 and (name = 'x' or name like 'y%')\""
_OPPOSITE: Final = {
    "=": "!=", "==": "!=", "!=": "=", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">",
    "in": "not in", "not in": "in", "like": "not like", "not like": "like",
    "is null": "is not null", "is not null": "is null",
}  # fmt: skip
_NO_COLUMN: Final = ("and", "or", "not")
NESTED_MAX: Final = 32
"""Parentheses within each other."""


class Double(float):
    """A number written with an exponent. A float that is given as such is meant by the digits that Python shows."""


def parse_text(text: str) -> list[Term]:
    """The terms of a text, which must all hold. Raises InvalidArgument saying where it stopped making sense."""
    parser = _Parser(text)
    terms = parser.terms(negated=False)
    if not parser.at_end:
        raise parser.error("expected 'and' or 'or'")
    return terms


class _Parser:
    """SUBTLE: ``not`` is carried to the comparisons below it. One with null holds neither way, so nothing is lost."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        at, self._text = 0, text
        end = len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise InvalidArgument("the predicate cannot be read", hint=_EXAMPLE, at=repr(text[at : at + 20]))
            self._tokens.append((match.lastgroup, match.group(match.lastgroup), at))
            at = match.end()
        self._next = self._depth = 0

    @property
    def at_end(self) -> bool:
        return self._next >= len(self._tokens)

    def terms(self, *, negated: bool) -> list[Term]:
        """What ``or`` joins, or with ``negated`` its opposite, as terms that must all hold."""
        sides = [self._all(negated=negated)]
        while self._accept("word", "or"):
            sides.append(self._all(negated=negated))
        return _joined(sides, every=negated)

    def error(self, message: str, back: int = 0) -> InvalidArgument:
        index = self._next - back
        at = self._tokens[index][2] if index < len(self._tokens) else len(self._text)
        return InvalidArgument(
            f"the predicate cannot be read: {message}", hint=_EXAMPLE, at=repr(self._text[at : at + 20])
        )

    def _all(self, *, negated: bool) -> list[Term]:
        sides = [self._one(negated=negated)]
        while self._accept("word", "and"):
            sides.append(self._one(negated=negated))
        return _joined(sides, every=not negated)

    def _one(self, *, negated: bool) -> list[Term]:
        while self._accept("word", "not"):
            negated = not negated
        if not self._accept("mark", "("):
            return self._condition(negated=negated)
        self._depth += 1
        if self._depth > NESTED_MAX:
            raise self.error("too many parentheses within each other")
        terms = self.terms(negated=negated)
        self._expect("mark", ")")
        self._depth -= 1
        return terms

    def _condition(self, *, negated: bool) -> list[Term]:
        function, column = self._operand()
        if self._accept("word", "is"):
            negated = negated != self._accept("word", "not")
            self._expect("word", "null")
            return [(column, "is not null" if negated else "is null", None, function)]
        turned = self._accept("word", "not")
        negated = negated != turned
        if self._accept("word", "between"):
            low = self._value()
            self._expect("word", "and")
            sides = [[(column, op, value, function)] for op, value in ((">=", low), ("<=", self._value()))]
            return _joined([[_opposite(term)] for [term] in sides], every=False) if negated else [*sides[0], *sides[1]]
        if self._accept("word", "in"):
            term: Term = (column, "in", self._list(), function)
        elif self._accept("word", "like"):
            term = (column, "like", self._pattern(), function)
        else:
            kind, op = self._take()
            if kind != "op" or turned:
                raise self.error("expected in, like or between" if turned else "expected an operator", back=1)
            term = (column, op, self._value(), function)
        return [_opposite(term) if negated else term]

    def _accept(self, kind: str, word: str) -> bool:
        if self.at_end:
            return False
        found, text, _ = self._tokens[self._next]
        if found != kind or text.lower() != word:
            return False
        self._next += 1
        return True

    def _take(self) -> tuple[str, str]:
        if self.at_end:
            raise self.error("it ends too early")
        kind, text, _ = self._tokens[self._next]
        self._next += 1
        return kind, text

    def _expect(self, kind: str, word: str) -> None:
        if not self._accept(kind, word):
            raise self.error(f"expected {word!r}")

    def _operand(self) -> tuple[str, str]:
        """A function, empty for none, and its column."""
        bare = not self.at_end and self._tokens[self._next][0] == "word"
        name = self._column()
        if not bare or not self._accept("mark", "("):
            return "", name
        column = self._column()
        self._expect("mark", ")")
        return name.lower(), column

    def _column(self) -> str:
        kind, text = self._take()
        if kind == "quoted":
            mark = text[0]
            return text[1:-1].replace(mark * 2, mark)
        if kind != "word" or text.lower() in _NO_COLUMN:
            raise self.error("expected a column", back=1)
        return text

    def _list(self) -> list[AnyValue]:
        self._expect("mark", "(")
        values = [self._value()]
        while self._accept("mark", ","):
            values.append(self._value())
        self._expect("mark", ")")
        return values

    def _pattern(self) -> str:
        pattern = self._value()
        if not isinstance(pattern, str):
            raise self.error("expected a text", back=1)
        return pattern

    def _number(self, text: str) -> int | Double | decimal.Decimal:
        """As SQL has it: with an exponent a double, else exact."""
        if "e" not in text.lower():
            return int(text) if re.fullmatch(r"[+-]?\d+", text) else decimal.Decimal(text)
        if math.isinf(found := Double(text)):
            raise self.error("the number is beyond all doubles", back=1)
        return found

    def _value(self) -> AnyValue:
        kind, text = self._take()
        if kind == "text":
            return text[1:-1].replace("''", "'")
        if kind == "number":
            return self._number(text)
        if kind == "word" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise self.error("expected a value", back=1)


def _joined(sides: list[list[Term]], *, every: bool) -> list[Term]:
    """Terms that all hold where each side does (``every``), or where one does."""
    if every or len(sides) == 1:
        return [term for side in sides for term in side]
    return [("", "or", sides)]


def _opposite(term: Term) -> Term:
    column, op, value, function = term
    return column, _OPPOSITE[op], value, function
