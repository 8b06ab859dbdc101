"""CRC32C, the one checksum of everything persist stores."""

import google_crc32c


def crc32c(data: bytes | memoryview) -> int:
    """The CRC32C of ``data``."""
    return int(google_crc32c.value(bytes(data) if isinstance(data, memoryview) else data))


def crc32c_extend(checksum: int, data: bytes) -> int:
    """The CRC32C of what ``checksum`` covers followed by ``data``."""
    return int(google_crc32c.extend(checksum, data))
