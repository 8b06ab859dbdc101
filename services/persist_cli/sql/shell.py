"""The interactive shell: statements that end with a semicolon, commands that begin with a backslash.

Ctrl-C empties the line, or ends the statement that runs; Ctrl-D leaves.
"""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from persist.client.sql.errors import SqlSyntax
from persist.client.sql.parse.text import KNOWN
from persist.client.sql.parse.tokens import tokens_of
from persist.client.sql.session import SqlSession
from persist.core.catalog.errors import Uninitialized
from persist.errors import PersistError
from persist.extras import extra
from persist_cli.sql import running
from persist_cli.terminal import note

if TYPE_CHECKING:
    from persist.client.collections.environment import Environment
    from persist.client.sql.run.port import Runner
    from persist_cli.options import LocationTarget

with extra("sql"):
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory

HELP: Final = """\
\\d          what has a name; \\d NAME its columns
\\timing     say how long statements take, or stop
\\q          leave (Ctrl-D)
\\?          this

Statements end with ; and may take several lines. Ctrl-C ends what runs.
SELECT … AS OF '-5m'          as it was five minutes ago
SUBSCRIBE t WITH (PROGRESS)   every change from now on
EXPLAIN TIMESTAMP FOR …       which time a query reads at, and why
CREATE HOLD h ON t            keep its history from now on"""

_MORE: Final = (
    "AS", "OF", "AT", "LEAST", "FROM", "WHERE", "GROUP", "ORDER", "BY", "HAVING", "LIMIT", "JOIN", "LEFT", "ON",
    "USING", "UNION", "ALL", "DISTINCT", "INTO", "VALUES", "TABLE", "SOURCE", "VIEW", "MATERIALIZED", "INDEX", "HOLD",
    "CURSOR", "SINK", "SCHEMA", "DATABASE", "ROLE", "TABLES", "SOURCES", "VIEWS", "HOLDS", "CURSORS", "SCHEMAS",
    "DATABASES",
    "COLUMNS", "TIMESTAMP", "FOR", "PROGRESS", "SNAPSHOT", "PRIMARY", "KEY", "NOT", "NULL", "IF", "EXISTS", "CASCADE",
    "RETAIN", "HISTORY", "REFRESH", "EVERY", "MAX", "LAG", "ADVANCE", "TO", "UP", "RETURNING", "AND", "OR", "IN", "IS",
    "BETWEEN", "LIKE", "CASE", "WHEN", "THEN", "ELSE", "END", "BIGINT", "INT", "TEXT", "BOOLEAN", "DATE", "NUMERIC",
)  # fmt: skip
WORDS: Final = tuple(sorted({*KNOWN, *_MORE}))


async def interact(
    environment: "Environment",
    form: running.Printed,
    environ: Mapping[str, str],
    target: "LocationTarget | None",
    runner: "Runner | None" = None,
) -> None:
    """Read statements and run them, until the person leaves."""
    session = running.session_of(environment, target, runner)
    shell = Shell(session, form, _history(environ))
    try:
        await shell.run()
    finally:
        await session.close()


def _history(environ: Mapping[str, str]) -> "History":
    base = environ.get("XDG_STATE_HOME")
    folder = (Path(base) if base else Path.home() / ".local" / "state") / "persist"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / "sql_history"
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


class Shell:
    """One person at a terminal."""

    def __init__(self, session: SqlSession, form: running.Printed, history: "History") -> None:
        self._session = session
        self._form = form
        self._timing = False
        self._prompts: PromptSession[str] = PromptSession(
            history=history,
            completer=_Names(session),
            complete_while_typing=False,
            multiline=Condition(lambda: not is_complete(self._prompts.default_buffer.text)),
            prompt_continuation=lambda width, *_: "-> ".rjust(width),
        )

    async def run(self) -> None:
        """Until the person leaves."""
        note("persist sql: statements end with ; and \\? helps")
        while True:
            mark = "!" if self._session.has_failed else "*" if self._session.in_transaction else "="
            try:
                text = await self._prompts.prompt_async(f"persist{mark}> ")
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if not text.strip():
                continue
            if text.strip() in ("\\q", "quit", "exit", "quit;", "exit;"):
                return
            await self._interruptible(self._said(text.strip()))

    async def _said(self, text: str) -> None:
        try:
            if text.startswith("\\"):
                await self._command(*text.removesuffix(";").split(maxsplit=1))
            else:
                await self._statements(text)
        except PersistError as error:
            note(f"persist: {error}")

    async def _command(self, name: str, about: str = "") -> None:
        if name == "\\timing":
            self._timing = not self._timing
            note(f"timing is {'on' if self._timing else 'off'}")
        elif name in ("\\d", "\\dt"):
            text = f"SHOW COLUMNS FROM {about}" if about else "SHOW TABLES" if name == "\\dt" else "SHOW OBJECTS"
            await self._statements(text)
        else:
            if name not in ("\\?", "\\h"):
                note(f"persist: there is no command {name}")
            print(HELP)

    async def _statements(self, text: str) -> None:
        runtime = self._session.environment.access.client.location.runtime
        for each in await self._session.parsed(text):
            begun = runtime.monotonic()
            await running.run_one(self._session, each, self._form)
            if self._timing:
                note(f"{(runtime.monotonic() - begun) * 1000:,.1f} ms")

    async def _interruptible(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        loop = asyncio.get_running_loop()
        handles = True
        try:
            loop.add_signal_handler(signal.SIGINT, task.cancel)
        except (NotImplementedError, RuntimeError):
            # This platform, or this thread, gets no signals: Ctrl-C ends the shell instead of the statement.
            handles = False
        try:
            await task
        except asyncio.CancelledError:
            note("ended")
        finally:
            if handles:
                loop.remove_signal_handler(signal.SIGINT)


def is_complete(text: str) -> bool:
    """Whether Enter runs a text: it ends with a semicolon outside of quotes, or it is a command."""
    stripped = text.strip()
    if not stripped or stripped.startswith("\\") or stripped in ("quit", "exit"):
        return True
    if not stripped.endswith(";"):
        return False
    try:
        tokens_of(stripped)
    except SqlSyntax:
        return False
    return True


class _Names(Completer):
    """Words of SQL, and names that the environment has."""

    def __init__(self, session: SqlSession) -> None:
        self._session = session

    def get_completions(self, document: "Document", event: "CompleteEvent") -> "Iterable[Completion]":
        word = document.get_word_before_cursor(pattern=None, WORD=True).lstrip("(,")
        for text in candidates(word, self._names()):
            yield Completion(text, start_position=-len(word))

    def _names(self) -> Iterator[tuple[str, ...]]:
        with contextlib.suppress(Uninitialized):
            for each in self._session.environment.view.items():
                columns = () if each.schema is None else (*each.schema.key.names, *each.schema.val.names)
                yield (each.name.item, str(each.name), *columns)


def candidates(word: str, names: Iterable[Iterable[str]]) -> list[str]:
    """What a word that was begun may become: words of SQL in the case it is typed in, and names."""
    if not word:
        return []
    upper = word.isupper()
    words = [each if upper else each.lower() for each in WORDS if each.startswith(word.upper())]
    found = sorted({name for group in names for name in group if name.lower().startswith(word.lower())})
    return [*found, *(each for each in words if each not in found)]
