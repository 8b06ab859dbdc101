"""Sources whose messages bring their own times: ``cdcv2``, and ``debezium`` with its transaction topic.

Both are read from Kafka or from files, from the beginning at each start: which times are durable says the data shard
alone. Messages may come out of order and more than once.
"""

from persist_ingest.sources.brought.cdcv2 import Cdcv2Type
from persist_ingest.sources.brought.debezium import DebeziumType
from persist_ingest.sources.brought.messages import librdkafka

CDCV2 = Cdcv2Type(librdkafka)
DEBEZIUM = DebeziumType(librdkafka)
