"""``persist sql`` and ``persist hold``: what a person sees, and what a program gets."""

import io
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

import persist as library
from persist import aio
from persist.client.sql.session import SqlSession
from persist.dates import dated
from persist_cli.sql.running import Printed
from persist_cli.sql.shell import Shell, candidates, is_complete

Persist = Callable[..., Any]

MADE = "create table t (id bigint primary key, name text, n int); insert into t values (1, 'ada', 10), (2, null, 20)"


def test_statements_from_the_command_line_a_file_and_a_pipe(persist: Persist, here, tmp_path, monkeypatch):
    done = persist("sql", *here, MADE)
    assert (done.code, done.out) == (0, "CREATE TABLE\nINSERT 2\n")
    table = persist("sql", *here, "select id, name from t order by id")
    assert table.code == 0
    assert "│  1 │ ada  │" in table.out
    assert "│  2 │ null │" in table.out
    assert "2 rows" in table.out
    script = tmp_path / "script.sql"
    script.write_text("update t set n = n + 1;\nselect sum(n) as sum from t;")
    assert persist("sql", *here, "--json", "-f", script).lines == [{"sum": 32}]
    assert persist("sql", *here, "--json", "-c", "select max(n) as n from t").lines == [{"n": 21}]
    assert persist("sql", *here, "-c", "select 1", "-f", script).code == 2
    monkeypatch.setattr(sys, "stdin", io.StringIO("select count(*) as count from t"))
    assert persist("sql", *here, "--json").lines == [{"count": 2}]


def test_rows_for_programs(persist: Persist, here):
    assert persist("sql", *here, MADE).code == 0
    assert persist("sql", *here, "--json", "select * from t order by id").lines == [
        {"id": 1, "name": "ada", "n": 10},
        {"id": 2, "name": None, "n": 20},
    ]
    assert persist("sql", *here, "--csv", "select id, name from t order by id").out == '"id","name"\n1,"ada"\n2,\n'
    assert persist("sql", *here, "--csv", r"select '\x00ff'::bytea as z").out == '"z"\n"\\x00ff"\n'
    twice = persist("sql", *here, "--json", "select 1 as a, 2 as a")
    assert (twice.code, twice.out) == (2, "")


def test_rows_as_an_arrow_stream(here, capfdbinary):
    from persist_cli.app import run

    with library.embedded(here[1]) as client:
        client.sql(MADE)
    assert run(["sql", *here, "--arrow", "select id from t order by id"], {}) == 0
    out, _ = capfdbinary.readouterr()
    assert pa.ipc.open_stream(out).read_all().to_pylist() == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("selct 1", "no statement begins so line=1 column=1 at='SELCT' (did you mean SELECT?)"),
        ("select * from nope", "there is no such object name=nope"),
        ("select 'x'::int", "a text is no whole number got=x"),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_code(persist: Persist, here, text, said):
    assert persist("sql", *here, MADE).code == 0
    failed = persist("sql", *here, text)
    assert failed.code == 2
    assert said in failed.err
    assert failed.err.count("\n") == 1


def test_nothing_of_a_text_runs_that_cannot_be_parsed(persist: Persist, here):
    assert persist("sql", *here, MADE).code == 0
    assert persist("sql", *here, "delete from t; selct 1").code == 2
    assert persist("sql", *here, "--json", "select count(*) as n from t").lines == [{"n": 2}]


def test_a_place_that_is_not_there_is_made_by_what_creates_only(persist: Persist, tmp_path):
    missing = ("--location", str(tmp_path / "missing"))
    failed = persist("sql", *missing, "select 1")
    assert failed.code == 2
    assert "no persist location" in failed.err
    assert not (tmp_path / "missing").exists()


def test_a_subscription_up_to_now_ends_where_nobody_writes(persist: Persist, here):
    """The process that made the table and led is gone: no tick says that the clock went on."""
    assert persist("sql", *here, MADE).code == 0
    done = persist("sql", *here, "--csv", "subscribe t up to now()")
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 3


def test_formats_exclude_each_other(persist: Persist, here):
    assert persist("sql", *here, "--csv", "--arrow", "select 1").code == 2


def test_holds_are_made_listed_advanced_renamed_and_dropped(persist: Persist, here):
    assert persist("sql", *here, MADE).code == 0
    assert "CREATE HOLD persist.public.h at " in persist("hold", "create", *here, "h", "t").err
    (held,) = persist("hold", "list", *here, "--json").json
    assert (held["name"], held["on"], held["state"]) == ("persist.public.h", ["persist.public.t"], "ok")
    assert "1 hold" in persist("hold", "list", *here).out
    advanced = persist("hold", "advance", *here, "h", "--json").json
    assert advanced["at"] >= held["at"]
    assert persist("hold", "create", *here, "other", "t", "--max-lag", "1h").code == 0
    assert persist("hold", "rename", *here, "h", "other", "--swap").code == 0
    assert persist("hold", "rename", *here, "h", "kept").code == 0
    assert persist("hold", "drop", *here, "kept").code == 0
    assert [each["name"] for each in persist("hold", "list", *here, "--json").json] == ["persist.public.other"]
    failed = persist("hold", "drop", *here, "nope")
    assert failed.code == 2
    assert "nope" in failed.err
    assert persist("hold", "drop", *here, "nope", "--if-exists").code == 0


def test_what_became_of_a_hold_is_of_that_one_and_of_no_other_of_its_name(persist: Persist, here):
    assert persist("sql", *here, MADE).code == 0
    assert persist("sql", *here, "create schema b; create hold h on t").code == 0
    early = persist("hold", "list", *here, "--json").json[0]["at"]
    made = persist("hold", "create", *here, "b.h", "t", "--at", str(early + 1), "--json").json
    assert made["at"] == early + 1
    advanced = persist("hold", "advance", *here, "b.h", "--to", str(early + 2), "--json").json
    assert advanced["at"] == early + 2
    told = {each["name"]: each["at"] for each in persist("hold", "list", *here, "--json").json}
    assert told == {"persist.public.h": early, "persist.b.h": early + 2}
    renamed = persist("hold", "rename", *here, "b.h", "g", "--json").json
    assert (renamed["name"], renamed["at"]) == ("persist.b.g", early + 2)
    assert persist("hold", "rename", *here, "b.g", "h").code == 0
    assert persist("hold", "drop", *here, "b.h", "--json").json["at"] is None


def test_enter_runs_what_is_complete():
    assert is_complete("select 1;")
    assert is_complete("\\d t")
    assert is_complete("")
    assert not is_complete("select 1")
    assert not is_complete("select ';")
    assert not is_complete("select 1; select 2")


def test_words_and_names_are_completed_in_the_case_they_are_typed_in():
    names = [("flights", "persist.public.flights", "carrier")]
    assert candidates("fl", names) == ["flights"]
    assert candidates("SEL", names) == ["SELECT"]
    assert candidates("sel", names) == ["select"]
    assert candidates("c", names)[0] == "carrier"
    assert candidates("", names) == []


async def test_the_shell_runs_what_is_typed(tmp_path, capfd):
    typed = (
        "create table t (id bigint primary key);\n"
        "insert into t\nvalues (1), (2);\n"
        "select count(*) as count\nfrom t;\n"
        "\\d\n\\d t\n\\timing\nselct;\nselect 1 as one;\n\\nope\n\\q\n"
    )
    async with await aio.embedded(str(tmp_path / "data")) as client:
        session = SqlSession(await client.environment(), files=True)
        with create_pipe_input() as keyboard, create_app_session(input=keyboard, output=DummyOutput()):
            keyboard.send_text(typed)
            await Shell(session, Printed.TABLE, InMemoryHistory()).run()
        await session.close()
    out, err = capfd.readouterr()
    assert "CREATE TABLE\nINSERT 2\n" in out
    assert "│     2 │" in out
    assert "persist" in out
    assert "BIGINT" in out
    assert "timing is on" in err
    assert "no statement begins so" in err
    assert " ms" in err
    assert "there is no command \\nope" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("select * from t where", "something is missing in WHERE"),
        ("describe t", "SHOW COLUMNS FROM name"),
        ("show table", "MATERIALIZED VIEWS"),
        ("show", "MATERIALIZED VIEWS"),
    ],
)
def test_a_mistyped_statement_says_what_is_meant(persist: Persist, here, text: str, said: str):
    assert persist("sql", *here, "create table t (id int)").code == 0
    done = persist("sql", *here, text)
    assert (done.code, said in done.err, "class" in done.err) == (2, True, False), done.err


def test_lists_show_the_timeline_things_are_read_in_and_lags_as_they_are_written(persist: Persist, here):
    made = "create table t (id int); create view v as select * from t; create view one as select 1 as a"
    assert persist("sql", *here, f"{made}; create hold h on t with (max lag = '26h')").code == 0
    shown = persist("sql", *here, "--json", "show views").lines
    assert {each["name"]: each["timeline"] for each in shown} == {"one": "", "v": "M"}
    assert persist("sql", *here, "--json", "show holds").lines[0]["max_lag"] == "1d2h"
    assert persist("hold", "list", *here, "--json").json[0]["max_lag"] == 26 * 3_600_000
    assert "1d2h" in persist("hold", "list", *here).out


def test_a_mistyped_column_is_answered_with_those_that_are_like_it(persist: Persist, here):
    assert persist("sql", *here, "create table t (id int, owner text, cents int)").code == 0
    for text in ("select onwer from t", "select id from t where onwer = 'ada'"):
        done = persist("sql", *here, text)
        assert (done.code, '"owner"' in done.err) == (2, True), done.err


def test_times_of_holds_have_their_dates_in_tables(persist: Persist, here):
    assert persist("sql", *here, "create table t (id int); create hold h on t").code == 0
    for text in ("show holds", "select name, at, last_ack_ms from persist_catalog.holds"):
        (row,) = persist("sql", *here, "--json", text).lines
        shown = persist("sql", *here, text).out
        # Where the table is wide for the screen, the date stands below its number.
        date = dated(row["at"]).partition(" ")[2]
        assert date.startswith("(20"), date
        assert str(row["at"]) in shown, shown
        assert date in shown, shown


def test_what_a_hold_does_not_keep_is_told_by_names(persist: Persist, here):
    assert persist("sql", *here, "create table t (id int); create hold h on t").code == 0
    below = persist("sql", *here, "select * from t as of 3")
    assert (below.code, "object=persist.public.t" in below.err) == (2, True), below.err
    for typed in (
        ("hold", "advance", "h", "--to", "2206-11-22"),
        ("hold", "create", "g", "t", "--at", "2206-11-22"),
        ("sql", "alter hold h advance to '2206-11-22'"),
        ("sql", "create hold g on t at '2206-11-22'"),
        ("sql", "create cursor g for subscribe t as of '2206-11-22'"),
    ):
        ahead = persist(*typed, *here)
        assert (ahead.code, "far ahead of the clock" in ahead.err) == (2, True), ahead.err
    early = persist("hold", "create", "g", "t", "--at", "3", *here)
    assert (early.code, "objects=persist.public.t" in early.err) == (2, True), early.err


def test_a_role_that_is_not_there_runs_nothing(persist: Persist, here):
    first = persist("sql", *here, "--role", "nobody", "select 1")
    assert (first.code, first.out) == (2, ""), first.out
    assert persist("sql", *here, "create table t (id int); create role ann").code == 0
    for text in ("select 1", "show tables", "select * from persist_catalog.tables", "create table u (id int)"):
        refused = persist("sql", *here, "--role", "nobody", text)
        assert (refused.code, "there is no such role" in refused.err) == (2, True), (text, refused.out, refused.err)
    assert persist("sql", *here, "--role", "ann", "select 1").code == 0
    assert "there is no such role" in persist("hold", "create", "h", "t", *here, "--role", "nobody").err
    assert "there is no such role" in persist("sql", *here, "set role = absent; select 1").err


def test_a_source_may_be_the_first_that_an_environment_has(persist: Persist, here):
    made = "create source s from load-generator (generator = counter, messages = 7)"
    refused = persist("sql", *here, "--role", "nobody", made)
    assert (refused.code, "there is no such role" in refused.err) == (2, True), refused.err
    assert persist("source", "list", *here, "--json").json["sources"] == []
    done = persist("sql", *here, made)
    assert (done.code, done.out) == (0, "CREATE SOURCE\n"), done.err
    shown = persist("sql", *here, "--json", "show sources").lines
    assert "s" in [each["name"] for each in shown if each["kind"] == "source"]
    assert persist("sql", *here, "drop source s cascade").code == 0


def test_sources_are_made_and_dropped_where_their_upstream_is_reached(persist: Persist, here):
    assert persist("sql", *here, "create table t (id bigint primary key); create role ann").code == 0
    made = persist("sql", *here, "create source s from load-generator (generator = counter, messages = 7)")
    assert (made.code, made.out) == (0, "CREATE SOURCE\n"), made.err
    assert "persist source run s" in made.err
    # Its first step has what it begins with.
    assert persist("source", "run", "s", "--steps", "1", "--no-spark", *here).code == 0
    (shown,) = [each for each in persist("sql", *here, "--json", "show sources").lines if each["kind"] != "source"]
    # Strictly it would be waited for, as nothing ingests it now.
    counted = f"set isolation = serializable; select count(*) as n from {shown['name']}"
    assert persist("sql", *here, "--json", counted).lines == [{"n": 7}]
    again = persist("sql", *here, "create source if not exists s from loadgen (generator = counter)")
    assert (again.code, "exists, skipping" in again.err) == (0, True), again.err
    assert persist("sql", *here, f"create view v as select * from {shown['name']}").code == 0
    for text, said in (
        ("create source s from loadgen (generator = counter)", "exists"),
        ("create source x.s from loadgen (generator = counter)", "persist.public"),
        ("create source u from loadgen (generator = counter, nope = 1)", "nope"),
        ("create source u from loadgen (generator = counter) with (retain history for '1d')", "--retain-seconds"),
        ("begin; create source u from loadgen (generator = counter)", "by itself"),
        ("drop source s", "persist.public.v"),
        ("set role = ann; create source u from loadgen (generator = counter)", "CREATE"),
        ("set role = ann; drop source s cascade", "ownership"),
        ("set role = ann; alter source s set (onAltered = stall)", "ownership"),
        ("alter source s set (rate = 7)", "created with"),
        ("begin; alter source s set (rate = 7)", "by itself"),
        ("alter source t set (rate = 7)", "source"),
    ):
        refused = persist("sql", *here, text)
        assert (refused.code, said in refused.err) == (2, True), (text, refused.err)
    assert [each["name"] for each in persist("source", "list", *here, "--json").json["sources"]] == ["s"]
    chosen = persist("sql", *here, "create source u from loadgen (generator = counter) with (timeline = 'mine')")
    assert chosen.code == 0, chosen.err
    refused = persist("sql", *here, f"select * from t, u_{shown['name']}")
    assert (refused.code, "U.mine: persist.public.u" in refused.err) == (2, True), refused.err
    assert persist("sql", *here, "drop source s cascade; drop source u cascade").code == 0
    assert persist("source", "list", *here, "--json").json["sources"] == []
    assert persist("sql", *here, "--json", "show sources").lines == []


def test_a_sink_delivers_each_change_once_wherever_it_is_run(persist: Persist, here, tmp_path):
    assert persist("sql", *here, MADE).code == 0
    database = tmp_path / "sink.db"
    made = f"create sink k from t into sqlite (path = '{database}', table = 'updates')"
    assert persist("sql", *here, made).out == "CREATE SINK\n"
    assert persist("sql", *here, "delete from t where id = 1").code == 0
    for _ in range(2):
        done = persist("sink", "run", "k", "--idle", "0.3", "--json", *here)
        assert done.code == 0, done.err
    assert persist("sql", *here, "insert into t values (3, 'bob', 30)").code == 0
    assert persist("sql", *here, "alter sink k rename to kept").code == 0
    last = persist("sink", "run", "kept", "--idle", "0.3", "--json", *here).json["position"]
    with sqlite3.connect(database) as connection:
        found = connection.execute("select id, sum(diff), count(*) from updates group by id order by id").fetchall()
    # The first is there only if it was still to be seen when the sink was made.
    assert [row[:2] for row in found if row[1]] == [(2, 1), (3, 1)]
    assert all(count <= 2 for _, _, count in found)
    (listed,) = persist("sink", "list", "--json", *here).json
    assert (listed["name"], listed["from"], listed["acknowledged"]) == ("persist.public.kept", "persist.public.t", last)
    assert str(database) in persist("sink", "list", *here).out.replace("\n", "").replace("│", "").replace(" ", "")
    assert [each["name"] for each in persist("sql", *here, "--json", "show sinks").lines] == ["kept"]
    for text, said in (
        ("create sink x from t into nowhere (path = 'x')", "no such type"),
        ("create sink x from t into sqlite (path = 'x')", "missing=table"),
        ("create sink x from t into postgres (uri = 'postgres://a:b@c/d', table = 't')", "a password is not kept"),
        ("create sink x from t into postgres (uri = 'postgres://a:b/e@c/d', table = 't')", "a password is not kept"),
        ("create view v as select * from t; create sink x from v into files (path = 'x')", "from what is stored"),
        ("drop table t", "persist.public.kept"),
    ):
        refused = persist("sql", *here, text)
        code = 3 if text.startswith("create view") else 2  # of two statements the first one took effect
        assert (refused.code, said in refused.err) == (code, True), (text, refused.err)
    assert persist("sink", "run", "t", *here).code == 2
    assert persist("sql", *here, "drop sink kept; select count(*) from mz_catalog.mz_holds").code == 0
    assert persist("sql", *here, "--json", "select count(*) as n from mz_catalog.mz_holds").lines == [{"n": 0}]
