"""Signed URLs for local files, served by our own byte endpoint.

A URL names one path, who it was issued to and when it ends; the signature covers all three, so that no other path
can be asked for. It sits in `X-Amz-Signature` because clients fetch over HTTP only what has a key they recognise.
"""

import hashlib
import hmac
import time
from dataclasses import dataclass
from urllib.parse import urlencode

from lakeshare_server.errors import Denied
from lakeshare_server.signing.prepared_hmac import prepared_hmac
from lakeshare_server.signing.quoting import quoted

SIGNATURE = "X-Amz-Signature"
PURPOSE = b"lakeshare file url v1"
SAFE = b"/="


@dataclass(frozen=True)
class Claim:
    """What a signed URL allows."""

    path: str
    recipient: str
    expires_at_ms: int


class LocalSigner:
    """Signs and checks URLs below `base_url`, the root of the byte endpoint."""

    def __init__(self, key: bytes, base_url: str) -> None:
        self.base_url = base_url.rstrip("/")
        # A key of its own for this purpose: no other signature of ours can be passed off as one.
        self._key = hmac.digest(key, PURPOSE, hashlib.sha256)

    def sign_all(self, paths: list[bytes], recipient: str, expires_at_ms: int) -> list[bytes]:
        """One URL for each path, in order; paths as they are in UTF-8."""
        query = urlencode({"recipient": recipient, "expires": expires_at_ms})
        ends = f"?{query}&{SIGNATURE}=".encode()
        root = self.base_url.encode()
        inner, outer = (
            state.copy for state in prepared_hmac(self._key, self._claimed(recipient, expires_at_ms))
        )
        urls = []
        for path, url_path in zip(paths, quoted(paths, SAFE), strict=True):
            within, around = inner(), outer()
            within.update(path)
            around.update(within.digest())
            urls.append(root + url_path + ends + around.hexdigest().encode())
        return urls

    def verify(self, claim: Claim, signature: str) -> None:
        """Refuse a claim that was not signed by us, or has ended.

        Raises:
            Denied: says which of the two.
        """
        before = self._claimed(claim.recipient, claim.expires_at_ms)
        expected = self._signature(before + claim.path.encode("utf-8", "surrogateescape"))
        if not hmac.compare_digest(expected, signature.encode("utf-8", "replace")):
            raise Denied("The URL's signature does not match. Query the table again for fresh URLs.")
        if claim.expires_at_ms <= time.time() * 1000:
            raise Denied("The URL has expired. Query the table again for fresh URLs.")

    def _claimed(self, recipient: str, expires_at_ms: int) -> bytes:
        # The recipient's length goes first: no two claims spell the same text.
        name = recipient.encode("utf-8", "surrogatepass")
        return b"%d\n%d\n%s\n" % (expires_at_ms, len(name), name)

    def _signature(self, text: bytes) -> bytes:
        return hmac.digest(self._key, text, "sha256").hex().encode()
