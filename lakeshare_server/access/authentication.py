"""From the Authorization header, and the address it comes from, to a recipient.

Whatever a header says, there is one answer for all that is wrong with it, and a wrong secret counts as a guess.
"""

import base64
import binascii
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from lakeshare_server.access.oidc import KEEP_S, PAUSE_S, Issuers, read_claimed_issuer
from lakeshare_server.access.rate_limit import BruteForceProtection, is_within, parse_address
from lakeshare_server.catalog import Catalog, GenerationCache
from lakeshare_server.catalog.credentials import Access, Credentials, Policy, TokenUses
from lakeshare_server.catalog.sharing import IssuedSecret, RecipientState
from lakeshare_server.catalog.sharing.credentials import PREFIX as KEY_PREFIX
from lakeshare_server.catalog.sharing.credentials import Role, find_admin_key
from lakeshare_server.errors import BadRequest, Denied, Unauthenticated, Unavailable, shorten_value
from lakeshare_server.outbound import Services
from lakeshare_server.protocol.tokens import TokenSealer
from lakeshare_server.settings import ServerSettings

PURPOSE = "access token"
# No bearer token and no JWT begins like this.
PREFIX = "lsa."
# Longer than any that is given (LAKESHARE_ACCESS_TOKEN_LIFE_S).
MAX_LIFE_S = 2 * 86_400


@dataclass(frozen=True)
class AccessToken:
    """What is in a token."""

    credential_id: str
    expires_at: datetime


@dataclass(frozen=True)
class _SealedToken:
    credential: str
    until: float


class AccessTokens:
    """Gives and reads access tokens."""

    def __init__(self, key: bytes, life_s: int) -> None:
        self._seals = TokenSealer(key, PURPOSE)
        self.life_s = life_s

    def issue(self, credential_id: str, ends_at: datetime | None) -> tuple[str, int]:
        """A token for a client secret that ends at some time, and for how many seconds it is good."""
        now = datetime.now(UTC)
        end = now + timedelta(seconds=self.life_s)
        end = end if ends_at is None else min(end, ends_at)
        content = {"credential": credential_id, "until": end.timestamp()}
        return PREFIX + self._seals.seal(content), max(0, int((end - now).total_seconds()))

    def read(self, token: str) -> AccessToken | None:
        """What a token says, None when it is none of ours or has ended."""
        found = self._seals.open(token.removeprefix(PREFIX), _SealedToken)
        if found is None or not time.time() < found.until <= time.time() + MAX_LIFE_S:
            return None
        return AccessToken(found.credential, datetime.fromtimestamp(found.until, UTC))


_log = logging.getLogger(__name__)


class IssuerUnavailable(Unavailable):
    """The keys of a token's issuer cannot be had now; says nothing of the issuer, since anybody can ask for it."""

    def __init__(self, retry_s: int) -> None:
        super().__init__("the issuer of the token does not answer", "Try again in a moment.", retry_s)


@contextmanager
def hide_details() -> Iterator[None]:
    """Refuse without the issuer's addresses, which are in the server's log.

    Raises:
        IssuerUnavailable: inside, an issuer's keys could not be had.
    """
    try:
        yield
    except Unavailable as error:
        raise IssuerUnavailable(error.retry_s or round(PAUSE_S)) from error


class Federation:
    """The policies of all recipients, and the issuers they name."""

    def __init__(
        self, catalog: Catalog, credentials: Credentials, settings: ServerSettings, services: Services
    ) -> None:
        self._credentials = credentials
        self._issuers = Issuers(settings, services)
        self._leeway = timedelta(seconds=settings.oidc_leeway_s)
        self._policies = GenerationCache[Sequence[Policy] | None](catalog)

    def access(self, token: str, issuer: str, generation: int) -> Access | None:
        """The recipient whose token this is; only issuers that a policy names are asked for their keys.

        Raises:
            IssuerUnavailable: the issuer's keys cannot be had now.
        """
        policies = self._policies.get(issuer, lambda: self._credentials.policies(issuer) or None, generation)
        if not policies:
            return None
        audiences = sorted({audience for policy in policies for audience in policy.audiences})
        try:
            with hide_details():
                claims = self._issuers.verified_claims(token, issuer, audiences)
        except Unauthenticated as error:
            _log.info("%s", error)
            return None
        fitting = {policy.access.reader.id: policy for policy in policies if _matches_policy(policy, claims)}
        if len(fitting) > 1:
            names = ", ".join(sorted(policy.access.reader.name for policy in fitting.values()))
            _log.warning("a token of %s fits the policies of several recipients (%s): refused", issuer, names)
        if len(fitting) != 1:
            return None
        end = self._end(claims)
        if end is None:
            _log.info(
                "a token of %s is refused: its exp is %s, which is no time",
                issuer,
                shorten_value(claims["exp"]),
            )
            return None
        return next(iter(fitting.values())).access.until(end)

    def _end(self, claims: Mapping[str, Any]) -> datetime | None:
        """Until when a token is good; None when no calendar has the time that it says."""
        try:
            return datetime.fromtimestamp(int(claims["exp"]), UTC) + self._leeway
        except (ValueError, OverflowError, OSError):
            return None


def _matches_policy(policy: Policy, claims: Mapping[str, Any]) -> bool:
    claim, audience = claims.get(policy.subject_claim), claims["aud"]
    audiences = audience if isinstance(audience, list) else [audience]
    # A claim of groups is a list; one of scopes a text, which is compared as a whole.
    return policy.subject in (claim if isinstance(claim, list) else [claim]) and not set(
        policy.audiences
    ).isdisjoint(audiences)


MAX_TOKEN_CHARS = 16_384
# Recipients that ask between two writes to the catalog.
MAX_CACHED_CREDENTIALS = 1 << 15
CREDENTIAL_MISSING = "Send the profile's token as `Authorization: Bearer <token>`."
CREDENTIAL_INVALID = "The bearer token is unknown, expired or revoked. Ask your provider for a new profile."
PAIR_INVALID = "The name or the password is unknown, expired or revoked. Ask your provider for a new profile."


@dataclass(frozen=True)
class PresentedCredential:
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


class Authenticator:
    """The recipients behind credentials, kept until the catalog changes."""

    def __init__(
        self,
        catalog: Catalog,
        federation: Federation,
        access_tokens: AccessTokens,
        brute_force: BruteForceProtection,
        uses: TokenUses,
    ) -> None:
        self._credentials = Credentials(catalog)
        self._federation, self._access_tokens = federation, access_tokens
        self._brute_force, self._uses = brute_force, uses
        self._known = GenerationCache[Access | None](catalog, MAX_CACHED_CREDENTIALS)
        self._refused = GenerationCache[bool](catalog)

    def peek(self, credential: PresentedCredential, generation: int) -> Access | None:
        """The recipient whose credential the header has, if it was seen in this generation; never waits."""
        known = self._known.peek(credential.key, generation)
        return known if known is not None and known.is_valid() else None

    def authenticate(self, credential: PresentedCredential, generation: int) -> Access:
        """The recipient whose credential the header has.

        Raises:
            Unauthenticated: it has none, or not one that is valid now; which of these is not told.
            TooManyRequests: too many wrong ones came from this address.
            Unavailable: the catalog, or the issuer of a token, does not answer.
        """
        if credential.scheme not in ("bearer", "basic") or not credential.secret:
            raise Unauthenticated(CREDENTIAL_MISSING)
        key = credential.key
        found = None
        if not self._refused.peek(key, generation):
            try:
                found = self._known.get(key, lambda: self._look_up(credential, generation), generation)
            except IssuerUnavailable:
                # Anybody can name the issuer: what it is asked for is counted as if it were wrong.
                self._brute_force.count(credential.address, key)
                raise
        if found is None or not found.is_valid():
            if not self._is_own_access_token(credential):
                self._brute_force.count(credential.address, key)
            raise Unauthenticated(CREDENTIAL_INVALID if credential.scheme == "bearer" else PAIR_INVALID)
        return found

    def is_blocked(self, credential: PresentedCredential) -> bool:
        """Whether its address has tried too many wrong tokens: its next ones are looked up apart from all others."""
        return self._brute_force.is_blocked(credential.address)

    def require_allowed_address(self, access: Access, address: str | None) -> None:
        """Whether the recipient may ask from this address; its credential was used now.

        Raises:
            Denied: it may not.
        """
        if access.networks is not None:
            known = parse_address(address)
            if known is None or not is_within(known, access.networks):
                raise Denied(
                    f"{access.reader.name} may not ask from {address or 'an unknown address'}. Ask your provider to "
                    "allow it, or ask from an address that is allowed."
                )
        self._uses.record(access.credential_id, address)

    def authenticate_client(self, client_id: str, secret: str, address: str | None) -> Access:
        """The recipient that an OAuth client is.

        Raises:
            Unauthenticated, TooManyRequests, Unavailable: as `authenticated`.
        """
        key = hashlib.sha256(f"{client_id}\0{secret}".encode("utf-8", "replace")).digest()
        found = self._credentials.by_client_secret(client_id, secret)
        if found is None:
            self._brute_force.count(address, key)
            raise Unauthenticated(PAIR_INVALID)
        return found

    def _is_own_access_token(self, credential: PresentedCredential) -> bool:
        """Whether it has an access token of ours, which nobody can have guessed."""
        secret = credential.secret
        return secret.startswith(PREFIX) and self._access_tokens.read(secret) is not None

    def _look_up(self, credential: PresentedCredential, generation: int) -> Access | None:
        secret = credential.secret
        if len(secret) > MAX_TOKEN_CHARS:
            return None
        if credential.scheme == "bearer":
            issuer = read_claimed_issuer(secret)
            if issuer is not None:
                return self._federation.access(secret, issuer, generation)
        found = self._by_own_secret(credential.scheme, secret)
        if found is None:
            # What is no token now is none before the catalog changes.
            self._refused.get(credential.key, lambda: True, generation)
        return found

    def _by_own_secret(self, scheme: str, secret: str) -> Access | None:
        if scheme == "basic":
            name, _, password = split_basic_credential(secret)
            return self._credentials.by_named_token(name, password)
        if not secret.startswith(PREFIX):
            return self._credentials.by_token(secret)
        token = self._access_tokens.read(secret)
        found = None if token is None else self._credentials.by_client_secret_id(token.credential_id)
        return None if token is None or found is None else found.until(token.expires_at)


def split_basic_credential(basic: str) -> tuple[str, str, str]:
    """Name, colon and password of a Basic header; empty when it is none."""
    try:
        return base64.b64decode(basic, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", "", ""


MAX_KEY_CHARS = 16_384
KEY_INVALID = "The key is unknown, expired or revoked. An owner gives new ones: `lakeshare admin key add`."
KEY_MISSING = "Send an administrator's key as `Authorization: Bearer <key>`."


class Permission(Enum):
    """What a call needs; the values are how it is said to somebody who has it not."""

    LOOK = "look at shares, recipients and grants"
    SHARE = "change shares, recipients and grants"
    ADMINISTER = "say who administers"


PERMISSIONS_BY_ROLE: Mapping[Role, frozenset[Permission]] = {
    "owner": frozenset(Permission),
    "steward": frozenset({Permission.LOOK, Permission.SHARE}),
    "auditor": frozenset({Permission.LOOK}),
}


class VerifiesTokens(Protocol):
    """Verifies what an OIDC issuer signed."""

    def verified_claims(self, token: str, issuer: str, audiences: Sequence[str]) -> Mapping[str, Any]:
        """What the issuer says in a token for one of the audiences.

        Raises:
            Unauthenticated: the token is not the issuer's, not for these audiences, or not valid now.
            Unavailable: the issuer's keys cannot be had now.
        """


@dataclass(frozen=True)
class Administrator:
    """Somebody who administers; the name is what the audit log knows them by."""

    name: str
    role: Role

    def require(self, permission: Permission) -> None:
        """See that the role is enough.

        Raises:
            Denied: it is not.
        """
        if permission not in PERMISSIONS_BY_ROLE[self.role]:
            enough = [role for role, allowed in PERMISSIONS_BY_ROLE.items() if permission in allowed]
            raise Denied(
                f"{self.name} is {self.role} and may not {permission.value}; that takes the role "
                f"{' or '.join(enough)}."
            )


@dataclass(frozen=True)
class AdminIssuer:
    """The OIDC issuer whose tokens administer, and which of its claims say what."""

    issuer: str
    audiences: tuple[str, ...]
    role_claim: str
    name_claim: str
    roles: Mapping[Role, frozenset[str]]

    def administrator(self, claims: Mapping[str, Any]) -> Administrator:
        """The administrator that verified claims speak of, in the highest role they give.

        Raises:
            Unauthenticated: they name nobody.
            Denied: they give no role.
        """
        name = claims.get(self.name_claim)
        if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
            raise Unauthenticated(f"The token has no usable claim {self.name_claim}, which tells who it is.")
        values = _claim_values(claims, self.role_claim)
        for role, role_values in self.roles.items():
            if values & role_values:
                # No key has a colon in its name: nobody can be taken for somebody with a key.
                return Administrator(f"oidc:{name}", role)
        raise Denied(f"oidc:{name} has no role here: none of its {self.role_claim} is one that administers.")


def make_admin_issuer(settings: ServerSettings) -> AdminIssuer | None:
    """The issuer of the settings, None when administrators have keys only.

    Raises:
        BadRequest: there is an issuer, but no audience: a token for any other service would do.
    """
    if settings.admin_oidc_issuer is None:
        return None
    audiences = tuple(settings.admin_oidc_audiences.split())
    if not audiences:
        raise BadRequest(
            "LAKESHARE_ADMIN_OIDC_AUDIENCES",
            settings.admin_oidc_audiences,
            "Name the audience that the issuer's tokens for this server have; without one, tokens for any "
            "other service would do.",
        )
    values: dict[Role, str] = {
        "owner": settings.admin_oidc_owners,
        "steward": settings.admin_oidc_stewards,
        "auditor": settings.admin_oidc_auditors,
    }
    return AdminIssuer(
        issuer=settings.admin_oidc_issuer,
        audiences=audiences,
        role_claim=settings.admin_oidc_role_claim,
        name_claim=settings.admin_oidc_name_claim,
        roles={role: frozenset(setting.split()) for role, setting in values.items()},
    )


class AdminAuthenticator:
    """The administrators behind keys and tokens."""

    def __init__(
        self,
        catalog: Catalog,
        issuer: AdminIssuer | None,
        verifier: VerifiesTokens,
        brute_force: BruteForceProtection,
    ) -> None:
        self._catalog, self._issuer = catalog, issuer
        self._verifier, self._brute_force = verifier, brute_force

    def authenticate(self, header: str | None, address: str | None) -> Administrator:
        """The administrator whose key or token the header carries; looked up each time, so that revoking is at once.

        Raises:
            Unauthenticated: none, or not one that is valid now; which of these is not told.
            Denied: a good token of the issuer that gives no role.
            TooManyRequests: too many wrong ones came from this address.
            Unavailable: the database or the issuer does not answer.
        """
        scheme, _, key = (header or "").partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key:
            raise Unauthenticated(KEY_MISSING)
        digest = hashlib.sha256(key.encode("utf-8", "replace")).digest()
        try:
            return self._found(key)
        except (Unauthenticated, IssuerUnavailable):
            self._brute_force.count(address, digest)
            raise

    def _found(self, key: str) -> Administrator:
        if len(key) > MAX_KEY_CHARS:
            raise Unauthenticated(KEY_INVALID)
        if not key.startswith(KEY_PREFIX):
            return self._by_token(key)
        with self._catalog.reading() as session:
            found = find_admin_key(session, key)
        if found is None:
            raise Unauthenticated(KEY_INVALID)
        return Administrator(found.name, found.role)

    def _by_token(self, token: str) -> Administrator:
        issuer = self._issuer
        if issuer is None or token.count(".") != 2:
            raise Unauthenticated(KEY_INVALID)
        with hide_details():
            claims = self._verifier.verified_claims(token, issuer.issuer, list(issuer.audiences))
        return issuer.administrator(claims)


def _claim_values(claims: Mapping[str, Any], name: str) -> set[str]:
    """The texts of a claim, which is one or a list; `realm_access.roles` is looked for inside, as Keycloak has it."""
    claim: Any = claims.get(name)
    if claim is None and "." in name:
        outer, _, inner = name.partition(".")
        found = claims.get(outer)
        return _claim_values(found, inner) if isinstance(found, Mapping) else set()
    many = claim if isinstance(claim, list) else [claim]
    return {one for one in many if isinstance(one, str)}


def make_profile(
    recipient: RecipientState, issued: IssuedSecret, settings: ServerSettings
) -> dict[str, object]:
    """The profile around a secret that was just given: the one that clients take it from."""
    if issued.state.kind == "client_secret":
        return make_oauth_profile(
            settings.base_url(), settings.token_url(), recipient.id, issued.secret, settings.iceberg_url()
        )
    ends = [end for end in (issued.state.expires_at, recipient.expires_at) if end is not None]
    return make_bearer_profile(
        settings.base_url(), issued.secret, min(ends, default=None), settings.iceberg_url()
    )


def make_oauth_profile(
    base_url: str, token_url: str, client_id: str, client_secret: str, iceberg_url: str | None = None
) -> dict[str, object]:
    """A profile with a client secret, for which clients get access tokens. They take it in version 2 only."""
    profile: dict[str, object] = {
        "shareCredentialsVersion": 2,
        "type": "oauth_client_credentials",
        "endpoint": base_url,
        "tokenEndpoint": token_url,
        "clientId": client_id,
        "clientSecret": client_secret,
    }
    if iceberg_url is not None:
        profile["icebergEndpoint"] = iceberg_url
    return profile


def make_basic_profile(base_url: str, recipient_id: str, token: str) -> dict[str, object]:
    """A profile with the same bearer token as a password, for what speaks Basic only."""
    return {
        "shareCredentialsVersion": 2,
        "type": "basic",
        "endpoint": base_url,
        "username": recipient_id,
        "password": token,
    }


def make_bearer_profile(
    base_url: str, token: str, expires_at: datetime | None, iceberg_url: str | None = None
) -> dict[str, object]:
    """A profile with a bearer token.

    `iceberg_url` is where Iceberg clients find the same shares (OpenSharing's `icebergEndpoint`).
    """
    profile: dict[str, object] = {"shareCredentialsVersion": 1, "endpoint": base_url, "bearerToken": token}
    if iceberg_url is not None:
        profile["icebergEndpoint"] = iceberg_url
    if expires_at is not None:
        profile["expirationTime"] = expires_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return profile


def format_profile(profile: Mapping[str, object]) -> str:
    """A profile as its file has it."""
    return json.dumps(profile, indent=2) + "\n"


def write_profile(
    path: Path, base_url: str, token: str, expires_at: datetime | None, iceberg_url: str | None = None
) -> None:
    """Write a profile with a bearer token, as `write_profile_file` does."""
    write_profile_file(path, make_bearer_profile(base_url, token, expires_at, iceberg_url))


def write_profile_file(path: Path, profile: Mapping[str, object]) -> None:
    """Write a profile that only its owner can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # mkstemp gives mode 600, and the rename keeps it.
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(format_profile(profile))
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
