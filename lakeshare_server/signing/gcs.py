"""Signed URLs of Google Cloud Storage: V4, for a GET of one key of one bucket.

Google's private keys are RSA: a signature takes most of a millisecond, so they are made on all cores. Without a
private key (an instance, a workload identity) Google's IAM signs, one request for each URL. The tests compare with
Google's own library, byte for byte.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from lakeshare_server.errors import Unavailable, Unserveable
from lakeshare_server.signing.host import host_header
from lakeshare_server.signing.life import LONGEST_S, life_left
from lakeshare_server.signing.quoting import quoted
from lakeshare_server.stores.gcs import GcsAccess

ALGORITHM = "GOOG4-RSA-SHA256"
# IAM rotates the keys it signs with.
LONGEST_BY_IAM_S = 43_200
IAM_REQUESTS = 16


class Identity(NamedTuple):
    """Who signs: the service account, how it signs one text, and for how long its signatures are good."""

    email: str
    sign: Callable[[bytes], bytes]
    longest_s: int
    at_once: int


@dataclass(frozen=True)
class GcsSigner:
    """Signs keys of one bucket, all with the same end."""

    expires_at_ms: int
    _url: bytes
    _query: bytes
    _canonical: tuple[bytes, bytes]
    _to_sign: bytes
    _sign_all: Callable[[list[bytes]], list[bytes]] = field(repr=False)

    def sign(self, keys: list[bytes]) -> list[bytes]:
        """A URL for each key, in order.

        Raises:
            Unavailable: IAM does not sign now.
        """
        names = quoted(keys, safe=b"/")
        before, after = self._canonical
        hashes = [sha256(before + name + after).hexdigest().encode() for name in names]
        signatures = self._sign_all([self._to_sign + one for one in hashes])
        return [
            self._url + name + self._query + signature.hex().encode()
            for name, signature in zip(names, signatures, strict=True)
        ]


class GcsUrls:
    """Signers for the buckets that the server's credentials may read."""

    def __init__(self, access: GcsAccess) -> None:
        self._access = access

    def signer(self, bucket: str, life_s: int, now_s: int) -> GcsSigner:
        """A signer of URLs that live `life_s` from `now_s` on, or as long as IAM's signatures do.

        Raises:
            Unserveable: the credentials are a person's, who signs nothing.
            Unavailable: there are no credentials.
        """
        identity = self.identity
        life_s = life_left(now_s, life_s, None, identity.longest_s)
        moment = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{moment[:8]}/auto/storage/goog4_request"
        signed = {
            "X-Goog-Algorithm": ALGORITHM,
            "X-Goog-Credential": f"{identity.email}/{scope}",
            "X-Goog-Date": moment,
            "X-Goog-Expires": str(life_s),
            "X-Goog-SignedHeaders": "host",
        }
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in signed.items())
        url = f"{self._access.endpoint(public=True)}/{bucket}/"
        return GcsSigner(
            expires_at_ms=(now_s + life_s) * 1000,
            _url=url.encode(),
            _query=f"?{query}&X-Goog-Signature=".encode(),
            _canonical=(
                f"GET\n{urlsplit(url).path}".encode(),
                f"\n{query}\nhost:{host_header(url)}\n\nhost\nUNSIGNED-PAYLOAD".encode(),
            ),
            _to_sign=f"{ALGORITHM}\n{moment}\n{scope}\n".encode(),
            _sign_all=self._sign_all,
        )

    @cached_property
    def identity(self) -> Identity:
        """Who signs.

        Raises:
            Unserveable: a person's credentials.
            Unavailable: there are none.
        """
        credentials = self._access.credentials
        from google.auth import iam
        from google.auth.credentials import Signing
        from google.oauth2 import service_account

        untyped_iam: Any = iam
        if isinstance(credentials, service_account.Credentials):
            return Identity(
                credentials.signer_email, credentials.sign_bytes, LONGEST_S, at_once=os.cpu_count() or 1
            )
        if isinstance(credentials, Signing):  # impersonation: it asks IAM by itself
            return Identity(credentials.signer_email, credentials.sign_bytes, LONGEST_BY_IAM_S, IAM_REQUESTS)
        self._access.token()  # an instance learns its account's name from its first token
        email = getattr(credentials, "service_account_email", None)
        if not email:
            raise Unserveable(
                "The Google credentials of the server are of no service account, and nobody else signs URLs.",
                "Run the server as a service account, or set LAKESHARE_GCS_HMAC_ID and LAKESHARE_GCS_HMAC_SECRET.",
            )
        signer = untyped_iam.Signer(self._access.transport(), credentials, email)
        return Identity(email, signer.sign, LONGEST_BY_IAM_S, IAM_REQUESTS)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.identity.at_once, thread_name_prefix="gcs-signing")

    def _sign_all(self, texts: list[bytes]) -> list[bytes]:
        from google.auth.exceptions import GoogleAuthError

        try:
            return list(self._pool.map(self.identity.sign, texts))
        except GoogleAuthError as error:
            raise Unavailable(
                f"Google's IAM signs no URLs ({type(error).__name__})",
                f"Grant {self.identity.email} roles/iam.serviceAccountTokenCreator on itself.",
            ) from None
