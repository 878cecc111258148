"""From the Authorization header to a recipient."""

from lakeshare_server.catalog import Reader, Recipients
from lakeshare_server.errors import Unauthenticated

MAX_TOKEN_CHARS = 4096


def authenticate(recipients: Recipients, header: str | None) -> Reader:
    """The recipient whose bearer token the header carries.

    Raises:
        Unauthenticated: no token, or not one that is valid now; which of these is not told.
    """
    scheme, _, token = (header or "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated("Send the profile's token as `Authorization: Bearer <token>`.")
    found = recipients.by_token(token) if len(token) <= MAX_TOKEN_CHARS else None
    if found is None:
        raise Unauthenticated(
            "The bearer token is unknown, expired or revoked. Ask your provider for a new profile."
        )
    return found
