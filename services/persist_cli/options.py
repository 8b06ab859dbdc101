"""Options that several commands share, and what they name: a persist location, reached one way or another."""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from persist_cli.terminal import note

if TYPE_CHECKING:
    from pathlib import Path

    import persist
    from persist.settings import Settings

SERVERS: Final = frozenset({"dev", "serve"})
"""Commands that run for weeks."""
LOCATION: Final = "Location (one of them)"
RUN: Final = "This run"


def finite(value: float | None) -> float | None:
    """An option's number. Raises BadParameter for an infinite one: what it bounds is computed with."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("a finite number, please")
    return value


Endpoint = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        envvar="PERSIST_ENDPOINT",
        help="A PersistShard; several, comma separated. Port 7100 if none is named.",
        rich_help_panel=LOCATION,
    ),
]
Location = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        envvar="PERSIST_LOCATION",
        help="A directory, without any server.",
        rich_help_panel=LOCATION,
    ),
]
BlobUri = Annotated[
    str | None,
    typer.Option(
        "--blob",
        metavar="URI",
        envvar="PERSIST_BLOB",
        help="Blob store: s3://bucket/prefix, file:/dir.",
        rich_help_panel=LOCATION,
    ),
]
ConsensusUri = Annotated[
    str | None,
    typer.Option(
        "--consensus",
        metavar="URI",
        envvar="PERSIST_CONSENSUS",
        help="Consensus store: postgres://…, redis://…, sqlite:/file.",
        rich_help_panel=LOCATION,
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        min=0.1,
        callback=finite,
        envvar="PERSIST_TIMEOUT",
        help="Longest wait for an answer.",
        rich_help_panel=RUN,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.", rich_help_panel=RUN)]
AllowUnsafe = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-unsafe",
        metavar="FINDING",
        help="Accept one unsafe store setting by its name; repeatable.",
        rich_help_panel=RUN,
    ),
]
Age = Annotated[
    float,
    typer.Option(
        "--safe-age",
        metavar="HOURS",
        min=0.0,
        callback=finite,
        help="Writers that began earlier, and that the shard does not know, are refused from then on.",
    ),
]
After = Annotated[
    str, typer.Option("--after", metavar="SHARD", help="Go on behind this shard, where an earlier run was cut off.")
]
Commit = Annotated[bool, typer.Option("--commit", help="Do it. Otherwise only show what would be done.")]

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130
_SERVER: Final = re.compile(r"[\w.-]+:\d{1,5}")
TIMEOUT_SECONDS = 30.0
PLACES: Final = ("endpoint", "location", "blob", "consensus")


@dataclass(kw_only=True)
class Invocation:
    """One run of the command: where settings come from, and how to report a failure."""

    arguments: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    debug: bool = False
    json: bool = False
    hushed: bool = False
    vocabulary: Callable[[], Iterable[str]] = tuple
    """Words of the command line itself: a secret that equals one cannot be distinguished from it."""

    def hush(self) -> None:
        """Nothing given as a secret, in words or in the environment, is said from here on."""
        if self.hushed:
            return
        from persist.redaction import learn, learn_environment, leave_ordinary

        self.hushed = True
        leave_ordinary(self.vocabulary)
        learn_environment(self.environ)
        for argument in self.arguments:
            learn(argument)

    @property
    def branch(self) -> str:
        """The first word of the command. Options before it are flags."""
        return next((word for word in self.arguments if not word.startswith("-")), "")

    def settings(self, allow_unsafe: list[str] | None = None) -> "Settings":
        """The settings of the environment, with these findings accepted as well. Raises InvalidArgument.

        A variable spelt much like a setting is refused by commands that serve, which would run for weeks without what
        was meant, and reported by others.
        """
        import dataclasses

        from persist.settings import Settings, not_known

        def unknown(name: str, meant: str) -> None:
            error = not_known(name, meant)
            if self.branch in SERVERS:
                raise error
            note(f"persist: {error.message}, and passed over: did you mean {meant}?")

        settings = Settings.from_env(self.environ, unknown=unknown)
        return dataclasses.replace(settings, allow_unsafe=(*settings.allow_unsafe, *(allow_unsafe or ())))


@dataclass(kw_only=True)
class Report:
    """How a command reports: for people, or for programs."""

    context: typer.Context
    json: Json = False

    def __post_init__(self) -> None:
        """A failure is reported the same way."""
        self.invocation.json = self.json

    @property
    def invocation(self) -> Invocation:
        """The run of the command."""
        return self.context.ensure_object(Invocation)


@dataclass(kw_only=True)
class Run(Report):
    """How a command reports, and the settings it has."""

    allow_unsafe: AllowUnsafe = None

    def settings(self) -> "Settings":
        """Of the environment, with the findings accepted that were named. Raises InvalidArgument."""
        return self.invocation.settings(self.allow_unsafe)


@dataclass(kw_only=True)
class Where:
    """The location options of a command."""

    context: typer.Context
    endpoint: Endpoint = None
    location: Location = None
    blob: BlobUri = None
    consensus: ConsensusUri = None

    @property
    def given(self) -> dict[str, str]:
        """What was given, on the command line or in the environment."""
        named = {name: getattr(self, name) for name in PLACES}
        return {name: value for name, value in named.items() if value}

    @property
    def typed(self) -> dict[str, str]:
        """What stands on the command line."""
        return {name: value for name, value in self.given.items() if is_typed(self.context, name)}

    def target(self) -> "LocationTarget":
        """The target, when the options name just one. An option on the command line wins over the environment."""
        from persist.errors import InvalidArgument
        from persist.settings import place_of

        try:
            chosen = place_of(self.typed, {f"PERSIST_{name.upper()}": value for name, value in self.given.items()})
        except InvalidArgument as error:
            if "go together" in error.message:
                raise typer.BadParameter("--blob and --consensus go together") from None
            raise typer.BadParameter(
                "name one place: --endpoint HOST:PORT, or --location DIR, or --blob with --consensus"
            ) from None
        _keep_pandas_out()
        words = tuple(word for name, value in self.typed.items() if name in chosen for word in (f"--{name}", value))
        return LocationTarget(**{name: chosen.get(name) for name in PLACES}, words=words)

    def stores(self, work: str) -> "LocationTarget":
        """The target of a command that works on the stores themselves. PERSIST_ENDPOINT counts only without others."""
        others = self.location or self.blob or self.consensus
        if self.endpoint and (is_typed(self.context, "endpoint") or not others):
            raise typer.BadParameter(
                f"{work} goes through Blob and Consensus itself, which no server does on request: give --location DIR, "
                "or --blob URI and --consensus URI as its servers have them, not --endpoint"
            )
        if not others:
            raise typer.BadParameter("name one place: --location DIR, or --blob with --consensus")
        return replace(self, endpoint=None).target()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationTarget:
    """The location the options name: exactly one of an endpoint, a directory, or a pair of stores.

    ``words``: the options that were typed for it. What came from the environment is there for the next command, too.
    """

    endpoint: str | None
    location: str | None
    blob: str | None
    consensus: str | None
    words: tuple[str, ...] = ()

    def open(self, settings: "Settings", *, begin: bool = False, reads: bool = False) -> "persist.Client":
        """A client of the location: a context manager. Raises PersistError.

        ``begin``: make the location if it is not there; otherwise that is refused with InvalidArgument. One that lost
        its Consensus is refused with UnsafeConfiguration either way. ``reads``: of a directory that may not be written
        what there is is read.
        """
        import persist

        self.check_not_lost(settings)
        if not begin:
            self.check_there()
        if self.endpoint is not None:
            return persist.connect(self.endpoint, blob=self.blob, settings=settings)
        if self.location is not None:
            read_only = reads and self.is_only_read()
            return persist.embedded(self.location, read_only=read_only, settings=settings)
        return persist.embedded(blob=self.blob, consensus=self.consensus, settings=settings)

    def is_only_read(self) -> bool:
        """Whether this is a directory that is there and may not be written, which is noted then."""
        from persist.storage.layout import CONSENSUS_NAME, root_of

        there = self.location is not None and (root_of(self.location) / CONSENSUS_NAME).exists()
        if not there or self.may_write():
            return False
        note("this directory may not be written: it is read as it is now, and nothing holds what is read")
        return True

    def may_write(self) -> bool:
        """Whether the files of a directory may be written, as far as permissions show."""
        from pathlib import Path

        from persist.storage.layout import CONSENSUS_NAME

        folder = Path(self.location or "").expanduser()
        return os.access(folder, os.W_OK) and os.access(folder / CONSENSUS_NAME, os.W_OK)

    def check_there(self) -> None:
        """This location was begun, as far as files show. Raises InvalidArgument.

        Opening makes the files that are not there: a misspelt name would show an empty location, and leave it behind.
        """
        from pathlib import Path

        from persist.storage.layout import CONSENSUS_NAME, root_of

        if self.location is not None:
            root_of(self.location)
            folder = Path(self.location).expanduser()
            check_file(folder / CONSENSUS_NAME, "no persist location", directory=folder)
        elif self.consensus is not None and self.consensus.startswith("sqlite:"):
            check_file(sqlite_file(self.consensus), "no persist location")

    def is_there(self) -> bool:
        """Whether ``check_there`` finds it so."""
        from persist.errors import InvalidArgument

        try:
            self.check_there()
        except InvalidArgument:
            return False
        return True

    def check_not_lost(self, settings: "Settings") -> None:
        """Raise UnsafeConfiguration where a Consensus of files is not there and the Blob is of a location that had one.

        Opening would make an empty one, over which all that lies there looks like garbage. Not inside an event loop.
        """
        import asyncio
        import contextlib

        from persist.errors import LocationError
        from persist.machine.identity import check_not_lost
        from persist.runtime import system
        from persist.storage.open import open_blob

        if self.is_there():
            return
        blob_uri, consensus_uri = self.stores()

        async def look() -> None:
            blob = open_blob(blob_uri, settings=settings, runtime=system())
            try:
                # One that does not answer is reported by what opens it.
                with contextlib.suppress(LocationError):
                    await check_not_lost(blob, consensus_uri, settings=settings)
            finally:
                await blob.close()

        asyncio.run(look())

    def check_blobs_there(self) -> None:
        """A directory's Blob is there, whether or not its Consensus is. Raises InvalidArgument."""
        from pathlib import Path

        from persist.errors import InvalidArgument
        from persist.storage.layout import BLOB_NAME

        if self.location is not None and not (Path(self.location).expanduser() / BLOB_NAME).is_dir():
            hint = f"it has no {BLOB_NAME}/; is the name right?"
            raise InvalidArgument("no persist location", hint=hint, directory=self.location)

    def stores(self) -> tuple[str, str]:
        """The URIs of Blob and Consensus. Not for an endpoint: its servers know them."""
        if self.location is not None:
            return directory_stores(self.location)
        if self.blob is None or self.consensus is None:
            raise typer.BadParameter("an endpoint's stores are known to its servers only")
        return self.blob, self.consensus

    def __str__(self) -> str:
        return self.endpoint or self.location or f"{self.blob} + {self.consensus}"


class _NoPandas:
    """A finder of modules that knows only that there is no pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("kept out", name=name)


def _keep_pandas_out() -> None:
    """Have Arrow find no pandas when it looks for one, which it does once, at its first array.

    It would import pandas to recognise arrays of it: a third of a second, and nothing here makes any. What imports
    pandas afterwards gets it, and so does Arrow when it is asked to convert to it.
    """
    import sys

    if "pandas" in sys.modules:
        return
    import pyarrow

    sys.meta_path.insert(0, _NoPandas)
    try:
        pyarrow.scalar(0)
    finally:
        sys.meta_path.remove(_NoPandas)


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line, and not only in the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def check_file(path: "Path", refusal: str, **details: object) -> None:
    """Raise InvalidArgument with this refusal unless the file is there."""
    from persist.errors import InvalidArgument

    if path.is_file():
        return
    lacks = f"it has no {path.name}" if path.parent.is_dir() else f"no such directory: {path.parent}"
    meant = (
        f"for a server say --endpoint {path.parent}" if _SERVER.fullmatch(str(path.parent)) else "is the name right?"
    )
    raise InvalidArgument(refusal, hint=f"{lacks}; {meant}", **(details or {"path": path}))


def sqlite_file(uri: str) -> "Path":
    """The file that a ``sqlite:`` URI names."""
    from pathlib import Path
    from urllib.parse import unquote

    return Path(unquote(uri.removeprefix("sqlite:").partition("?")[0]))


def directory_stores(directory: str) -> tuple[str, str]:
    """Blob and Consensus of a directory, laid out as ``persist.embedded`` lays them out."""
    from urllib.parse import quote

    from persist.storage.layout import BLOB_NAME, CONSENSUS_NAME, root_of

    root = root_of(directory)
    return f"file:{quote(str(root / BLOB_NAME))}", f"sqlite:{quote(str(root / CONSENSUS_NAME))}"
