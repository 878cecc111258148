"""Signed URLs for local files, served by our own byte endpoint.

A URL has a ticket, which says to whom files of which folder were handed out, the name of a file below that folder, and
its end; the signature covers all three, so that no other file can be requested. It is the parameter
`X-Amz-Signature` because clients fetch over HTTP only what has a key they recognise.
"""

import hashlib
import hmac
import os
import posixpath
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lakeshare_server.errors import Denied
from lakeshare_server.signing.prepared_hmac import prepared_hmac
from lakeshare_server.signing.quoting import quoted

SIGNATURE = "X-Amz-Signature"
PURPOSE = b"lakeshare file url v2"
SAFE = b"/="


@dataclass(frozen=True)
class Claim:
    """What a signed URL allows."""

    ticket: str
    name: str
    expires_at_ms: int


class LocalSigner:
    """Signs and checks URLs below `base_url`, the root of the byte endpoint."""

    def __init__(self, key: bytes, base_url: str) -> None:
        self.base_url = base_url.rstrip("/")
        # A key of its own for this purpose: no other signature of ours can be passed off as one.
        self._key = hmac.digest(key, PURPOSE, hashlib.sha256)

    def sign_all(self, names: list[bytes], ticket: str, expires_at_ms: int) -> list[bytes]:
        """One URL for each name, in order; names as they are in UTF-8, tickets fit for a URL."""
        ends = f"?expires={expires_at_ms}&{SIGNATURE}=".encode()
        root = f"{self.base_url}/{ticket}/".encode()
        inner, outer = (
            state.copy for state in prepared_hmac(self._key, self._claimed(ticket, expires_at_ms))
        )
        urls = []
        for name, url_path in zip(names, quoted(names, SAFE), strict=True):
            within, around = inner(), outer()
            within.update(name)
            around.update(within.digest())
            urls.append(root + url_path + ends + around.hexdigest().encode())
        return urls

    def verify(self, claim: Claim, signature: str) -> None:
        """Refuse a claim that was not signed by us, or has ended.

        Raises:
            Denied: says which of the two.
        """
        before = self._claimed(claim.ticket, claim.expires_at_ms)
        expected = self._signature(before + claim.name.encode("utf-8", "surrogateescape"))
        if not hmac.compare_digest(expected, signature.encode("utf-8", "replace")):
            raise Denied("The URL's signature does not match. Query the table again for fresh URLs.")
        if claim.expires_at_ms <= time.time() * 1000:
            raise Denied("The URL has expired. Query the table again for fresh URLs.")

    def _claimed(self, ticket: str, expires_at_ms: int) -> bytes:
        # The ticket's length goes first: no two claims spell the same text.
        text = ticket.encode("utf-8", "surrogatepass")
        return b"%d\n%d\n%s\n" % (expires_at_ms, len(text), text)

    def _signature(self, text: bytes) -> bytes:
        return hmac.digest(self._key, text, "sha256").hex().encode()


class LocalFolders:
    """Signs the files of some folders of the server's own disk, each below the folder that it is in.

    `issue` gives the ticket of a folder, or refuses the folder.
    """

    def __init__(
        self, signer: LocalSigner, issue: Callable[[str], str], folders: Sequence[str], expires_at_ms: int
    ) -> None:
        self._signer, self._issue, self.expires_at_ms = signer, issue, expires_at_ms
        self._tickets = {_prefix(folder): issue(folder) for folder in folders}

    def sign(self, keys: list[bytes]) -> list[bytes]:
        """A URL for each absolute path, in order.

        Raises:
            Unserveable: the table may not have files in one of their folders.
        """
        urls: dict[int, bytes] = {}
        left: Sequence[int] = range(len(keys))
        for prefix, ticket in self._tickets.items():
            inside = [number for number in left if keys[number].startswith(prefix)]
            names = [keys[number][len(prefix) :] for number in inside]
            signed = self._signer.sign_all(names, ticket, self.expires_at_ms)
            if len(signed) == len(keys):
                return signed
            urls.update(zip(inside, signed, strict=True))
            left = [number for number in left if number not in urls]
        for number in left:
            # Versions of a table may lie where its newest one does not.
            folder = posixpath.dirname(os.fsdecode(keys[number]))
            prefix, name = _prefix(folder), os.fsencode(posixpath.basename(os.fsdecode(keys[number])))
            ticket = self._tickets.get(prefix) or self._issue(folder)
            self._tickets[prefix] = ticket
            [urls[number]] = self._signer.sign_all([name], ticket, self.expires_at_ms)
        return [urls[number] for number in range(len(keys))]


def _prefix(folder: str) -> bytes:
    return os.fsencode(folder.rstrip("/") + "/")
