"""Floors of storing: encode one table, put it, set it; without order, statistics, checksums or any description."""

import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import redis
from botocore.config import Config
from obstore.store import S3Store

from bench.floor.server import CAS, keys
from bench.stage import BUCKET

BULK_BLOBS, BULK_THREADS = 8, 2


def encode(table: pa.Table) -> pa.Buffer:
    """The cheapest Parquet file of the kind persist writes."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", compression_level=1, use_dictionary=False, write_statistics=["k"])
    return sink.getvalue()


def encode_inline(table: pa.Table) -> pa.Buffer:
    """Arrow IPC, lz4."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    return sink.getvalue()


def decode(data: bytes) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


class Obstore:
    """Objects by obstore."""

    def __init__(self, endpoint: str) -> None:
        self._store = S3Store(
            BUCKET,
            endpoint=endpoint,
            region="us-east-1",
            access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
            secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
            client_options={"allow_http": True, "timeout": "300s"},
            virtual_hosted_style_request=False,
        )

    def put(self, key: str, data: pa.Buffer) -> None:
        obstore.put(self._store, key, memoryview(data).cast("B"), use_multipart=False)

    def get(self, key: str) -> bytes:
        return bytes(obstore.get(self._store, key).bytes())


class Boto3:
    """Objects by boto3, tuned: no payload signing, no checksums, no retries."""

    def __init__(self, endpoint: str) -> None:
        tuned = {"payload_signing_enabled": False, "addressing_style": "path"}
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            config=Config(
                s3=tuned,
                max_pool_connections=64,
                retries={"total_max_attempts": 1},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def put(self, key: str, data: pa.Buffer) -> None:
        self._client.put_object(Bucket=BUCKET, Key=key, Body=data.to_pybytes())


class Consensus:
    """Compare-and-set in Redis, as the floor server does it."""

    def __init__(self, port: int, shard: str) -> None:
        self._redis = redis.Redis(host="127.0.0.1", port=port)
        self._script = self._redis.register_script(CAS)
        self._keys = keys(shard)
        self.head = 0
        self.lost = 0

    def commit(self, payload: bytes) -> None:
        while True:
            won, self.head = self._script(keys=self._keys, args=[self.head, self.head + 1, payload])
            if won:
                return
            self.lost += 1


class Bulk:
    """A table as eight blobs written by two threads, one commit; read back whole."""

    def __init__(self, endpoint: str, redis_port: int, name: str | None = None) -> None:
        self._name = name or uuid.uuid4().hex
        self._objects = Obstore(endpoint)
        self._consensus = Consensus(redis_port, self._name)

    def append(self, table: pa.Table) -> None:
        step = -(-table.num_rows // BULK_BLOBS)

        def one(index: int) -> None:
            self._objects.put(self._key(index), encode(table.slice(index * step, step)))

        with ThreadPoolExecutor(BULK_THREADS) as pool:
            list(pool.map(one, range(BULK_BLOBS)))
        self._consensus.commit(b" ".join(self._key(index).encode() for index in range(BULK_BLOBS)))

    def read(self) -> pa.Table:
        with ThreadPoolExecutor(BULK_THREADS) as pool:
            return pa.concat_tables(
                pool.map(lambda index: decode(self._objects.get(self._key(index))), range(BULK_BLOBS))
            )

    def _key(self, index: int) -> str:
        return f"floor/{self._name}/{index}"
