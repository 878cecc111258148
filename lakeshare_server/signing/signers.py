"""Signing for one answer: the URLs of all its files, whichever stores they are in."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.signing.local import LocalSigner


@dataclass(frozen=True)
class SigningSession:
    """Signs for one recipient until one moment."""

    local: LocalSigner
    recipient: str
    expires_at_ms: int

    def sign(self, paths: pa.StringArray) -> list[bytes]:
        """One URL for each location, in order."""
        return self.local.sign(paths, self.recipient, self.expires_at_ms)


class Signers:
    """Opens signing sessions."""

    def __init__(self, settings: ServerSettings, local: LocalSigner) -> None:
        self._settings, self._local = settings, local

    def session(self, roots: Sequence[str], recipient: str, life_s: int) -> SigningSession:
        """A session for files in these stores; its URLs live no longer than the credentials they are signed with.

        Raises:
            Unserveable: a store cannot be signed for.
        """
        for root in roots:
            if root:
                raise Unserveable(f"Files in {root} cannot be signed yet.", "Share tables on the local disk.")
        return SigningSession(self._local, recipient, int((time.time() + life_s) * 1000))
