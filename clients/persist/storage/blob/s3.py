"""Blob in an S3 bucket, by boto3. Credentials come from where boto3 looks for them, never from the URI.

Every request is sent once. Large values go up in parts of 16 MiB, several at a time; an unfinished upload is aborted.
Source: performance.md sections A4 and 1c; reliability.md section 4, S3.
"""

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, TypeVar

import botocore.session
from botocore import exceptions
from botocore.config import Config
from botocore.handlers import add_expect_header

from persist.core.ids import check_blob_key
from persist.errors import Determinate, Indeterminate, LocationError, StoreFull, StoreReadOnly
from persist.runtime import Runtime
from persist.storage.blob.s3_location import S3Location
from persist.storage.blob.s3_probe import probe
from persist.storage.call_deadline import deadline, offloaded
from persist.storage.checks import check_range, check_timeout
from persist.storage.ports import Finding
from persist.threads import STORING_MAX, storing
from persist.typed import Record

T = TypeVar("T")

PART_BYTES: Final = 16 << 20
_PARTS_AT_ONCE: Final = 4

_MISSING: Final = frozenset({"NoSuchKey", "404", "NotFound"})
_FORBIDDEN: Final = frozenset({"AccessDenied", "403", "AllAccessDisabled", "MethodNotAllowed", "InvalidAccessKeyId"})
_NO_ROOM: Final = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "507"})
_THROTTLED: Final = frozenset({"SlowDown", "503 SlowDown", "TooManyRequests"})
_NOT_OFFERED: Final = frozenset({"NotImplemented", "MethodNotAllowed", "501", "MissingContentMD5"})
"""Answers of services that know no DeleteObjects, or none with the checksum that is sent."""
MANY_AGAIN_SECONDS: Final = 600.0
"""After so long such a service is asked again: it may have been a proxy's answer."""
_NEVER_SENT: Final = (
    exceptions.EndpointConnectionError,
    exceptions.ConnectTimeoutError,
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.ParamValidationError,
    exceptions.ProxyConnectionError,
    exceptions.NoRegionError,
)


def classify(error: Exception, what: str, *, mutation: bool) -> LocationError:
    """What a failure of S3 means. A 4xx answer, throttling and a connection never made are Determinate."""
    if isinstance(error, exceptions.ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code in _NO_ROOM or status == 507:
            return StoreFull(f"s3 {what}: no room left", hint="raise the quota", code=code)
        if mutation and code in _FORBIDDEN:
            return StoreReadOnly(f"s3 {what}: not allowed", hint="check the permissions of the credentials", code=code)
        if 400 <= status < 500 or code in _THROTTLED or not mutation:
            return Determinate(f"s3 {what}: refused", hint="nothing happened; retry", code=code, status=status)
        return Indeterminate(f"s3 {what}: failed", hint="repeat it", code=code, status=status)
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give this machine a role"
        return Determinate(f"s3 {what}: there are no credentials", hint=hint)
    if isinstance(error, _NEVER_SENT) or not mutation:
        return Determinate(f"s3 {what}: failed", hint="is the endpoint up?", detail=error)
    return Indeterminate(f"s3 {what}: the answer was lost", hint="repeat it", detail=error)


class S3Blob:
    """Implements the Blob port over one bucket and prefix.

    ``count_request`` is called with the kind of every HTTP request sent (``PutObject``, ``GetObject``, ...), from any
    thread.
    """

    def __init__(
        self, location: S3Location, runtime: Runtime, *, count_request: Callable[[str], None] | None = None
    ) -> None:
        self._location = location
        self._runtime = runtime
        self._count_request = count_request
        self._lock = threading.Lock()
        self._made: Any = None
        self._closed = False
        self._many_again_at = 0.0

    @property
    def uri(self) -> str:
        """``s3://bucket/prefix?endpoint=...&region=...``."""
        return self._location.uri

    async def get(self, key: str, *, byte_range: tuple[int, int] | None = None, timeout: float) -> bytes | None:
        """The value or a slice of it; one request."""
        check_blob_key(key)
        check_range(byte_range)
        return await self._call("get", timeout, self._get, self._location.key(key), byte_range)

    async def set(self, key: str, value: bytes | memoryview, *, timeout: float) -> None:
        """One request up to 16 MiB, a multipart upload above."""
        name = self._location.key(check_blob_key(key))
        if len(value) <= PART_BYTES:
            await self._call("set", timeout, self._put, name, value, mutation=True)
            return
        self._check_open()
        async with deadline("s3 set", timeout, mutation=True) as call:
            call.sent = True
            await self._multipart(name, memoryview(value).cast("B"), timeout)

    async def delete(self, key: str, *, timeout: float) -> int | None:
        """The size of the deleted value; two requests."""
        name = self._location.key(check_blob_key(key))
        return await self._call("delete", timeout, self._delete, name, mutation=True)

    async def delete_many(self, keys: Sequence[str], *, timeout: float) -> None:
        """One request; one for each where the service has none for many."""
        names = [self._location.key(check_blob_key(key)) for key in keys]
        if names:
            await self._call("delete", timeout, self._delete_many, names, mutation=True)

    async def list(self, prefix: str, *, timeout: float) -> AsyncIterator[tuple[str, int]]:
        """One request per thousand keys; ``timeout`` is for each."""
        check_timeout(timeout)
        token: str | None = ""
        while token is not None:
            found, token = await self._call("list", timeout, self._page, self._location.key(prefix), token)
            for name, size in found:
                yield self._location.strip(name), size

    async def restore(self, key: str, *, dry_run: bool = False, timeout: float) -> None:
        """Removes the delete marker, in a bucket that keeps versions."""
        name = self._location.key(check_blob_key(key))
        if not await self._call("restore", timeout, self._restore, name, dry_run, mutation=not dry_run):
            raise Determinate("cannot restore: the bucket keeps no deleted versions", key=key)

    async def abort_uploads(self, prefix: str, *, older_than_ms: int, dry_run: bool = False, timeout: float) -> int:
        """Aborts multipart uploads: two requests for each, one per thousand without any."""
        check_timeout(timeout)
        before_ms = self._runtime.now_ms() - older_than_ms
        count, after = 0, ("", "")
        while True:
            found, more = await self._call("abort_uploads", timeout, self._uploads, self._location.key(prefix), after)
            for name, upload, begun_ms in found:
                if begun_ms >= before_ms:
                    continue
                count += 1
                if not dry_run:
                    await self._call("abort_uploads", timeout, self._abort_upload, name, upload, mutation=True)
            if more is None:
                return count
            after = more

    async def findings(self) -> Sequence[Finding]:
        """Probes on scratch objects what the port needs: reading and listing one's writes, ranges, deletes."""
        return await self._call("probe", 60.0, self._probe)

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._made is not None:
            await storing(self._runtime, self._made.close)

    async def _call(
        self, what: str, timeout: float, function: Callable[..., T], *args: object, mutation: bool = False
    ) -> T:
        self._check_open()
        return await offloaded(
            self._runtime, f"s3 {what}", timeout, self._guarded, what, mutation, function, args, mutation=mutation
        )

    def _check_open(self) -> None:
        if self._closed:
            raise Determinate("the store is closed", hint="open it again")

    def _guarded(self, what: str, mutation: bool, function: Callable[..., T], args: Sequence[object]) -> T:
        try:
            return function(*args)
        except (exceptions.BotoCoreError, exceptions.ClientError, exceptions.HTTPClientError) as error:
            raise classify(error, what, mutation=mutation) from error

    @property
    def _client(self) -> Any:
        """Made at first use, in a worker thread: the first of a process takes some 0.1 s."""
        with self._lock:
            if self._made is None:
                self._made = make_client(self._location)
                if self._count_request is not None:
                    count = self._count_request
                    self._made.meta.events.register(
                        "before-send.s3", lambda event_name="", **_: count(event_name.rpartition(".")[2])
                    )
            return self._made

    def _get(self, name: str, byte_range: tuple[int, int] | None) -> bytes | None:
        wanted: Record = {"Bucket": self._location.bucket, "Key": name}
        empty = byte_range is not None and byte_range[0] == byte_range[1]
        if byte_range is not None and not empty:
            wanted["Range"] = f"bytes={byte_range[0]}-{byte_range[1] - 1}"
        try:
            if empty:
                self._client.head_object(**wanted)
                return b""
            answer = self._client.get_object(**wanted)
        except exceptions.ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code in _MISSING:
                return None
            if code in ("InvalidRange", "416"):
                return b""
            raise
        data: bytes = answer["Body"].read()
        if byte_range is not None and "ContentRange" not in answer:
            # This server sent all of it.
            return data[byte_range[0] : byte_range[1]]
        return data

    def _put(self, name: str, value: bytes | memoryview) -> None:
        self._client.put_object(Bucket=self._location.bucket, Key=name, Body=bytes(value))

    async def _multipart(self, name: str, value: memoryview, timeout: float) -> None:
        upload: Record = {"Bucket": self._location.bucket, "Key": name}
        begun = await self._call("set", timeout, lambda: self._client.create_multipart_upload(**upload))
        upload["UploadId"] = begun["UploadId"]
        room = asyncio.Semaphore(_PARTS_AT_ONCE)

        async def send(number: int, start: int) -> dict[str, object]:
            async with room:
                part = bytes(value[start : start + PART_BYTES])
                # Until it is completed nothing of it can be seen, so a lost part is definite.
                answer = await self._call(
                    "set", timeout, lambda: self._client.upload_part(**upload, PartNumber=number, Body=part)
                )
            return {"PartNumber": number, "ETag": answer["ETag"]}

        try:
            async with asyncio.TaskGroup() as group:
                starts = enumerate(range(0, len(value), PART_BYTES), 1)
                tasks = [group.create_task(send(number, start)) for number, start in starts]
        except BaseException as error:
            await self._abort(upload)
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from error
            raise
        upload["MultipartUpload"] = {"Parts": [task.result() for task in tasks]}
        await self._call("set", timeout, lambda: self._client.complete_multipart_upload(**upload), mutation=True)

    async def _abort(self, upload: dict[str, object]) -> None:
        """Best effort, also when the caller is being cancelled; the bucket's lifecycle rule is the safety net."""
        abort = asyncio.ensure_future(storing(self._runtime, lambda: self._client.abort_multipart_upload(**upload)))
        abort.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({abort}, timeout=5.0)

    def _delete(self, name: str) -> int | None:
        try:
            size: int = self._client.head_object(Bucket=self._location.bucket, Key=name)["ContentLength"]
        except exceptions.ClientError as error:
            if error.response.get("Error", {}).get("Code", "") in _MISSING:
                return None
            raise
        self._client.delete_object(Bucket=self._location.bucket, Key=name)
        return size

    def _delete_many(self, names: Sequence[str]) -> None:
        bucket = self._location.bucket
        if self._runtime.monotonic() >= self._many_again_at:
            wanted: Record = {"Objects": [{"Key": name} for name in names], "Quiet": True}
            try:
                answer = self._client.delete_objects(Bucket=bucket, Delete=wanted)
            except exceptions.ClientError as error:
                if error.response.get("Error", {}).get("Code", "") not in _NOT_OFFERED:
                    raise
                self._many_again_at = self._runtime.monotonic() + MANY_AGAIN_SECONDS
            else:
                failed = [each for each in answer.get("Errors", ()) if each.get("Code", "") not in _MISSING]
                if failed:
                    status = 403 if failed[0].get("Code", "") in _FORBIDDEN else 500
                    response: Any = {"Error": failed[0], "ResponseMetadata": {"HTTPStatusCode": status}}
                    raise exceptions.ClientError(response, "DeleteObjects")
                return
        for name in names:
            self._client.delete_object(Bucket=bucket, Key=name)

    def _page(self, prefix: str, token: str) -> tuple[Sequence[tuple[str, int]], str | None]:
        wanted: Record = {"Bucket": self._location.bucket, "Prefix": prefix}
        if token:
            wanted["ContinuationToken"] = token
        answer = self._client.list_objects_v2(**wanted)
        found = [(item["Key"], item["Size"]) for item in answer.get("Contents", ())]
        return found, answer["NextContinuationToken"] if answer.get("IsTruncated") else None

    def _uploads(
        self, prefix: str, after: tuple[str, str]
    ) -> tuple[Sequence[tuple[str, str, int]], tuple[str, str] | None]:
        """A page of unfinished uploads (key, id, when begun), and where the next one starts."""
        wanted: Record = {"Bucket": self._location.bucket, "Prefix": prefix}
        if after[0]:
            wanted.update(KeyMarker=after[0], UploadIdMarker=after[1])
        answer = self._client.list_multipart_uploads(**wanted)
        found = [
            (item["Key"], item["UploadId"], int(item["Initiated"].timestamp() * 1000))
            for item in answer.get("Uploads", ())
        ]
        if not answer.get("IsTruncated"):
            return found, None
        return found, (answer["NextKeyMarker"], answer.get("NextUploadIdMarker", ""))

    def _abort_upload(self, name: str, upload: str) -> None:
        try:
            self._client.abort_multipart_upload(Bucket=self._location.bucket, Key=name, UploadId=upload)
        except exceptions.ClientError as error:
            # Completed, or aborted by another process, meanwhile.
            if error.response.get("Error", {}).get("Code", "") not in (*_MISSING, "NoSuchUpload"):
                raise

    def _restore(self, name: str, dry_run: bool) -> bool:
        if self._get(name, (0, 0)) is not None:
            return True
        answer = self._client.list_object_versions(Bucket=self._location.bucket, Prefix=name)
        if dry_run:
            marked, kept = (
                any(each["Key"] == name for each in answer.get(kind, ())) for kind in ("DeleteMarkers", "Versions")
            )
            return marked and kept
        # All of them: a key that was deleted twice has two, and either hides what is below.
        for marker in answer.get("DeleteMarkers", ()):
            if marker["Key"] == name:
                self._client.delete_object(Bucket=self._location.bucket, Key=name, VersionId=marker["VersionId"])
        return self._get(name, (0, 0)) is not None

    def _probe(self) -> Sequence[Finding]:
        name = self._location.key(f"probe/{self._runtime.random_bytes(8).hex()}")
        return probe(
            name,
            put=lambda value: self._put(name, value),
            get=lambda byte_range: self._get(name, byte_range),
            keys=lambda: [key for key, _ in self._page(name, "")[0]],
            delete=lambda: self._delete(name),
        )


@functools.cache
def _descriptions() -> object:
    """What S3 is and where, as JSON files of megabytes say: reading them is most of what making a client costs."""
    return botocore.session.Session().get_component("data_loader")


def make_client(location: S3Location) -> Any:
    """A boto3 client that sends each request once and does not hash bodies."""
    return client_of(location.endpoint, location.region)


def client_of(endpoint: str | None, region: str | None, *, attempts: int = 1) -> Any:
    """Such a client of an endpoint, which sends a request up to so many times."""
    style = "path" if endpoint else "auto"
    config = Config(
        retries={"total_max_attempts": attempts, "mode": "standard"},
        max_pool_connections=STORING_MAX,
        connect_timeout=5,
        read_timeout=60,
        tcp_keepalive=True,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"payload_signing_enabled": False, "addressing_style": style},
    )
    # A session for each client, as credentials may have changed; what describes the service is read once.
    session = botocore.session.Session()
    session.register_component("data_loader", _descriptions())
    client = session.create_client("s3", endpoint_url=endpoint, region_name=region, config=config)
    # "Expect: 100-continue" costs a round trip before every body, and bodies here are at most 16 MiB.
    client.meta.events.unregister("before-call.s3", add_expect_header)
    return client
