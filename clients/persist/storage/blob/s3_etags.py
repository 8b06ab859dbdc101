"""Objects of a bucket that others write, as lists say what they are: with their ETags, a thousand at a request.

Source: sources.md section 5; reliability.md section 4, S3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from botocore import exceptions

from persist.errors import Determinate
from persist.storage.blob.s3 import classify, client_of

ATTEMPTS: Final = 3
"""Of each request: a list that has to begin anew at each fault gets nowhere where there are many."""


@dataclass(frozen=True, slots=True)
class Listed:
    """An object as a list has it. ``size`` in bytes; ``second``: the one it was written in, since 1970."""

    key: str
    size: int
    second: int
    etag: str


class S3Etags:
    """One bucket. Blocking, from any thread. Credentials come from where boto3 looks for them."""

    def __init__(self, bucket: str, endpoint: str | None, region: str | None) -> None:
        """Raises LocationError: not with these names."""
        self._bucket = bucket
        try:
            self._client = client_of(endpoint, region, attempts=ATTEMPTS)
        except (exceptions.BotoCoreError, ValueError) as error:
            raise Determinate(
                "s3 list: there is no client for this", hint="check the endpoint", detail=error
            ) from error

    def after(self, key: str, prefix: str) -> Sequence[Listed]:
        """The next objects below ``prefix`` behind a key, in order, at most a thousand; none: these are all.

        One request. Raises LocationError.
        """
        try:
            answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, StartAfter=key)
        except (exceptions.BotoCoreError, exceptions.ClientError, exceptions.HTTPClientError) as error:
            raise classify(error, "list", mutation=False) from error
        return [
            Listed(each["Key"], each["Size"], int(each["LastModified"].timestamp()), each["ETag"])
            for each in answer.get("Contents", ())
        ]
