"""Whether an S3 server does what the Blob port needs: several clones do not. Source: reliability.md section 4, S3."""

from collections.abc import Callable, Sequence
from typing import Final

from persist.storage.ports import Finding

_VALUE: Final = b"persist probes this store"


def probe(
    name: str,
    *,
    put: Callable[[bytes], None],
    get: Callable[[tuple[int, int] | None], bytes | None],
    keys: Callable[[], Sequence[str]],
    delete: Callable[[], object],
) -> list[Finding]:
    """Write, read, list and delete one scratch object; every deviation is a finding. Leaves nothing behind."""
    found: list[Finding] = []
    put(_VALUE)
    try:
        if get(None) != _VALUE:
            found.append(_finding("read-after-write", "GetObject after PutObject", "something else", "the value"))
        if get((8, 14)) != _VALUE[8:14]:
            found.append(_finding("ranged-get", "GetObject with Range", "other bytes", "the bytes asked for"))
        if name not in keys():
            found.append(_finding("list-after-write", "ListObjectsV2 after PutObject", "no such key", "the key"))
    finally:
        delete()
    if get(None) is not None:
        found.append(_finding("read-after-delete", "GetObject after DeleteObject", "the old value", "NoSuchKey"))
    return found


_CONSEQUENCES: Final = {
    "read-after-write": "readers miss data that was acknowledged",
    "ranged-get": "readers get wrong bytes and report corruption",
    "list-after-write": "sweeping overlooks blobs, storage leaks",
    "read-after-delete": "deleted data stays readable",
}


def _finding(name: str, setting: str, found: str, required: str) -> Finding:
    return Finding(name=f"s3-{name}", setting=setting, found=found, required=required, consequence=_CONSEQUENCES[name])
