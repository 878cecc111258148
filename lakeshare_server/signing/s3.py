"""Presigned URLs of S3 and its relatives: SigV4 in the query, for a GET of one key of one bucket.

Only the key differs between two URLs of a session: all else of the canonical request is built once. The tests
compare with botocore, byte for byte.
"""

import hmac
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from urllib.parse import quote, urlsplit

from lakeshare_server.signing.host import host_header
from lakeshare_server.signing.life import life_left
from lakeshare_server.signing.prepared_hmac import prepared_hmac
from lakeshare_server.signing.quoting import quoted
from lakeshare_server.stores.s3 import AwsKeys, Bucket

ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True)
class S3Signer:
    """Signs keys of one bucket, all with the same end."""

    expires_at_ms: int
    _url: bytes
    _query: bytes = field(repr=False)
    _canonical: tuple[bytes, bytes] = field(repr=False)
    _key: bytes = field(repr=False)
    _to_sign: bytes = field(repr=False)

    def sign(self, keys: list[bytes]) -> list[bytes]:
        """A URL for each key, in order."""
        url, query = self._url, self._query + b"&X-Amz-Signature="
        before, after = self._canonical
        inner, outer = (state.copy for state in prepared_hmac(self._key, self._to_sign))
        urls = []
        for key in quoted(keys, safe=b"/"):
            within, around = inner(), outer()
            within.update(sha256(before + key + after).hexdigest().encode())
            around.update(within.digest())
            urls.append(url + key + query + around.hexdigest().encode())
        return urls


def s3_signer(
    bucket: Bucket, keys: AwsKeys, life_s: int, now_s: int, request_payer: bool = False
) -> S3Signer:
    """A signer of URLs that live `life_s` from `now_s` on, or as long as the keys if that is shorter.

    Raises:
        Unavailable: the keys have ended.
    """
    life_s = life_left(now_s, life_s, keys.expires_at_ms)
    moment = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{moment[:8]}/{bucket.region}/s3/aws4_request"
    asked = {"x-amz-request-payer": "requester"} if request_payer else {}
    signed = {
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{keys.access_key}/{scope}",
        "X-Amz-Date": moment,
        "X-Amz-Expires": str(life_s),
        "X-Amz-SignedHeaders": "host",
    }
    if keys.token:
        signed["X-Amz-Security-Token"] = keys.token
    query = _encoded(asked | signed)
    path = urlsplit(bucket.url).path
    in_order = _encoded(dict(sorted((asked | signed).items())))
    after = f"\n{in_order}\nhost:{host_header(bucket.url)}\n\nhost\nUNSIGNED-PAYLOAD"
    return S3Signer(
        expires_at_ms=(now_s + life_s) * 1000,
        _url=f"{bucket.url}/".encode(),
        _query=f"?{query}".encode(),
        _canonical=(f"GET\n{path}/".encode(), after.encode()),
        _key=_derived_key(keys.secret_key, moment[:8], bucket.region),
        _to_sign=f"{ALGORITHM}\n{moment}\n{scope}\n".encode(),
    )


def _derived_key(secret_key: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _encoded(query: dict[str, str]) -> str:
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
