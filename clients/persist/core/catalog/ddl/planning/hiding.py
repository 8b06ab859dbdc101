"""What a new name of an item would hide: shards that have this name already, because it is what their ids follow from.

An item goes before them in every look-up, so their rows would be found by no name any more. Whether they are there is
not known here: see ``collections.ports.Storage.prepare``. Source: docs/concepts.md, names.
"""

from collections.abc import Iterator

from persist.core.catalog import objects as o
from persist.core.catalog.ddl.described import DATABASE, SCHEMA, Described
from persist.core.catalog.ddl.effects import Hiding
from persist.core.catalog.ddl.planning.context import Planning
from persist.core.catalog.ddl.planning.creating import FIRST_ENVIRONMENT, gone_key
from persist.core.catalog.kinds import ITEM, SETTING, UNFINALIZED_SHARD
from persist.core.ids import ShardId
from persist.core.names import possible
from persist.errors import InvalidArgument


def hidings(it: Planning) -> tuple[Hiding, ...]:
    """By each name that the transaction gives, the shards that may have it and that no item has.

    An adopted one was chosen among them. What was an item's once was given up by a statement; what is another's is
    found by that name. Names of shards are those of the first environment.
    """
    if it.environment != FIRST_ENVIRONMENT:
        return ()
    return tuple(_hidings(it))


def _hidings(it: Planning) -> Iterator[Hiding]:
    for id in it.named:
        if o.ItemKey(id) not in it.view.objects(ITEM):
            continue
        item = it.view.get(id)
        text = _text(item)
        try:
            found = possible(text, [] if item.timeline is None else [str(item.timeline)]) if text else ()
        except InvalidArgument:
            # No shard has such a name.
            continue
        others = tuple(each for each in found if _is_free(it, each.shard))
        if others:
            yield Hiding(str(item.name), text, others)


def _text(item: Described) -> str:
    """The shortest text that is this name in ``client.table``, and may have been one before; empty: there is none."""
    database, schema = item.name.database, item.name.schema
    if database != DATABASE:
        return ""
    return item.name.item if schema == SCHEMA else f"{schema}.{item.name.item}"


def _is_free(it: Planning, shard: ShardId) -> bool:
    return (
        it.view.owner_of(shard) is None
        and it.tx.get(SETTING, gone_key(shard)) is None
        and it.tx.get(UNFINALIZED_SHARD, o.UnfinalizedShardKey(str(shard))) is None
    )
