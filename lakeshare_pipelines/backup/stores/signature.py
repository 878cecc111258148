"""Signatures of requests to S3 and its relatives: AWS Signature Version 4 in headers, for many requests a second.

What does not change between two requests of a day is derived once. The tests compare with botocore, byte for byte.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from urllib.parse import quote

ALGORITHM = "AWS4-HMAC-SHA256"
NO_BODY = sha256(b"").hexdigest()
"""What `x-amz-content-sha256` says of a request without a body."""
UNSIGNED = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True)
class SigningKeys:
    """Keys of a user, or of a session of a role."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


class Signer:
    """Signs requests to one service in one region."""

    def __init__(self, region: str, service: str = "s3") -> None:
        self.region, self.service = region, service
        self._derived: dict[tuple[SigningKeys, str], bytes] = {}

    def signed(
        self,
        keys: SigningKeys,
        method: str,
        host: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        content_sha256: str = NO_BODY,
        moment: datetime | None = None,
    ) -> dict[str, str]:
        """All headers to send: those given (names in lower case), the host and the signature over them.

        `path` and `query` are as they are sent: quoted by `quoted_path` and `quoted_query`. `content_sha256` is that
        of the body, in hexadecimal, or UNSIGNED. Section "Create a signed AWS API request" of the IAM guide.
        """
        stamp = (moment or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
        sent = {**headers, "host": host, "x-amz-content-sha256": content_sha256, "x-amz-date": stamp}
        if keys.token:
            sent["x-amz-security-token"] = keys.token
        names = sorted(sent)
        lines = "".join(f"{name}:{' '.join(sent[name].split())}\n" for name in names)
        signed = ";".join(names)
        canonical = f"{method}\n{path}\n{query}\n{lines}\n{signed}\n{content_sha256}"
        scope = f"{stamp[:8]}/{self.region}/{self.service}/aws4_request"
        to_sign = f"{ALGORITHM}\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(self._key(keys, stamp[:8]), to_sign.encode(), "sha256").hex()
        sent["authorization"] = (
            f"{ALGORITHM} Credential={keys.access_key}/{scope}, SignedHeaders={signed}, Signature={signature}"
        )
        return sent

    def _key(self, keys: SigningKeys, day: str) -> bytes:
        found = self._derived.get((keys, day))
        if found is None:
            found = f"AWS4{keys.secret_key}".encode()
            for part in (day, self.region, self.service, "aws4_request"):
                found = hmac.digest(found, part.encode(), "sha256")
            # Others are of yesterday, or of a session that has ended.
            self._derived = {(keys, day): found}
        return found


def quoted_path(key: str) -> str:
    """A key as it stands in a path: S3 takes it as it is, so nothing is normalised."""
    return quote(key, safe="/~")


def quoted_query(query: Mapping[str, str]) -> str:
    """A query in the one form that is both sent and signed: sorted, all quoted, a value even where it is empty."""
    pairs = sorted((quote(name, safe="~"), quote(value, safe="~")) for name, value in query.items())
    return "&".join(f"{name}={value}" for name, value in pairs)
