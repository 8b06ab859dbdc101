"""Which bucket, prefix, endpoint and region an S3 URI names."""

import re
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from persist.errors import InvalidUri

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"(?:[A-Za-z0-9_.=-]+(?:/[A-Za-z0-9_.=-]+)*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Location:
    """A place in S3. ``endpoint`` None: AWS itself; ``region`` None: what the SDK is configured with."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    client: str = "boto3"

    def __post_init__(self) -> None:
        if not _BUCKET.fullmatch(self.bucket):
            raise InvalidUri("malformed bucket name", hint="s3://bucket/prefix", got=repr(self.bucket))
        if not _PREFIX.fullmatch(self.prefix) or ".." in self.prefix.split("/"):
            raise InvalidUri("malformed prefix", hint="letters, digits, '_.=-' and '/'", got=repr(self.prefix))
        if self.client not in ("boto3", "obstore"):
            raise InvalidUri("unknown S3 client", hint="boto3 or obstore", got=repr(self.client))
        if self.endpoint is not None:
            parts = urlsplit(self.endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise InvalidUri("malformed S3 endpoint", hint="http://host:port or https://host")
            if parts.username or parts.password:
                raise InvalidUri("an S3 endpoint holds no credentials", hint="set AWS_ACCESS_KEY_ID and its secret")

    @property
    def uri(self) -> str:
        """The URI of this location."""
        named = {"endpoint": self.endpoint, "region": self.region}
        named["client"] = None if self.client == "boto3" else self.client
        query = urlencode({name: value for name, value in named.items() if value}, safe=":/")
        return f"s3://{self.bucket}{'/' if self.prefix else ''}{self.prefix}{'?' if query else ''}{query}"

    def key(self, key: str) -> str:
        """The object name of a blob key."""
        return f"{self.prefix}/{key}" if self.prefix else key

    def strip(self, name: str) -> str:
        """The blob key of an object name."""
        return name.removeprefix(f"{self.prefix}/") if self.prefix else name
