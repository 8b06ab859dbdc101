"""Who plays without an event loop: threads of one blocking client, and drivers that commit what tasks prepared."""

import asyncio
import dataclasses
import functools
import random
from collections.abc import Sequence

from simulation.fleet.fleet_cast import LIMITS, Story
from simulation.fleet.fleet_together import TogetherCast

from persist.client.blocking import client as facade
from persist.client.blocking.write import WriteHandle
from persist.client.client import Client
from persist.client.shard.write.prepared import BatchSpec, PreparedBatch
from persist.core.ids import Token
from persist.core.shard.commands import Appended, Transaction, UpperMismatch
from persist.errors import LeaseExpired, LocationError, UsageError
from persist.testing.accounts import Account
from persist.testing.simulation.turns import in_thread
from persist.testing.world.sample import SCHEMA, table, time_of

THREADS = 2
APP_ID = "plan"
FOLLOWS_MAX = 20
"""How often a commit follows an upper that moves."""
DRIVERS_MAX = 5


@dataclasses.dataclass
class Planned:
    """One version of a plan: what its tasks write and return to the drivers. ``upper``: as it was planned."""

    version: int
    accounts: list[Account]
    messages: list[bytes] = dataclasses.field(default_factory=list)
    writer_id: str = ""
    upper: int = 0

    @property
    def token(self) -> Token | None:
        """The same for every driver. Every other version is identified by its transaction alone."""
        return Token.named("transaction", APP_ID, self.version) if self.version % 2 else None


class BlockingCast(TogetherCast):
    """Their threads take turns with the loop."""

    def stories(self) -> dict[str, Story]:
        """All actors', and these."""
        return {**super().stories(), "block": self._block, "plan": self._plan}

    # ---- threads of one client -----------------------------------------------------------------------------------

    async def _block(self, client: Client, entropy: random.Random) -> None:
        """Threads that share a handle; each appends, and repeats what it appended under the token it had."""
        blocked = await in_thread(lambda: facade.Client(lambda: _ready(client)))
        opening = functools.partial(blocked.open_writer, self.moved, schema=SCHEMA)
        writer = await self.until_it_answers(lambda: in_thread(opening))
        for again in range(3):
            streams = [self.loop.stream(f"block/{again}/{number}") for number in range(THREADS)]
            self.expect_trouble(entropy)
            await asyncio.gather(*(in_thread(functools.partial(self._write, writer, stream)) for stream in streams))
            await asyncio.sleep(entropy.uniform(0, 20.0))
        await in_thread(blocked.close)

    def _write(self, writer: WriteHandle, entropy: random.Random) -> None:
        for _ in range(self.plot.rounds):
            account = self.accounts[self.moved].open(self.row())
            rows, token = table([(account.row, "blocked", 0, 1)]), Token.of(entropy.randbytes(16))
            for _ in range(entropy.choice([1, 3])):
                try:
                    outcome = writer.append_at_upper(rows, token=token, timeout=entropy.choice(LIMITS))
                except Exception as error:
                    account.failed(error, repeated=True)
                    if not isinstance(error, UsageError | LeaseExpired):
                        self.strange(error)
                else:
                    account.answered(outcome)
                self._did(f"blocked {account.answers[-1]}")

    # ---- plans ---------------------------------------------------------------------------------------------------

    async def _plan(self, client: Client, entropy: random.Random) -> None:
        """Tasks prepare, under no numbers; a driver commits, and when it ends amid that, the next one does it again."""
        for version in range(self.plot.rounds):
            accounts = [self.accounts[self.named].open(self.row()) for _ in range(entropy.choice([1, 2, 4]))]
            planned = Planned(version, accounts)
            drivers = entropy.choice([1, 2, 2, 3])
            for at in range(DRIVERS_MAX):
                await self._drive(planned, f"driver-{version}.{at}", entropy, lives=at >= drivers - 1)
                if at >= drivers - 1 and accounts[0].answers:
                    break
            await asyncio.sleep(entropy.uniform(0, 20.0))

    async def _drive(self, planned: Planned, name: str, entropy: random.Random, *, lives: bool) -> None:
        """One driver after another did not come to an end. What tasks returned to it may be lost with it."""

        async def prepare(client: Client) -> None:
            await self._prepare(client, planned, entropy)

        async def commit(client: Client) -> None:
            await self._commit(client, planned)

        if not planned.messages or entropy.random() < 0.4:
            await self._process(f"{name}.plan", prepare, entropy, lives=True)
        if planned.messages:
            self.expect_trouble(entropy)
            await self._process(name, commit, entropy, lives=lives)

    async def _prepare(self, client: Client, planned: Planned, entropy: random.Random) -> None:
        """Every task's parts. Some tasks run twice, and one of the two counts."""

        def begin() -> tuple[str, BatchSpec, int]:
            writer = facade.Client(lambda: _ready(client)).open_writer(self.named, schema=SCHEMA)
            return str(writer.writer_id), writer.batch_spec(), time_of(writer.upper)

        planned.writer_id, spec, planned.upper = await self.until_it_answers(lambda: in_thread(begin))
        planned.messages, told = [], []
        for account in planned.accounts:
            for _ in range(entropy.choice([1, 1, 2])):
                name = f"task-{planned.version}.{entropy.randrange(1 << 40)}"
                message = await self._task(name, spec, account.row)
            told.append(message)
        if all(told):
            planned.messages = told

    async def _task(self, name: str, spec: BatchSpec, row: int) -> bytes:
        """One attempt at a task, on an executor of its own. Empty: it failed."""

        def write() -> bytes:
            builder = spec.open()
            builder.add(table([(row, "planned", 0, 1)]))
            return builder.finish().to_bytes()

        machine = self.machine(name)
        work = machine.start(in_thread(write))
        await asyncio.wait({work}, timeout=30.0)
        message = b""
        if work.done():
            try:
                message = work.result()
            except Exception as error:
                self.strange(error)
        self.end(machine)
        return message

    async def _commit(self, client: Client, planned: Planned) -> None:
        batches = [PreparedBatch.from_bytes(message) for message in planned.messages]
        try:
            outcome = await in_thread(lambda: self._follow(facade.Client(lambda: _ready(client)), planned, batches))
        except LeaseExpired:
            # Prepared under an id that the shard takes no more.
            planned.messages = []
        except Exception as error:
            for account in planned.accounts:
                account.failed(error, repeated=True)
            self.strange(error)
        else:
            for account in planned.accounts:
                account.answered(outcome)
            self._did(f"planned {planned.version} {outcome}")

    def _follow(self, client: facade.Client, planned: Planned, batches: Sequence[PreparedBatch]) -> Appended:
        """As a driver does it: at the upper, wherever that is by then."""
        writer = client.open_writer(self.named, schema=SCHEMA, writer_id=planned.writer_id)
        time = planned.upper
        for _ in range(FOLLOWS_MAX):
            outcome = writer.compare_and_append_batches(
                batches,
                time,
                time + 1,
                token=planned.token,
                transaction=Transaction(app_id=APP_ID, version=planned.version, owner="query"),
                at_time=time,
            )
            if not isinstance(outcome, UpperMismatch):
                return outcome
            time = time_of(outcome.upper)
        raise LocationError("the upper moves and moves")


async def _ready(client: Client) -> Client:
    return client
