"""Opening a catalog to write: take over from the leader, migrate, begin or renew what a release leaves.

Each step is one append, so a process that dies between two leaves a catalog that the next one goes on from.
Source: catalog-semantics.md sections 1.2.1, 1.2.2 and 1.2.5.
"""

from collections.abc import Callable
from typing import Final

from persist.client.catalog.log.append import append
from persist.client.catalog.port import Nudging, RowLog
from persist.client.catalog.raw import RawCatalog
from persist.core.catalog.errors import Fenced
from persist.core.catalog.kinds import ITEM, SETTING
from persist.core.catalog.leadership.fencing import FenceClaim, most_informative, open_step
from persist.core.catalog.leadership.migrations import Migrations, fenced_by_migration
from persist.core.catalog.objects import FenceToken, Setting
from persist.core.catalog.open_rules import CONTENT_VERSION, initial_rows
from persist.core.catalog.rows import Row, RowCodec
from persist.core.catalog.snapshot import Snapshot
from persist.errors import NotReadable

NUDGE_EVERY: Final = 4
"""Of so many attempts to lead that were too late one makes the leader late instead. Not all: openers that only nudge
each other would never get anywhere."""


async def take_over(
    log: RowLog, codec: RowCodec, raw: RawCatalog, generation: int, check: Callable[[], None]
) -> FenceToken:
    """Write a new token over the one there, however often others are first. Raises FencedByGeneration.

    ``check`` raises when this release cannot go on with what there is: then no process is fenced.

    SUBTLE: an attempt reads and applies what was committed since the last one, and nothing else. One that consolidated
    the whole catalog each time would never be as quick as a leader that commits without a pause. Even so the leader
    has less to do between two appends; nudged, it must read and append again, and this process is ahead of it.
    """
    claim, attempts = FenceClaim(generation), 0
    while True:
        check()
        step = open_step(raw.token, generation)
        rows = step.rows(codec)
        found = await append(log, raw, rows, raw.upper, expected_upper=raw.upper)
        if found is None:
            raw.apply(rows, raw.upper + 1)
            return step.token
        attempts += 1
        if attempts % NUDGE_EVERY == 0 and isinstance(log, Nudging):
            await log.nudge()
        refusal = most_informative(await _follow(log, raw, claim))
        if refusal is not None:
            raise refusal


async def migrate(log: RowLog, raw: RawCatalog, migrations: Migrations, claim: FenceClaim) -> None:
    """Commit all steps up to the data version of this release, one by one. Raises Fenced, IncompatibleDataVersion."""
    while raw.is_initialized and (changes := migrations.next_step(raw.rows)) is not None:
        await _commit(log, raw, changes, claim)


async def begin_or_renew(
    log: RowLog, codec: RowCodec, raw: RawCatalog, migrations: Migrations, content_version: str, claim: FenceClaim
) -> None:
    """Make a catalog if there is none, else say which release goes on with it. Raises Fenced."""
    if not raw.is_initialized:
        changes = [(row, 1) for row in initial_rows(codec, migrations.current, content_version)]
    else:
        changes = _renewed(codec, raw, content_version)
    if changes:
        await _commit(log, raw, changes, claim)


def orphans(codec: RowCodec, snapshot: Snapshot) -> list[tuple[Row, int]]:
    """What takes away the items of sessions: those of the former leader are dead, and this one has none yet."""
    items = snapshot.objects(ITEM).items()
    return [(codec.encode(ITEM.tag, key, item), -1) for key, item in items if item.session is not None]


def _renewed(codec: RowCodec, raw: RawCatalog, content_version: str) -> list[tuple[Row, int]]:
    found = raw.content_version
    if found == content_version:
        return []
    gone = [(codec.encode(SETTING.tag, CONTENT_VERSION, Setting(found)), -1)] if found is not None else []
    return [*gone, (codec.encode(SETTING.tag, CONTENT_VERSION, Setting(content_version)), 1)]


async def _commit(log: RowLog, raw: RawCatalog, changes: list[tuple[Row, int]], claim: FenceClaim) -> None:
    expected = raw.upper
    found = await append(log, raw, changes, expected, expected_upper=expected)
    if found is None:
        raw.apply(changes, expected + 1)
        return
    moved = fenced_by_migration(expected, found)
    raise most_informative([moved, *await _follow(log, raw, claim)]) or moved


async def _follow(log: RowLog, raw: RawCatalog, claim: FenceClaim) -> list[Fenced]:
    """Read what came since, and whose tokens among it end the claim."""
    try:
        return raw.follow(await log.updates(raw.upper), claim)
    except NotReadable:
        # This process stood still for so long that others forgot what it reads.
        raw.replace(await log.snapshot())
        refusal = claim.fenced_by(raw.token, raw.incarnation)
        return [refusal] if refusal is not None else []
