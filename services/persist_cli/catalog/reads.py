"""The work behind the commands of ``persist catalog`` that disturb no other process."""

import bisect
import difflib
import json as stdjson
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from persist.client.catalog.port import Dump
from persist.core.catalog.kinds import BY_TAG, CONFIG, KINDS, AnyKind
from persist.core.catalog.leadership.repair import RowDamage, Tally
from persist.core.catalog.objects import Config
from persist.core.catalog.open_rules import DATA_VERSION
from persist.core.catalog.rows import Row, RowUpdate
from persist.errors import CorruptData
from persist.typed import AnyKey, AnyValue, Record
from persist.wire.catalog.json import SAFE, show_key, show_value
from persist.wire.catalog.migrations import MIGRATIONS
from persist.wire.catalog.rows import CODEC
from persist_cli.catalog.place import CatalogPlace
from persist_cli.terminal import counted, note, print_json

if TYPE_CHECKING:
    from persist.settings import Settings

_VERSION_KEY: Final = CODEC.encode(CONFIG.tag, DATA_VERSION, Config(0)).key
_DISGUISE: Final = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def kind_named(text: str) -> AnyKind:
    """The kind a person names. Raises BadParameter, which lists the kinds."""
    tag = text.strip().lower().replace("-", "_")
    if tag not in BY_TAG:
        near = difflib.get_close_matches(tag, BY_TAG, 1, 0.5)
        guess = f"did you mean {near[0]}? " if near else ""
        raise typer.BadParameter(f"unknown kind {text!r}: {guess}kinds are {', '.join(BY_TAG)}")
    return BY_TAG[tag]


def chosen_tags(kinds: Iterable[str], ignored: Iterable[str], *, ignore_large: bool) -> tuple[str, ...] | None:
    """The tags to dump, in the order of dumps; None for all there are. Raises BadParameter."""
    wanted = [kind_named(each) for each in kinds]
    without = {kind_named(each) for each in ignored} | {kind for kind in KINDS if ignore_large and kind.append_only}
    if not wanted and not without:
        return None
    chosen = tuple(kind.tag for kind in KINDS if (kind in wanted or not wanted) and kind not in without)
    if not chosen:
        raise typer.BadParameter("nothing is left to dump: all kinds that --kind names are ignored")
    return chosen


def dump(
    place: CatalogPlace,
    settings: "Settings",
    tags: tuple[str, ...] | None,
    *,
    asked: bool,
    consolidated: bool,
    json: bool,
) -> None:
    """Print objects. ``asked``: print an empty list, too, for a kind that has none."""
    # The data version is a row of its own kind: without it nothing can be read.
    wanted = None if tags is None else {*tags, CONFIG.tag}
    found = place.run(settings, lambda catalog: catalog.dump(consolidated=consolidated, kinds=wanted), begun=True)
    damages = Tally(CODEC, found.updates).damages() if consolidated else []
    shown, raw = entries(found, damages)
    if tags is not None:
        shown = {tag: shown.get(tag, []) for tag in tags if asked or tag in shown}
    if json:
        print(line(shown))
    else:
        _print_entries(shown)
    count = counted(sum(map(len, shown.values())), "object" if consolidated else "change")
    note(f"{count}; upper {found.upper}, data version {data_version(found) or 'unknown'}")
    if damages:
        note(f"{counted(len(damages), 'row')} damaged: persist catalog repair says what would make them whole")
    if raw:
        note(f"{counted(raw, 'row')} in hexadecimal digits: this release reads data version {MIGRATIONS.current}")


def entries(found: Dump, damages: Iterable[RowDamage] = ()) -> tuple[dict[str, list[Record]], int]:
    """What ``dump`` prints, by kind, and how many rows could not be read. What is wrong with a row goes with it."""
    wrong = {damage.row: {"damaged": damage.problem} for damage in damages}
    versions = _versions(found.updates)
    by_tag: defaultdict[str, list[Record]] = defaultdict(list)
    for update in found.updates:
        entry = _entry(update, versions.current(update))
        by_tag[update.row.kind].append(entry | wrong.get(update.row, {}))
    known = [tag for tag in BY_TAG if tag in by_tag]
    shown = {tag: sorted(by_tag[tag], key=_order) for tag in [*known, *sorted(by_tag.keys() - BY_TAG.keys())]}
    return shown, sum("key_hex" in entry for each in shown.values() for entry in each)


def data_version(found: Dump) -> int | None:
    """The newest data version of a dump that has the kind config."""
    return _versions(found.updates).newest


class _Versions:
    """Which data version the rows of a time have."""

    def __init__(self, came: Sequence[tuple[int, int]]) -> None:
        self._times = [ts for ts, _ in came]
        self._versions = [version for _, version in came]
        self.newest = self._versions[-1] if came else None

    def current(self, update: RowUpdate) -> bool:
        """Whether this release reads a row: what came has the version of its time, what went that of before."""
        kind = BY_TAG.get(update.row.kind)
        if kind is None or kind.frozen:
            return kind is not None
        find = bisect.bisect_right if update.diff > 0 else bisect.bisect_left
        at = max(find(self._times, update.ts) - 1, 0)
        return bool(self._versions) and self._versions[at] == MIGRATIONS.current


def _versions(updates: Iterable[RowUpdate]) -> _Versions:
    rows = [(ts, row) for row, ts, diff in updates if diff > 0 and (row.kind, row.key) == (CONFIG.tag, _VERSION_KEY)]
    return _Versions(sorted((ts, CODEC.decode(row)[1].value) for ts, row in rows))


def _entry(update: RowUpdate, readable: bool) -> Record:
    times = {"ts": update.ts if update.ts <= SAFE else str(update.ts), "diff": update.diff}
    objects = show_row(update.row) if readable else None
    if objects is None:
        return {"key_hex": update.row.key.hex(), "value_hex": update.row.value.hex(), **times}
    return {"key": objects[0], "value": objects[1], **times}


def show_row(row: Row) -> tuple[AnyKey, AnyValue] | None:
    """Key and value of a row as JSON; None when it is damaged."""
    try:
        key, value = CODEC.decode(row)
    except CorruptData:
        return None
    kind = BY_TAG[row.kind]
    return show_key(kind, key), show_value(kind, value)


def _order(entry: Record) -> tuple[int, int, list[Any]]:
    """By time, what went first, then by key with numbers in it by size."""
    parts = re.split(r"(\d+)", stdjson.dumps(entry.get("key", entry.get("key_hex"))))
    key = [(len(part.lstrip("0")), part) if index % 2 else part for index, part in enumerate(parts)]
    return int(entry["ts"]), entry["diff"], key


def _print_entries(shown: dict[str, list[Record]]) -> None:
    """One JSON document in which key and value of an object are one line each: easy to look at and to copy."""
    print("{", end="")
    for index, (tag, rows) in enumerate(shown.items()):
        print("," * bool(index), f"\n  {stdjson.dumps(tag)}: [", sep="", end="")
        for number, entry in enumerate(rows):
            fields = [f"      {stdjson.dumps(name)}: {line(value)}" for name, value in entry.items()]
            print("," * bool(number), "\n    {\n", ",\n".join(fields), "\n    }", sep="", end="")
        print("\n  ]" if rows else "]", end="")
    print("\n}" if shown else "}")


def line(value: AnyValue) -> str:
    """JSON on one line, which may be given back. What would change how a terminal shows the rest is escaped."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return _DISGUISE.sub(lambda found: f"\\u{ord(found[0]):04x}", stdjson.dumps(value, ensure_ascii=not utf8))


def epoch(place: CatalogPlace, settings: "Settings", *, json: bool) -> None:
    """Print who leads."""
    token = place.run(settings, lambda catalog: catalog.fence_token(), begun=True)
    generation, number = (token.deploy_generation, token.epoch) if token is not None else (None, None)
    if json:
        print_json({"environment": place.environment, "deploy_generation": generation, "epoch": number})
    elif token is None:
        note("this catalog has no fence token: it was never opened for writing")
    else:
        print(f"deploy generation {generation}, epoch {number}")


def upgrade_check(place: CatalogPlace, settings: "Settings", *, json: bool) -> None:
    """Print what an upgrade would change. Raises IncompatibleDataVersion, IncompatibleContentVersion, CorruptData."""
    upgrade = place.run(settings, lambda catalog: catalog.upgrade_check())
    steps = [
        {"from": version, "to": version + 1, "changes": count}
        for version, count in enumerate(upgrade.changed, upgrade.found)
    ]
    if json:
        versions = {"found": upgrade.found, "min": MIGRATIONS.min, "current": upgrade.current}
        print_json({"environment": place.environment, "ok": True, **versions, "steps": steps})
        return
    if not steps:
        print(f"ok: data version {upgrade.found} is the one of this release; nothing would change")
        return
    print(f"ok: data version {upgrade.found} would become {upgrade.current}")
    for step in steps:
        print(f"  {step['from']} to {step['to']}: {counted(step['changes'], 'change')} of rows")
