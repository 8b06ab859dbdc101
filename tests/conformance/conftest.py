"""The places the conformance suites run on: every adapter, on a real store, empty for each test."""

import secrets
from pathlib import Path

import pytest


@pytest.fixture(params=["mem", "file", "s3", "obstore"])
def blob_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "mem":
        return f"mem:{secrets.token_hex(8)}"
    if request.param == "file":
        return f"file:{tmp_path}/made/on/demand"
    if request.param == "obstore":
        pytest.importorskip("obstore")
    uri: str = request.getfixturevalue("fresh_s3_uri")()
    return f"{uri}&client=obstore" if request.param == "obstore" else uri


@pytest.fixture(params=["mem", "sqlite", "redis", "postgres"])
def consensus_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "mem":
        return f"mem:{secrets.token_hex(8)}"
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/made/on/demand/consensus.db"
    uri: str = request.getfixturevalue(f"fresh_{request.param}_uri")()
    return uri
