"""AWS Signature Version 4 for S3: buckets and their addresses, keys, signed URLs and signed requests.

AWS IAM user guide, "Create a signed AWS API request"; nothing in a path is normalised, as S3 requires.
"""

import hmac
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import pyarrow as pa

from lakeshare_server.storage.location_columns import hex_texts
from lakeshare_server.storage.remote import host_header, join_urls, quote_keys, remaining_life, sign_texts

SignHashes = Callable[[Iterator[bytes]], list[bytes]]
ALGORITHM = "AWS4-HMAC-SHA256"
NO_BODY = sha256(b"").hexdigest()
"""`x-amz-content-sha256` of a request without a body."""
DEFAULT_REGION = "us-east-1"
# A bucket name that a wildcard certificate covers as a host label.
HOST_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
AWS = re.compile(r"(\S+\.)?amazonaws\.com(\.cn)?")


def is_aws(endpoint: str) -> bool:
    """Whether an endpoint is AWS's own, and no compatible store."""
    return AWS.fullmatch(urlsplit(endpoint).hostname or "") is not None


@dataclass(frozen=True)
class AwsKeys:
    """Keys of one moment; `expires_at_ms` is None if unknown."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    expires_at_ms: int | None = None


@dataclass(frozen=True)
class Bucket:
    name: str
    region: str
    endpoint: str
    path_style: bool

    @classmethod
    def at(cls, name: str, region: str, endpoint: str, path_style: bool | None = None) -> "Bucket":
        """A bucket at an endpoint; by default AWS alone is addressed by host name, and for host labels only."""
        if path_style is None:
            path_style = not (is_aws(endpoint) and HOST_LABEL.fullmatch(name))
        return cls(name, region, endpoint.rstrip("/"), path_style)

    @property
    def url(self) -> str:
        """The URL before the slash and the key."""
        if self.path_style:
            return f"{self.endpoint}/{self.name}"
        scheme, _, rest = self.endpoint.partition("://")
        return f"{scheme}://{self.name}.{rest}"


def quote_path(key: str) -> str:
    """A key as part of a URL's path, without normalisation."""
    return quote(key, safe="/~")


def quote_query(query: Mapping[str, str]) -> str:
    """The form of a query that is both sent and signed: sorted, quoted, with empty values."""
    pairs = sorted((quote(name, safe="~"), quote(value, safe="~")) for name, value in query.items())
    return "&".join(f"{name}={value}" for name, value in pairs)


class _Scope(NamedTuple):
    """What a signature is valid for: a moment (`YYYYMMDDTHHMMSSZ`), and its day, a region and a service."""

    stamp: str
    text: str

    @classmethod
    def of(cls, moment: datetime, region: str, service: str = "s3") -> "_Scope":
        stamp = moment.strftime("%Y%m%dT%H%M%SZ")
        return cls(stamp, f"{stamp[:8]}/{region}/{service}/aws4_request")

    @property
    def before_hash(self) -> str:
        """The string to sign up to the hash of the canonical request."""
        return f"{ALGORITHM}\n{self.stamp}\n{self.text}\n"

    def derive_key(self, secret_key: str) -> bytes:
        key = f"AWS4{secret_key}".encode()
        for part in self.text.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        return key


class RequestSigner:
    """Signs requests to a service in a region, in their headers."""

    def __init__(self, region: str, service: str = "s3") -> None:
        self.region, self.service = region, service
        self._derived: dict[tuple[AwsKeys, str], bytes] = {}

    def sign(
        self,
        keys: AwsKeys,
        method: str,
        host: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        content_sha256: str = NO_BODY,
        moment: datetime | None = None,
    ) -> dict[str, str]:
        """The headers to send, names in lower case: `headers`, the host and the signature.

        `path` and `query` are quoted by `quote_path` and `quote_query`.
        """
        scope = _Scope.of(moment or datetime.now(UTC), self.region, self.service)
        sent = {**headers, "host": host, "x-amz-content-sha256": content_sha256, "x-amz-date": scope.stamp}
        if keys.token:
            sent["x-amz-security-token"] = keys.token
        names = sorted(sent)
        lines = "".join(f"{name}:{' '.join(sent[name].split())}\n" for name in names)
        signed = ";".join(names)
        canonical = f"{method}\n{path}\n{query}\n{lines}\n{signed}\n{content_sha256}"
        to_sign = f"{scope.before_hash}{sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(self._key(keys, scope), to_sign.encode(), "sha256").hex()
        credential = f"Credential={keys.access_key}/{scope.text}"
        sent["authorization"] = f"{ALGORITHM} {credential}, SignedHeaders={signed}, Signature={signature}"
        return sent

    def _key(self, keys: AwsKeys, scope: _Scope) -> bytes:
        key = self._derived.get((keys, scope.text))
        if key is None:
            key = scope.derive_key(keys.secret_key)
            # Keys of an earlier day or session are not needed again.
            self._derived = {(keys, scope.text): key}
        return key


@dataclass(frozen=True)
class UrlSigner:
    """Signs URLs below one root in the query, as AWS and Google do; all expire at the same time."""

    expires_at_ms: int
    _url: str
    _query: str = field(repr=False)
    _canonical: tuple[bytes, bytes] = field(repr=False)
    _sign: SignHashes = field(repr=False)

    @classmethod
    def of_query(
        cls, url: str, query: Mapping[str, str], signature: str, expires_at_ms: int, sign: SignHashes
    ) -> "UrlSigner":
        """A signer below `url`; `sign` is given the SHA-256 of canonical requests, in hexadecimal."""
        sent = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        after = f"\n{quote_query(query)}\nhost:{host_header(url)}\n\nhost\nUNSIGNED-PAYLOAD"
        canonical = f"GET\n{urlsplit(url).path}/".encode(), after.encode()
        return cls(expires_at_ms, f"{url}/", f"?{sent}&{signature}=", canonical, sign)

    @classmethod
    def of(
        cls, bucket: Bucket, keys: AwsKeys, life_s: int, now_s: int, more: Mapping[str, str] | None = None
    ) -> "UrlSigner":
        """A signer of URLs that live for `life_s` from `now_s`, or as long as the keys; `more` begins their query."""
        life_s = remaining_life(now_s, life_s, keys.expires_at_ms)
        scope = _Scope.of(datetime.fromtimestamp(now_s, UTC), bucket.region)
        query = {
            **(more or {}),
            "X-Amz-Algorithm": ALGORITHM,
            "X-Amz-Credential": f"{keys.access_key}/{scope.text}",
            "X-Amz-Date": scope.stamp,
            "X-Amz-Expires": str(life_s),
            "X-Amz-SignedHeaders": "host",
        }
        if keys.token:
            query["X-Amz-Security-Token"] = keys.token
        key, before = scope.derive_key(keys.secret_key), scope.before_hash.encode()
        sign = partial(sign_texts, key, before)
        return cls.of_query(bucket.url, query, "X-Amz-Signature", (now_s + life_s) * 1000, sign)

    def sign(self, keys: list[bytes]) -> pa.StringArray:
        """A URL for each key, in order."""
        before, after = self._canonical
        names = quote_keys(keys, safe=b"/")
        hashes = (sha256(before + name + after).hexdigest().encode() for name in names)
        return join_urls(self._url, names, self._query, hex_texts(self._sign(hashes)))
