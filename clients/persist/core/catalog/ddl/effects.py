"""What statements mean for shards and for who holds them: computed with the catalog's changes, done around the commit.

What keeps history longer is done before the commit, what gives it up only after: a crash in between leaves history too
long, and never too short. Source: collections: the controller; reliability.md I21.
"""

from dataclasses import dataclass

from persist.core.catalog.ddl.described import Described
from persist.core.catalog.values import Id
from persist.core.ids import ShardId
from persist.core.names import Named
from persist.core.time.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Held:
    """A hold or a cursor (``id``) is to keep these collections readable from ``at`` on."""

    id: Id
    objects: tuple[Id, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Born:
    """A collection whose shard, if it is not there yet, is to be readable from ``at`` on; its times are the clock's."""

    id: Id
    at: int
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Hiding:
    """The full ``name`` of a new item, the ``text`` that is a shard's name as well, and the shards that may have it."""

    name: str
    text: str
    shards: tuple[Named, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """``created``: collections whose shard is to be made or taken over, ``derived`` ones from their names and ids, so
    that another one may be; ``begins``: the since that one of them is to
    have, where its inputs say so. ``born``: where new ones begin that are made from nothing.
    ``held``: holds made or moved, backwards too.
    ``grown``: tables whose shard, made earlier, is to have all columns that these have.
    ``changed``: collections whose policy or protection changed otherwise. ``dropped``: shards that no item has.
    ``left``: shards given back, which stay. ``hides``: what names that are given would hide, if it is there."""

    created: tuple[Described, ...] = ()
    derived: tuple[ShardId, ...] = ()
    begins: tuple[tuple[Id, int], ...] = ()
    born: tuple[Born, ...] = ()
    held: tuple[Held, ...] = ()
    grown: tuple[Described, ...] = ()
    changed: tuple[Id, ...] = ()
    dropped: tuple[ShardId, ...] = ()
    left: tuple[ShardId, ...] = ()
    hides: tuple[Hiding, ...] = ()


@dataclass(frozen=True, slots=True)
class Executed:
    """What became of a statement: its tag, such as ``CREATE TABLE``, the id and full name it is about, and a notice."""

    tag: str
    id: Id | None = None
    name: str = ""
    notice: str = ""
