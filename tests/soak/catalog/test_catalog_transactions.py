"""Bar B13: transactions append to lists in a catalog while its leaders are killed and deposed.

Each transaction reads the lists it appends to. The times of the commits are the order that is claimed, so no search is
needed: replayed in this order every transaction must read what it read, and one that had returned before another was
asked for must come before it. Source: reliability.md I16 and I17.
"""

import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from soak.catalog.catalog_worker import FENCED, Line, lines_of
from soak.catalog.test_catalog_fencing import history_of, reap, start, until
from soak.support import LIMIT_SECONDS, pick

from persist.core.catalog.kinds import COMMIT, SYSTEM_CONFIGURATION
from persist.core.catalog.rows import RowUpdate
from persist.wire.catalog.rows import CODEC

TRANSACTIONS = pick(90, 20_000)
CLIENTS = 16
LEADERS = pick(2, 12)

Lists = dict[str, list[str]]


def durable(updates: list[RowUpdate]) -> tuple[dict[str, int], Lists]:
    """When which token was committed, and the lists as they are in the end."""
    times, lists = dict[str, int](), Lists()
    for update in sorted(updates, key=lambda each: (each.ts, each.diff)):
        if update.diff > 0 and update.row.kind == COMMIT.tag:
            key, commit = CODEC.decode(update.row)
            assert key.token not in times
            assert commit.ts == update.ts
            times[key.token] = update.ts
        elif update.diff > 0 and update.row.kind == SYSTEM_CONFIGURATION.tag:
            key, value = CODEC.decode(update.row)
            lists[key.name] = value.value.split(",")
    return times, lists


def judge(told: list[Line], times: dict[str, int], lists: Lists) -> int:
    """How many transactions there were. Raises AssertionError unless they were one after the other."""
    begun = {line["token"]: line for line in told if line["what"] == "begun"}
    done = {line["token"]: line for line in told if line["what"] == "done"}
    assert times.keys() <= begun.keys()
    for token, line in done.items():
        assert times[token] == line["ts"]
    assert len(set(times.values())) == len(times)
    order = sorted(times, key=times.__getitem__)
    replayed = defaultdict[str, list[str]](list)
    for token in order:
        line = done.get(token, begun[token])
        for name in line["lists"]:
            if line.get("reads") is not None:
                assert line["reads"][name] == replayed[name], token
            replayed[name].append(line["element"])
    assert replayed == lists
    # The earliest answer of all that come later must not be older than any question.
    earliest = float("inf")
    for token in reversed(order):
        assert begun[token]["invoked"] < earliest, token
        earliest = min(earliest, done[token]["returned"] if token in done else earliest)
    return len(order)


ENDLESS = 10**9
"""Transactions: more than anything does before its limit."""


def counter(path: Path) -> Callable[[], int]:
    """How many transactions had an answer so far. Looks at what is new only: it is asked all the time."""
    path.touch()
    file, found = path.open("rb"), 0

    def count() -> int:
        nonlocal found
        found += file.read().count(b'"what": "done"')
        return found

    return count


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.timeout_s(LIMIT_SECONDS)
async def test_transactions_are_strictly_serializable_whoever_is_killed(tmp_path: Path):
    file, each = tmp_path / "told", TRANSACTIONS // (LEADERS + 1)

    count = counter(file)
    async with history_of(tmp_path / "data") as log:
        endings = []
        for number in range(LEADERS):
            # It is killed, or deposed by the next one, while it is busy: nothing else ends it, however long that takes.
            words = ("append", tmp_path / "data", file, f"{number}.", CLIENTS, ENDLESS)
            before = count()
            leader = await start(*words)
            try:
                await until(lambda: count() >= before + each, leader)  # noqa: B023  # called at once
                if number % 2:
                    successor = await start("append", tmp_path / "data", file, f"{number}x.", CLIENTS, each // 4)
                    endings += [await leader.wait(), await successor.wait()]
                    reap(successor)
                else:
                    leader.send_signal(signal.SIGKILL)
                    endings.append(await leader.wait())
            finally:
                reap(leader)
        last = await start("append", tmp_path / "data", file, "last.", CLIENTS, each)
        assert await last.wait() == 0
        assert endings == [-signal.SIGKILL, FENCED, 0] * (LEADERS // 2)
        updates, _ = await log.updates(0)
    told = lines_of(str(file))
    assert judge(told, *durable(updates)) >= TRANSACTIONS
    # What had no answer was repeated by the next leader, and has one in the end.
    answered = {line["token"] for line in told if line["what"] == "done"}
    assert {line["token"] for line in told if line["what"] == "begun"} == answered


def history() -> tuple[list[Line], dict[str, int], Lists]:
    """Two transactions, one after the other, and a third at the same time as the second."""
    moments: list[tuple[str, int, int, dict[str, list[str]], int]] = [
        ("t1", 1, 2, {"a": []}, 10),
        ("t2", 3, 6, {"a": ["t1"]}, 12),
        ("t3", 4, 5, {"b": []}, 11),
    ]
    told: list[Line] = []
    for token, invoked, returned, reads, ts in moments:
        line = {"token": token, "element": token, "lists": list(reads), "invoked": invoked}
        told += [{"what": "begun", **line}, {"what": "done", **line, "returned": returned, "reads": reads, "ts": ts}]
    return told, {"t1": 10, "t2": 12, "t3": 11}, {"a": ["t1", "t2"], "b": ["t3"]}


def test_a_good_history_passes():
    assert judge(*history()) == 3


@pytest.mark.parametrize("problem", ["lost", "twice", "stale read", "torn", "time travel", "phantom"])
def test_a_bad_history_does_not_pass(problem: str):
    told, times, lists = history()
    if problem == "lost":
        lists["a"].remove("t1")
    elif problem == "twice":
        lists["b"].append("t3")
    elif problem == "stale read":
        told[3]["reads"] = {"a": []}
    elif problem == "torn":
        told[0]["lists"] = told[1]["lists"] = ["a", "b"]
        told[1]["reads"] = {"a": [], "b": []}
    elif problem == "time travel":
        told[0]["invoked"] = told[1]["invoked"] = 7
        told[1]["returned"] = 8
    else:
        del times["t3"]
    with pytest.raises((AssertionError, KeyError)):
        judge(told, times, lists)
