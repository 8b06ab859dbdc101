"""Generator ``auction``: users, auctions and bids. What a row refers to exists at an offset before.

Source: design 003; the proportions follow the NEXMark benchmark (Tucker et al. 2002).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from persist import Schema
from persist_ingest.sources.loadgen.generator import changes, chunks, words_of
from persist_ingest.sources.loadgen.hashing import Ints, below
from persist_ingest.sources.port import Changes

_USERS = Schema(key={"id": pa.int64()}, val={"name": pa.string()})
_AUCTIONS = Schema(key={"id": pa.int64()}, val={"seller": pa.int64(), "item": pa.string(), "reserve": pa.int64()})
_BIDS = Schema(key={"id": pa.int64()}, val={"auction": pa.int64(), "bidder": pa.int64(), "amount": pa.int64()})

CYCLE: Final = 50
"""Messages of one cycle: a user, then three auctions, then bids."""
AUCTIONS: Final = 3
BIDS: Final = CYCLE - AUCTIONS - 1
OPEN: Final = 100
"""How many of the newest auctions of a partition are bid on."""

_FIRST: Final = ("Ada", "Barbara", "Edsger", "Frances", "Grace", "Hedy", "John", "Katherine", "Leslie", "Tony")
_ITEMS: Final = ("atlas", "clock", "globe", "lamp", "lens", "loom", "print", "sextant", "vase", "violin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Auction:
    """Every partition is a market of its own: ids there are number * partitions + partition, amounts are cents."""

    seed: int
    partitions: int

    def exports(self) -> Mapping[str, Schema]:
        return {"auctions": _AUCTIONS, "bids": _BIDS, "users": _USERS}

    def changes(self, partition: int, begin: int, end: int) -> Iterator[Changes]:
        for offsets in chunks(begin, end):
            place = offsets % CYCLE
            users = offsets[place == 0]
            auctions = offsets[(place > 0) & (place <= AUCTIONS)]
            bids = offsets[place > AUCTIONS]
            if len(users):
                yield self._users(partition, users)
            if len(auctions):
                yield self._auctions(partition, auctions)
            if len(bids):
                yield self._bids(partition, bids)

    def _users(self, partition: int, offsets: Ints) -> Changes:
        ids = self._ids(partition, offsets // CYCLE)
        names = words_of(_FIRST, below(ids, self.seed + 1, len(_FIRST)))
        return changes("users", _USERS, (ids, names), partition=partition, offsets=offsets)

    def _auctions(self, partition: int, offsets: Ints) -> Changes:
        cycle, place = offsets // CYCLE, offsets % CYCLE
        ids = self._ids(partition, cycle * AUCTIONS + place - 1)
        sellers = self._ids(partition, below(ids, self.seed + 2, cycle + 1))
        items = words_of(_ITEMS, below(ids, self.seed + 3, len(_ITEMS)))
        reserve = 100 + below(ids, self.seed + 4, 100_000)
        columns = (ids, sellers, items, reserve)
        return changes("auctions", _AUCTIONS, columns, partition=partition, offsets=offsets)

    def _bids(self, partition: int, offsets: Ints) -> Changes:
        cycle, place = offsets // CYCLE, offsets % CYCLE
        ids = self._ids(partition, cycle * BIDS + place - AUCTIONS - 1)
        there = (cycle + 1) * AUCTIONS
        auctions = self._ids(partition, there - 1 - below(ids, self.seed + 5, np.minimum(there, OPEN)))
        bidders = self._ids(partition, below(ids, self.seed + 6, cycle + 1))
        amount = 100 + below(ids, self.seed + 7, 200_000)
        columns = (ids, auctions, bidders, amount)
        return changes("bids", _BIDS, columns, partition=partition, offsets=offsets)

    def _ids(self, partition: int, numbers: Ints) -> Ints:
        return numbers * self.partitions + partition
