"""Generator ``tpcb``: each message is one transfer that changes an account, its teller and its branch, and is recorded.

At every offset the balances of accounts, of tellers and of branches, and the amounts in the history have one sum.

How the old balance is known without state: transfers come in rounds. A round visits each account once, in an order
of its own; after round r an account's balance is a hash of account and r, and the amount of a transfer is what the
balance changed by. A teller always serves the same accounts, so its balance is a sum over them, computed once for the
first message of a range and carried on from there.
Source: design 003; after TPC Benchmark B.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persist import Schema
from persist_ingest.sources.loadgen.generator import changes, chunks
from persist_ingest.sources.loadgen.hashing import Ints, below
from persist_ingest.sources.port import Changes

_ACCOUNTS = Schema(key={"id": pa.int64()}, val={"branch": pa.int64(), "balance": pa.int64()})
_TELLERS = Schema(key={"id": pa.int64()}, val={"branch": pa.int64(), "balance": pa.int64()})
_BRANCHES = Schema(key={"id": pa.int64()}, val={"balance": pa.int64()})
_HISTORY = Schema(
    key={"id": pa.int64()},
    val={"account": pa.int64(), "teller": pa.int64(), "branch": pa.int64(), "amount": pa.int64()},
)

TELLERS: Final = 10
"""Tellers of a branch."""
Moves: TypeAlias = tuple[Ints, Ints, NDArray[np.bool_]]
"""For each transfer the balance before it, the balance after it, and whether there was one before."""
BALANCE_MAX: Final = 1_000_000
"""Balances of accounts lie in ``(-BALANCE_MAX, BALANCE_MAX)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tpcb:
    """``branches`` with ``accounts`` each (at least as many as tellers), in every partition.

    Ids in a partition are number * partitions + partition. Nothing exists before its first transfer.
    Memory of a task: two words for each account of a partition.
    """

    seed: int
    partitions: int
    branches: int
    accounts: int

    def exports(self) -> Mapping[str, Schema]:
        return {"accounts": _ACCOUNTS, "branches": _BRANCHES, "history": _HISTORY, "tellers": _TELLERS}

    def changes(self, partition: int, begin: int, end: int) -> Iterator[Changes]:
        tellers = _Balances.at(self.branches * TELLERS, *self._served(partition, begin))
        branches = _Balances(tellers.total.reshape(-1, TELLERS).sum(axis=1), tellers.count.reshape(-1, TELLERS).sum(1))
        for offsets in chunks(begin, end):
            account, rounds = self._visited(partition, offsets)
            old = self._balance(partition, account, rounds - 1)
            new = self._balance(partition, account, rounds)
            teller = account % (self.branches * TELLERS)
            branch = teller // TELLERS
            moved = new - old
            ids = self._ids(partition, offsets), self._ids(partition, account), self._ids(partition, teller)
            place = self._ids(partition, branch)
            columns = (ids[0], ids[1], ids[2], place, moved)
            yield changes("history", _HISTORY, columns, partition=partition, offsets=offsets)
            yield _updates("accounts", _ACCOUNTS, (ids[1], place), (old, new, rounds > 0), partition, offsets)
            yield _updates("tellers", _TELLERS, (ids[2], place), tellers.add(teller, moved), partition, offsets)
            yield _updates("branches", _BRANCHES, (place,), branches.add(branch, moved), partition, offsets)

    @property
    def _accounts(self) -> int:
        return self.branches * self.accounts

    def _served(self, partition: int, begin: int) -> tuple[Ints, Ints]:
        """The teller and the balance of every account that some message before ``begin`` was about."""
        account, rounds = self._visited(partition, np.arange(begin - begin % self._accounts, begin, dtype=np.int64))
        last = np.full(self._accounts, begin // self._accounts - 1, dtype=np.int64)
        last[account] = rounds
        there = np.flatnonzero(last >= 0)
        return there % (self.branches * TELLERS), self._balance(partition, there, last[there])

    def _visited(self, partition: int, offsets: Ints) -> tuple[Ints, Ints]:
        """The account each message is about, and the round: in round r, place i is (i * step(r) + first(r)) mod n."""
        count = self._accounts
        rounds, place = offsets // count, offsets % count
        steps = _coprimes(count)
        salted = self._salted(partition, rounds)
        step = steps[below(salted, self.seed + 1, len(steps))]
        return (place * step + below(salted, self.seed + 2, count)) % count, rounds

    def _balance(self, partition: int, account: Ints, rounds: Ints) -> Ints:
        """The balance of accounts after a round; 0 before the first one."""
        position = self._salted(partition, rounds * self._accounts + account)
        drawn = below(position, self.seed + 3, 2 * BALANCE_MAX - 1) - (BALANCE_MAX - 1)
        return np.where(rounds < 0, 0, drawn)

    def _salted(self, partition: int, numbers: Ints) -> Ints:
        return numbers * self.partitions + partition

    def _ids(self, partition: int, numbers: Ints) -> Ints:
        return numbers * self.partitions + partition


class _Balances:
    """Balances by number as a range is read: the total, and of how many transfers."""

    def __init__(self, total: Ints, count: Ints) -> None:
        self.total = total
        self.count = count

    @classmethod
    def at(cls, size: int, owners: Ints, amounts: Ints) -> "_Balances":
        total = np.zeros(size, dtype=np.int64)
        np.add.at(total, owners, amounts)
        return cls(total, np.bincount(owners, minlength=size).astype(np.int64))

    def add(self, owners: Ints, amounts: Ints) -> Moves:
        """The balances before and after each transfer, and whether there was one before it."""
        order = np.argsort(owners, kind="stable")
        grouped = owners[order]
        first = np.r_[True, grouped[1:] != grouped[:-1]]
        starts = np.flatnonzero(first)
        running = np.cumsum(amounts[order])
        preceding = (running - amounts[order])[starts][np.cumsum(first) - 1]
        after = np.empty_like(amounts)
        after[order] = running - preceding + self.total[grouped]
        known = np.empty(len(owners), dtype=bool)
        known[order] = ~first | (self.count[grouped] > 0)
        np.add.at(self.total, owners, amounts)
        self.count += np.bincount(owners, minlength=len(self.count))
        return after - amounts, after, known


def _updates(export: str, schema: Schema, names: tuple[Ints, ...], moves: Moves, partition: int, at: Ints) -> Changes:
    """For each message: the row with the old balance leaves, if there was one, and that with the new one comes."""
    old, new, known = moves
    kept = np.stack([known, np.ones(len(at), dtype=bool)], axis=1).ravel()
    diffs = np.tile(np.array([-1, 1], dtype=np.int64), len(at))[kept]
    columns = [np.repeat(each, 2)[kept] for each in names]
    columns.append(np.stack([old, new], axis=1).ravel()[kept])
    return changes(export, schema, columns, partition=partition, offsets=np.repeat(at, 2)[kept], diffs=diffs)


def _coprimes(count: int) -> Ints:
    """Up to 64 steps that visit all of ``count`` places, spread over them."""
    candidates = {1 + number * max(count // 64, 1) + extra for number in range(64) for extra in range(8)}
    steps = sorted(step for step in candidates if step <= count and math.gcd(step, count) == 1)
    return np.array(steps[:: max(len(steps) // 64, 1)], dtype=np.int64)
