"""The type ``debezium``: changes of one table, at the numbers of their transactions in the transaction topic.

The first transaction that ends there is time 1, the next one 2. A transaction is complete when as many changes of the
table came as its end says. Messages may come more than once, and the two topics in any order to each other.
Source: Debezium documentation, transaction metadata; design 004, description (consistency topics), Counter.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Final

from persist import InvalidArgument, Schema
from persist.sources import CounterTimeline, SourceFrontier
from persist.typed import Fields
from persist_ingest.sources.brought.following import FollowedReader
from persist_ingest.sources.brought.messages import (
    PLACES,
    Connect,
    How,
    Message,
    Messages,
    Where,
    one_partition,
    without_settings,
)
from persist_ingest.sources.kafka.cluster import Fetched
from persist_ingest.sources.kafka.envelopes import Debezium
from persist_ingest.sources.options import check_options, columns, listed, required
from persist_ingest.sources.port import ERRORS, BadRows, Beginning, SourceFailure, Stated, StatedProgress
from persist_ingest.sources.renames import OPTION, Renames

_OPTIONS: Final = (*PLACES, "transactionPath", "transactionTopic", "dataCollection", "schema", "key", "export", OPTION)
REMEMBERED: Final = 1_000_000
"""Transactions whose end is known when it comes again."""


class Numbers:
    """The transactions of a topic by id: their numbers, from 1 on, in the order in which they end."""

    def __init__(self) -> None:
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._begun: dict[str, None] = {}
        self.last = 0

    def begin(self, id: str) -> None:
        """BEGIN came."""
        if id not in self._ended:
            self._begun[id] = None

    def end(self, id: str, where: str) -> int | None:
        """The number of a transaction that ends; None: it ended before. Raises SourceFailure: it never began."""
        if id in self._ended:
            return None
        if id not in self._begun:
            raise SourceFailure("a transaction ends that never began", hint="keep the topic whole", at=where, id=id)
        del self._begun[id]
        self.last += 1
        self._ended[id] = self.last
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        return self.last

    def of(self, id: str) -> int | None:
        """The number of a transaction that ended."""
        return self._ended.get(id)


class DebeziumReader(FollowedReader):
    """Follows a table's changes and the topic of transactions."""

    def __init__(
        self,
        export: str,
        schema: Schema,
        changes: Messages,
        transactions: Messages,
        *,
        fields: str,
        collection: str,
        counter: CounterTimeline,
        renames: Renames,
    ) -> None:
        super().__init__(export, schema, changes)
        self._renames = renames
        self._transactions = transactions
        self._envelope = Debezium(columns(fields))
        self._collection = collection
        self._counter = counter
        self._numbers = Numbers()
        self._waiting: dict[str, dict[str, Stated]] = {}

    @property
    def counter(self) -> CounterTimeline | None:
        return self._counter

    def follow(self) -> Iterator[Stated | StatedProgress]:
        # Ends first: what they count is then read, or comes later.
        for message in self._transactions.new():
            yield from self._transaction(message)
        for message in self._messages.new():
            yield from self._change(message)

    def close(self) -> None:
        """Release both topics."""
        super().close()
        self._transactions.close()

    def _transaction(self, message: Message) -> Iterator[Stated | StatedProgress]:
        told = _unwrapped(message)
        id, status = told.get("id"), told.get("status")
        if not isinstance(id, str) or status not in ("BEGIN", "END"):
            raise BadRows(
                "this is no BEGIN or END", hint="name the transaction topic", at=message.where, got=str(told)[:200]
            )
        if status == "BEGIN":
            self._numbers.begin(id)
            return
        count = _counted(told, self._collection, message.where)
        number = self._numbers.end(id, message.where)
        if number is None:
            return
        for waiting in self._waiting.pop(id, {}).values():
            yield Stated(number, waiting.mark, waiting.rows)
        # Time 0 has nothing.
        yield StatedProgress(number if number > 1 else 0, number + 1, {number: count} if count else {})

    def _change(self, message: Message) -> Iterator[Stated]:
        told = _unwrapped(message)
        transaction = told.get("transaction")
        if not isinstance(transaction, dict) or not isinstance(transaction.get("id"), str):
            raise SourceFailure(
                "a change does not say which transaction it is of",
                hint="set provide.transaction.metadata=true, and begin without a snapshot (snapshot.mode=no_data)",
                at=message.where,
            )
        id, order = transaction["id"], transaction.get("data_collection_order")
        if not isinstance(order, int):
            raise BadRows("a change has no data_collection_order", hint="correct it", at=message.where)
        stated = Stated(0, str(order), self._rows(told, message.where))
        number = self._numbers.of(id)
        if number is not None:
            yield Stated(number, stated.mark, stated.rows)
            return
        before = self._waiting.setdefault(id, {}).setdefault(stated.mark, stated)
        if before != stated:
            raise SourceFailure("a change came twice with different contents", at=message.where, id=id, order=order)

    def _rows(self, told: object, where: str) -> tuple[tuple[dict[str, object], int], ...]:
        payload = json.dumps(told).encode()
        fetched = Fetched(partition=0, offsets=[0], keys=[None], values=[payload], timestamps=[-1], headers=[None])
        meaning = self._envelope.meaning(fetched)
        if meaning.bad:
            raise BadRows(
                f"a change has not the declared form: {meaning.bad[0].error}",
                hint="correct the declaration",
                at=where,
                payload=payload[:200],
            )
        columns = self._renames.named(meaning.columns)
        values = {name: column.to_pylist() for name, column in columns.items()}
        signs = meaning.signs.to_pylist()
        return tuple(({name: values[name][at] for name in values}, int(sign or 0)) for at, sign in enumerate(signs))


class DebeziumType:
    """Options. ``bootstrapServers``, ``topic``, ``transactionTopic``; or ``path`` and ``transactionPath`` of files.

    ``dataCollection``: what the transaction topic calls the table (the topic's name after its first dot). ``schema``:
    columns such as ``id bigint not null, name string``. ``key``: names of key columns. ``export``: the collection's
    name, ``rows`` by default. ``kafka.NAME``: a setting of librdkafka. Messages are JSON with before, after and op.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    @contextmanager
    def create(self, options: Mapping[str, str], *, source: str) -> Iterator[Beginning]:
        given = check_options(without_settings(options), _OPTIONS, "a source of Debezium")
        group = f"persist-{source}"
        changes = Where.of(given, options, group=group).found(self._connect)
        if changes.path:
            transactions = Where(path=required(given, "transactionPath", "/data/transactions"))
        else:
            name = required(given, "transactionTopic", "server.transaction")
            transactions = Where(topic=name, group=group, settings=changes.settings)
        transactions = transactions.found(self._connect)
        one_partition(transactions)
        required(given, "key", "id")
        fields = required(given, "schema", "id bigint, name string")
        renames = Renames.of(given)
        schema = renames.keyed(columns(fields), listed(given, "key"))
        export = given.get("export") or "rows"
        if export == ERRORS:
            raise InvalidArgument("the export errors is for bad rows", hint="choose another name for export")
        collection = given.get("dataCollection") or changes.topic.partition(".")[2]
        if not collection:
            raise InvalidArgument(
                "which table of the transactions this is", hint="such as dataCollection=public.orders"
            )
        definition = {
            "changes": changes.to_json(),
            "transactions": transactions.to_json(),
            "fields": fields,
            "collection": collection,
            "export": export,
            "renames": renames.to_json(),
        }
        reader = self._reader(definition, schema)
        yield Beginning(definition=definition, reader=reader, bound=SourceFrontier.minimum(reader.kind))

    def open(self, definition: Fields, schemas: Mapping[str, Schema]) -> DebeziumReader:
        return self._reader(definition, schemas[definition["export"]])

    def drop(self, definition: Mapping[str, object]) -> None:
        """Nothing was set up."""

    def _reader(self, definition: Fields, schema: Schema) -> DebeziumReader:
        changes, transactions = (Where.from_json(definition[each]) for each in ("changes", "transactions"))
        return DebeziumReader(
            definition["export"],
            schema,
            changes.messages(self._connect, How(), whole=True),
            # Numbers count from the first transaction: none may be missing.
            transactions.messages(self._connect, How(), whole=True, ascending=True),
            fields=definition["fields"],
            collection=definition["collection"],
            counter=counter_of(transactions),
            renames=Renames.from_json(definition.get("renames")),
        )


def counter_of(transactions: Where) -> CounterTimeline:
    """The timeline that a transaction topic counts; of files, the directory stands for it."""
    if transactions.topic:
        return CounterTimeline(transactions.brokers, transactions.topic)
    path = PurePosixPath(transactions.path)
    return CounterTimeline(str(path.parent), path.name)


def _unwrapped(message: Message) -> Fields:
    value = message.value
    if isinstance(value, dict) and isinstance(value.get("payload"), dict):
        value = value["payload"]
    if not isinstance(value, dict):
        raise BadRows("this is no JSON object", hint="correct it", at=message.where, got=str(value)[:200])
    return value


def _counted(told: Fields, collection: str, where: str) -> int:
    """How many changes of a table a transaction has. Raises BadRows: counts that do not come to the whole."""
    counts = {each.get("data_collection"): each.get("event_count") for each in told.get("data_collections") or ()}
    whole = told.get("event_count")
    if not all(isinstance(each, int) for each in (*counts.values(), whole)) or sum(counts.values()) != whole:
        raise BadRows("the counts of a transaction do not come to its event_count", hint="correct it", at=where)
    return int(counts.get(collection, 0))
