"""What is taken in as a secret, and what is left as it is."""

import io
import time

import pytest

from persist import redaction
from persist.errors import InvalidUri
from persist.redaction import Scrubbed, learn, learn_environment, scrub
from persist.runtime import system
from persist.settings import Settings
from persist.storage.consensus.redis import RedisConsensus
from persist.storage.consensus.redis import redacted as redis_redacted
from persist.storage.engine.postgres import redacted
from persist.storage.open import open_consensus


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_secrets", set())
    monkeypatch.setattr(redaction, "_pattern", None)


@pytest.mark.parametrize(
    ("conninfo", "shown"),
    [
        ("postgres://u:pa#ss@h/d", "postgres://u@h/d"),
        ("postgresql://u:pa?ss@h:1/d?sslmode=require", "postgresql://u@h:1/d?sslmode=require"),
        ("postgres://u:p%40%2F@h,g:6/d", "postgres://u@h,g:6/d"),
        ("postgres://u@[::1]:5/d?password=x@y", "postgres://u@[::1]:5/d"),
        ("postgres:///d?host=/tmp&sslpassword=x", "postgres://%2Ftmp/d"),
        (r"host=h user='a b' password='it\'s' dbname=d", "postgres://a%20b@h/d"),
        ("postgres://u@h/d?options=-csearch_path%3Dx", "postgres://u@h/d?options=-csearch_path%3Dx"),
    ],
)
def test_postgres_is_shown_without_passwords_and_names_the_same_database(conninfo, shown):
    assert redacted(conninfo) == shown
    assert redacted(shown) == shown


@pytest.mark.parametrize(
    "uri",
    ["postgres://u:pa/ss@h/d", "postgres://u:12/ss@h/d", "postgres://u:pa@ss@h/d", "postgres://u:p%zz@h", "host=h a=x"],
)
def test_postgres_uri_that_can_be_misread_is_refused_and_not_repeated(uri):
    with pytest.raises(InvalidUri) as failed:
        redacted(uri)
    assert failed.value.__cause__ is None
    assert "ss" not in str(failed.value).replace("PGPASSWORD", "").replace("password", "")
    assert "%2F" in failed.value.hint


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("postgres://u:hunter2@h/d", 'no host "hunter2"'),
        ("postgres://u:hunt/er2x@h/d", 'invalid port: "hunt" in "er2x@h"'),
        ("postgres://u:hun%2Fter@h/d", "hun/ter and hun%2Fter"),
        ("redis://:hunter2#x@h", "'hunter2#x'"),
        ("host=h password='hunter 2'", "got hunter 2"),
        ("s3://bucket?secret_access_key=hunter22", "hunter22"),
    ],
)
def test_secret_is_scrubbed_wherever_it_comes_out(given, said):
    learn(given)
    text = scrub(said)
    for piece in ("hunter", "hunt", "er2x", "ter "):
        assert piece not in text
    stream = io.StringIO()
    print(said, file=Scrubbed(stream))
    assert stream.getvalue() == text + "\n"


def test_ordinary_words_are_left_alone():
    learn("postgres://persist:persist@db:5432/persist")
    learn("postgres://u@h:5432/d?sslmode=require")
    learn("postgres://u:abc@h/d")
    learn_environment({"PERSIST_TOKEN_HISTORY": "1000", "PATH": "/usr/bin", "PGPASSFILE": "/home/me/.pgpass"})
    said = "cannot reach db:5432 of persist, abc, 1000 at /home/me/.pgpass (postgres://persist@db/persist)"
    assert scrub(said) == said


def test_secrets_of_the_environment_are_learned():
    learn_environment({"PGPASSWORD": "hunter2", "AWS_SECRET_ACCESS_KEY": "abc/def", "X": "redis://:sesame@h"})
    assert scrub("hunter2, abc/def, abc%2Fdef, sesame") == "***, ***, ***, ***"


LENGTH = 64 << 10
HOSTILE = [
    *("://", ":", "token=", "@", "token", "token-", "password ", "://:", "a://", "=", "token='", "token=\\'", " = "),
    *("'", "://x:@ ", "secret = ", "_", "-", "\\", "postgres://"),
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_scrubbing_takes_time_in_proportion_to_the_text(piece):
    text = piece * (LENGTH // len(piece))
    took = min(cpu_seconds(text) for _ in range(3))
    assert took < 0.5


def cpu_seconds(text: str) -> float:
    began = time.thread_time()
    scrub(text)
    return time.thread_time() - began


def test_what_looks_like_credentials_is_scrubbed():
    said = """at "s3://key@h", postgres://u@h, redis://u:x@y@h/0?a=b@c, AWS_SECRET_KEY = 'a \\' b', a=my-token=x&y=z"""
    hidden = """at "s3://***@h", postgres://u@h, redis://***@c, AWS_SECRET_KEY = ***, a=my-token=***&y=z"""
    assert scrub(said) == hidden
    assert scrub("x password='never closed") == "x password=***"


@pytest.mark.parametrize("form", ["{0}", "a://u:{0}@h ", "a://{0}@h ", "password={0} ", "password='{0} {0}' "])
def test_secret_that_is_cut_in_half_is_not_shown(form):
    learn("x://u:hunter2hunter2@h")
    secret = "hunter2hunter2" if form == "{0}" else "Qwerty" * 40
    for shift in range(0, 600, 7):
        shown = scrub("a://u:" + "x" * 350 + "@h " + " " * shift + form.format(secret) + "." * 1000, 100)
        assert "hun" not in shown
        assert "Qw" not in shown
        assert len(shown) <= 100
        assert shown[-1] == "…"


def test_text_within_the_limit_is_whole():
    assert scrub("a" * 100, 100) == "a" * 100
    assert scrub("://u:" + "x" * 200 + "@h", 100) == "://***@h"


def test_fragment_of_a_redis_uri_is_refused_and_not_repeated():
    uri = "redis://h:1/0?password=Hunter#Secret9"
    for opening in (lambda: RedisConsensus(uri, system()), lambda: open_it(uri)):
        with pytest.raises(InvalidUri) as failed:
            opening()
        assert "Secret9" not in f"{failed.value} {failed.value.__cause__!r}"
        assert "%23" in failed.value.hint
    assert redis_redacted(uri) == "redis://h:1/0"


def open_it(uri: str) -> object:
    return open_consensus(uri, settings=Settings(), runtime=system())


def test_password_that_is_a_word_of_our_own_leaves_it_alone():
    learn_environment({"PGPASSWORD": "persist"})
    assert scrub("persist: refused") == "persist: refused"
    assert scrub("postgres://u:persist@h") == "postgres://***@h"
