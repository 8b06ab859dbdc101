"""What failures of Redis, PostgreSQL and S3 mean: Determinate from a list, everything else Indeterminate."""

import botocore.exceptions as boto
import psycopg
import pytest
from redis import exceptions as redis_errors

from persist.errors import Determinate, Indeterminate, LocationError, StoreFull, StoreReadOnly
from persist.storage.blob import s3 as blob_s3
from persist.storage.call_deadline import StoreCall
from persist.storage.consensus import redis as consensus_redis
from persist.storage.engine import postgres
from persist.storage.engine.filesystem import filesystem_of, is_network


def sent(*, mutation: bool = True) -> StoreCall:
    call = StoreCall("call", 1.0, mutation=mutation)
    call.sent = True
    return call


SCRIPT = "ERR Error running script (call to f_1): @user_script:3: @user_script: 3: "

REDIS = [
    (redis_errors.OutOfMemoryError("command not allowed"), StoreFull),
    (redis_errors.ResponseError(SCRIPT + "-OOM command not allowed when used memory > 'maxmemory'."), StoreFull),
    (redis_errors.ReadOnlyError("You can't write against a read only replica."), StoreReadOnly),
    (redis_errors.ResponseError(SCRIPT + "-READONLY You can't write against a read only replica."), StoreReadOnly),
    (redis_errors.ResponseError("MISCONF Redis is configured to save RDB snapshots"), StoreReadOnly),
    (redis_errors.ResponseError("NOREPLICAS Not enough good replicas to write."), StoreReadOnly),
    (redis_errors.BusyLoadingError("Redis is loading the dataset in memory"), Determinate),
    (redis_errors.NoScriptError("No matching script."), Determinate),
    (redis_errors.ClusterDownError("The cluster is down"), Determinate),
    (redis_errors.MovedError("3999 127.0.0.1:6381"), Determinate),
    (redis_errors.ResponseError("BUSY Redis is busy running a script."), Determinate),
    (redis_errors.ResponseError("ERR something unheard of"), Indeterminate),
    (redis_errors.ResponseError("UNKILLABLE script wrote already"), Indeterminate),
    (redis_errors.ConnectionError("Connection closed by server."), Indeterminate),
    (redis_errors.TimeoutError("Timeout reading"), Indeterminate),
    (ConnectionResetError(), Indeterminate),
]


@pytest.mark.parametrize(("error", "expected"), REDIS, ids=lambda value: str(value)[:40])
def test_redis_failure_is_classified(error: Exception, expected: type[LocationError]) -> None:
    assert type(consensus_redis.classify(error, sent())) is expected
    assert isinstance(consensus_redis.classify(error, sent(mutation=False)), Determinate)


POSTGRES = {
    "40001": Determinate, "40P01": Determinate, "23505": Determinate, "22001": Determinate, "42P01": Determinate,
    "53200": Determinate, "53300": Determinate, "57P03": Determinate, "53100": StoreFull, "25006": StoreReadOnly,
    "40003": Indeterminate, "57014": Indeterminate, "57P01": Indeterminate, "57P02": Indeterminate,
    "08006": Indeterminate, "08003": Indeterminate, "XX000": Indeterminate, "58030": Indeterminate, None: Indeterminate,
}  # fmt: skip


@pytest.mark.parametrize(("state", "expected"), POSTGRES.items(), ids=str)
def test_postgres_failure_is_classified(state: str | None, expected: type[LocationError]) -> None:
    error = psycopg.OperationalError("x")
    error.sqlstate = state
    assert type(postgres.classify(error, sent())) is expected
    assert isinstance(postgres.classify(error, sent(mutation=False)), Determinate)


def answer(code: str, status: int) -> boto.ClientError:
    return boto.ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")


S3 = [
    (answer("NoSuchBucket", 404), Determinate),
    (answer("InvalidArgument", 400), Determinate),
    (answer("AccessDenied", 403), StoreReadOnly),
    (answer("QuotaExceeded", 403), StoreFull),
    (answer("InsufficientStorage", 507), StoreFull),
    (answer("SlowDown", 503), Determinate),
    (answer("InternalError", 500), Indeterminate),
    (answer("ServiceUnavailable", 503), Indeterminate),
    (boto.EndpointConnectionError(endpoint_url="http://h"), Determinate),
    (boto.ConnectTimeoutError(endpoint_url="http://h"), Determinate),
    (boto.NoCredentialsError(), Determinate),
    (boto.ReadTimeoutError(endpoint_url="http://h"), Indeterminate),
    (boto.ConnectionClosedError(endpoint_url="http://h"), Indeterminate),
    (boto.HTTPClientError(error="x"), Indeterminate),
]


@pytest.mark.parametrize(("error", "expected"), S3, ids=lambda value: str(value)[:50])
def test_s3_failure_is_classified(error: Exception, expected: type[LocationError]) -> None:
    assert type(blob_s3.classify(error, "set", mutation=True)) is expected
    assert isinstance(blob_s3.classify(error, "get", mutation=False), Determinate)


def test_call_that_was_not_sent_is_determinate() -> None:
    call = StoreCall("call", 1.0, mutation=True)
    assert isinstance(call.late(), Determinate)
    call.sent = True
    assert isinstance(call.late(), Indeterminate)


MOUNTS = r"""
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
22 21 0:5 / /dev rw - devtmpfs udev rw
23 21 0:30 / /mnt/n\040s rw - nfs4 server:/export rw
24 21 0:31 / /mnt/fuse rw - fuse.sshfs host: rw
25 21 0:32 / /mnt rw - tmpfs tmpfs rw
26 21 0:33 / /over rw - tmpfs tmpfs rw
27 21 254:1 / /over rw - xfs /dev/vdb rw
""".strip()


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/", "ext4", False),
        ("/etc/x", "ext4", False),
        ("/mnt/x", "tmpfs", False),
        ("/mnt/n s/x.db", "nfs4", True),
        ("/mnt/fuse", "fuse.sshfs", True),
        ("/mnt/fused", "tmpfs", False),
        ("/over/x", "xfs", False),
    ],
)
def test_file_system_is_that_of_the_innermost_mount(path: str, kind: str, network: bool) -> None:
    assert filesystem_of(path, MOUNTS) == kind
    assert is_network(kind) is network
