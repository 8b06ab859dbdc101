"""Make an archive of the classes that a broker of Kafka loads, which each of the tests then begins with.

    python deploy/kafka_classes.py JARS ARCHIVE

As ``spark_classes.py`` does for Spark. A JVM that the archive does not fit does without and says nothing.
"""

import os
import signal
import sys
import time
from pathlib import Path

import confluent_kafka

from persist.testing import servers

SECONDS_MAX = 300
"""Then it is given up: set-up goes on without."""


def work(uri: str) -> None:
    """Messages, some of them in a transaction, and a reader of them."""
    for more in ({}, {"transactional.id": "classes"}):
        producer = confluent_kafka.Producer({"bootstrap.servers": uri, **more})
        if more:
            producer.init_transactions(60)
            producer.begin_transaction()
        producer.produce("classes", value=b"{}")
        producer.flush(60)
        if more:
            producer.commit_transaction(60)
    reader = confluent_kafka.Consumer({"bootstrap.servers": uri, "group.id": "g", "auto.offset.reset": "earliest"})
    reader.subscribe(["classes"])
    while reader.poll(1.0) is None:
        pass
    reader.commit(asynchronous=False)
    reader.close()


def main() -> int:
    """Write the archive beside its place and put it there whole."""
    signal.alarm(SECONDS_MAX)
    jars, archive = Path(sys.argv[1]), Path(sys.argv[2]).absolute()
    new = archive.with_suffix(".new")
    os.environ["JDK_JAVA_OPTIONS"] = f"-Xlog:disable -XX:ArchiveClassesAtExit={new}"
    with servers.start_kafka(jars) as server:
        new.unlink(missing_ok=True)  # that of the tool that makes a broker's storage
        work(server.uri)
        os.kill(server.pid, signal.SIGTERM)
        # Written by a JVM that ends, and whole when it has ended: what has is still there, and has no words any more.
        while Path(f"/proc/{server.pid}/cmdline").read_bytes():
            time.sleep(0.1)
    new.replace(archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
