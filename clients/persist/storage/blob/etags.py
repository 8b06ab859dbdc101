"""What identifies objects that others write, where the SDK is installed that asks for it."""

import functools
import os
from typing import TYPE_CHECKING

from persist.extras import extra

if TYPE_CHECKING:
    from persist.storage.blob.s3_etags import S3Etags


def s3_etags(bucket: str, *, endpoint: str | None = None, region: str | None = None) -> "S3Etags":
    """Lists of a bucket with the ETags of objects. Kept for each process. Raises MissingExtra (``s3``)."""
    return _opened(os.getpid(), bucket, endpoint, region)


@functools.lru_cache(maxsize=64)
def _opened(process: int, bucket: str, endpoint: str | None, region: str | None) -> "S3Etags":
    """A forked child has none of its parent's connections."""
    with extra("s3"):
        from persist.storage.blob.s3_etags import S3Etags
    return S3Etags(bucket, endpoint, region)
