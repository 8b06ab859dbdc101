"""A list of nothing is one sentence that says what makes the first one; ``--json`` has an empty list."""

import re
from pathlib import Path

import pytest

import persist as library

ROOT = Path(__file__).resolve().parents[3] / "services" / "persist_cli"
LISTS = {
    ("shard", "list"): "no shards here: persist shard append",
    ("source", "list"): "no sources here: persist source create",
    ("hold", "list"): "no holds here: persist hold create",
    ("catalog", "items"): "no items here: persist sql 'CREATE TABLE",
    ("sink", "list"): 'no sinks here: persist sql "CREATE SINK',
    ("view", "list"): "no views here: persist sql 'CREATE MATERIALIZED VIEW",
}
OTHERS = {("backup", "list")}
"""Refused where there are none, with what makes one: ``test_backup.py``."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without an environment."""
    place = tmp_path_factory.mktemp("bare") / "data"
    library.embedded(place).close()
    return place


@pytest.fixture(scope="module")
def emptied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With an environment of which all was dropped."""
    place = tmp_path_factory.mktemp("emptied") / "data"
    with library.embedded(place) as client:
        client.sql("CREATE TABLE t (k bigint); DROP TABLE t")
    return place


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
def test_list_of_nothing_is_a_sentence(persist, bare: Path, emptied: Path, words: tuple[str, str]) -> None:
    place = bare if words in (("shard", "list"), ("source", "list")) else emptied
    done = persist(*words, "--location", place)
    assert (done.code, done.out.startswith(LISTS[words]), done.out.count("\n")) == (0, True, 1), done
    there = persist(*words, "--location", place, "--json")
    assert there.json == ({"sources": []} if words[0] == "source" else [])


def test_every_list_is_among_these() -> None:
    texts = {path.parent.name: path.read_text() for path in ROOT.glob("*/commands.py")}
    named = {(group, name) for group, text in texts.items() for name in re.findall(r'command\("(list|items)"', text)}
    assert named == LISTS.keys() | OTHERS
