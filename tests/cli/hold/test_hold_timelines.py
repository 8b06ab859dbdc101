"""``persist hold create`` over every pair of timelines: a hold, or the error at once, never a wait.

Quoted: design 004, Timelines.
"""

import itertools
import time
from collections.abc import Callable

import pytest
from cli.conftest import Done
from client.collections.support import SCHEMA, shard_of, updates

import persist as library
from persist.catalog import CreateSource, Export, QualifiedName
from persist.core.catalog.values import Retain

TIMELINES = {
    "clock": "M",
    "mine": "U.mine",
    "counter": "C.kafka:9092/transactions",
    "other_counter": "C.kafka:9092/others",
    "external": "E",
    "other_external": "E",
}
"""Some of each variant, and several of those of which there are several."""
SECONDS = 1.0
"""Of a processor, so that what else this machine does is no matter; and what waits, waits for much longer than WAIT."""
WAIT = 10.0


@pytest.fixture
def one_of_each(here: tuple[str, str]) -> tuple[str, str]:
    """Two collections in each timeline: ``mine_1``, ``mine_2``."""
    with library.embedded(here[1]) as client, client.environment() as environment:
        for name, timeline in TIMELINES.items():
            exports = []
            for number in (1, 2):
                if timeline == "M":
                    client.sql(f"CREATE TABLE {name}_{number} (id bigint PRIMARY KEY, name text)")
                    continue
                shard = shard_of(f"{name}_{number}")
                writer = client.open_writer(shard, schema=SCHEMA)
                writer.compare_and_append(updates((1, name, 2, 1)), 0, 6)
                exports.append(Export(f"{name}_{number}", SCHEMA, shard))
            if exports:
                kind = "cdcv2" if timeline == "E" else "files"
                environment.execute(
                    CreateSource(QualifiedName(name), kind, (), tuple(exports), timeline, retain=Retain())
                )
    return here


@pytest.mark.timeout(600)
def test_every_pair_is_held_or_refused_at_once(persist: Callable[..., Done], one_of_each: tuple[str, str]) -> None:
    """«Prevent users from doing things that are silently meaningless.» «Prevent user queries blocking forever.»"""
    for one, other in itertools.product(TIMELINES, TIMELINES):
        lag = "1h" if one == "clock" else "100"
        words = ("hold", "create", *one_of_each, "h", f"{one}_1", f"{other}_2", "--max-lag", lag)
        began, computed = time.monotonic(), time.process_time()
        done = persist(*words)
        took, computed = time.monotonic() - began, time.process_time() - computed
        if one == other:
            assert done.code == 0, done.err
            assert persist("hold", "drop", *one_of_each, "h").code == 0
            continue
        assert done.code == 2, (one, other, done)
        assert "timeline" in done.err
        for name, number in ((one, 1), (other, 2)):
            assert f"{name}_{number}" in done.err, done.err
        assert computed < SECONDS, (one, other, computed)
        assert took < WAIT, (one, other, took)
