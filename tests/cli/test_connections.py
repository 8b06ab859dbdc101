"""The first minutes with a server: none there, a port left out, one that goes away, and what is none of ours."""

import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from forked import Fork

import persist as library
from persist.client.remote.addresses import PORT, endpoints_of
from persist.core import names

SCHEMA = library.Schema(key={"id": pa.int64()}, val={})


@contextmanager
def dev(data: Path, listen: str = "127.0.0.1:0") -> Iterator[tuple[Fork, str]]:
    process = Fork("persist_cli", "dev", "--data", data, "--listen", listen, heard=("output",))
    try:
        assert process.output is not None
        address = process.output.readline().decode().split(" on ")[1].split(",")[0]
        process.output.readline()
        yield process, address
    finally:
        process.close()


@pytest.fixture
def free() -> Iterator[str]:
    """An address where nothing listens, and nothing else will: its port is taken, and refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize(
    ("text", "endpoints"),
    [
        ("db1", ("db1:7100",)),
        ("db1, db2:80 ,db1:7100", ("db1:7100", "db2:80")),
        ("127.0.0.1", ("127.0.0.1:7100",)),
        ("::1", ("[::1]:7100",)),
        ("[::1],[fe80::1%eth0]:9", ("[::1]:7100", "[fe80::1%eth0]:9")),
        ("dns:///db1:9,unix:/run/persist", ("dns:///db1:9", "unix:/run/persist")),
    ],
)
def test_address_without_a_port_means_ours(text: str, endpoints: tuple[str, ...]):
    assert endpoints_of(text) == endpoints


@pytest.mark.parametrize(
    "text", ["", " , ", "db1:", "db1:http", "db1:0", "db1:70000", "http://db1:7100", "db1/x", "a b"]
)
def test_what_is_no_address_is_refused_before_anything_is_asked(text: str, persist):
    with pytest.raises(library.InvalidArgument, match=r"endpoint|address"):
        endpoints_of(text)
    if text.strip(" ,"):
        done = persist("shard", "list", "--endpoint", text)
        assert (done.code, "HOST:PORT" in done.err) == (2, True)


@pytest.mark.parametrize("words", [("shard", "list"), ("shard", "snapshot", "t"), ("source", "list"), ("doctor",)])
def test_port_may_be_left_out_on_the_command_line_and_in_the_environment(persist, words):
    """What is asked for is said: nothing listens at port 1 of this host, and something else is asked without it."""
    told = persist(*words, "--endpoint", "127.0.0.2", PERSIST_FIRST_CONNECTION_MS="50", PERSIST_TIMEOUT_MS="900")
    assert f"127.0.0.2:{PORT}" in told.err + told.out
    told = persist(*words, PERSIST_ENDPOINT="127.0.0.2", PERSIST_FIRST_CONNECTION_MS="50", PERSIST_TIMEOUT_MS="900")
    assert f"127.0.0.2:{PORT}" in told.err + told.out


def test_nobody_there_is_said_long_before_the_deadline(persist, free, people):
    for words in (("list",), ("snapshot", "people"), ("append", "people", people, "--key", "id"), ("listen", "people")):
        more = ("--endpoint", free, "--timeout", 3_600)
        done = persist("shard", *words, *more, PERSIST_FIRST_CONNECTION_MS="500")
        assert (done.code, done.out) == (1, "")
        after = "; it did not happen" if words[0] == "append" else ""
        assert done.err == f"persist: no server at {free} (`persist dev` starts one; is the address right?){after}\n"


@pytest.mark.parametrize(
    "words",
    [
        ("sql", "SELECT 1"),
        ("sql", "CREATE TABLE t (id int)"),
        ("hold", "list"),
        ("catalog", "items"),
        ("catalog", "dump"),
    ],
)
def test_nobody_there_is_said_by_commands_of_names_too(persist, free, words):
    environ = {"PERSIST_FIRST_CONNECTION_MS": "200", "PERSIST_TIMEOUT_MS": "3600000"}
    done = persist(*words, "--endpoint", free, **environ)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"persist: no server at {free} (`persist dev` starts one; is the address right?)\n"


def test_nobody_there_is_an_error_of_its_own_and_is_asked_again_by_the_next_call(free, tmp_path):
    with library.connect(free, settings=library.Settings(first_connection_ms=200)) as client:
        for _ in range(2):
            with pytest.raises(library.NoServer, match=f"no server at {free}"):
                client.open(library.ShardId.named("table", "t"), schema=SCHEMA, timeout=3_600)


def test_server_that_comes_up_while_it_is_asked_for_is_found(tmp_path):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
    found: queue.Queue[object] = queue.Queue()

    def ask() -> None:
        with library.connect(address, settings=library.Settings(first_connection_ms=3_600_000)) as client:
            found.put("asking")
            found.put(list(client.list_shards(timeout=3_600)))

    thread = threading.Thread(target=ask)
    thread.start()
    assert found.get(timeout=60) == "asking"
    with dev(tmp_path / "data", address):
        assert found.get(timeout=120) == []
        thread.join()


def test_server_that_was_there_is_waited_for(tmp_path):
    """However little patience there is for one that was never met."""
    impatient = library.Settings(first_connection_ms=1)
    with dev(tmp_path / "data") as (process, address):
        client = library.connect(address, settings=impatient)
        assert list(client.list_shards()) == []
        process.kill()
        process.join()
    with client:
        with pytest.raises(library.LocationError) as caught:
            list(client.list_shards(timeout=1.5))
        assert not isinstance(caught.value, library.NoServer)
        with dev(tmp_path / "data", address):
            assert list(client.list_shards(timeout=120)) == []


def test_listen_says_that_it_connects_again_and_goes_on(tmp_path, persist, people):
    with dev(tmp_path / "data") as (process, address):
        assert (
            persist("shard", "append", "people", people, "--key", "id", "--time", "0", "--endpoint", address).code == 0
        )
        with following("people", address) as listen:
            assert listen.stdout.readline() == "-- complete before [1]\n"
            process.kill()
            process.join()
            assert listen.stderr.readline().startswith("persist: lost the connection (")
            with dev(tmp_path / "data", address):
                more = tmp_path / "more.csv"
                more.write_text("id,name\n3,eve\n")
                assert persist("shard", "append", "people", more, "--time", "1", "--endpoint", address).code == 0
                out, err = listen.communicate(timeout=120)
            assert "name=eve" in out
            assert err == "persist: connected again; going on\n"
            assert listen.returncode == 0


@contextmanager
def following(table: str, address: str) -> Iterator[Any]:
    """A listen that ends with the second append."""
    environ = {**os.environ, "PERSIST_TIMEOUT_MS": "600000"}
    command = [
        sys.executable,
        "-m",
        "persist_cli",
        "shard",
        "listen",
        table,
        "--from",
        "0",
        "--until",
        "2",
        "--endpoint",
        address,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as listen:
        try:
            yield listen
        finally:
            listen.kill()


@pytest.fixture
def stranger() -> Iterator[tuple[str, list[str]]]:
    """A gRPC server that is none of ours: its address, and what it was asked for."""
    asked: list[str] = []

    class Nothing(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> None:
            asked.append(details.method)

    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[Nothing()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", asked
    server.stop(None)


@pytest.mark.parametrize("words", [("list",), ("snapshot", "t"), ("append", "t", "{people}", "--key", "id")])
def test_server_of_others_is_asked_once_and_named(persist, stranger, people, words):
    address, asked = stranger
    words = tuple(word.format(people=people) for word in words)
    done = persist("shard", *words, "--endpoint", address, "--timeout", 3_600)
    assert done.code == 2
    assert done.err.startswith(f"persist: this is no persist server, or one of an older release endpoint={address}")
    # A name is asked for once under each id that it may have, beside the catalog that may claim it.
    assert 1 <= len(asked) <= (1 if words == ("list",) else len(names.possible("t")) + 1)
    assert len(set(asked)) == 1


def test_grpc_keeps_its_lines_to_itself_unless_it_is_asked():
    program = (
        "import os, persist\n"
        "client = persist.connect('127.0.0.1:1')\n"
        "try: list(client.list_shards(timeout=0.5))\n"
        "except persist.LocationError: pass\n"
        "print(os.environ['GRPC_VERBOSITY'])\n"
        "child = os.fork()\n"
        "child or os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    said = {}
    for wanted in (None, "INFO"):
        environ = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        environ |= {"GRPC_VERBOSITY": wanted} if wanted else {}
        done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
        said[wanted] = (done.stdout.strip(), done.stderr)
    assert said[None] == ("NONE", "")
    assert said["INFO"][0] == "INFO"


def test_server_given_for_a_directory_is_said_to_be_one(persist):
    done = persist("shard", "list", "--location", "db.example:7100")
    assert (done.code, "--endpoint db.example:7100" in done.err) == (2, True), done.err
