import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import Fork

import persist as library
from persist.sources import Lsn, RemapSource, SourceKind
from persist_cli.doctor.spark import spark

PERSIST = [sys.executable, "-m", "persist_cli"]


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[tuple[Fork, str]]:
    """``persist dev`` on a free port, and where it listens."""
    words = ("dev", "--data", tmp_path / "data", "--listen", "127.0.0.1:0", "--json")
    process = Fork("persist_cli", *words, heard=["output"])
    try:
        assert process.output is not None
        told = json.loads(process.output.readline())
        assert told["minter"] == told["shard"]
        yield process, told["shard"]
    finally:
        process.close()


def test_dev_serves_shards_until_sigterm(dev, persist, people):
    process, endpoint = dev
    where = ("--endpoint", endpoint)
    assert persist("shard", "append", "people", people, "--key", "id", *where).code == 0
    assert len(persist("shard", "snapshot", "people", "--json", *where).lines) == 2
    assert len(persist("shard", "list", "--json", *where).json) == 1
    process.send_signal(signal.SIGTERM)
    assert process.join(60) == 0


def test_dev_keeps_its_data_where_an_embedded_client_finds_it(dev, persist, people, tmp_path):
    _, endpoint = dev
    persist("shard", "append", "people", people, "--key", "id", "--endpoint", endpoint)
    assert len(persist("shard", "snapshot", "people", "--json", "--location", tmp_path / "data").lines) == 2


def test_doctor_finds_a_running_service_well(dev, persist):
    _, endpoint = dev
    done = persist("doctor", "--endpoint", endpoint, "--json")
    states = {check["check"]: check["state"] for check in done.json}
    assert states[f"endpoint {endpoint}"] == "ok"
    assert states["shards and clock"] == "ok"
    assert "bad" not in states.values()
    assert done.code == 0


def test_dev_serves_bindings_on_the_same_port(dev):
    _, endpoint = dev
    source = RemapSource(remap=library.ShardId.new(), kind=SourceKind.LSN, incarnation="one")
    with library.connect(endpoint) as client:
        minter = client.minter(endpoint)
        minter.mint(source)
        [binding] = minter.get_binding(source, [Lsn(7)])
        assert binding.frontier.beyond(Lsn(7))
        assert client.recent_upper(source.remap) == library.Antichain.of(binding.ts + 1)
        minter.close()


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--endpoint", "127.0.0.1:1", "--location", "x"),
        ("--blob", "mem:a"),
        ("--consensus", "mem:a"),
        ("--location", "x", "--listen", "nonsense"),
    ],
    ids=["nowhere", "two-places", "blob-only", "consensus-only", "listen"],
)
def test_minter_says_what_is_wrong(persist, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = persist("serve", "minter", *words)
    assert (done.code, "Traceback" in done.err) == (2, False), done.err


@pytest.fixture
def compacting(dev) -> Iterator[str]:
    """Where a ``persist serve compaction`` listens that works for ``dev``."""
    _, endpoint = dev
    words = ("serve", "compaction", "--listen", "127.0.0.1:0", "--endpoint", endpoint, "--json")
    process = Fork("persist_cli", *words, heard=["output"])
    try:
        assert process.output is not None
        yield json.loads(process.output.readline())["compaction"]
    finally:
        process.close()


def test_compact_is_asked_of_a_service(dev, compacting, persist, people):
    _, endpoint = dev
    for _ in range(3):
        assert persist("shard", "append", "people", people, "--key", "id", "--endpoint", endpoint).code == 0
    words = ("admin", "compact", "--shard", "people", "--whole", "--endpoint", compacting)
    dry = persist(*words, "--json")
    assert (dry.code, dry.json["committed"], dry.json["shards"][0]["compacted_now"]) == (0, False, False), dry.err
    assert "--commit" in persist(*words).err
    done = persist(*words, "--commit", "--json")
    assert (done.code, done.json["shards"][0]["rows"]) == (0, 6), done.err
    state = persist("shard", "inspect", "people", "--endpoint", endpoint, "--json").json
    assert [len(each["batches"]) for each in state["spine"]] == [1]
    told = persist(*words, "--commit")
    assert (told.code, "rows_after" in told.out) == (0, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--shard", "nobody", "--commit"), "no such shard"),
        (("--all", "--commit"), "--shard"),
        (("--shard", "people", "--engine", "spark"), "--location"),
        ((), "--shard"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_compact_of_a_service_says_what_is_wrong(compacting, persist, words, told):
    done = persist("admin", "compact", *words, "--endpoint", compacting)
    assert (done.code, told in done.err) == (2, True), done.err


def test_compact_of_a_server_that_only_serves_shards_says_which_one_to_name(dev, persist):
    _, endpoint = dev
    for more in ((), ("--commit",)):
        done = persist("admin", "compact", "--shard", "people", *more, "--endpoint", endpoint)
        assert (done.code, "persist serve compaction" in done.err) == (2, True), done.err


def test_second_service_on_a_port_exits_with_1(dev):
    _, endpoint = dev
    command = [*PERSIST, "serve", "shard", "--listen", endpoint, "--blob", "mem:a", "--consensus", "mem:a"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a file system in memory")
@pytest.mark.parametrize(
    "words",
    [
        ("serve", "shard", "--blob", "mem:x", "--consensus", "mem:x", "--listen", "here"),
        ("serve", "shard", "--blob", "./x", "--consensus", "mem:x", "--listen", "127.0.0.1:0"),
        ("serve", "compaction", "--endpoint", "127.0.0.1:1", "--listen", "99999"),
        ("dev", "--listen", "127.0.0.1:abc"),
    ],
)
def test_a_mistyped_option_of_a_service_exits_with_2_at_once(persist, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = persist(*words)
    assert done.code == 2, done.err
    assert "not an address" in done.err or "URI" in done.err
    assert not any(tmp_path.iterdir())


def test_a_directory_that_cannot_be_made_is_named(persist, people):
    done = persist("dev", "--data", people / "data", "--listen", "127.0.0.1:0")
    assert (done.code, f"{people}" in done.err) == (1, True)


def test_unsafe_store_exits_with_78_and_names_the_setting(tmp_path):
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as volatile:
        command = [*PERSIST, "serve", "shard", "--listen", "127.0.0.1:0", "--blob", f"file:{tmp_path}/blob"]
        command += ["--consensus", f"sqlite:{volatile}/consensus.db"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 78
        assert "sqlite-filesystem" in done.stderr
        assert "power cut" in done.stderr


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a file system in memory")
def test_unsafe_store_is_served_when_its_finding_is_accepted_by_name(tmp_path):
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as volatile:
        command = [*PERSIST, "serve", "shard", "--listen", "127.0.0.1:0", "--blob", f"file:{tmp_path}/blob"]
        command += ["--consensus", f"sqlite:{volatile}/consensus.db", "--allow-unsafe", "sqlite-filesystem"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                assert "listening on" in process.stdout.readline()
            finally:
                process.kill()


def test_help_is_quick_and_imports_nothing_heavy():
    code = "import sys; from persist_cli.app import run; run(['--help'], {}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True)
    assert "doctor" in done.stdout
    heavy = {
        "grpc",
        "pyarrow",
        "numpy",
        "boto3",
        "pyspark",
        "pandas",
        "persist.client",
        "persist.core",
        "persist.settings",
    }
    assert not heavy & set(done.stderr.split())


def test_version_is_told():
    done = subprocess.run([*PERSIST, "--version"], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.startswith("persist 0.")


def test_doctor_reports_what_is_missing_and_exits_with_1(persist):
    environ = {**os.environ, "JAVA_HOME": "/nowhere", "PYSPARK_PYTHON": "/nowhere/python"}
    done = persist("doctor", "--spark", "--json", **environ)
    found = {check["check"]: check for check in done.json}
    assert done.code == 1
    assert (found["java"]["state"], found["worker python"]["state"]) == ("bad", "bad")
    assert "JAVA_HOME" in found["java"]["next_step"]
    assert "PYSPARK_PYTHON" in found["worker python"]["next_step"]


def test_doctor_does_not_send_from_a_python_to_itself(persist, tmp_path):
    (tmp_path / "pyspark.py").write_text("raise ImportError('not here')")
    environ = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environ |= {"PATH": f"{Path(sys.executable).parent}:{environ['PATH']}", "PYTHONPATH": str(tmp_path)}
    (found,) = [each for each in spark(environ) if each.name == "worker python"]
    assert (found.state, "lacks pyspark" in found.found) == ("bad", True), found
    assert found.next_step == f"{sys.executable} -m pip install 'persist-tvc[spark]'"


def test_doctor_finds_this_machine_ready_for_spark(persist):
    environ = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = persist("doctor", "--spark", "--json", **environ)
    assert [check for check in done.json if check["state"] == "bad"] == []
    assert any(check["check"] == "data source" for check in done.json)


def test_doctor_of_a_store_that_is_away_says_so(persist):
    done = persist("doctor", "--blob", "mem:doctor", "--consensus", "redis://127.0.0.1:1/0", "--timeout", 2, "--json")
    found = {check["check"]: check["state"] for check in done.json}
    assert (done.code, found["blob"], found["consensus"]) == (1, "ok", "bad")


def test_doctor_and_fsck_refuse_the_stores_of_two_locations(persist, tmp_path):
    people = tmp_path / "people.csv"
    people.write_text("id,name\n1,ada\n")
    for name in "AB":
        assert persist("shard", "append", "people", people, "--key", "id", "--location", tmp_path / name).code == 0
    crossed = ("--blob", f"file:{tmp_path}/A/blob", "--consensus", f"sqlite:{tmp_path}/B/consensus.db")
    done = persist("doctor", *crossed, "--json")
    [found] = [check for check in done.json if check["check"] == "stores"]
    assert (done.code, found["state"], "stores-of-two-locations" in found["found"]) == (1, "bad", True)
    for words in (("fsck",), ("admin", "sweep", "--all", "--commit"), ("shard", "snapshot", "people")):
        done = persist(*words, *crossed)
        assert done.code not in (0, None)
        assert "stores-of-two-locations" in done.out + done.err
