"""Names of shards: which ids a name may have. The one place that derives a shard's id from its name.

Nothing lists names: a name's shard has an id that follows from it. There is more than one way in which it may follow:
a table that is written through a log, or on a timeline of its own, has an id that says so, and so had every table once.
A look-up by name looks at all of them, and where two are there a person has to say which one is meant.
Source: docs/formats.md, keys; docs/concepts.md, names.
"""

import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from persist.core.ids import ShardId
from persist.errors import AmbiguousName, InvalidArgument, ShardNotFound

EPOCH_TIMELINE: Final = "M"
"""The text of the timeline that everything is on unless something else is said."""
CATALOG_SEED: Final = 1
"""Another seed, another shard: should a catalog ever move, it takes a new one, and no old one again."""
MODES: Final = ("direct", "wal")

NEAR_MAX: Final = 5
_GUESSED_MAX: Final = 64
"""Characters; names near a longer one are not guessed."""
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."


@dataclass(frozen=True, slots=True)
class Named:
    """A shard that a name may have. ``mode`` None: the first writer made it; it may be anything but a log.

    ``kept_by``: what it is of which persist itself writes the rows, such as a materialized view; empty: users write.
    ``keyed``: a table with a primary key, of which no two rows have one key. ``item``: the full name of the item that
    has it; empty: none has.
    """

    shard: ShardId
    mode: str | None = None
    timeline: str = EPOCH_TIMELINE
    kept_by: str = ""
    keyed: bool = False
    item: str = ""

    def check_written(self, name: str) -> None:
        """Raise InvalidArgument where rows of others would come between those that are computed, or ingested."""
        if self.kept_by:
            raise InvalidArgument(
                f"this is a {self.kept_by}: nothing else writes its rows",
                hint="write to what it is made of; read it by SQL, or by name",
                name=self.item or name,
                shard=self.shard,
            )

    def check_appended(self, name: str) -> None:
        """Raise InvalidArgument where rows may not be appended to the shard as they come: persist writes them, they go
        through a log, or they have to be looked at first.
        """
        self.check_written(name)
        if self.mode == "wal":
            raise InvalidArgument(
                "this is a table that is written through a log",
                hint=f'write with client.table({self.item or name!r}, mode="wal"), or INSERT of SQL',
                name=self.item or name,
                shard=self.shard,
            )
        if self.keyed:
            raise InvalidArgument(
                "this is a table with a primary key, which an append would not look at",
                hint=f"write with client.table({self.item or name!r}), or INSERT of SQL. A table that Spark, "
                "persist shard append or a program appends to is made without PRIMARY KEY",
                name=self.item or name,
                shard=self.shard,
            )

    def check_no_item(self) -> None:
        """Raise InvalidArgument where holds, views and statements count on the shard: it goes with its item alone."""
        if self.item:
            raise InvalidArgument(
                "an item of the environment has this shard",
                hint="DROP it in SQL (a source: persist source drop), or first give the shard back: "
                "persist catalog leave",
                item=self.item,
                shard=self.shard,
            )

    def serves(self, mode: str, timeline: str) -> bool:
        """Whether a table of this mode and timeline may be this shard."""
        return (self.mode or "direct", self.timeline) == (mode, timeline)

    def __str__(self) -> str:
        if self.mode is None:
            return f"{self.shard} (written by name)"
        return f"{self.shard} (a table with mode={self.mode}, timeline={self.timeline})"


def is_id(text: object) -> bool:
    """Whether this is, or wants to be, a shard's id, and is not a name."""
    return isinstance(text, str) and len(text) > 30 and text.startswith("s") and text.count("-") == 4


def check_name(name: object) -> str:
    """The name. Raises InvalidArgument unless it is a text with something to see in it."""
    if not isinstance(name, str) or not name.strip() or "\0" in name or not name.isprintable():
        raise InvalidArgument("a shard has a name, or an id", hint="a text, such as flights", got=repr(name)[:80])
    return name


def id_or_name(given: object) -> ShardId | str:
    """The id that was given, or the name. Raises InvalidId (a malformed id), InvalidArgument (no name either)."""
    if is_id(given):
        return ShardId.parse(given)
    return check_name(given)


def is_plain(name: str) -> bool:
    """Whether no other name looks the same: no blanks around it, and accents composed with their letters (NFC)."""
    return name == unicodedata.normalize("NFC", name.strip())


def new_shard(name: str, mode: str = "direct", timeline: str = EPOCH_TIMELINE) -> ShardId:
    """The id that a name has once it is written first: the same through every door. Raises InvalidArgument.

    A shard that earlier releases gave another name, see ``is_plain``, is found by it as before.
    """
    if not is_plain(check_name(name)):
        plain = unicodedata.normalize("NFC", name.strip())
        raise InvalidArgument(
            "a new name has no blanks around it, and its accents composed (NFC): another one looks the same",
            hint=f"{plain!r}, or the id of a shard",
            got=ascii(name)[:80],
        )
    return _shard(name, mode, timeline)


def _shard(name: str, mode: str = "direct", timeline: str = EPOCH_TIMELINE) -> ShardId:
    if (mode, timeline) == ("direct", EPOCH_TIMELINE):
        return ShardId.named("table", name)
    return ShardId.named("persist.table", mode, timeline, name)


def catalog_shard(environment: str) -> ShardId:
    """The shard of the catalog of an environment, the same everywhere and for ever. Raises InvalidArgument."""
    if not _is_text(environment):
        raise InvalidArgument("an environment has a name", hint="text without NUL", got=repr(environment)[:80])
    return ShardId.named("persist.catalog", environment, CATALOG_SEED)


def _is_text(given: object) -> bool:
    half = isinstance(given, str) and any("\ud800" <= char <= "\udfff" for char in given)
    return isinstance(given, str) and given != "" and "\0" not in given and not half


def possible(name: str, timelines: Iterable[str] = ()) -> tuple[Named, ...]:
    """All shards that a name may have, on the timeline of everything and on these. Raises InvalidArgument."""
    first = Named(_shard(check_name(name)))
    tables = (
        Named(ShardId.named("persist.table", mode, timeline, name), mode, timeline)
        for timeline in dict.fromkeys((EPOCH_TIMELINE, *timelines))
        for mode in MODES
    )
    return first, *tables


def only(name: str, found: Sequence[Named]) -> Named | None:
    """The one that is there, if any. Raises AmbiguousName, which says how to choose one."""
    if len(found) < 2:
        return next(iter(found), None)
    first = found[0].shard
    raise AmbiguousName(
        "several shards have this name",
        hint=f"give the id of the one that is meant in its place: client.open({str(first)!r}), "
        f'persist shard snapshot {first}, .option("shard", "{first}")',
        name=name,
        shards=", ".join(map(str, found)),
    )


def among(given: str, shards: Collection[str]) -> ShardId:
    """The shard of this id or name, of all that there are. Raises ShardNotFound (for a name), AmbiguousName."""
    wanted = id_or_name(given)
    if isinstance(wanted, ShardId):
        return wanted
    found = only(wanted, [each for each in possible(wanted) if each.shard in shards])
    if found is None:
        raise not_found(wanted, near(wanted, shards))
    return found.shard


def not_found(name: str, near: Sequence[str] = ()) -> ShardNotFound:
    """The error for a name without a shard."""
    meant = f"did you mean {' or '.join(near)}? " if near else "check the name and the location; "
    hint = f"{meant}a shard is made by its first write, with a schema"
    details = {"near": " or ".join(near)} if near else {}
    return ShardNotFound("no such shard here", hint=hint, name=name, **details)


def near(name: str, shards: Collection[str]) -> list[str]:
    """Names of these shards that are one letter, or the case, away from this one. Names are not kept, so guessed."""
    if len(name) > _GUESSED_MAX or not shards:
        return []
    ids = frozenset(shards)
    found = []
    for guess in sorted(set(_guesses(name)) - {name}):
        try:
            known = possible(guess)
        except InvalidArgument:
            continue
        if any(each.shard in ids for each in known):
            found.append(guess)
    return found[:NEAR_MAX]


def _guesses(name: str) -> Iterator[str]:
    yield from (name.lower(), name.upper(), name.capitalize(), name.strip())
    yield from (unicodedata.normalize(form, name.strip()) for form in ("NFC", "NFD"))
    for at in range(len(name) + 1):
        before, after = name[:at], name[at:]
        yield from (before + letter + after for letter in _LETTERS)
        if after:
            yield before + after[1:]
            yield from (before + letter + after[1:] for letter in _LETTERS)
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]
