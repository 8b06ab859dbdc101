"""Stores with the faults that real ones had, to prove that the checker sees them. Source: reliability.md section 0."""

import asyncio
import random

from persist.storage.consensus.memory import MemoryConsensus
from persist.storage.ports import Entry


class ChecksThenSets(MemoryConsensus):
    """Reads the head, waits, then sets: two writers may both win. As SELECT max() then INSERT."""

    async def compare_and_set(
        self, key: str, expected: int, data: bytes, *, after: bytes = b"", timeout: float
    ) -> bool:
        entry = await self.head(key, timeout=timeout)
        if (entry.seqno if entry else -1) != expected:
            return False
        await asyncio.sleep(0)
        self._log.heads[key] = max(self._log.heads.get(key, -1), expected + 1)
        self._log.entries.setdefault(key, {})[expected + 1] = bytes(data)
        return True


class SlotIsFree(MemoryConsensus):
    """Wins whatever seqno has no entry: a truncation re-opens old ones. As INSERT ... ON CONFLICT DO NOTHING."""

    async def compare_and_set(
        self, key: str, expected: int, data: bytes, *, after: bytes = b"", timeout: float
    ) -> bool:
        entries = self._log.entries.setdefault(key, {})
        newest = max(entries, default=-1)
        if expected + 1 in entries or expected > newest:
            return False
        entries[expected + 1] = bytes(data)
        self._log.heads[key] = max(newest, expected + 1)
        await asyncio.sleep(0)
        return True

    async def scan(self, key: str, from_seqno: int, limit: int, *, timeout: float) -> list[Entry]:
        entries = sorted(self._log.entries.get(key, {}).items())
        return [Entry(seqno=seqno, data=data) for seqno, data in entries if seqno >= from_seqno][:limit]


class RepeatsTheCommand(MemoryConsensus):
    """Now and then sends a compare_and_set twice and reports the second answer. As a client library that retries."""

    chance = random.Random(7)

    async def compare_and_set(
        self, key: str, expected: int, data: bytes, *, after: bytes = b"", timeout: float
    ) -> bool:
        done = await super().compare_and_set(key, expected, data, after=after, timeout=timeout)
        await asyncio.sleep(0)
        if self.chance.random() < 0.05:
            done = await super().compare_and_set(key, expected, data, after=after, timeout=timeout)
        return done


class ReadsFromAReplica(MemoryConsensus):
    """Now and then shows an old head."""

    chance = random.Random(7)

    async def head(self, key: str, *, timeout: float) -> Entry | None:
        entry = await super().head(key, timeout=timeout)
        await asyncio.sleep(0)
        if entry is None or self.chance.random() > 0.05:
            return entry
        older = self._log.entries[key].get(entry.seqno - 1)
        return entry if older is None else Entry(seqno=entry.seqno - 1, data=older)
