"""What to do about something that is wrong: a sentence, and the command line that does it.

A command is made of words, not of prose, so that code that knows how the location is reached can complete it: what is
proposed can be typed as it stands. Source: docs/runbook.md, repair.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from persist.errors import CorruptData, PersistError, VersionMismatch

STORES: Final = ("--blob", "URI", "--consensus", "URI")
"""The options that name a location's stores, to be typed as its servers have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """``text`` says what it does or when; ``words`` are those of the command after ``persist``, if there is one."""

    text: str
    words: tuple[str, ...] = ()

    def command(self, place: Sequence[str]) -> str:
        """The command line, for a location that is reached by these options; empty where no command does it.

        All of them work on the stores, which only its servers know where the location is reached through them.
        """
        reached = STORES if "--endpoint" in place else place
        return shlex.join(("persist", *self.words, *reached)) if self.words else ""

    def line(self, place: Sequence[str]) -> str:
        """The sentence and the command line."""
        command = self.command(place)
        return f"{self.text}: {command}" if command else self.text


COPY: Final = NextStep(
    text="look for its bytes first: a backup has the blob under the same key; put it there and check again"
)
BEYOND: Final = NextStep(
    text="no command mends a state: stop writing, and restore the newest whole backup into another location (persist "
    "backup list DEST shows them, persist backup restore DEST --to DIR restores one)"
)
"""The newest state cannot be read."""
MOVE: Final = NextStep(
    text="no command mends a history, but the newest state can be read: take a backup now (persist backup create DEST) "
    "and restore it into another location (persist backup restore DEST --to DIR)"
)
"""An older state cannot be rebuilt, so nothing before it is collected any more."""
WRONG_STORE: Final = NextStep(
    text="stop writing, and find out why: a restored database, a fail-over or the wrong one; nothing here mends it"
)


def check(shard: str, *, deep: bool = False) -> NextStep:
    """See what is wrong with a shard."""
    words = ("fsck", "--shard", shard, *(("--deep",) if deep else ()))
    return NextStep(text="this says what is wrong and what to do", words=words)


def check_all(*, deep: bool = False) -> NextStep:
    """See what is wrong with all shards."""
    return NextStep(text="this says what is wrong and what to do", words=("fsck", *(("--deep",) if deep else ())))


def restore(shard: str) -> NextStep:
    """Bring back what was deleted, where the store said that it can."""
    return NextStep(text="this store can bring it back", words=("admin", "restore", "--shard", shard, "--commit"))


def rewrite(shard: str) -> NextStep:
    """Write the newest rollup again, from an older one."""
    words = ("admin", "repair", "--shard", shard, "--commit")
    return NextStep(text="this writes it again, byte for byte, and loses nothing", words=words)


def repair(shard: str, *, deep: bool = False) -> NextStep:
    """Take unreadable parts out. ``deep``: only reading the blobs finds them."""
    words = ("admin", "repair", "--shard", shard, *(("--deep",) if deep else ()), "--commit")
    return NextStep(
        text="if it is lost for ever this takes it out of the shard (without --commit it only says what that loses)",
        words=words,
    )


def collect(shard: str) -> NextStep:
    """Write a rollup and collect older states."""
    return NextStep(
        text="this writes a new rollup and releases older states, once no reader holds them",
        words=("admin", "gc", "--shard", shard, "--commit"),
    )


def compact(shard: str) -> NextStep:
    """Merge what should have been merged."""
    return NextStep(
        text="run persist serve compaction, or merge now", words=("admin", "compact", "--shard", shard, "--commit")
    )


def sweep(shard: str) -> NextStep:
    """Delete what no process can publish."""
    return NextStep(text="this deletes them", words=("admin", "sweep", "--shard", shard, "--commit"))


def rebuild(shard: str) -> NextStep:
    """Begin a shard that only Blob has."""
    return NextStep(
        text="is this the right Consensus? If it is, and lost the shard for ever, this says what beginning it from its "
        "newest rollup would come to; if the shard was never made, the next open makes it",
        words=("admin", "rebuild", "--shard", shard),
    )


def upgrade() -> NextStep:
    """Bring the location to the newest format."""
    return NextStep(text="once every program here is of this release", words=("admin", "upgrade", "--all", "--commit"))


def after(error: PersistError, shard: str) -> NextStep:
    """What to do about a shard with which something failed."""
    if isinstance(error, VersionMismatch):
        found, known = (int(error.details.get(name, 0)) for name in ("found", "known"))
        return upgrade() if 0 < found < known else NextStep(text=error.hint)
    if isinstance(error, CorruptData) or not error.hint:
        return check(shard)
    return NextStep(text=error.hint)
