"""What is particular to the S3 store: requests per call, unfinished uploads, probes of clones."""

import asyncio
import secrets
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest

from persist.core.ids import ShardId, WriterId, part_key
from persist.errors import Determinate, Indeterminate, LocationError
from persist.runtime import SystemRuntime, system
from persist.settings import Settings
from persist.storage.blob.s3 import MANY_AGAIN_SECONDS, PART_BYTES, make_client
from persist.storage.blob.s3_location import S3Location
from persist.storage.blob.s3_probe import probe
from persist.storage.metered import Meter
from persist.storage.open import open_blob
from persist.storage.ports import Blob
from persist.testing.faults import Direction, FaultProxy, Mode
from persist.testing.http_faults import HttpFaultProxy, Refusal, port_of, through

T = 20.0


def key() -> str:
    return part_key(ShardId.named("s3"), WriterId.named("w"), 1, secrets.token_bytes(16))


def opened(uri: str, meter: Meter) -> Blob:
    return open_blob(uri, settings=Settings(), runtime=system(), count_request=meter.count_request)


@pytest.mark.parametrize("client", ["boto3", "obstore"])
async def test_requests_per_call_are_the_fewest_and_counted(fresh_s3_uri: Callable[[], str], client: str) -> None:
    if client == "obstore":
        pytest.importorskip("obstore")
    meter, name = Meter(), key()
    blob = opened(f"{fresh_s3_uri()}&client={client}", meter)
    await blob.set(name, b"value", timeout=T)
    await blob.get(name, timeout=T)
    await blob.get(name, byte_range=(1, 3), timeout=T)
    assert meter.requests == {"PutObject": 1, "GetObject": 2}
    await blob.delete(name, timeout=T)
    assert meter.requests == {"PutObject": 1, "GetObject": 2, "HeadObject": 1, "DeleteObject": 1}
    await blob.close()


@pytest.mark.parametrize("client", ["boto3", "obstore"])
async def test_many_are_deleted_with_one_request(fresh_s3_uri: Callable[[], str], client: str) -> None:
    if client == "obstore":
        pytest.importorskip("obstore")
    meter, names = Meter(), [key() for _ in range(30)]
    blob = opened(f"{fresh_s3_uri()}&client={client}", meter)
    for name in names:
        await blob.set(name, b"value", timeout=T)
    await blob.delete_many(names, timeout=T)
    assert meter.requests == {"PutObject": 30, "DeleteObjects": 1}
    await blob.close()


async def test_a_service_that_deletes_one_at_a_time_is_asked_for_many_only_once(
    fresh_s3_uri: Callable[[], str],
) -> None:
    uri, meter, names = fresh_s3_uri(), Meter(), [key() for _ in range(3)]
    async with HttpFaultProxy(port_of(uri), (Refusal(status=501, code="NotImplemented"),)) as proxy:
        blob = opened(through(uri, proxy.endpoint), meter)
        for name in names:
            await blob.set(name, b"value", timeout=T)
        proxy.probability = 1.0
        with pytest.raises(Indeterminate):
            await blob.delete_many(names, timeout=T)
        proxy.probability = 0.0
        sent = meter.requests["DeleteObjects"], meter.requests["DeleteObject"]
        await blob.delete_many(names, timeout=T)
        assert (meter.requests["DeleteObjects"], meter.requests["DeleteObject"] - sent[1]) == (sent[0], 3)
        assert [await blob.get(name, timeout=T) for name in names] == [None] * 3
        await blob.close()


async def test_a_service_that_wants_another_checksum_is_asked_for_one_at_a_time_and_for_many_after_a_while(
    fresh_s3_uri: Callable[[], str],
) -> None:
    uri, meter, names = fresh_s3_uri(), Meter(), [key() for _ in range(3)]
    ahead = 0.0

    class Later(SystemRuntime):
        def monotonic(self) -> float:
            return super().monotonic() + ahead

    async with HttpFaultProxy(port_of(uri), (Refusal(status=400, code="MissingContentMD5"),)) as proxy:
        location = through(uri, proxy.endpoint)
        blob = open_blob(location, settings=Settings(), runtime=Later(), count_request=meter.count_request)
        for name in names:
            await blob.set(name, b"value", timeout=T)
        proxy.probability = 1.0
        with pytest.raises(Determinate):
            await blob.delete_many(names, timeout=T)
        proxy.probability = 0.0
        await blob.delete_many(names, timeout=T)
        assert [await blob.get(name, timeout=T) for name in names] == [None] * 3
        asked = meter.requests["DeleteObjects"]
        ahead = MANY_AGAIN_SECONDS
        await blob.delete_many(names, timeout=T)
        assert (asked, meter.requests["DeleteObjects"]) == (1, 2)
        await blob.close()


async def test_large_value_goes_up_in_parts(fresh_s3_uri: Callable[[], str]) -> None:
    meter = Meter()
    blob = opened(fresh_s3_uri(), meter)
    await blob.set(key(), bytes(2 * PART_BYTES + 1), timeout=T)
    assert meter.requests == {"CreateMultipartUpload": 1, "UploadPart": 3, "CompleteMultipartUpload": 1}
    await blob.close()


async def test_large_value_that_fails_midway_is_not_seen_and_its_upload_aborted(
    fresh_s3_uri: Callable[[], str],
) -> None:
    uri, name, meter = fresh_s3_uri(), key(), Meter()
    endpoint = parse_qs(urlsplit(uri).query)["endpoint"][0]
    port = urlsplit(endpoint).port or 0
    async with FaultProxy("127.0.0.1", port) as proxy:
        blob = opened(uri.replace(f":{port}", f":{proxy.port}"), meter)

        async def cut_first_part() -> None:
            while not meter.requests.get("UploadPart"):
                await asyncio.sleep(0.001)
            proxy.set(Mode.RESET, Direction.UP)
            while not proxy.fired["reset up"]:
                await asyncio.sleep(0.001)
            proxy.set(Mode.PASS)

        cutting = asyncio.ensure_future(cut_first_part())
        with pytest.raises(LocationError):
            await blob.set(name, secrets.token_bytes(8 * PART_BYTES), timeout=T)
        await cutting
        assert await blob.get(name, timeout=T) is None
        await blob.close()
    assert meter.requests["AbortMultipartUpload"] == 1
    assert "CompleteMultipartUpload" not in meter.requests
    parts = urlsplit(uri)
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    uploads = client.list_multipart_uploads(Bucket=parts.netloc).get("Uploads", [])
    assert [upload for upload in uploads if upload["Key"].endswith(name)] == []


async def test_put_whose_answer_is_lost_is_sent_once_and_indeterminate(fresh_s3_uri: Callable[[], str]) -> None:
    uri, name, meter = fresh_s3_uri(), key(), Meter()
    port = urlsplit(parse_qs(urlsplit(uri).query)["endpoint"][0]).port or 0
    async with FaultProxy("127.0.0.1", port) as proxy:
        blob = opened(uri.replace(f":{port}", f":{proxy.port}"), meter)
        assert await blob.get(name, timeout=T) is None
        proxy.set(Mode.RESET, Direction.DOWN)
        with pytest.raises(Indeterminate):
            await blob.set(name, b"value", timeout=T)
        assert meter.requests == {"GetObject": 1, "PutObject": 1}
        proxy.set(Mode.PASS)
        assert await blob.get(name, timeout=T) == b"value"
        await blob.close()


def test_client_sends_once_and_does_not_hash() -> None:
    config = make_client(S3Location(bucket="bucket", region="us-east-1")).meta.config
    assert config.retries["total_max_attempts"] == 1
    assert config.request_checksum_calculation == "when_required"
    assert config.response_checksum_validation == "when_required"
    assert config.s3["payload_signing_enabled"] is False


class Clone:
    """A store in a dict with one fault of some S3 clone."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.values: dict[str, bytes] = {}

    def get(self, byte_range: tuple[int, int] | None) -> bytes | None:
        value = self.values.get("name")
        if value is None or (self.fault == "read-after-write" and byte_range is None):
            return None
        return value if byte_range is None or self.fault == "ranged-get" else value[byte_range[0] : byte_range[1]]

    def keys(self) -> list[str]:
        return [] if self.fault == "list-after-write" else list(self.values)

    def delete(self) -> None:
        if self.fault != "read-after-delete":
            self.values.clear()


@pytest.mark.parametrize("fault", ["", "read-after-write", "ranged-get", "list-after-write", "read-after-delete"])
def test_probe_finds_what_a_clone_does_wrong(fault: str) -> None:
    clone = Clone(fault)
    findings = probe(
        "name",
        put=lambda value: clone.values.update(name=value),
        get=clone.get,
        keys=clone.keys,
        delete=clone.delete,
    )
    assert [finding.name for finding in findings] == ([f"s3-{fault}"] if fault else [])
