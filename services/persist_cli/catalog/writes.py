"""The work behind ``persist catalog edit`` and ``delete``: one object, looked at, asked about, changed."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from persist.client.catalog.port import OpenableCatalog
from persist.core.catalog.errors import IncompatibleDataVersion
from persist.core.catalog.kinds import CONFIG, FENCE_TOKEN, AnyKind
from persist.core.catalog.leadership.repair import Tally
from persist.core.catalog.objects import FenceToken
from persist.core.catalog.open_rules import CONTENT_VERSION, DATA_VERSION
from persist.typed import AnyKey, AnyValue, Json
from persist.wire.catalog.json import parse, read_key, read_value, show_key, show_value
from persist.wire.catalog.migrations import MIGRATIONS
from persist.wire.catalog.rows import CODEC, SIDES
from persist_cli.catalog.place import CatalogPlace
from persist_cli.catalog.reads import data_version, kind_named, line
from persist_cli.terminal import note, print_json

if TYPE_CHECKING:
    from persist.settings import Settings


class WantedObject(NamedTuple):
    """An object as it is to be. No ``value``: it is to go."""

    kind: AnyKind
    key: Any
    value: Any | None

    @property
    def name(self) -> str:
        """Kind and key, for people."""
        return f"{self.kind} {line(show_key(self.kind, self.key))}"


class _Seen(NamedTuple):
    """The object as it is, who leads, and whether its rows sum up to something else than one object, or none."""

    value: Any | None
    token: FenceToken | None
    damaged: bool


def wanted_edit(kind: str, key: str, value: str | None) -> WantedObject:
    """What ``edit`` is asked for. Raises BadParameter, InvalidArgument."""
    of = _editable(kind)
    if key.strip() == "-" and value is not None and value.strip() == "-":
        raise typer.BadParameter("key and value cannot both come from standard input: give - once, as KEY, with both")
    data = _given("KEY", key)
    if value is not None:
        return WantedObject(of, _key(of, data), read_value(of, _given("VALUE", value)))
    if not _is_entry(data):
        raise typer.BadParameter("VALUE is missing: only a KEY with the fields key and value, as in dump, needs none")
    return WantedObject(of, _key(of, data["key"]), read_value(of, data["value"]))


def wanted_delete(kind: str, key: str) -> WantedObject:
    """What ``delete`` is asked for. Raises BadParameter, InvalidArgument."""
    of, data = _editable(kind), _given("KEY", key)
    return WantedObject(of, _key(of, data["key"] if _is_entry(data) else data), None)


def change(place: CatalogPlace, settings: "Settings", wanted: WantedObject, *, yes: bool, json: bool) -> None:
    """Look, ask, do it, print what was there. Raises BadParameter where no person can be asked."""
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter(
            "this cannot be confirmed here, as standard input is no terminal: look first, then add --yes"
        )

    async def work(catalog: OpenableCatalog) -> tuple[AnyValue | None, FenceToken | None]:
        seen = await _look(catalog, wanted)
        if seen.value == wanted.value and not seen.damaged:
            return seen.value, None
        if not yes:
            _ask(place, wanted, seen)
        previous = await catalog.edit(wanted.kind, wanted.key, wanted.value)
        return previous, await catalog.fence_token()

    previous, token = place.run(settings, work)
    _tell(wanted, previous, token, json=json)


def _editable(text: str) -> AnyKind:
    kind = kind_named(text)
    if kind.append_only:
        raise typer.BadParameter(f"objects of kind {kind} record what happened: they are added and never changed")
    if kind is FENCE_TOKEN:
        raise typer.BadParameter("the fence token says who leads: only opening the catalog for writing changes it")
    return kind


def _key(kind: AnyKind, data: object) -> AnyKey:
    key = read_key(kind, data)
    if key == DATA_VERSION:
        raise typer.BadParameter(
            "user_version says which form all objects have: only a migration, when the catalog is opened, changes both"
        )
    if key == CONTENT_VERSION:
        raise typer.BadParameter(
            "catalog_content_version says which release goes on: only opening the catalog for writing changes it"
        )
    return key


def _given(what: str, text: str) -> Json:
    """The JSON of an argument, which is it, a file with it, or ``-``."""
    if text.strip() == "-":
        return parse(sys.stdin.read())
    if text.lstrip()[:1] in ("{", "[", '"'):
        return parse(text)
    try:
        return parse(Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{what} is neither JSON (which begins with a brace) nor a file: {error}") from error


def _is_entry(data: object) -> bool:
    """Whether it is a whole object, as in dump: no key has these two fields."""
    return isinstance(data, dict) and {"key", "value"} <= data.keys()


async def _look(catalog: OpenableCatalog, wanted: WantedObject) -> _Seen:
    """Rows, and not an open catalog: it may have to be repaired before it can be opened."""
    token = await catalog.fence_token()
    found = await catalog.dump(kinds={wanted.kind.tag, CONFIG.tag})
    version = data_version(found)
    if version != MIGRATIONS.current:
        raise IncompatibleDataVersion(
            "a catalog of another data version cannot be edited",
            hint="use the release that writes to it; or, if upgrade-check says ok, open it for writing with this one",
            found=version,
            min=MIGRATIONS.current,
            current=MIGRATIONS.current,
        )
    key, values = SIDES[wanted.kind.tag][0].encode(wanted.key), SIDES[wanted.kind.tag][1]
    tally = Tally(CODEC, found.updates)
    row = tally.kept(wanted.kind.tag, key)
    damaged = any((damage.row.kind, damage.row.key) == (wanted.kind.tag, key) for damage in tally.damages())
    return _Seen(None if row is None else values.decode(row.value), token, damaged)


def _ask(place: CatalogPlace, wanted: WantedObject, seen: _Seen) -> None:
    """Say what will happen, and go on only if that is wanted."""
    verb = "delete" if wanted.value is None else "insert" if seen.value is None else "change"
    note(f"This will {verb} {wanted.name} in the catalog of environment {place.environment} ({place}).")
    for when, value in (("now", seen.value), ("then", wanted.value)):
        note(f"  {when + ':':6}{'(not there)' if value is None else line(show_value(wanted.kind, value))}")
    if seen.damaged:
        note("Its rows are damaged; this makes them whole.")
    if seen.token is not None:
        leader = f"deploy generation {seen.token.deploy_generation}, epoch {seen.token.epoch}"
        note(f"The process that leads it now ({leader}) is fenced: it fails and has to open the catalog again.")
    note("Nothing but the form of the value is checked.")
    if not typer.confirm("Go on?", err=True):
        note("nothing was done")
        raise typer.Exit(1)


def _tell(wanted: WantedObject, previous: AnyValue | None, token: FenceToken | None, *, json: bool) -> None:
    was = None if previous is None else show_value(wanted.kind, previous)
    done = _done(wanted, previous) if token is not None else "nothing"
    if json:
        becomes = None if wanted.value is None else show_value(wanted.kind, wanted.value)
        now = None if token is None else {"deploy_generation": token.deploy_generation, "epoch": token.epoch}
        key = show_key(wanted.kind, wanted.key)
        told = {"kind": wanted.kind.tag, "key": key, "previous": was, "value": becomes, "done": done, "token": now}
        print_json(told)
        return
    if was is not None:
        print(line(was))
    if token is None:
        reason = "is not there" if wanted.value is None else "has this value already"
        note(f"{wanted.name} {reason}: nothing was done, no process was fenced")
        return
    before = "there was none before" if was is None else "above is its previous value"
    note(f"{done} {wanted.name}; {before}. Now deploy generation {token.deploy_generation}, epoch {token.epoch}")


def _done(wanted: WantedObject, previous: object | None) -> str:
    if wanted.value is None:
        return "deleted"
    return "inserted" if previous is None else "changed"
