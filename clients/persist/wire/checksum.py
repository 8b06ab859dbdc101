"""CRC32C, the one checksum of everything persist stores."""

import google_crc32c
import pyarrow as pa


def crc32c(data: bytes | memoryview) -> int:
    """The CRC32C of ``data``."""
    return int(google_crc32c.value(_readable(data)))


def crc32c_extend(checksum: int, data: bytes | memoryview) -> int:
    """The CRC32C of what ``checksum`` covers followed by ``data``."""
    return int(google_crc32c.extend(checksum, _readable(data)))


def _readable(data: bytes | memoryview) -> "bytes | pa.Buffer":
    """The library takes no memoryview, but another buffer of the same bytes: a copy would cost more than the sum."""
    return pa.py_buffer(data) if isinstance(data, memoryview) else data
