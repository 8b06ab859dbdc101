"""Tokens of a text, read one after the other, with errors that say where."""

import decimal
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NoReturn, TypeAlias, TypeVar

from persist.client.sql.errors import SqlSyntax
from persist.client.sql.parse.literals import Cut, Literals, restored, shortened
from persist.core.catalog.ddl.statements import NAME_MAX, QualifiedName
from persist.extras import extra
from persist.redaction import learn_environment
from persist.typed import AnyValue

with extra("sql"):
    from sqlglot import exp
    from sqlglot.dialects.postgres import Postgres
    from sqlglot.errors import ParseError, TokenError
    from sqlglot.parsers.postgres import PostgresParser
    from sqlglot.tokenizer_core import Token, TokenType

T = TypeVar("T")

Params: TypeAlias = Mapping[str, Any]
"""Values of parameters, by what stands behind the ``:`` or ``$`` of them; those of ``?`` are ``1``, ``2``, …"""


class Dialect(Postgres):
    """PostgreSQL's, in which no word swallows the rest of its statement."""

    class Tokenizer(Postgres.Tokenizer):
        """See there."""

        COMMANDS: ClassVar[set[TokenType]] = set()
        # A cast behind a parameter, ``?::int``, is two signs.
        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            word: kind for word, kind in Postgres.Tokenizer.KEYWORDS.items() if word != "?::"
        }

    class Parser(PostgresParser):
        """See there."""

        RANGE_PARSERS: ClassVar[dict[TokenType, Any]] = {
            **PostgresParser.RANGE_PARSERS,
            TokenType.IS: lambda self, this: (
                _unknown(self, this) or PostgresParser.RANGE_PARSERS[TokenType.IS](self, this)
            ),
        }
        FUNCTIONS: ClassVar[dict[str, Any]] = {
            **PostgresParser.FUNCTIONS,
            "EVERY": exp.LogicalAnd.from_arg_list,
        }


def _unknown(parser: PostgresParser, this: exp.Expr) -> exp.Expr | None:
    """IS [NOT] UNKNOWN: of a condition, that it is neither. None: something else stands there."""
    found = next((words for words in (("UNKNOWN",), ("NOT", "UNKNOWN")) if parser._match_text_seq(*words)), ())
    if not found:
        return None
    asked = exp.Is(this=exp.Paren(this=exp.EQ(this=this, expression=exp.true())), expression=exp.Null())
    return exp.Not(this=asked) if len(found) > 1 else asked


class _Undollared(Dialect):
    """Where no text stands between dollars: ``$1,$`` begins one otherwise, as whatever stands between two of them."""

    class Tokenizer(Dialect.Tokenizer):
        """See there."""

        HEREDOC_STRINGS: ClassVar[list[str | tuple[str, str]]] = []
        SINGLE_TOKENS: ClassVar[dict[str, TokenType]] = {**Postgres.Tokenizer.SINGLE_TOKENS, "$": TokenType.PARAMETER}


_DOLLARS: Final = re.compile(r"\$(?:[^\W\d]\w*)?\$")


def _tokenized(text: str) -> "list[Token]":
    dialect = Dialect if _DOLLARS.search(text) is not None else _Undollared
    return list(_numbered(dialect().tokenize(text)))


TEXTS: Final = frozenset(
    {TokenType.STRING, TokenType.HEREDOC_STRING, TokenType.BYTE_STRING, TokenType.RAW_STRING, TokenType.UNICODE_STRING}
)
"""Tokens that are texts."""
_WORD: Final = re.compile(r"[^\W\d][\w$]*")
_RESERVED_WORDS: Final = """
all and any as asc between by case cast check column constraint create desc distinct do else end except false
fetch for foreign from grant group having in inner insert intersect into is join left like limit not null
offset on or order primary references right select some table then to true union unique up using values view
when where with
"""
RESERVED: Final = frozenset(_RESERVED_WORDS.split())


TOKENS_MAX: Final = 300_000
"""Tokens of a text; rows of literals are none, if they are many. Each becomes a kilobyte, and takes 50 µs."""

_ABOUT_A_TOKEN: Final = re.compile(r"'[^']*'|\w+|[^\s\w]")


def tokens_of(text: str, params: Params | None = None) -> "Tokens":
    """The tokens of a text. Raises SqlSyntax: a quote or a comment that does not end, or too many tokens."""
    _check_size(text)
    try:
        return Tokens(text, _tokenized(text), params or {})
    except TokenError:
        # What stands there may be secret, and which statement it belongs to is not known.
        raise SqlSyntax("a quote or a comment does not end", hint="close it") from None


def tokens_without(text: str, params: Params, cuts: Sequence[Cut]) -> "Tokens | None":
    """The tokens of a text but ``cuts``. None: these do not stand between tokens. Raises SqlSyntax: too many."""
    short = shortened(text, cuts)
    _check_size(short)
    try:
        found = restored(text, _tokenized(short), cuts)
    except TokenError:
        return None
    return None if found is None else Tokens(text, found[0], params, found[1])


def _check_size(text: str) -> None:
    if len(text) <= TOKENS_MAX:
        return
    count = sum(1 for _ in itertools.islice(_ABOUT_A_TOKEN.finditer(text), TOKENS_MAX + 1))
    if count > TOKENS_MAX:
        raise SqlSyntax(
            "the text has too many words, values and signs",
            hint="COPY reads rows from files, session.insert(name, rows) takes them from memory;"
            " in VALUES, rows of literals alone do not count; of conditions, join a table",
            most=TOKENS_MAX,
        )


class Tokens:
    """A text's tokens and a place in them.

    ``rows``: lists of literal rows that are no tokens, by where they begin. A token stands in the place of each.
    """

    def __init__(
        self, text: str, tokens: Sequence[Token], params: Params, rows: Mapping[int, Literals] | None = None
    ) -> None:
        self.text = text
        self.at = 0
        self._tokens = list(tokens)
        self._params = params
        self._rows = rows or {}
        self._is_read = False

    @property
    def peek(self) -> Token | None:
        """The next token; None at the end of the statement."""
        token = self._tokens[self.at] if self.at < len(self._tokens) else None
        return None if token is None or token.token_type is TokenType.SEMICOLON else token

    def statements(self) -> "list[Tokens]":
        """The statements of a text, each with its own tokens; empty ones are none."""
        found: list[list[Token]] = [[]]
        for token in self._tokens:
            if token.token_type is TokenType.SEMICOLON:
                found.append([])
            else:
                found[-1].append(token)
        return [Tokens(self.text, each, self._params, self._rows) for each in found if each]

    @property
    def first(self) -> Token:
        """Where the statement begins."""
        return self._tokens[0]

    @property
    def raw(self) -> list[Token]:
        """All of them."""
        return self._tokens

    def is_row(self, token: Token) -> bool:
        """Whether a token stands for rows that are no tokens."""
        return token.start in self._rows

    def fail_at(self, expected: str, token: Token | None) -> NoReturn:
        """As ``fail``; None: at the end of the statement."""
        self.at = len(self._tokens)
        self.fail(expected, token=token)

    @property
    def source(self) -> str:
        """The characters of the statement."""
        return self.text[self._tokens[0].start : self._tokens[-1].end + 1]

    def fail(self, expected: str, *, hint: str = "", token: Token | None = None) -> NoReturn:
        """Raise SqlSyntax: something else was expected here."""
        found = token or self.peek
        last = self._tokens[-1]
        line, column = place(self.text, found.start if found is not None else last.end + 1)
        raise SqlSyntax(
            f"expected {expected}",
            hint=hint,
            line=line,
            column=column,
            at="the end" if found is None else self._shown(found),
        )

    @property
    def is_secretive(self) -> bool:
        """Whether secrets may be in it: those of upstreams, and of what sinks write to."""
        first, second = (*(each.text.upper() for each in self._tokens[:2]), "")[:2]
        return first == "CREATE" and second in ("SOURCE", "SINK")

    def learn(self) -> None:
        """Have nothing here say what may be secret in it, before anything else is done with it."""
        if not self.is_secretive:
            return
        before = ""
        for token in self._tokens:
            if token.token_type in TEXTS:
                learn_environment({before: token.text})
            elif token.token_type is not TokenType.EQ:
                before = token.text

    def _shown(self, token: Token) -> str:
        """A token in an error. What options say is not repeated: a secret without its quotes is any word."""
        options = next((each.start for each in self._tokens if each.token_type is TokenType.L_PAREN), token.end)
        if self.is_secretive and token.start > options:
            return "what is not shown, as it may be secret"
        return repr(self.text[token.start : token.end + 1])[:80]

    def is_word(self, *words: str, ahead: int = 0) -> bool:
        """Whether these words come next."""
        for offset, word in enumerate(words):
            at = self.at + ahead + offset
            token = self._tokens[at] if at < len(self._tokens) else None
            if token is None or token.token_type in TEXTS or token.token_type is TokenType.IDENTIFIER:
                return False
            if token.text.upper() != word:
                return False
        return True

    def word(self, *words: str) -> bool:
        """Take these words, if they come next."""
        found = self.is_word(*words)
        self.at += len(words) if found else 0
        return found

    def one_of(self, *words: str) -> str | None:
        """Take one of these words, if one comes next."""
        return next((word for word in words if self.word(*word.split())), None)

    def expect(self, *words: str, hint: str = "") -> None:
        """Take these words. Raises SqlSyntax."""
        for word in words:
            if not self.word(word):
                self.fail(word, hint=hint)

    def at_end(self, ahead: int) -> bool:
        """Whether so many tokens on there is none."""
        return self.at + ahead >= len(self._tokens)

    def until(self, end: int) -> "Tokens":
        """The tokens from here to ``end``, with their places in the statement."""
        cut = Tokens(self.text, self._tokens[:end], self._params, self._rows)
        cut.at = self.at
        return cut

    def end(self) -> None:
        """Nothing more comes. Raises SqlSyntax."""
        if self.peek is not None:
            self.fail("the end of the statement", hint="statements are parted by ;")

    def name(self, what: str = "a name", *, reserved: bool = False) -> str:
        """A part of a name: in double quotes as it is, else in small letters. ``reserved``: also words of SQL.

        Raises SqlSyntax.
        """
        token = self.peek
        quoted = token is not None and token.token_type is TokenType.IDENTIFIER
        plain = token is not None and token.token_type not in TEXTS and _WORD.fullmatch(token.text) is not None
        if token is None or not (quoted or (plain and (reserved or token.text.lower() not in RESERVED))):
            self.fail(what, hint="put names that are words of SQL, or have other characters, in double quotes")
        if not 0 < len(token.text) <= NAME_MAX or not token.text.isprintable():
            self.fail(what, hint=f"printable, at most {NAME_MAX} characters")
        self.at += 1
        return token.text if quoted else token.text.lower()

    def names(self, what: str = "a name") -> tuple[str, ...]:
        """Names parted by commas, in parentheses. Raises SqlSyntax."""
        self.expect("(")
        found = self.listed(lambda: self.name(what))
        self.expect(")")
        return found

    def dotted(self, most: int = 3, what: str = "a name", *, reserved: bool = False) -> tuple[str, ...]:
        """A name of up to so many parts, each as in ``name``. Raises SqlSyntax."""
        parts = [self.name(what, reserved=reserved)]
        while len(parts) < most and self.word("."):
            parts.append(self.name(what, reserved=reserved))
        return tuple(parts)

    def qualified(self, what: str = "a name") -> QualifiedName:
        """The name of an item. Raises SqlSyntax."""
        return QualifiedName(*reversed(self.dotted(3, what)))

    def listed(self, one: Callable[[], T]) -> tuple[T, ...]:
        """One or several, parted by commas."""
        found = [one()]
        while self.word(","):
            found.append(one())
        return tuple(found)

    def string(self, what: str = "a text in single quotes") -> str:
        """A text. Raises SqlSyntax."""
        text = self.optional_string()
        return self.fail(what) if text is None else text

    def optional_string(self) -> str | None:
        """A text, if one comes next."""
        token = self.peek
        if token is None or token.token_type not in TEXTS:
            return None
        self.at += 1
        return token.text

    def integer(self, what: str = "a whole number") -> int:
        """A number, not below zero. Raises SqlSyntax."""
        number = self.optional_integer()
        return self.fail(what) if number is None else number

    def optional_integer(self) -> int | None:
        """A number, if one comes next."""
        token = self.peek
        if token is None or token.token_type is not TokenType.NUMBER or not token.text.isdecimal():
            return None
        self.at += 1
        return int(token.text)

    def param(self) -> AnyValue:
        """The value of a parameter, if one comes next; else None. Raises SqlSyntax: it has none."""
        token = self.peek
        if token is None or token.token_type not in (TokenType.PARAMETER, TokenType.COLON):
            return None
        self.at += 1
        if self.peek is None:
            self.fail("the name of a parameter")
        name = self.peek.text
        if name not in self._params:
            self.fail("a parameter that was given", hint=f"given are {', '.join(self._params) or 'none'}")
        self.at += 1
        return self._params[name]

    @property
    def surplus(self) -> list[str]:
        """The values that no parameter of these tokens takes."""
        taken = {name.text for mark, name in itertools.pairwise(self._tokens) if mark.token_type is TokenType.PARAMETER}
        return [name for name in self._params if name not in taken]

    def literals(self) -> Literals | None:
        """Take VALUES and rows that are no tokens, if these come next, and no more of a query after them."""
        if not self.is_word("VALUES") or self.at_end(1) or not (self.at_end(2) or self.is_word("RETURNING", ahead=2)):
            return None
        found = self._rows.get(self._tokens[self.at + 1].start)
        if found is not None:
            self.at += 2
            self._is_read = True
        return found

    @property
    def lacks(self) -> bool:
        """Whether rows that are no tokens were not taken by ``literals``: the statement is not what its tokens say."""
        count = sum(token.start in self._rows for token in self._tokens) if self._rows else 0
        return count != self._is_read

    def find_last(self, *words: str) -> int | None:
        """Where these words stand outside of all parentheses, from here on, for the last time."""
        depth, found = 0, None
        for at in range(self.at, len(self._tokens)):
            kind = self._tokens[at].token_type
            depth += (kind is TokenType.L_PAREN) - (kind is TokenType.R_PAREN)
            if depth == 0 and self.is_word(*words, ahead=at - self.at):
                found = at
        return found

    def comma(self) -> int:
        """Where the next comma stands outside of all parentheses, from here on; or the end."""
        depth = 0
        for at in range(self.at, len(self._tokens)):
            kind = self._tokens[at].token_type
            depth += (kind is TokenType.L_PAREN) - (kind is TokenType.R_PAREN)
            if kind is TokenType.COMMA and depth == 0:
                return at
        return len(self._tokens)

    def closing(self) -> int:
        """Where the parenthesis ends that comes next. Raises SqlSyntax."""
        depth = 0
        for at in range(self.at, len(self._tokens)):
            kind = self._tokens[at].token_type
            depth += (kind is TokenType.L_PAREN) - (kind is TokenType.R_PAREN)
            if depth == 0:
                return at
        self.fail("a closing parenthesis", token=self._tokens[self.at])

    def expression(self, end: int | None = None, *, after: str = "", before: str = "") -> exp.Expr:
        """What sqlglot makes of the tokens from here to ``end``, which are taken; as if they stood between these texts.

        Raises SqlSyntax.
        """
        tokens = self._tokens[self.at : end]
        if not tokens:
            self.fail("a query")
        dialect = Dialect()
        try:
            parsed = dialect.parser(dialect=dialect).parse(
                [*dialect.tokenize(after), *tokens, *dialect.tokenize(before)], self.text
            )
        except ParseError as error:
            known = error.errors[0] if error.errors else {}
            near = known.get("highlight") or ""
            start = known.get("start_context", "")
            # sqlglot counts columns up to the end of a token.
            line, column = known.get("line") or tokens[0].line, known.get("col") or 1
            raise SqlSyntax(
                _said(known.get("description") or "no statement"),
                hint=f"after {start[-30:]!r}" if start else "",
                line=line,
                column=max(column - len(near) + 1, 1),
                at=repr(near)[:80],
            ) from error
        except RecursionError as error:
            line, column = place(self.text, tokens[0].start)
            hint = "put parts of it into views, or WITH"
            raise SqlSyntax("the statement is nested too deeply", hint=hint, line=line, column=column) from error
        except (TokenError, ValueError, TypeError, AttributeError) as error:
            # What sqlglot does with texts that are no SQL at all is many things.
            line, column = place(self.text, tokens[0].start)
            raise SqlSyntax("no statement", line=line, column=column, at=repr(tokens[0].text)[:80]) from error
        if len(parsed) != 1 or parsed[0] is None:
            self.fail("a query")
        self.at = len(self._tokens) if end is None else end
        return parsed[0].transform(self._filled, copy=False)

    def _filled(self, node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Placeholder | exp.Parameter):
            return node
        name = node.name if isinstance(node, exp.Placeholder) else node.this.name
        if name not in self._params:
            raise SqlSyntax(
                "a parameter has no value", hint=f"given are {', '.join(self._params) or 'none'}", parameter=name or "?"
            )
        return _literal(self._params[name], name)


def _literal(value: AnyValue, name: str) -> exp.Expr:
    """A value as an expression that means it. Raises SqlSyntax: no value of SQL."""
    if type(value).__name__ == "UUID":  # only the runtime may import what makes them
        value = str(value)
    if isinstance(value, bytearray | memoryview):
        value = bytes(value)
    if isinstance(value, float | decimal.Decimal) and not math.isfinite(value):
        return exp.cast(exp.Literal.string(str(value)), "double")
    if isinstance(value, list | tuple):
        return exp.Array(expressions=[_literal(each, name) for each in value])
    try:
        return exp.convert(value)
    except ValueError as error:
        raise SqlSyntax(
            "a parameter is no value of SQL",
            hint="a text, a number, a time, bytes, a list, or None",
            parameter=name,
            got=type(value).__name__,
        ) from error


_MISSING = re.compile(r"Required keyword: '\w+' missing for <class '[\w.]*?(\w+)'>")


def _said(description: str) -> str:
    """What sqlglot says, without names of its classes."""
    missing = _MISSING.match(description)
    if missing is not None:
        return f"something is missing in {missing[1].upper()}"
    return description.partition(" but got <")[0].partition(" for <class")[0].rstrip(". ")


def _numbered(tokens: Sequence[Token]) -> Iterator[Token]:
    """Every ``?`` as ``$1``, ``$2``, and so on: what becomes of their order while a query is parsed is not known."""
    count = 0
    for token in tokens:
        if token.token_type is not TokenType.PLACEHOLDER:
            yield token
            continue
        count += 1
        for kind, text in ((TokenType.PARAMETER, "$"), (TokenType.NUMBER, str(count))):
            yield Token(kind, text, line=token.line, col=token.col, start=token.start, end=token.end)


def place(text: str, offset: int) -> tuple[int, int]:
    """Line and column of a character, from 1."""
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1
