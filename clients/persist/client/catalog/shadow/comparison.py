"""Whether two catalogs did the same: outcomes by class and value, contents by object.

What has no order is compared without one. Source: catalog-semantics.md section 1.2.11.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from persist.client.catalog.port import Dump, ReadOnlyCatalog
from persist.core.catalog.kinds import KINDS, TIMESTAMP, AnyKind
from persist.core.catalog.rows import Row
from persist.core.catalog.snapshot import Change
from persist.errors import CorruptData, LocationError
from persist.typed import AnyKey, AnyValue

T = TypeVar("T")

_TEXT_MAX = 300

Told = list[tuple[int, tuple[Change, ...]]]


class ShadowDiffers(CorruptData):
    """The two catalogs of a shadow differ. ``details``: what, first, second. One of them is wrong: call an operator."""


class ShadowOutcome(NamedTuple):
    """What a call came to: a value, or the error it raised."""

    value: Any = None
    error: Exception | None = None

    def get(self) -> AnyValue:
        """The value. Raises the error."""
        if self.error is not None:
            raise self.error
        return self.value


def outcome_of(call: Callable[[], object]) -> ShadowOutcome:
    """What a call comes to."""
    try:
        return ShadowOutcome(call())
    except Exception as error:
        return ShadowOutcome(None, error)


def same_outcome(
    what: str, first: ShadowOutcome, second: ShadowOutcome, seen: Callable[[AnyValue], AnyValue] = lambda value: value
) -> AnyValue:
    """The first outcome, when the second is like it: an error of the same class, or the same value.

    ``seen`` says what of the values is compared. A store that failed is no difference: its error is raised.
    """
    for outcome in (first, second):
        if isinstance(outcome.error, LocationError | OSError):
            raise outcome.error
    if type(first.error) is not type(second.error):
        raise differs(what, _told(first), _told(second)) from (first.error or second.error)
    if first.error is None:
        same(what, seen(first.value), seen(second.value))
    return first.get()


def same(what: str, first: object, second: object) -> None:
    """Nothing, when both are equal. Raises ShadowDiffers; of mappings it names one key that differs."""
    if first == second:
        return
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in [*first, *second]:
            if key not in first or key not in second or first[key] != second[key]:
                raise differs(f"{what}: {_text(key)}", first.get(key, "nothing"), second.get(key, "nothing"))
    raise differs(what, first, second)


def same_contents(what: str, first: ReadOnlyCatalog, second: ReadOnlyCatalog, *, times: bool) -> None:
    """Nothing, when both catalogs show the same objects in memory; with ``times`` oracles and uppers, too."""
    for kind in KINDS:
        if kind is TIMESTAMP and not times:
            continue
        where = f"{kind.tag} after {what}"
        same(where, first.count(kind), second.count(kind))
        if not kind.append_only:
            same(where, first.objects(kind), second.objects(kind))
    if times:
        same(f"upper after {what}", first.upper, second.upper)


def rows_of(dump: Dump, *, times: bool) -> Mapping[Row, int]:
    """The net rows of a dump, whenever they came; without ``times`` those of oracles are left out."""
    sums: Counter[Row] = Counter()
    for row, _, diff in dump.updates:
        if times or row.kind != TIMESTAMP.tag:
            sums[row] += diff
    return {row: diff for row, diff in sums.items() if diff}


def net_changes(told: Told) -> Mapping[tuple[AnyKind, AnyValue], tuple[AnyKey, AnyValue]]:
    """What changed in all, by object: however many times it took."""
    changed: dict[tuple[AnyKind, Any], tuple[Any, Any]] = {}
    for _, changes in told:
        for kind, key, before, after, _ in changes:
            changed[kind, key] = (changed.get((kind, key), (before, None))[0], after)
    return {key: (before, after) for key, (before, after) in changed.items() if before != after}


def by_object(changes: Iterable[Change]) -> Mapping[tuple[AnyKind, AnyValue], tuple[AnyKey, AnyValue]]:
    """Changes of a batch without their order."""
    return {(kind, key): (before, after) for kind, key, before, after, _ in changes}


def differs(what: str, first: object, second: object) -> ShadowDiffers:
    """The error that says so."""
    return ShadowDiffers(
        "the two catalogs of a shadow differ",
        hint="one of them is wrong: stop, compare their dumps and report it",
        what=what,
        first=_text(first),
        second=_text(second),
    )


def _told(outcome: ShadowOutcome) -> str:
    return f"raised {outcome.error!r}" if outcome.error is not None else f"returned {outcome.value!r}"


def _text(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
