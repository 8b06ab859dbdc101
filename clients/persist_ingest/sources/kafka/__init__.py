"""Sources of type ``kafka``: one topic, from the beginning it had when the source was created.

Partitions that are added later are read from their first message. Consumer groups take no part in what is read: to
the group ``persist-<source>`` is only committed what is durable, for those who watch lag.
"""

from persist_ingest.sources.kafka.kind import KafkaType
from persist_ingest.sources.kafka.librdkafka import Librdkafka

KAFKA = KafkaType(Librdkafka)
