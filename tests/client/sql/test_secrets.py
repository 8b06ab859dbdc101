"""A statement that says a secret, and whatever comes of it, leaves no trace of it in an error."""

import traceback

import pytest
from client.sql.support import sessions

from persist.errors import PersistError
from persist.redaction import scrub

SECRET = "s3cr/et#pw?@x"
STATEMENTS = [
    "create source so from postgres (dsn 'postgres://u:{}@h/db', tables 'a')",
    "create source so from postgres (dsn 'host=h password={} dbname=d', tables 'a')",
    "create source so from kafka (bootstrapservers 'b', \"sasl.password\" = '{}')",
    "create source if not exists so from postgres (dsn = 'postgres://u@h/db?password={}')",
    "create source so from postgres (dsn 'postgres://u:{}@h/db' tables 'a')",
    "create source so from postgres dsn 'postgres://u:{}@h/db'",
    "create source so from postgres (dsn 'postgres://u:{}@h/db, tables 'a')",
    "create source so from postgres (dsn postgres://u:{}@h/db)",
    "create source so from postgres (dsn 'postgres://u:'{}@h/db')",
    "create /* {} */ source so from postgres (dsn 'postgres://u:{}@h/db",
    "create sink k from t into postgres (uri 'postgres://u:{}@127.0.0.1:1/db', tabel 'x')",
    "create sink k from t into postgres (uri 'postgres://u:{}@127.0.0.1:1/db', table 'x'",
    "create sink k from nosuch into postgres (uri 'postgres://u:{}@127.0.0.1:1/db', table 'x')",
    "create sink k from t into elsewhere (uri 'postgres://u:{}@127.0.0.1:1/db')",
    "create sink k from t into sqlite (path '/x', password '{}')",
]


@pytest.mark.parametrize("secret", [SECRET, "hunter2hunter"])
async def test_no_error_repeats_a_secret_of_its_statement(secret):
    async with sessions() as (session,):
        await session.execute("create table t (id bigint)")
        for statement in STATEMENTS:
            with pytest.raises(PersistError) as refused:
                await session.execute(statement.replace("{}", secret))
            said = "".join(traceback.format_exception(refused.value))
            for piece in (secret, *secret.split("/")):
                assert piece not in said, statement


async def test_what_a_statement_said_is_scrubbed_from_then_on():
    async with sessions() as (session,):
        with pytest.raises(PersistError):
            await session.execute("create source so from kafka (\"sasl.password\" = 'onlyhere77')")
    assert "onlyhere77" not in scrub("the broker said onlyhere77")
