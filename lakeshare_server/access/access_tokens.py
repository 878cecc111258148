"""Access tokens that OAuth clients get for their secret: sealed, so that none has to be kept.

What a token says is which secret it was given for. It is good as long as that secret is, and not beyond its own hour.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lakeshare_server.protocol.seals import Seals

PURPOSE = "access token"
# No bearer token and no JWT begins like this.
PREFIX = "lsa."
# Longer than any that is given (LAKESHARE_ACCESS_TOKEN_LIFE_S).
LONGEST_S = 2 * 86_400


@dataclass(frozen=True)
class AccessToken:
    """What is in a token."""

    credential_id: str
    expires_at: datetime


@dataclass(frozen=True)
class _Sealed:
    credential: str
    until: float


class AccessTokens:
    """Gives and reads access tokens."""

    def __init__(self, key: bytes, life_s: int) -> None:
        self._seals = Seals(key, PURPOSE)
        self.life_s = life_s

    def given(self, credential_id: str, ends_at: datetime | None) -> tuple[str, int]:
        """A token for a client secret that ends at some time, and for how many seconds it is good."""
        now = datetime.now(UTC)
        end = now + timedelta(seconds=self.life_s)
        end = end if ends_at is None else min(end, ends_at)
        said = {"credential": credential_id, "until": end.timestamp()}
        return PREFIX + self._seals.sealed(said), max(0, int((end - now).total_seconds()))

    def read(self, token: str) -> AccessToken | None:
        """What a token says, None when it is none of ours or has ended."""
        found = self._seals.opened(token.removeprefix(PREFIX), _Sealed)
        if found is None or not time.time() < found.until <= time.time() + LONGEST_S:
            return None
        return AccessToken(found.credential, datetime.fromtimestamp(found.until, UTC))
