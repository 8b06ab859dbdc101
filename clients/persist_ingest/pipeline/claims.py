"""Attempts to create a source: a name is claimed before anything is set up for it, by compare-and-append.

What an attempt makes is its own: shards are called after a generation that no other attempt has, and what stands
upstream is in the claim before a shard is touched. So an attempt that wakes late finds its claim gone and can destroy
nothing but its own, and what one left that died is found by the process that takes its claim over.
Source: catalog-semantics.md section 4.2; reliability.md I4.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Final

from persist import PersistError, UsageError
from persist.runtime import system
from persist.sources import SILENT_MS
from persist.typed import Fields, Record
from persist_ingest.pipeline.records import VERSION, Records, Source, SourceExists, SourceNotFound, is_silent

BEAT_SECONDS: Final = SILENT_MS / 1000 / 3
"""How often an attempt says that it is there: several times until it is taken for gone."""


class SourceCreating(UsageError):
    """Another attempt to create a source of this name is at work. Wait for it, or drop it."""

    reason = "SOURCE_CREATING"


class ClaimLost(UsageError):
    """Another attempt took the name over, or it was dropped, while this one did not get on. What it made goes."""

    reason = "CLAIM_LOST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An attempt to create a source. ``told_ms``: its last word, 0 once it gave up; ``owner``: host and process.

    ``source``: what will be recorded; None until it is set up upstream, and before that no shard of it is touched.
    ``announced``: what may stand upstream before that, and the type that knows how it is cleared.
    """

    name: str
    type: str
    attempt: str
    owner: str
    generation: int = 1
    claimed_ms: int = 0
    told_ms: int = 0
    source: Source | None = None
    announced: Fields | None = None

    @property
    def described(self) -> str:
        """Whose it is, how old, and for how long it was silent."""
        now = system().now_ms()
        silent = f"silent for {max(0, now - self.told_ms) / 1000:.0f} s" if self.told_ms else "which gave up"
        return f"by {self.owner}, {max(0, now - self.claimed_ms) / 1000:.0f} s old, {silent}"

    @property
    def is_alive(self) -> bool:
        """It said so lately."""
        return not is_silent(self.told_ms, system().now_ms(), SILENT_MS)

    def to_record(self) -> dict[str, object]:
        """As it is recorded. To a release without claims the name is free, and the generation spent."""
        creating = {name: value for name, value in asdict(self).items() if name not in {"name", "generation"}}
        return {
            "generation": self.generation,
            "dropped_ms": self.claimed_ms,
            "dropped": True,
            "version": VERSION,
            "creating": creating,
        }

    @staticmethod
    def of(name: str, record: Fields | None) -> "Claim | None":
        """The claim that this record is, if it is one. What a later release says beside it is passed over."""
        if record is None or record.get("creating") is None:
            return None
        known = {each.name for each in fields(Claim)}
        creating = {key: value for key, value in record["creating"].items() if key in known}
        source = creating.pop("source")
        made = None if source is None else Source(**source)
        return Claim(name=name, generation=int(record["generation"]), source=made, **creating)


def claims(records: Records) -> dict[str, Claim]:
    """Every attempt that is not over, by the name it claims."""
    found = {name: Claim.of(name, record) for name, record in sorted(records.raw().items())}
    return {name: claim for name, claim in found.items() if claim is not None}


def take(records: Records, name: str, type_name: str) -> tuple[Claim, Claim | None]:
    """Claim a name; also whose claim it was, if it was abandoned: then what that left is to be cleared, and ``renew``.

    Raises SourceExists, SourceCreating.
    """
    mine = _new(name, type_name)
    earlier: Claim | None = None

    def place(before: Fields | None) -> Record:
        nonlocal earlier
        if before is None:
            return mine.to_record()
        if not before.get("dropped"):
            raise SourceExists("this source exists already", hint="choose another name, or drop it", source=name)
        found = Claim.of(name, before)
        if found is None:
            return replace(mine, generation=int(before["generation"]) + 1).to_record()
        if found.attempt == mine.attempt:
            return dict(before)
        if found.is_alive:
            raise SourceCreating(
                "this source is just being created",
                hint=f"wait for it, or end it: persist source drop {name} --commit",
                source=name,
                owner=found.owner,
                silent_ms=max(0, system().now_ms() - found.told_ms),
            )
        earlier = found
        return _inherited(mine, found).to_record()

    return _claimed(name, records.change("source", name, place)), earlier


def seize(records: Records, name: str) -> Claim:
    """Take an attempt's claim away, also of one that is at work. Raises SourceNotFound: there is none."""
    mine = _new(name, "")

    def place(before: Fields | None) -> Record:
        found = Claim.of(name, before)
        if found is None:
            raise SourceNotFound("no process is creating a source of this name", source=name)
        return replace(_inherited(mine, found), type=found.type).to_record()

    return _claimed(name, records.change("source", name, place))


def renew(records: Records, claim: Claim) -> Claim:
    """Begin anew after what was left has been cleared, with shards that were never used. Raises ClaimLost."""
    fresh = replace(claim, generation=claim.generation + (claim.source is not None), source=None, announced=None)
    return _replaced(records, claim, fresh)


def announce(records: Records, claim: Claim, announced: Fields) -> Claim:
    """Record what is about to be made upstream. Raises ClaimLost."""
    return _replaced(records, claim, replace(claim, announced={"type": claim.type, "made": dict(announced)}))


def set_up(records: Records, claim: Claim, source: Source) -> Claim:
    """Record what is set up upstream, and which shards will be. Raises ClaimLost."""
    return _replaced(records, claim, replace(claim, source=source))


def publish(records: Records, claim: Claim) -> None:
    """From now on the source exists. Raises ClaimLost; Indeterminate when it is not known whether it does."""
    source = claim.source
    assert source is not None

    def place(before: Fields | None) -> Record:
        if before is not None and not before.get("dropped") and before["generation"] == source.generation:
            return dict(before)
        _check_mine(claim, before)
        return source.to_record()

    records.change("source", claim.name, place)


def release(records: Records, claim: Claim, before: Fields | None) -> None:
    """Give the name back, with ``before`` recorded for it. Nothing happens when the claim is another's by now."""

    def place(now: Fields | None) -> Record | None:
        if not _is_mine(claim, now):
            return None if now is None else dict(now)
        return None if before is None else dict(before)

    records.change("source", claim.name, place)


def holds(records: Records, claim: Claim) -> bool:
    """Whether the claim stands."""
    return _is_mine(claim, records.raw().get(claim.name))


def give_up(records: Records, claim: Claim) -> None:
    """Leave what there is to the next process that creates or drops the source, at once."""
    _touch(records, claim, 0)


def spent(claim: Claim) -> Record | None:
    """What is recorded after an attempt: its generation counts once a shard may have been called after it."""
    generation = claim.generation if claim.source is not None else claim.generation - 1
    if not generation:
        return None
    return {"generation": generation, "dropped_ms": system().now_ms(), "dropped": True, "version": VERSION}


@contextlib.contextmanager
def beating(records: Records, claim: Claim) -> Iterator[None]:
    """Say now and then that the attempt is at work. Whether that gets there decides nothing but how others wait."""
    stopped = threading.Event()

    def beat() -> None:
        while not stopped.wait(BEAT_SECONDS):
            with contextlib.suppress(PersistError):
                _touch(records, claim, system().now_ms())

    thread = threading.Thread(target=beat, name=f"creating {claim.name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _new(name: str, type_name: str) -> Claim:
    now = system().now_ms()
    owner = f"{system().hostname}-{os.getpid()}"
    attempt = system().random_bytes(8).hex()
    return Claim(name=name, type=type_name, attempt=attempt, owner=owner, claimed_ms=now, told_ms=now)


def _inherited(mine: Claim, found: Claim) -> Claim:
    """A claim in place of another, with all that this one left."""
    return replace(mine, generation=found.generation, source=found.source, announced=found.announced)


def _touch(records: Records, claim: Claim, told_ms: int) -> None:
    def place(before: Fields | None) -> Record | None:
        found = Claim.of(claim.name, before)
        if found is None or found.attempt != claim.attempt:
            return None if before is None else dict(before)
        return replace(found, told_ms=told_ms).to_record()

    records.change("source", claim.name, place)


def _replaced(records: Records, claim: Claim, after: Claim) -> Claim:
    def place(before: Fields | None) -> Record:
        _check_mine(claim, before)
        return replace(after, told_ms=system().now_ms()).to_record()

    return _claimed(claim.name, records.change("source", claim.name, place))


def _is_mine(claim: Claim, record: Mapping[str, object] | None) -> bool:
    found = Claim.of(claim.name, record)
    return found is not None and found.attempt == claim.attempt


def _check_mine(claim: Claim, record: Mapping[str, object] | None) -> None:
    if not _is_mine(claim, record):
        raise ClaimLost(
            "another attempt to create this source took over, or it was dropped, while this one did not get on",
            hint="persist source list shows what there is; what this attempt made is taken back",
            source=claim.name,
        )


def _claimed(name: str, record: Fields | None) -> Claim:
    found = Claim.of(name, record)
    assert found is not None
    return found
