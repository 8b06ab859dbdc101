"""Secrets a process was given, scrubbed by value from everything it writes or sends.

What takes in a store's URI, a connection string or the environment passes it to ``learn``; what leaves the
process (errors to callers, logs, standard error) goes through ``scrub``. Shapes of credentials (``user:password@``,
``password=``) are scrubbed as well, but a shape can be missed: drivers quote pieces of what they could not read. What a
process must not say is the same for all of it, so this is kept once per process.

Not covered: values of less than four characters, those that equal the user, host or database beside them, and words of
the command line itself. They look like ordinary words. Source: reliability.md section 5, logs and errors.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TextIO
from urllib.parse import quote, quote_plus, unquote, unquote_plus

HIDDEN: Final = "***"
_CHARS_MIN: Final = 4
_PIECE_CHARS_MIN: Final = 4

# What these read was written by strangers, in any length: no place in a text is looked at more than a few times. So
# words are read from their beginning on only, and repetitions give nothing back.
_NAME: Final = r"(?:password|passwd|secret|token|signature|access_key|secret_key)"
# A quote that is not closed hides all that follows: the text may have been cut there.
_NAMED: Final = re.compile(
    rf"(?is)((?<![a-z_-])(?=[a-z_-]*?{_NAME})[a-z_-]++\s*+=\s*+)('(?:[^'\\]|\\.)*+'?|[^\s&,;']++)"
)
_URI: Final = re.compile(r"(?<=[A-Za-z0-9+.-])://(\S*)")
_AUTHORITY: Final = re.compile(r"://([^\s\"'<>]*+)")
# Before an @ alone, databases have a user, which a log should show; others have a key or a token.
_DATABASE: Final = "".join(rf"(?<!{scheme}://)" for scheme in ("postgres", "postgresql", "redis", "rediss"))
_TOKEN: Final = re.compile(rf"(://){_DATABASE}[^\s\"'<>/@:]++@")
_PASSWORD: Final = re.compile(r"(://[^/@:\s]*):\S*@")
_QUERY_PASSWORD: Final = re.compile(r"([?&](?:ssl)?password=)[^&\s]*")
_VARIABLE: Final = re.compile(r"(?i)(password|passwd|secret|token|secret_access_key|secret_key|api_key|_auth)$")

_BEYOND: Final = 4
"""How many times more of a text is scrubbed than is shown, as hiding secrets shortens it."""

_secrets: set[str] = set()
_ordinary: set[str] = {"persist"}
_ordinary_later: list[Callable[[], Iterable[str]]] = []
_pattern: "re.Pattern[str] | None" = None


def learn(text: str) -> None:
    """From now on scrub the passwords of a URI or a connection string, however it may be misread."""
    for secret in _secrets_in(text):
        _keep(secret)


def learn_secret(secret: str) -> None:
    """From now on scrub this, whatever its shape."""
    _keep(secret)


def learn_environment(environ: Mapping[str, str]) -> None:
    """From now on scrub what the environment names as secret, and the secrets of URIs in it."""
    for name, value in environ.items():
        if _VARIABLE.search(name):
            _keep(value)
        learn(value)


def leave_ordinary(words: Callable[[], Iterable[str]]) -> None:
    """Never scrub these words, which persist itself writes: a password that equals one stays visible.

    They are asked for when there is a first secret to compare them with, and most processes are given none.
    """
    _ordinary_later.append(words)


def scrub(text: str, limit: int | None = None) -> str:
    """The text without secrets passed to ``learn``, and without what looks like credentials.

    Takes time in proportion to the text, whatever is in it. With ``limit``, at most so many characters, the last of
    them an ellipsis where something is missing, and work in proportion to the limit: for texts that strangers made.
    """
    if limit is None:
        return _shapeless(_hidden(text))
    longest = max(map(len, _secrets), default=0)
    window = _BEYOND * limit + longest
    if len(text) <= window:
        shown, cut = _shapeless(_hidden(text)), False
    else:
        shown, cut = _shapeless(_without_stump(_hidden(text[:window]), longest)), True
    return shown if len(shown) <= limit and not cut else shown[: limit - 1] + "…"


def without_password(uri: str) -> str:
    """A URI to be shown to those who gave it: user, host and options, but no password."""
    return _hidden(_QUERY_PASSWORD.sub(r"\1…", _PASSWORD.sub(r"\1@", uri)))


class Scrubbed:
    """A text stream that says no secret. Everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def beneath(self) -> TextIO:
        """The stream itself, for what was scrubbed in pieces before they were put together."""
        return self._stream

    def write(self, text: str) -> int:
        """Write the text, scrubbed. Returns the length of what was given."""
        self._stream.write(scrub(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write them all."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def beneath(stream: TextIO) -> TextIO:
    """The stream under one that scrubs; any other is that itself.

    For JSON, whose values are scrubbed where it is made: names in it are ours, and may equal a secret.
    """
    found: TextIO = getattr(stream, "beneath", stream)
    return found


def _hidden(text: str) -> str:
    """The text without secrets passed to ``learn``."""
    return text if _pattern is None else _pattern.sub(HIDDEN, text)


def _shapeless(text: str) -> str:
    """The text without what looks like credentials."""
    text = _TOKEN.sub(rf"\1{HIDDEN}@", _AUTHORITY.sub(_without_credentials, text))
    return _NAMED.sub(rf"\1{HIDDEN}", text)


def _without_credentials(found: "re.Match[str]") -> str:
    before, at, after = found[1].rpartition("@")
    return f"://{HIDDEN}@{after}" if at and ":" in before else found[0]


def _without_stump(text: str, longest: int) -> str:
    """The beginning of a text without what may be the first half of a secret, as its end was cut off."""
    text = text[: len(text) - max(0, longest - 1)]
    for found in _AUTHORITY.finditer(text):
        if found.end() == len(text):
            # An @ may have followed.
            return text[: found.start(1)] + HIDDEN
    return text


def _keep(secret: str) -> None:
    global _pattern
    while _ordinary_later:
        _ordinary.update(_ordinary_later.pop()())
    if secret in _ordinary:
        return
    forms = {secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1]}
    new = {form for form in forms if len(form) >= _CHARS_MIN} - _secrets
    if new:
        _secrets.update(new)
        # The longest first: one may be the beginning of another.
        _pattern = re.compile("|".join(map(re.escape, sorted(_secrets, key=len, reverse=True))))


def _secrets_in(text: str) -> Iterator[str]:
    for found in _NAMED.finditer(text):
        value = found.group(2)
        if value[:1] == "'":
            inside = value[1:].removesuffix("'")
            yield inside
            yield re.sub(r"\\(.)", r"\1", inside)
        yield from _forms(value)
    for found in _URI.finditer(text):
        yield from _secrets_of_authority(found.group(1))


def _secrets_of_authority(rest: str) -> Iterator[str]:
    """The passwords in what follows ``scheme://``, read as drivers do, and otherwise where they disagree."""
    before, at, after = rest.partition("@")
    if not at:
        return
    beyond = after.partition("?")[0]
    if "/" not in before and "@" not in beyond:
        user, _, password = before.partition(":")
        ordinary = {unquote(user), *re.split(r"[:/,]", unquote(beyond))}
        yield from (form for form in _forms(password) if form not in ordinary)
        return
    # An unencoded / or @: each driver takes another piece for the password, and quotes others in its errors.
    muddled = rest.rpartition("@")[0].partition(":")[2]
    yield from _forms(muddled)
    for piece in re.split(r"[/@?#:&=]", muddled):
        if len(piece) >= _PIECE_CHARS_MIN:
            yield from _forms(piece)


def _forms(value: str) -> Iterator[str]:
    if value:
        yield value
        yield unquote(value)
        yield unquote_plus(value)
