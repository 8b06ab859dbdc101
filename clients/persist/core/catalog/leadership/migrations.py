"""Migrations: a chain of steps, each from one data version to the next, over rows.

A step is committed alone, with the row that says its version: a process that dies between steps leaves a catalog of
some version, and the next one goes on from there. Source: catalog-semantics.md sections 1.2.4 and 1.2.5.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from persist.core.catalog.errors import FencedByMigration, IncompatibleDataVersion
from persist.core.catalog.kinds import BY_TAG, CONFIG
from persist.core.catalog.objects import Config
from persist.core.catalog.open_rules import DATA_VERSION
from persist.core.catalog.rows import Contents, Row, RowCodec, apply_changes
from persist.errors import CorruptData, InvalidArgument, check


@dataclass(frozen=True, slots=True)
class Step:
    """From ``version`` to the next: ``change`` gives, for all rows, those that go (-1) and those that come (1).

    It may use nothing but frozen messages and the rows: what it does never changes. It leaves frozen kinds alone.
    """

    version: int
    change: Callable[[Contents], Iterable[tuple[Row, int]]]


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What an upgrade would do: the versions, and how many rows each step would change."""

    found: int
    current: int
    changed: tuple[int, ...]


class Migrations:
    """The chain of steps up to the data version of this release. Raises InvalidArgument for a chain with gaps."""

    def __init__(self, steps: Sequence[Step], codec: RowCodec) -> None:
        if [step.version for step in steps] != list(range(steps[0].version, steps[0].version + len(steps))):
            raise InvalidArgument("steps form a chain", versions=[step.version for step in steps])
        self._steps = {step.version: step for step in steps}
        self._codec = codec
        self.min = steps[0].version
        self.current = steps[-1].version + 1

    def version(self, rows: Contents) -> int:
        """The data version of a catalog. Raises IncompatibleDataVersion, CorruptData (there is none)."""
        key = self._version_row(0).key
        value = rows.get(CONFIG.tag, {}).get(key)
        if value is None:
            raise CorruptData("a catalog has a data version", hint="stop and report it")
        found: int = self._codec.decode(Row(CONFIG.tag, key, value))[1].value
        if not self.min <= found <= self.current:
            raise IncompatibleDataVersion(
                "a catalog of another data version",
                hint="run a newer release" if found > self.current else "upgrade with an older release first",
                found=found,
                min=self.min,
                current=self.current,
            )
        return found

    def next_step(self, rows: Contents) -> list[tuple[Row, int]] | None:
        """What to append, in one, for the next step; None when the catalog is current. Raises as ``version``."""
        found = self.version(rows)
        if found == self.current:
            return None
        changes = _net(self._steps[found].change(rows))
        for row, _ in changes:
            kind = BY_TAG.get(row.kind)
            if kind is not None and kind.frozen:
                raise InvalidArgument("no step changes a frozen kind", step=found, kind=row.kind)
        return [*changes, (self._version_row(found), -1), (self._version_row(found + 1), 1)]

    def check(self, rows: Contents) -> Upgrade:
        """What an upgrade would do. The rows stay as they are. Raises as ``version``, and CorruptData if it would fail.

        Everything is decoded as this release would find it afterwards.
        """
        scratch = {kind: dict(of_kind) for kind, of_kind in rows.items()}
        found, changed = self.version(scratch), []
        while (changes := self.next_step(scratch)) is not None:
            apply_changes(scratch, changes)
            changed.append(len(changes))
        for kind, of_kind in scratch.items():
            for key, value in of_kind.items():
                self._codec.decode(Row(kind, key, value))
        return Upgrade(found, self.current, tuple(changed))

    def _version_row(self, version: int) -> Row:
        return self._codec.encode(CONFIG.tag, DATA_VERSION, Config(version))


def fenced_by_migration(expected: int, upper: int) -> FencedByMigration:
    """The refusal when a step could not be appended: the upper was not what the process that migrates left."""
    return FencedByMigration(
        "another process moved the catalog during a migration",
        hint="open the catalog again",
        expected=expected,
        upper=upper,
    )


def _net(changes: Iterable[tuple[Row, int]]) -> list[tuple[Row, int]]:
    sums: dict[Row, int] = {}
    for row, diff in changes:
        sums[row] = sums.get(row, 0) + diff
        check(abs(sums[row]) <= 1, "a step changes a row once", kind=row.kind)
    return sorted(((row, diff) for row, diff in sums.items() if diff), key=lambda change: change[1])
