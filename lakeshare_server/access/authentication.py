"""From the Authorization header, and the address it comes from, to a recipient.

Whatever a header says, there is one answer for all that is wrong with it, and a wrong secret counts as a guess.
"""

import base64
import binascii
import hashlib
import time
from dataclasses import dataclass

from lakeshare_server.access.access_tokens import PREFIX, AccessTokens
from lakeshare_server.access.addresses import is_within, parsed
from lakeshare_server.access.federation import Federation, IssuerUnavailable
from lakeshare_server.access.guesses import Guesses
from lakeshare_server.access.oidc import KEEP_S, claimed_issuer
from lakeshare_server.catalog import Catalog, GenerationCache
from lakeshare_server.catalog.credentials import Access, Credentials
from lakeshare_server.catalog.token_uses import TokenUses
from lakeshare_server.errors import Denied, Unauthenticated

MAX_TOKEN_CHARS = 16_384
# Recipients that ask between two writes to the catalog.
KEPT = 1 << 15
MISSING = "Send the profile's token as `Authorization: Bearer <token>`."
WRONG = "The bearer token is unknown, expired or revoked. Ask your provider for a new profile."
WRONG_PAIR = "The name or the password is unknown, expired or revoked. Ask your provider for a new profile."


@dataclass(frozen=True)
class Asking:
    """Who says to be whom: the header, and the address it comes from."""

    header: str
    address: str | None

    @property
    def key(self) -> bytes:
        """What its answer is kept under; the text itself is a secret."""
        # Tokens of issuers are verified anew now and then: a key may have been withdrawn.
        time_slot = b"%d" % (time.time() // KEEP_S) if self.claims_issuer else b""
        return hashlib.sha256(self.header.encode("utf-8", "replace")).digest() + time_slot

    @property
    def claims_issuer(self) -> bool:
        """Whether it may be a token of an OIDC issuer, which begins as every JSON object in base64 does."""
        return self.header[7:9] == "ey"

    @property
    def scheme(self) -> str:
        return self.header.partition(" ")[0].lower()

    @property
    def secret(self) -> str:
        return self.header.partition(" ")[2].strip()


class Readers:
    """The recipients behind credentials, kept until the catalog changes."""

    def __init__(
        self,
        catalog: Catalog,
        federation: Federation,
        access_tokens: AccessTokens,
        guesses: Guesses,
        uses: TokenUses,
    ) -> None:
        self._credentials = Credentials(catalog)
        self._federation, self._access_tokens = federation, access_tokens
        self._guesses, self._uses = guesses, uses
        self._known = GenerationCache[Access | None](catalog, KEPT)
        self._refused = GenerationCache[bool](catalog)

    def peek(self, asking: Asking, generation: int) -> Access | None:
        """The recipient whose credential the header has, if it was seen in this generation; never waits."""
        known = self._known.peek(asking.key, generation)
        return known if known is not None and known.is_valid() else None

    def authenticated(self, asking: Asking, generation: int) -> Access:
        """The recipient whose credential the header has.

        Raises:
            Unauthenticated: it has none, or not one that is valid now; which of these is not told.
            TooManyRequests: too many wrong ones came from this address.
            Unavailable: the catalog, or the issuer of a token, does not answer.
        """
        if asking.scheme not in ("bearer", "basic") or not asking.secret:
            raise Unauthenticated(MISSING)
        key = asking.key
        found = None
        if not self._refused.peek(key, generation):
            try:
                found = self._known.get(key, lambda: self._looked_up(asking, generation), generation)
            except IssuerUnavailable:
                # Anybody can name the issuer: what it is asked for is counted as if it were wrong.
                self._guesses.count(asking.address, key)
                raise
        if found is None or not found.is_valid():
            if not self._is_of_ours(asking):
                self._guesses.count(asking.address, key)
            raise Unauthenticated(WRONG if asking.scheme == "bearer" else WRONG_PAIR)
        return found

    def are_guesses_used_up(self, asking: Asking) -> bool:
        """Whether its address has tried too many wrong tokens: its next ones are looked up apart from all others."""
        return self._guesses.are_used_up(asking.address)

    def let_in(self, access: Access, address: str | None) -> None:
        """Whether the recipient may ask from this address; its credential was used now.

        Raises:
            Denied: it may not.
        """
        if access.networks is not None:
            known = parsed(address)
            if known is None or not is_within(known, access.networks):
                raise Denied(
                    f"{access.reader.name} may not ask from {address or 'an unknown address'}. Ask your provider to "
                    "allow it, or ask from an address that is allowed."
                )
        self._uses.note(access.credential_id, address)

    def client(self, client_id: str, secret: str, address: str | None) -> Access:
        """The recipient that an OAuth client is.

        Raises:
            Unauthenticated, TooManyRequests, Unavailable: as `authenticated`.
        """
        key = hashlib.sha256(f"{client_id}\0{secret}".encode("utf-8", "replace")).digest()
        found = self._credentials.by_client_secret(client_id, secret)
        if found is None:
            self._guesses.count(address, key)
            raise Unauthenticated(WRONG_PAIR)
        return found

    def _is_of_ours(self, asking: Asking) -> bool:
        """Whether it has an access token of ours, which nobody can have guessed."""
        secret = asking.secret
        return secret.startswith(PREFIX) and self._access_tokens.read(secret) is not None

    def _looked_up(self, asking: Asking, generation: int) -> Access | None:
        secret = asking.secret
        if len(secret) > MAX_TOKEN_CHARS:
            return None
        if asking.scheme == "bearer":
            issuer = claimed_issuer(secret)
            if issuer is not None:
                return self._federation.access(secret, issuer, generation)
        found = self._by_own_secret(asking.scheme, secret)
        if found is None:
            # What is no token now is none before the catalog changes.
            self._refused.get(asking.key, lambda: True, generation)
        return found

    def _by_own_secret(self, scheme: str, secret: str) -> Access | None:
        if scheme == "basic":
            name, _, password = name_and_password(secret)
            return self._credentials.by_named_token(name, password)
        if not secret.startswith(PREFIX):
            return self._credentials.by_token(secret)
        token = self._access_tokens.read(secret)
        found = None if token is None else self._credentials.by_client_secret_id(token.credential_id)
        return None if token is None or found is None else found.until(token.expires_at)


def name_and_password(basic: str) -> tuple[str, str, str]:
    """Name, colon and password of a Basic header; empty when it is none."""
    try:
        return base64.b64decode(basic, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", "", ""
