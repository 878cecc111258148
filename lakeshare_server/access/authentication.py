"""From the Authorization header to a recipient."""

from lakeshare_server.catalog import Catalog, GenerationCache, Reader, Recipients
from lakeshare_server.catalog.tokens import token_digest
from lakeshare_server.errors import Unauthenticated

MAX_TOKEN_CHARS = 4096
# Recipients that ask between two writes to the catalog.
KEPT = 1 << 15


class Readers:
    """The recipients behind tokens, kept until the catalog changes."""

    def __init__(self, catalog: Catalog) -> None:
        self._recipients = Recipients(catalog)
        self._known = GenerationCache[Reader | None](catalog, KEPT)

    def peek(self, header: str | None, generation: int) -> Reader | None:
        """The recipient whose token the header carries, if it was seen in this generation; never waits."""
        token = _token(header)
        known = None if token is None else self._known.peek(token_digest(token), generation)
        return known if known is not None and known.is_valid() else None

    def authenticated(self, header: str | None, generation: int) -> Reader:
        """The recipient whose bearer token the header carries.

        Raises:
            Unauthenticated: no token, or not one that is valid now; which of these is not told.
        """
        token = _token(header)
        if token is None:
            raise Unauthenticated("Send the profile's token as `Authorization: Bearer <token>`.")
        found = None
        if len(token) <= MAX_TOKEN_CHARS:
            digest = token_digest(token)
            found = self._known.get(digest, lambda: self._recipients.by_token(token), generation)
        if found is None or not found.is_valid():
            raise Unauthenticated(
                "The bearer token is unknown, expired or revoked. Ask your provider for a new profile."
            )
        return found


def _token(header: str | None) -> str | None:
    scheme, _, token = (header or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
