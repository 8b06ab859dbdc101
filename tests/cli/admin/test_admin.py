"""``persist admin``, ``usage``, ``fsck`` and ``shard finalize`` as a person runs them."""

import asyncio
import dataclasses
import http.server
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist as library
from persist.core.ids import LOCATION_KEY, ShardId, WriterId, part_key
from persist.machine.gate import Gate
from persist.retry.deadline import Deadline
from persist.runtime import system
from persist.settings import Settings
from persist.storage.open import open_blob, open_consensus
from persist.wire.location import LocationRecord, encode_location
from persist_cli.terminal import priced, sized

SHARD = ShardId.named("table", "people")
SCHEMA = library.Schema(key={"id": pa.int64()}, val={"name": pa.string()})
PLAIN = Settings(compaction=False, inline_part_bytes_max=0, rollup_every=8)


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """A location with a shard of twelve batches."""
    location = tmp_path / "location"
    with library.embedded(location, settings=PLAIN) as client:
        writer = client.open_writer(SHARD, schema=SCHEMA)
        for ts in range(12):
            rows = pa.table({"id": [1], "name": ["ada"], "ts": pa.array([ts], pa.uint64()), "diff": [1]})
            writer.append(rows, ts + 1)
    return location


def leak(location: Path, *, age_ms: int) -> Path:
    """A part of a writer that crashed so long ago."""
    writer = WriterId.born(int(time.time() * 1000) - age_ms, bytes(16))
    path = location / "blob" / part_key(SHARD, writer, 1, bytes(16))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"12345")
    return path


def parts(location: Path) -> list[Path]:
    return sorted((location / "blob" / SHARD).glob("n*/p*"))


DAY_MS = 86_400_000


def test_sweep_tells_then_deletes(persist, grown):
    old, young = leak(grown, age_ms=2 * DAY_MS), leak(grown, age_ms=1_000)
    dry = persist("admin", "sweep", "--all", "--location", grown, "--json")
    assert dry.code == 0, dry.err
    assert (dry.json["committed"], dry.json["shards"][0]["leaked"]) == (False, 1)
    assert {blob["is"]: blob["bytes"] for blob in dry.json["blobs"]} == {"leaked": 5, "unlinked": 5}
    assert old.exists()
    noted = persist("fsck", "--location", grown, "--json")
    assert (noted.code, noted.json["problems"], noted.json["notes"][0]["invariant"]) == (0, [], "I12")
    told = persist("admin", "sweep", "--shard", "people", "--location", grown)
    assert "--commit" in told.err
    assert old.exists()
    done = persist("admin", "sweep", "--shard", "people", "--commit", "--location", grown, "--json")
    assert (done.code, done.json["shards"][0]["leaked_bytes"]) == (0, 5)
    assert (old.exists(), young.exists()) == (False, True)
    assert persist("admin", "sweep", "--all", "--location", grown, "--safe-age", 0, "--commit").code == 0
    assert not young.exists()
    assert persist("fsck", "--deep", "--location", grown).code == 0


def test_sweep_tells_of_blobs_without_a_state(persist, grown):
    stray = grown / "blob" / part_key(ShardId.named("x"), WriterId.of(bytes(16)), 1, bytes(16))
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"123")
    done = persist("admin", "sweep", "--all", "--commit", "--location", grown, "--json")
    assert done.json["without_state"] == [{"shard": ShardId.named("x"), "blobs": 1, "bytes": 3}]
    assert stray.exists()
    assert persist("fsck", "--location", grown, "--json").json["problems"][0]["invariant"] == "I12"


def test_sweep_deletes_what_a_stateless_shard_has_once_it_was_opened(persist, grown, people):
    """Age alone is no proof: a wrong Consensus has no state of any shard. A state that fences its writers off is."""
    shard = ShardId.named("table", "lost")
    born = WriterId.born(int(time.time() * 1000) - 9 * DAY_MS, bytes(16))
    stray = grown / "blob" / part_key(shard, born, 1, bytes(16))
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"123")
    done = persist("admin", "sweep", "--all", "--commit", "--safe-age", 0, "--location", grown)
    assert (done.code, stray.exists(), "right Consensus" in done.out) == (0, True, True)
    refused = persist("admin", "sweep", "--shard", "lost", "--commit", "--location", grown)
    assert (refused.code, stray.exists()) == (2, True)
    assert persist("shard", "append", "lost", people, "--key", "id", "--location", grown).code == 0
    done = persist("admin", "sweep", "--all", "--commit", "--location", grown, "--json")
    assert (done.json["without_state"], stray.exists()) == ([], False)
    assert len(persist("shard", "snapshot", "lost", "--location", grown, "--json").lines) == 2


async def allow(location: Path, format: int) -> None:
    """Let a format be written at a location, as its first program does, or an upgrade."""
    runtime = system()
    consensus = open_consensus(f"sqlite:{location}/consensus.db", settings=PLAIN, runtime=runtime)
    try:
        if await consensus.head(LOCATION_KEY, timeout=30) is None:
            record = encode_location(LocationRecord(write_version=format), 0)
            assert await consensus.compare_and_set(LOCATION_KEY, -1, record, timeout=30)
        else:
            await Gate(consensus, settings=PLAIN, runtime=runtime).raise_to(format, Deadline(runtime, 30))
    finally:
        await consensus.close()


def test_a_dry_run_of_compact_tells_of_steps_where_only_the_location_was_upgraded(persist, tmp_path):
    """The shard stands in a format that has none; what a commit writes is in the newest one."""
    location = tmp_path / "location"
    location.mkdir()
    asyncio.run(allow(location, 2))
    small = dataclasses.replace(PLAIN, row_group_rows=4, part_bytes_max=600)
    with library.embedded(location, settings=small) as client:
        writer = client.open_writer(SHARD, schema=SCHEMA)
        reader = client.open_reader(SHARD)
        for ts in range(2):
            names = [f"{ts}:{number}" for number in range(60)]
            times = pa.array([ts] * 60, pa.uint64())
            writer.append(pa.table({"id": range(60), "name": names, "ts": times, "diff": [1] * 60}), ts + 1)
        reader.downgrade_since(1)
        assert client.inspect(SHARD)["format"] == 2
    asyncio.run(allow(location, 3))
    where = ("--shard", "people", "--whole", "--location", location, "--json")
    limits = {"PERSIST_COMPACTION_PARTS_MAX": "6", "PERSIST_COMPACTION_STEP_PARTS_MAX": "4"}
    dry = persist("admin", "compact", *where, **limits)
    assert (dry.code, dry.json["shards"][0]["batches"]) == (0, 2), dry.err
    done = persist("admin", "compact", *where, "--commit", **limits)
    assert (done.code, done.json["shards"][0]["batches"] > 0) == (0, True), done.err
    state = persist("shard", "inspect", "people", "--location", location, "--json").json
    assert [len(batch["runs"]) for each in state["spine"] for batch in each["batches"]] == [1]


def test_compact_tells_then_merges_into_one_run(persist, grown):
    dry = persist("admin", "compact", "--shard", "people", "--whole", "--location", grown, "--json")
    assert dry.json["shards"][0]["batches"] == 12
    done = persist("admin", "compact", "--all", "--whole", "--commit", "--location", grown, "--json")
    assert (done.code, done.json["shards"][0]["batches"]) == (0, 12), done.err
    state = persist("shard", "inspect", "people", "--location", grown, "--json").json
    assert [len(each["batches"]) for each in state["spine"]] == [1]
    again = persist("admin", "compact", "--all", "--whole", "--commit", "--location", grown, "--json")
    assert again.json["shards"][0]["batches"] == 0
    assert persist("shard", "snapshot", "people", "--location", grown, "--json").lines == [
        {"id": 1, "name": "ada", "diff": 12}
    ]


def test_gc_leaves_what_the_newest_state_needs(persist, grown):
    persist("admin", "compact", "--all", "--whole", "--commit", "--location", grown)
    dry = persist("admin", "gc", "--all", "--location", grown, "--json")
    assert dry.json["shards"][0]["let_go"] >= 12
    assert len(parts(grown)) == 13
    done = persist("admin", "gc", "--all", "--commit", "--location", grown, "--json")
    [row] = done.json["shards"]
    assert (done.code, row["blobs"] >= 12, row["diffs"] > 0, row["rollups"] > 0) == (0, True, True, True), done.err
    assert len(parts(grown)) == 1
    assert persist("fsck", "--deep", "--location", grown).code == 0


def test_finalize_asks_for_closing_or_force_and_a_commit(persist, grown, people):
    refused = persist("shard", "finalize", "people", "--location", grown)
    assert (refused.code, "--force" in refused.err) == (2, True)
    dry = persist("admin", "finalize", "people", "--force", "--location", grown, "--json")
    assert (dry.code, dry.json["rows"], dry.json["finalized"]) == (0, 12, False)
    assert len(parts(grown)) == 12
    done = persist("shard", "finalize", "people", "--force", "--commit", "--location", grown, "--json")
    assert (done.code, done.json["finalized"]) == (0, True), done.err
    assert [path.parent.name for path in (grown / "blob" / SHARD).glob("*/*")] == ["rollup"]
    again = persist("shard", "finalize", "people", "--commit", "--location", grown, "--json")
    assert (again.code, again.json["rows"]) == (0, 0)
    append = persist("shard", "append", "people", people, "--key", "id", "--location", grown)
    assert (append.code, "closed" in append.err) == (2, True)


def test_fsck_finds_a_missing_blob_and_restore_says_that_files_cannot(persist, grown):
    assert persist("fsck", "--location", grown).code == 0
    gone = parts(grown)[2]
    gone.unlink()
    found = persist("fsck", "--shard", "people", "--location", grown, "--json")
    assert found.code == 1
    [problem] = found.json["problems"]
    assert (problem["invariant"], problem["where"]) == ("I8", f"{SHARD}/{gone.parent.name}/{gone.name}")
    assert "missing" in persist("fsck", "--location", grown).out
    dry = persist("admin", "restore", "--all", "--location", grown, "--json")
    assert (dry.code, "cannot restore" in dry.json["blobs"][0]["outcome"]) == (1, True)
    done = persist("admin", "restore", problem["where"], "--commit", "--location", grown, "--json")
    assert (done.code, "cannot restore" in done.json["blobs"][0]["outcome"]) == (1, True)


def test_restore_brings_blobs_back_from_a_bucket_with_versions(persist, s3_uri, tmp_path):
    uri = s3_uri.replace("s3://persist", "s3://versions", 1)
    store = open_blob(uri, settings=Settings(), runtime=system())
    bucket = store._location.bucket
    assert bucket != "persist"
    store._client.create_bucket(Bucket=bucket)
    store._client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    stores = {"blob": uri, "consensus": f"sqlite:{tmp_path}/consensus.db"}
    with library.embedded(**stores, settings=PLAIN) as client:
        client.open_writer(SHARD, schema=SCHEMA).append(
            pa.table({"id": [1], "name": ["ada"], "ts": pa.array([0], pa.uint64()), "diff": [1]}), 1
        )
    options = ("--blob", uri, "--consensus", stores["consensus"], "--json")
    [part] = [each["key"] for each in parts_of(persist("shard", "inspect", "people", *options).json)]
    store._client.delete_object(Bucket=bucket, Key=part)
    assert persist("fsck", *options).code == 1
    assert persist("admin", "restore", "--all", *options).json["blobs"][0]["outcome"] == "would be restored"
    assert persist("fsck", *options).code == 1
    done = persist("admin", "restore", "--shard", "people", "--commit", *options)
    assert (done.code, done.json["blobs"]) == (0, [{"key": part, "outcome": "restored"}])
    assert persist("fsck", "--deep", *options).code == 0
    assert persist("shard", "snapshot", "people", *options).lines == [{"id": 1, "name": "ada", "diff": 1}]


def parts_of(state: Any) -> list[Any]:
    batches = [batch for each in state["spine"] for batch in each["batches"]]
    return [part for batch in batches for run in batch["runs"] for part in run]


def test_restore_says_when_nothing_is_missing(persist, grown):
    done = persist("admin", "restore", "--shard", "people", "--commit", "--location", grown)
    assert (done.code, "nothing is missing" in done.err) == (0, True)


def test_usage_adds_up_and_prices_what_it_measured(persist, grown):
    leak(grown, age_ms=2 * DAY_MS)
    told = persist("usage", "--location", grown, "--price-storage", 1e9, "--json").json
    [row] = told["shards"]
    there = sum(path.stat().st_size for path in (grown / "blob" / SHARD).rglob("*") if path.is_file())
    assert (row["total"], row["leaked"], told["total"]["bytes"]) == (there, 5, there)
    assert row["current"] + row["held"] + row["unlinked"] + row["leaked"] == there
    assert told["costs"]["storage_per_year"] == pytest.approx(there * 12)
    shown = persist("usage", "--shard", "people", "--location", grown).out
    assert (sized(row["current"]) in shown, "less than $0.01" in shown) == (True, True)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (12_019_142, "12.0 MB"),
        (999_900, "1.00 MB"),
        (5 * 10**14, "500 TB"),
    ],
)
def test_bytes_are_for_people(count, shown):
    assert sized(count) == shown


@pytest.mark.parametrize(("amount", "shown"), [(0, "$0.00"), (0.003503, "less than $0.01"), (1234.5, "$1,234.50")])
def test_money_is_for_people(amount, shown):
    assert priced(amount) == shown


def test_usage_counts_the_requests_of_s3(persist, fresh_s3_uri, tmp_path):
    stores = ("--blob", fresh_s3_uri(), "--consensus", f"sqlite:{tmp_path}/consensus.db")
    people = tmp_path / "people.csv"
    people.write_text("id,name\n1,ada\n")
    assert persist("shard", "append", "people", people, "--key", "id", *stores).code == 0
    told = persist("usage", *stores, "--price-put", 1000, "--price-get", 0, "--json").json
    requests = told["requests"]["this_command"]
    assert requests["ListObjectsV2"] >= 1
    writes = sum(count for kind, count in requests.items() if kind.startswith(("Put", "List")))
    assert told["costs"]["requests_of_this_command"] == writes


class Metrics(http.server.BaseHTTPRequestHandler):
    count = 0

    def do_GET(self) -> None:
        type(self).count += 10
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f'persist_store_requests_total{{kind="PutObject"}} {self.count}\nother 3\n'.encode())

    def log_message(self, *_: object) -> None:
        pass


def test_usage_counts_what_servers_send_meanwhile(persist, grown):
    with http.server.HTTPServer(("127.0.0.1", 0), Metrics) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        told = persist("usage", "--metrics", url, "--over", 0.1, "--location", grown, "--json")
        shown = persist("usage", "--metrics", url, "--over", 0.1, "--location", grown)
        server.shutdown()
        thread.join()
    assert told.json["requests"]["servers"] == {"PutObject": 10}
    per_year = 10 / 0.1 * 365 * 86_400
    assert told.json["costs"]["requests_of_servers_per_year"] == pytest.approx(per_year * 0.005 / 1000)
    assert "PutObject" in shown.out


STORES_ONLY = [
    ("admin", "gc", "--all"),
    ("admin", "sweep", "--all"),
    ("admin", "restore", "--all"),
    ("usage",),
    ("fsck",),
]


@pytest.mark.parametrize("words", STORES_ONLY, ids=" ".join)
def test_work_on_the_stores_says_why_an_endpoint_is_not_enough(persist, grown, words):
    refused = persist(*words, "--endpoint", "127.0.0.1:1")
    assert (refused.code, "--consensus URI" in flat(refused.err)) == (2, True), refused.err
    inherited = persist(*words, PERSIST_ENDPOINT="127.0.0.1:1")
    assert (inherited.code, "no server does" in flat(inherited.err)) == (2, True), inherited.err
    # Where the stores are named, an endpoint of the environment is of no account.
    assert persist(*words, "--location", grown).code == 0


def flat(text: str) -> str:
    """What a box of messages says, without its frame and its line breaks."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("command", ["compact", "gc", "sweep", "restore"])
def test_admin_asks_which_shards(persist, grown, command):
    for words in ((), ("--all", "--shard", "people")):
        done = persist("admin", command, *words, "--location", grown)
        assert (done.code, "--all" in done.err) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        ("admin", "sweep", "--shard", "nobody"),
        ("admin", "sweep", "--shard", "nobody", "--commit"),
        ("admin", "gc", "--shard", "nobody"),
        ("admin", "compact", "--shard", "nobody", "--commit"),
        ("admin", "restore", "--shard", "nobody"),
        ("admin", "finalize", "nobody"),
        ("fsck", "--shard", "nobody"),
        ("usage", "--shard", "nobody"),
    ],
    ids=" ".join,
)
def test_unknown_shard_is_told_and_not_made(persist, grown, words):
    done = persist(*words, "--location", grown)
    assert (done.code, "no such shard" in done.err) == (2, True), done.err
    assert len(persist("shard", "list", "--location", grown, "--json").json) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("admin", "sweep", "--all", "--safe-age", "-1"), "--safe-age"),
        (("admin", "compact", "--all", "--engine", "flink"), "--engine local"),
        (("admin", "compact", "--all", "--pieces", "3"), "--engine spark"),
        (("admin", "compact", "--shard", "people", "--endpoint", "127.0.0.1:1"), "name one place"),
        (("admin", "restore", "not/a/key"), "key"),
        (("usage", "--metrics", "file:///etc/passwd"), "HTTP"),
        (("usage", "--metrics", "http://127.0.0.1:1/metrics", "--over", "0.1"), "side port"),
        (("usage", "--price-put", "-1"), "--price-put"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_told(persist, grown, words, told):
    done = persist(*words, "--location", grown)
    assert done.code in (1, 2)
    assert told in flat(done.err)


@pytest.mark.parametrize("words", [("fsck",), ("usage",), ("admin", "gc", "--all")], ids=" ".join)
def test_place_that_is_missing_is_told_and_not_made(persist, tmp_path, words):
    nowhere = tmp_path / "nowhere"
    done = persist(*words, "--location", nowhere)
    assert (done.code, "no such directory" in done.err) == (2, True)
    assert not nowhere.exists()
    assert persist(*words).code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("fsck",),
        ("usage",),
        ("admin", "gc", "--all"),
        ("admin", "rebuild", "--all"),
        ("admin", "finalize", "people"),
        ("backup", "create", "BACKUP"),
        ("shard", "list"),
        ("shard", "snapshot", "people"),
        ("source", "list"),
        ("source", "status", "bank"),
        ("source", "run", "bank", "--no-spark"),
        ("source", "drop", "bank"),
    ],
    ids=" ".join,
)
def test_directory_that_is_no_location_is_told_and_stays_as_it_is(persist, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    for options in (("--location", place), ("--blob", f"file:{place}/blob", "--consensus", f"sqlite:{place}/typo.db")):
        done = persist(*words, *options)
        assert (done.code, "no persist location" in flat(done.err)) == (2, True), done.err
        assert "is the name right?" in flat(done.err)
    assert [*tmp_path.rglob("*")] == [place]
