"""URIs: what is understood, what is refused and with which hint."""

import subprocess
import sys
from pathlib import Path

import pytest

from persist.core.ids import ShardId
from persist.errors import InvalidUri
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus
from persist.storage.ports import Blob, Consensus

T = 5.0


def blob(uri: str) -> Blob:
    return open_blob(uri, settings=Settings(), runtime=system())


def consensus(uri: str) -> Consensus:
    return open_consensus(uri, settings=Settings(), runtime=system())


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("mem:", "mem:"),
        ("mem:a b", "mem:a b"),
        ("file:/a/b", "file:/a/b"),
        ("file:///a/b", "file:/a/b"),
        ("file:/a%20b", "file:/a%20b"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket/a?region=eu-west-1", "s3://bucket/a?region=eu-west-1"),
        (
            "s3://bucket?region=x&endpoint=http%3A%2F%2F127.0.0.1%3A9000",
            "s3://bucket?endpoint=http://127.0.0.1:9000&region=x",
        ),
    ],
)
def test_blob_uri_is_normalised(uri: str, expected: str) -> None:
    assert blob(uri).uri == expected


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert blob("file:data/x").uri == f"file:{tmp_path}/data/x"
    assert consensus("sqlite:x.db").uri == f"sqlite:{tmp_path}/x.db"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("redis://h:1/2", "redis://h:1/2"),
        ("rediss://u:secret@h:1/2", "rediss://u@h:1/2"),
        ("redis://:secret@h", "redis://h"),
        ("redis://h/0?password=secret&client_name=a", "redis://h/0?client_name=a"),
        ("postgres://u:secret@h:1/db", "postgres://u@h:1/db"),
        ("postgresql://u@h/db?password=secret&sslmode=require", "postgresql://u@h/db?sslmode=require"),
        ("postgres://h/db?options=-csearch_path%3Dx%20-cwork_mem%3D1MB", None),
        ("sqlite:///a/b.db", "sqlite:/a/b.db"),
        ("sqlite:/a/b.db?max_pages=7&mode=ro", "sqlite:/a/b.db?mode=ro&max_pages=7"),
    ],
)
def test_consensus_uri_is_normalised_and_holds_no_secret(uri: str, expected: str | None) -> None:
    assert consensus(uri).uri == (expected or uri)


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("", "known"),
        ("nothing", "known"),
        ("s4://bucket", "did you mean s3:?"),
        ("S3://bucket", "did you mean s3:?"),
        ("files:/a", "did you mean file:?"),
        ("memory:x", "did you mean mem:?"),
        ("sqlite:/a", "blob stores"),
        ("redis://h", "blob stores"),
        ("file:", "file:PATH"),
        ("file://host/a", "file:/absolute"),
        ("file:/a\0b", "file:PATH"),
        ("file:/a?x=1", "known: none"),
        ("s3://", "s3://bucket"),
        ("s3://B_UCKET", "s3://bucket"),
        ("s3://bucket/../x", "letters"),
        ("s3://bucket/a//b", "letters"),
        ("s3://bucket?endpont=http://h", "did you mean endpoint?"),
        ("s3://bucket?endpoint=h:1", "http://"),
        ("s3://bucket?endpoint=http://u:canary@h:1", "AWS_ACCESS_KEY_ID"),
        ("s3://u:canary@bucket", "AWS_ACCESS_KEY_ID"),
        ("s3://bucket?client=other", "obstore"),
    ],
)
def test_malformed_blob_uri_is_refused_with_a_hint_and_without_secrets(uri: str, hint: str) -> None:
    with pytest.raises(InvalidUri) as caught:
        blob(uri)
    assert hint in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        ("", "known"),
        ("sqlit:/a", "did you mean sqlite:?"),
        ("reddis://u:canary@h", "did you mean redis:?"),
        ("postgress://u:canary@h/db", "did you mean postgres:?"),
        ("s3://bucket", "consensus stores"),
        ("file:/a", "consensus stores"),
        ("sqlite:", "sqlite:PATH"),
        ("sqlite:/a?mod=ro", "did you mean mode?"),
        ("sqlite:/a?mode=x", "mode=ro"),
        ("sqlite:/a?max_pages=-1", "max_pages"),
        ("redis:", "redis://host:port/db"),
        ("redis://u:canary@h:x/0", "redis://host:port/db"),
        ("redis://u:canary@h:1/db", "redis://host:port/db"),
        ("redis://h:99999/0", "redis://host:port/db"),
        ("postgres://u:canary@h/db?nonsense=1", "postgres://user"),
    ],
)
def test_malformed_consensus_uri_is_refused_with_a_hint_and_without_secrets(uri: str, hint: str) -> None:
    with pytest.raises(InvalidUri) as caught:
        consensus(uri)
    assert hint in str(caught.value)
    assert "canary" not in str(caught.value)


async def test_memory_stores_are_shared_by_name() -> None:
    key = ShardId.named("open")
    assert await consensus("mem:test-open-one").compare_and_set(key, -1, b"x", timeout=T)
    assert await consensus("mem:test-open-one").head(key, timeout=T) is not None
    assert await consensus("mem:test-open-two").head(key, timeout=T) is None


def test_opening_a_memory_store_imports_no_sdk() -> None:
    program = """
import sys
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus
open_blob("mem:x", settings=Settings(), runtime=system())
open_consensus("mem:x", settings=Settings(), runtime=system())
print([name for name in ("boto3", "botocore", "redis", "psycopg", "sqlite3", "obstore", "grpc") if name in sys.modules])
"""
    command, environ = [sys.executable, "-c", program], {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environ)
    assert done.stdout.strip() == "[]"
