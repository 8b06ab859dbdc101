"""``persist catalog``: what a person sees of a catalog, and what changes when it is repaired by hand."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.catalogs import OBJECTS, Made, fill, rows
from golden.catalog.sample import stored
from unit.core.catalog.samples import database, user

from persist.client.catalog.port import RowLog
from persist.core.catalog.errors import FencedByGeneration
from persist.core.catalog.kinds import BY_TAG, DATABASE, SETTING
from persist.core.catalog.objects import Config, DatabaseKey, FenceToken, FenceTokenKey, Setting, SettingKey
from persist.core.catalog.open_rules import DATA_VERSION
from persist.core.catalog.rows import Row
from persist.errors import CorruptData
from persist.wire.catalog.json import read_key, read_value
from persist.wire.catalog.migrations import MIGRATIONS
from persist.wire.catalog.rows import CODEC
from persist_cli.catalog.place import CatalogPlace

NEWEST = MIGRATIONS.current

Persist = Callable[..., Any]
OWNED = '{"name": "shop", "owner": "u1", "acls": [], "oid": 1}'


@pytest.fixture(params=["location", "stash"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    """Where no catalog is yet."""
    if request.param == "stash":
        return Made(stash=f"sqlite:{tmp_path / 'stash.db'}")
    return Made(directory=tmp_path / "location")


@pytest.fixture
def made(place: Made) -> Made:
    """A catalog with OBJECTS."""
    place.run(fill)
    return place


@pytest.fixture
def stash(tmp_path: Path) -> Made:
    """A catalog with OBJECTS in the quicker place."""
    place = Made(stash=f"sqlite:{tmp_path / 'stash.db'}")
    place.run(fill)
    return place


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Call with what the person at the terminal types."""
    keyboard, terminal = os.openpty()
    with os.fdopen(terminal, closefd=True) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)

        def typed(text: str) -> None:
            os.write(keyboard, text.encode())

        yield typed
    os.close(keyboard)


def objects_of(dumped: dict[str, Any]) -> dict[Any, dict[Any, Any]]:
    kinds = {BY_TAG[tag]: entries for tag, entries in dumped.items()}
    return {
        kind: {read_key(kind, entry["key"]): read_value(kind, entry["value"]) for entry in entries}
        for kind, entries in kinds.items()
    }


def epoch_of(persist: Persist, made: Made) -> int:
    done = persist("catalog", "epoch", "--json", *made.options)
    assert done.code == 0, done.err
    return int(done.json["epoch"])


def test_dump_look_edit_and_delete(persist: Persist, made: Made) -> None:
    dumped = persist("catalog", "dump", *made.options)
    assert dumped.code == 0, dumped.err
    found = objects_of(dumped.json)
    for kind, objects in OBJECTS.items():
        assert found[kind].items() >= objects.items()
    assert {entry["diff"] for entries in dumped.json.values() for entry in entries} == {1}
    assert persist("catalog", "dump", "--json", *made.options).json == dumped.json
    assert '"täble \\"one\\"\\n\\u001b\\u009b\\u202e"' in dumped.out, "nothing that a terminal obeys"
    assert f"data version {NEWEST}" in dumped.err

    told = persist("catalog", "epoch", *made.options)
    assert (told.code, told.out) == (0, "deploy generation 3, epoch 2\n")
    before = persist("catalog", "upgrade-check", "--json", *made.options)
    assert before.code == 0, before.err
    assert before.json["steps"] == []

    done = persist("catalog", "edit", "database", '{"id": "u2"}', OWNED, "--yes", "--json", *made.options)
    assert done.code == 0, done.err
    assert (done.json["done"], done.json["previous"]["name"], done.json["value"]["name"]) == ("changed", "d2", "shop")
    assert done.json["token"] == {"deploy_generation": 3, "epoch": 3}
    gone = persist("catalog", "delete", "database", '{"id": "u2"}', "--yes", *made.options)
    assert gone.code == 0, gone.err
    assert json.loads(gone.out)["name"] == "shop"
    assert "deleted database" in gone.err
    left = objects_of(persist("catalog", "dump", "-k", "database", *made.options).json)
    assert left == {DATABASE: {key: it for key, it in OBJECTS[DATABASE].items() if key.id != user(2)}}
    assert epoch_of(persist, made) == 4


def test_a_damaged_catalog_is_dumped_edited_and_repaired(persist: Persist, stash: Made) -> None:
    def row(value: str) -> Row:
        return CODEC.encode(SETTING.tag, SettingKey("motto"), Setting(value))

    async def damage(log: RowLog) -> None:
        upper = await log.upper()
        assert await log.append([(row("gone"), -1), (row("late"), 1)], upper, expected_upper=upper) is None

    stash.run(damage)
    with pytest.raises(CorruptData):
        stash.lead(3)
    assert epoch_of(persist, stash) == 2
    dumped = persist("catalog", "dump", "-k", "setting", *stash.options)
    assert dumped.code == 0, dumped.err
    found = {entry["value"]["value"]: (entry["diff"], "damaged" in entry) for entry in dumped.json["setting"]}
    assert found.items() >= {"gone": (-1, True), "late": (1, True), "carpe": (1, True)}.items()
    assert "3 rows damaged" in dumped.err
    upper = stash.upper()
    planned = persist("catalog", "repair", *stash.options)
    assert (planned.code, stash.upper()) == (1, upper)
    assert '+1 setting {"name": "motto"} {"value": "gone"}' in planned.out
    assert '-1 setting {"name": "motto"} {"value": "carpe"}' in planned.out
    assert "--commit makes these changes" in planned.err
    done = persist("catalog", "repair", "--commit", "--json", *stash.options)
    assert done.code == 0, done.err
    assert done.json["token"] == {"deploy_generation": 3, "epoch": 3}
    problems = {entry["value"]["value"]: entry["problem"] for entry in done.json["damaged"]}
    assert problems["gone"] == "it went without being there"
    assert problems["late"] == problems["carpe"] == "its key has another value, too"
    stash.lead(3)
    assert persist("catalog", "repair", *stash.options).code == 0
    left = persist("catalog", "dump", "-k", "setting", *stash.options).json["setting"]
    assert {entry["value"]["value"] for entry in left if "motto" in entry["key"].values()} == {"late"}
    stash.run(damage)
    done = persist("catalog", "edit", "setting", '{"name": "motto"}', '{"value": "late"}', "--yes", *stash.options)
    assert done.code == 0, done.err
    stash.lead(3)


def test_a_generation_that_went_too_far_is_set_back(persist: Persist, made: Made) -> None:
    made.lead(2**40 // 2**21)
    with pytest.raises(FencedByGeneration):
        made.lead(4)
    upper = made.upper()
    planned = persist("catalog", "repair", "--generation", 4, *made.options)
    assert (planned.code, made.upper()) == (0, upper)
    assert "--commit makes them" in planned.err
    done = persist("catalog", "repair", "--generation", 4, "--epoch", 1, "--commit", "--json", *made.options)
    assert done.code == 0, done.err
    assert (done.json["token"], done.json["damaged"]) == ({"deploy_generation": 4, "epoch": 1}, [])
    made.lead(4)
    on = persist("catalog", "repair", "--generation", 9, "--commit", *made.options)
    assert on.code != 0
    assert "set back, never on" in on.err


def test_a_catalog_that_cannot_be_opened_is_repaired(persist: Persist, stash: Made) -> None:
    twice = '{"name": "d2", "owner": "u1", "acls": [], "oid": 1}'
    assert persist("catalog", "edit", "database", '{"id": "u1"}', twice, "--yes", *stash.options).code == 0
    with pytest.raises(CorruptData):
        stash.lead(3)
    upper = stash.upper()
    checked = persist("catalog", "upgrade-check", *stash.options)
    assert checked.code == 1
    assert "a name is unique" in checked.err
    assert stash.upper() == upper
    assert persist("catalog", "edit", "database", '{"id": "u1"}', OWNED, "--yes", *stash.options).code == 0
    stash.lead(3)


def test_edit_ends_whoever_leads(persist: Persist, made: Made) -> None:
    from persist.client.catalog.durable import DurableCatalog
    from persist.core.catalog.errors import FencedByEpoch

    async def lead_while_somebody_edits(log: Any) -> None:
        import asyncio

        catalog = await DurableCatalog(log).open(3)
        words = ("catalog", "edit", "database", '{"id": "u1"}', OWNED, "--yes", *made.options)
        done = await asyncio.to_thread(persist, *words)
        assert done.code == 0, done.err
        with pytest.raises(FencedByEpoch):
            await catalog.set(DATABASE, {DatabaseKey(user(9)): database("d9")})

    made.run(lead_while_somebody_edits)


def test_looking_changes_nothing(persist: Persist, made: Made) -> None:
    before = made.upper(), epoch_of(persist, made)
    for words in (("dump",), ("dump", "--no-consolidate"), ("epoch",), ("upgrade-check",)):
        assert persist("catalog", *words, *made.options).code == 0
    assert (made.upper(), epoch_of(persist, made)) == before


def test_without_a_catalog_nothing_is_made(persist: Persist, place: Made, tmp_path: Path) -> None:
    for command in (("dump",), ("epoch",), ("upgrade-check",), ("delete", "item", '{"id": "u1"}', "--yes")):
        done = persist("catalog", *command, *place.options)
        assert done.code == 2
        assert ("there is no such file" if place.stash else "no persist location") in done.err
    assert not list(tmp_path.iterdir())


def test_a_directory_that_is_no_location_stays_as_it_is(persist: Persist, tmp_path: Path) -> None:
    done = persist("catalog", "epoch", "--location", tmp_path)
    assert done.code == 2
    assert "no persist location" in done.err
    assert not list(tmp_path.iterdir())


def test_a_stash_in_postgres(persist: Persist, fresh_postgres_uri: Callable[[], str]) -> None:
    place = Made(stash=fresh_postgres_uri())
    assert "no catalog here" in persist("catalog", "dump", *place.options).err
    place.run(fill)
    done = persist("catalog", "edit", "database", '{"id": "u1"}', OWNED, "--yes", *place.options)
    assert json.loads(done.out)["name"] == "d1"
    assert epoch_of(persist, place) == 3


def test_passwords_are_not_shown(persist: Persist) -> None:
    done = persist("catalog", "epoch", "--stash", "postgres://me:secret@127.0.0.1:1/x?password=secret")
    assert done.code == 1
    assert "secret" not in done.err
    named = str(CatalogPlace("default", stash="postgres://me:se:c/ret@host:1/x?sslmode=require&password=secret"))
    assert named == "postgres://me@host:1/x?sslmode=require&password=…"


def test_another_environment_is_another_catalog(persist: Persist, made: Made) -> None:
    # Listing shards reads their names, under a lease that the catalog's shard knows.
    shards = made.directory and [row["shard"] for row in persist("shard", "list", "--json", *made.options).json]
    for command in (("dump",), ("epoch",), ("upgrade-check",), ("delete", "item", '{"id": "u1"}', "--yes")):
        done = persist("catalog", *command, "--environment", "defualt", *made.options)
        assert done.code == 2
        assert "no catalog here environment=defualt" in done.err
    if made.directory:
        assert [row["shard"] for row in persist("shard", "list", "--json", *made.options).json] == shards


def test_what_dump_prints_edit_takes_unchanged(persist: Persist, stash: Made, tmp_path: Path) -> None:
    dumped = persist("catalog", "dump", *stash.options).json
    upper = stash.upper()
    for tag, entries in dumped.items():
        for entry in entries:
            versions = {"user_version", "catalog_content_version"} & set(map(str, entry["key"].values()))
            if tag in ("audit_log", "fence_token") or versions:
                continue
            texts = json.dumps(entry["key"]), json.dumps(entry["value"])
            done = persist("catalog", "edit", tag, *texts, "--yes", *stash.options)
            assert done.code == 0, done.err
            assert "nothing was done" in done.err
    assert stash.upper() == upper
    lines = persist("catalog", "dump", "-k", "item", *stash.options).out.splitlines()
    key, value = (line.partition(": ")[2].rstrip(",") for line in lines if line.lstrip().startswith(('"key"', '"val')))
    assert persist("catalog", "edit", "item", key, value, "--yes", *stash.options).code == 0
    file = tmp_path / "item.json"
    file.write_text(json.dumps(dumped["item"][0]).replace("20000", "20001"))
    done = persist("catalog", "edit", "item", file, "--yes", *stash.options)
    assert json.loads(done.out)["oid"] == 20_000
    [entry] = persist("catalog", "dump", "-k", "item", *stash.options).json["item"]
    assert entry["value"] == {**dumped["item"][0]["value"], "oid": 20_001}
    assert persist("catalog", "delete", "item", file, "--yes", *stash.options).code == 0


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (("--kind", "database", "-k", "comment"), ["database", "comment"]),
        (("--kind", "audit-log"), ["audit_log"]),
        (("--kind", "database", "-k", "item", "--ignore", "database"), ["item"]),
        (("--ignore-large", "--ignore", "fence_token"), None),
    ],
)
def test_dump_of_some_kinds(persist: Persist, stash: Made, words: tuple[str, ...], kinds: list[str] | None) -> None:
    everything = persist("catalog", "dump", *stash.options).json
    done = persist("catalog", "dump", *words, *stash.options)
    assert done.code == 0, done.err
    wanted = everything.keys() - {"audit_log", "fence_token"} if kinds is None else kinds
    assert done.json == {kind: everything.get(kind, []) for kind in wanted}
    assert kinds is None or list(done.json) == kinds


def test_dump_tells_every_change_by_time(persist: Persist, made: Made) -> None:
    words = ("catalog", "dump", "--no-consolidate", "-k", "setting", *made.options)
    for value in ("diem", "noctem"):
        told = persist(
            "catalog", "edit", "setting", '{"name": "motto"}', f'{{"value": "{value}"}}', "--yes", *words[-2:]
        )
        assert told.code == 0, told.err
    changes = [entry for entry in persist(*words).json["setting"] if entry["key"]["name"] == "motto"]
    told_values = [(entry["value"]["value"], entry["diff"]) for entry in changes][-4:]
    assert told_values[-2:] == [("diem", -1), ("noctem", 1)]
    assert [entry["ts"] for entry in changes] == sorted(entry["ts"] for entry in changes)


def test_a_person_is_asked(persist: Persist, stash: Made, answers: Callable[[str], None]) -> None:
    answers("n\n")
    words = ("catalog", "edit", "database", '{"id": "u1"}', OWNED, *stash.options)
    done = persist(*words)
    assert done.code == 1
    assert "nothing was done" in done.err
    for said in ("change database", '"name": "d1"', '"name": "shop"', "epoch 2) is fenced", "environment default"):
        assert said in done.err
    assert epoch_of(persist, stash) == 2
    answers("y\n")
    assert json.loads(persist(*words).out)["name"] == "d1"
    assert epoch_of(persist, stash) == 3


def test_where_nobody_can_be_asked_nothing_is_done(
    persist: Persist, stash: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(OWNED))
    done = persist("catalog", "edit", "database", '{"id": "u1"}', "-", *stash.options)
    assert done.code == 2
    assert "--yes" in done.err
    assert epoch_of(persist, stash) == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO(OWNED))
    assert persist("catalog", "edit", "database", '{"id": "u1"}', "-", "--yes", *stash.options).code == 0
    assert epoch_of(persist, stash) == 3


def test_delete_of_what_is_not_there_succeeds_and_fences_nobody(persist: Persist, made: Made) -> None:
    done = persist("catalog", "delete", "comment", '{"object_type": "table", "id": "u1"}', "--yes", *made.options)
    assert done.code == 0, done.err
    assert not done.out
    assert "is not there" in done.err
    assert epoch_of(persist, made) == 2
    told = persist("catalog", "delete", "item", '{"id": "u77"}', "--yes", "--json", *made.options)
    assert (told.json["done"], told.json["previous"], told.json["token"]) == ("nothing", None, None)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("edit", "databse", "{}", "{}"), "did you mean database? kinds are audit_log, cluster, "),
        (("dump", "--kind", "xyz"), "unknown kind 'xyz': kinds are audit_log"),
        (("dump", "--kind", "item", "--ignore", "item"), "nothing is left"),
        (("edit", "audit_log", "{}", "{}"), "never changed"),
        (("delete", "storage_usage", "{}"), "never changed"),
        (("edit", "fence_token", "{}", "{}"), "says who leads"),
        (("edit", "config", '{"key": "user_version"}', '{"value": 4}'), "only a migration"),
        (("delete", "config", '{"key": "user_version"}'), "only a migration"),
        (("edit", "item", "u1", "{}"), "neither JSON"),
        (("edit", "item", '{"id": "u1"', "{}"), "no JSON"),
        (("edit", "item", '{"id": "x1"}', "{}"), "field=key.id"),
        (("edit", "item", '{"id": "u1"}', '{"nam": "x"}'), "did you mean name?"),
        (("edit", "item", '{"id": "u1"}'), "VALUE is missing"),
        (("edit", "item", "-", "-"), "standard input"),
        (("edit", "item", '["id"]', "{}"), "an object with the fields id"),
        (("edit", "item", '{"key_hex": "", "value_hex": ""}'), "VALUE is missing"),
        (("delete", "item", '{"key": {"id": "u0x"}, "value": {}}'), "field=key.id"),
        (("epoch", "--environment", ""), "--environment needs a name"),
        (("epoch", "--location", "."), "not both"),
        (("epoch", "--endpoint", "127.0.0.1:1"), "not both"),
    ],
)
def test_wrong_usage_is_told_and_changes_nothing(
    persist: Persist, stash: Made, words: tuple[str, ...], says: str
) -> None:
    upper = stash.upper()
    done = persist("catalog", *words, *(("--yes",) if words[0] in ("edit", "delete") else ()), *stash.options)
    assert done.code == 2, done.err
    assert says in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err
    assert stash.upper() == upper


@pytest.mark.parametrize("version", range(1, NEWEST))
def test_a_catalog_of_an_older_data_version(persist: Persist, place: Made, version: int) -> None:
    # One of each kind: the names of more would clash.
    there = list({row.kind: row for row in stored(version)}.values())
    rows(place, there)
    dumped = persist("catalog", "dump", *place.options)
    assert dumped.code == 0, dumped.err
    assert "hexadecimal" in dumped.err
    for tag, entries in dumped.json.items():
        assert all(("key" in entry) == BY_TAG[tag].frozen for entry in entries), tag
    raw = {
        (tag, e["key_hex"], e["value_hex"]) for tag, entries in dumped.json.items() for e in entries if "key_hex" in e
    }
    wanted = {(r.kind, r.key.hex(), r.value.hex()) for r in there if not BY_TAG[r.kind].frozen}
    assert raw == wanted

    upper, epoch = place.upper(), epoch_of(persist, place)
    checked = persist("catalog", "upgrade-check", "--json", *place.options)
    assert checked.code == 0, checked.err
    assert (checked.json["found"], checked.json["current"]) == (version, NEWEST)
    assert [step["from"] for step in checked.json["steps"]] == list(range(version, NEWEST))
    assert f"data version {version} would become {NEWEST}" in persist("catalog", "upgrade-check", *place.options).out
    refused = persist("catalog", "edit", "setting", '{"name": "x"}', '{"value": "y"}', "--yes", *place.options)
    assert refused.code == 2
    assert f"found={version}" in refused.err
    assert (place.upper(), epoch_of(persist, place)) == (upper, epoch)


def test_a_catalog_of_a_newer_data_version(persist: Persist, stash: Made) -> None:
    async def migrate(log: Any) -> None:
        older, newer = (CODEC.encode("config", DATA_VERSION, Config(version)) for version in (NEWEST, NEWEST + 1))
        upper = await log.upper()
        assert await log.append([(older, -1), (newer, 1)], upper, expected_upper=upper) is None

    stash.run(migrate)
    upper = stash.upper()
    done = persist("catalog", "upgrade-check", *stash.options)
    assert done.code not in (0, None)
    for said in (f"found={NEWEST + 1}", "min=1", f"current={NEWEST}"):
        assert said in done.err
    told = persist("catalog", "upgrade-check", "--json", *stash.options)
    assert json.loads(told.err)["details"] == {"found": str(NEWEST + 1), "min": "1", "current": str(NEWEST)}
    assert "key_hex" in persist("catalog", "dump", *stash.options).json["database"][0]
    history = persist("catalog", "dump", "--no-consolidate", "-k", "database", *stash.options).json["database"]
    assert stash.upper() == upper
    assert all("key" in entry for entry in history), "what came before the version changed is of the older one"


def test_a_catalog_that_somebody_only_began_is_shown(persist: Persist, place: Made) -> None:
    rows(place, [CODEC.encode("fence_token", FenceTokenKey(), FenceToken(1, 2))])
    assert persist("catalog", "epoch", *place.options).out == "deploy generation 1, epoch 2\n"
    assert list(persist("catalog", "dump", *place.options).json) == ["fence_token"]
    for words in (("upgrade-check",), ("edit", "setting", '{"name": "x"}', '{"value": "y"}', "--yes")):
        assert "no catalog here" in persist("catalog", *words, *place.options).err
    assert place.upper() == 1


def test_damaged_and_unknown_rows_are_shown(persist: Persist, stash: Made) -> None:
    good = CODEC.encode("database", DatabaseKey(user(5)), database("d5"))

    async def damage(log: Any) -> None:
        upper = await log.upper()
        bad = [good._replace(value=b"\xff"), Row("novelty", b"\x01", b"\x02")]
        assert await log.append([(row, 1) for row in bad], upper, expected_upper=upper) is None

    stash.run(damage)
    dumped = persist("catalog", "dump", *stash.options)
    assert dumped.code == 0, dumped.err
    assert dumped.json["novelty"][0]["value_hex"] == "02"
    assert [entry["value_hex"] for entry in dumped.json["database"] if "value_hex" in entry] == ["ff"]
    assert "2 rows in hexadecimal" in dumped.err
    assert persist("catalog", "upgrade-check", *stash.options).code == 1


def test_help_is_quick_and_names_the_commands(persist: Persist) -> None:
    shown = persist("catalog", "--help").out
    for command in ("dump", "edit", "delete", "epoch", "upgrade-check"):
        assert command in shown
    look = "run(['catalog', 'edit', '--help'], {}); print('pyarrow' in sys.modules)"
    script = f"import sys; from persist_cli.app import run; {look}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")
