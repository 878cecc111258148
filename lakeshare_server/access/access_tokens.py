"""Access tokens that OAuth clients get for their secret: sealed, so that none has to be kept.

What a token says is which secret it was given for. It is good as long as that secret is, and not beyond its own hour.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lakeshare_server.protocol.seals import Seals

PURPOSE = "access token"
# No bearer token and no JWT begins like this.
PREFIX = "lsa."


@dataclass(frozen=True)
class AccessToken:
    """What is in a token."""

    credential_id: str
    expires_at: datetime


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
        said = self._seals.opened(token.removeprefix(PREFIX))
        if said is None:
            return None
        end = datetime.fromtimestamp(said["until"], UTC)
        return AccessToken(said["credential"], end) if end > datetime.now(UTC) else None
