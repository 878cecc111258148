"""Recipients and administrators by their credentials, and recipients' profiles.

Every invalid credential gets the same response, and counts for brute-force protection.
"""

import base64
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
from typing import Any

from lakeshare_server.access.oidc import KEEP_S, PAUSE_S, Issuers, read_claimed_issuer
from lakeshare_server.access.rate_limit import BruteForceProtection, require_within
from lakeshare_server.catalog import Catalog, GenerationCache
from lakeshare_server.catalog.credentials import PREFIX as KEY_PREFIX
from lakeshare_server.catalog.credentials import Access, Credentials, Role, TokenUses, find_admin_key
from lakeshare_server.catalog.states import FederationPolicy, IssuedSecret, RecipientState
from lakeshare_server.errors import BadRequest, Denied, Unauthenticated, Unavailable, shorten_value
from lakeshare_server.outbound import Services
from lakeshare_server.protocol.tokens import TokenSealer
from lakeshare_server.settings import TOKEN_PATH, ServerSettings

PURPOSE = "access token"
PREFIX = "lsa."  # no bearer token and no JWT begins like this
MAX_LIFE_S = 2 * 86_400  # more than the largest LAKESHARE_ACCESS_TOKEN_LIFE_S


@dataclass(frozen=True)
class AccessToken:
    credential: str
    until: float

    @property
    def expires_at(self) -> datetime:
        return datetime.fromtimestamp(self.until, UTC)


class AccessTokens:
    def __init__(self, key: bytes, life_s: int) -> None:
        self._sealer = TokenSealer(key, PURPOSE)
        self.life_s = life_s

    def issue(self, credential_id: str, ends_at: datetime | None) -> tuple[str, int]:
        """A token for a client secret that expires at `ends_at`, and the token's life in seconds."""
        now = datetime.now(UTC)
        end = now + timedelta(seconds=self.life_s)
        end = end if ends_at is None else min(end, ends_at)
        content = {"credential": credential_id, "until": end.timestamp()}
        return PREFIX + self._sealer.seal(content), max(0, int((end - now).total_seconds()))

    def read(self, token: str) -> AccessToken | None:
        opened = self._sealer.open(token.removeprefix(PREFIX), AccessToken)
        is_valid = opened is not None and time.time() < opened.until <= time.time() + MAX_LIFE_S
        return opened if is_valid else None


_log = logging.getLogger(__name__)


class IssuerUnavailable(Unavailable):
    """An issuer's keys are unavailable; the text does not name the issuer, which any client can choose."""

    def __init__(self, retry_s: int) -> None:
        super().__init__("the issuer of the token does not answer", "Try again in a moment.", retry_s)


@contextmanager
def hide_details() -> Iterator[None]:
    """Replaces Unavailable by IssuerUnavailable, without the issuer's addresses, which the server logs."""
    try:
        yield
    except Unavailable as error:
        raise IssuerUnavailable(error.retry_s or round(PAUSE_S)) from error


class Federation:
    def __init__(
        self, catalog: Catalog, credentials: Credentials, settings: ServerSettings, services: Services
    ) -> None:
        self._credentials = credentials
        self._issuers = Issuers(settings, services)
        self._leeway = timedelta(seconds=settings.oidc_leeway_s)
        self._policies = GenerationCache[Sequence[tuple[Access, FederationPolicy]] | None](catalog)

    def access(self, token: str, issuer: str, generation: int) -> Access | None:
        """The recipient of a token; only keys of issuers with a policy are fetched. Raises IssuerUnavailable."""
        policies = self._policies.get(issuer, lambda: self._credentials.policies(issuer) or None, generation)
        if not policies:
            return None
        audiences = sorted({audience for _, policy in policies for audience in policy.audiences})
        try:
            with hide_details():
                claims = self._issuers.verified_claims(token, issuer, audiences)
        except Unauthenticated as error:
            _log.info("%s", error)
            return None
        matching = {
            access.reader.id: access for access, policy in policies if _matches_policy(policy, claims)
        }
        if len(matching) > 1:
            names = ", ".join(sorted(access.reader.name for access in matching.values()))
            _log.warning("a token of %s fits the policies of several recipients (%s): refused", issuer, names)
        if len(matching) != 1:
            return None
        try:
            end = datetime.fromtimestamp(int(claims["exp"]), UTC) + self._leeway
        except (ValueError, OverflowError, OSError):
            expiry = shorten_value(claims["exp"])
            _log.info("a token of %s is refused: its exp is %s, which is no time", issuer, expiry)
            return None
        return next(iter(matching.values())).until(end)


def _matches_policy(policy: FederationPolicy, claims: Mapping[str, Any]) -> bool:
    claim, audience = claims.get(policy.subject_claim), claims["aud"]
    audiences = audience if isinstance(audience, list) else [audience]
    # A claim of groups is a list; a claim of scopes is one text, compared as a whole.
    subjects = claim if isinstance(claim, list) else [claim]
    return policy.subject in subjects and not set(policy.audiences).isdisjoint(audiences)


MAX_TOKEN_CHARS = 16_384
MAX_CACHED_CREDENTIALS = 1 << 15  # recipients with requests between two writes to the catalog
CREDENTIAL_MISSING = "Send the profile's token as `Authorization: Bearer <token>`."
CREDENTIAL_INVALID = "The bearer token is unknown, expired or revoked. Ask your provider for a new profile."
PAIR_INVALID = "The name or the password is unknown, expired or revoked. Ask your provider for a new profile."


@dataclass(frozen=True)
class PresentedCredential:
    header: str
    address: str | None

    @property
    def key(self) -> bytes:
        """The cache key: a digest, because the header is a secret."""
        # Tokens of issuers are verified again in each time slot: the issuer may have withdrawn a key.
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

    @property
    def kind(self) -> str:
        """Of a valid credential: oidc, basic, oauth or bearer."""
        if self.claims_issuer:
            return "oidc"
        if self.scheme == "basic":
            return "basic"
        return "oauth" if self.secret.startswith(PREFIX) else "bearer"


class Authenticator:
    """Finds the recipients of credentials, and caches them until the catalog changes."""

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
        """The recipient of a credential that was authenticated in this generation; never waits."""
        known = self._known.peek(credential.key, generation)
        return known if known is not None and known.is_valid() else None

    def authenticate(self, credential: PresentedCredential, generation: int) -> Access:
        """The recipient of a credential.

        Raises:
            Unauthenticated: it is missing, unknown, expired or revoked, without a distinction.
            TooManyRequests: its address sent too many wrong credentials.
            Unavailable: the catalog, or the issuer of a token, does not respond.
        """
        if credential.scheme not in ("bearer", "basic") or not credential.secret:
            raise Unauthenticated(CREDENTIAL_MISSING)
        key = credential.key
        access = None
        if not self._refused.peek(key, generation):
            try:
                access = self._known.get(key, lambda: self._look_up(credential, generation), generation)
            except IssuerUnavailable:
                # Any client can name the issuer: such a request counts like a wrong token.
                self._brute_force.count(credential.address, key)
                raise
        if access is None or not access.is_valid():
            # An expired access token of this server cannot be a guess.
            secret = credential.secret
            if not (secret.startswith(PREFIX) and self._access_tokens.read(secret) is not None):
                self._brute_force.count(credential.address, key)
            raise Unauthenticated(CREDENTIAL_INVALID if credential.scheme == "bearer" else PAIR_INVALID)
        return access

    def is_blocked(self, credential: PresentedCredential) -> bool:
        """Whether the address sent too many wrong credentials, so that lookups need a separate pool."""
        return self._brute_force.is_blocked(credential.address)

    def require_allowed_address(self, access: Access, address: str | None) -> None:
        """Records a use of the credential; raises Denied if its recipient may not connect from the address."""
        if access.networks is not None:
            require_within(access.reader.name, access.networks, address)
        self._uses.record(access.credential_id, address)

    def authenticate_client(self, client_id: str, secret: str, address: str | None) -> Access:
        """The recipient of an OAuth client secret. Raises the same errors as `authenticate`."""
        access = self._credentials.by_client_secret(client_id, secret)
        if access is None:
            key = hashlib.sha256(f"{client_id}\0{secret}".encode("utf-8", "replace")).digest()
            self._brute_force.count(address, key)
            raise Unauthenticated(PAIR_INVALID)
        return access

    def _look_up(self, credential: PresentedCredential, generation: int) -> Access | None:
        secret = credential.secret
        if len(secret) > MAX_TOKEN_CHARS:
            return None
        if credential.scheme == "bearer":
            issuer = read_claimed_issuer(secret)
            if issuer is not None:
                return self._federation.access(secret, issuer, generation)
        access = self._by_own_secret(credential.scheme, secret)
        if access is None:
            # An unknown token stays unknown until the catalog changes.
            self._refused.get(credential.key, lambda: True, generation)
        return access

    def _by_own_secret(self, scheme: str, secret: str) -> Access | None:
        if scheme == "basic":
            name, _, password = split_basic_credential(secret)
            return self._credentials.by_named_token(name, password)
        if not secret.startswith(PREFIX):
            return self._credentials.by_token(secret)
        token = self._access_tokens.read(secret)
        access = None if token is None else self._credentials.by_client_secret_id(token.credential)
        return None if token is None or access is None else access.until(token.expires_at)


def split_basic_credential(basic: str) -> tuple[str, str, str]:
    try:
        return base64.b64decode(basic, validate=True).decode().partition(":")
    except ValueError:
        return "", "", ""


MAX_KEY_CHARS = 16_384
KEY_INVALID = "The key is unknown, expired or revoked. An owner gives new ones: `lakeshare admin key add`."
KEY_MISSING = "Send an administrator's key as `Authorization: Bearer <key>`."


class Permission(Enum):
    LOOK = "look at shares, recipients and grants"
    SHARE = "change shares, recipients and grants"
    ADMINISTER = "manage keys and followed tables"


PERMISSIONS_BY_ROLE: Mapping[Role, frozenset[Permission]] = {
    "owner": frozenset(Permission),
    "steward": frozenset({Permission.LOOK, Permission.SHARE}),
    "auditor": frozenset({Permission.LOOK}),
}


@dataclass(frozen=True)
class Administrator:
    name: str
    role: Role

    def require(self, permission: Permission) -> None:
        if permission not in PERMISSIONS_BY_ROLE[self.role]:
            enough = [role for role, allowed in PERMISSIONS_BY_ROLE.items() if permission in allowed]
            raise Denied(
                f"{self.name} is {self.role} and may not {permission.value}; that takes the role "
                f"{' or '.join(enough)}."
            )


class AdminIssuer:
    """The issuer of administrators' tokens. Raises BadRequest if the settings name no audience."""

    def __init__(self, issuer: str, settings: ServerSettings) -> None:
        self.issuer, self.audiences = issuer, settings.admin_oidc_audiences.split()
        if not self.audiences:
            hint = (
                "Name the audience that the issuer's tokens for this server have; without one, tokens for any "
                "other service would do."
            )
            raise BadRequest("LAKESHARE_ADMIN_OIDC_AUDIENCES", settings.admin_oidc_audiences, hint)
        self._role_claim, self._name_claim = settings.admin_oidc_role_claim, settings.admin_oidc_name_claim
        self._roles: Mapping[Role, set[str]] = {
            "owner": set(settings.admin_oidc_owners.split()),
            "steward": set(settings.admin_oidc_stewards.split()),
            "auditor": set(settings.admin_oidc_auditors.split()),
        }

    def administrator(self, claims: Mapping[str, Any]) -> Administrator:
        """The administrator in verified claims. Raises Unauthenticated without a name, Denied without a role."""
        name = claims.get(self._name_claim)
        if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
            raise Unauthenticated(
                f"The token has no usable claim {self._name_claim}, which names the administrator."
            )
        values = _claim_values(claims, self._role_claim)
        for role, role_values in self._roles.items():
            if values & role_values:
                # Names of keys have no colon, so the name cannot be that of a key.
                return Administrator(f"oidc:{name}", role)
        raise Denied(f"oidc:{name} has no role: none of its {self._role_claim} is one that administers.")


class AdminAuthenticator:
    def __init__(
        self, catalog: Catalog, settings: ServerSettings, verifier: Issuers, brute_force: BruteForceProtection
    ) -> None:
        issuer = settings.admin_oidc_issuer
        self._issuer = None if issuer is None else AdminIssuer(issuer, settings)
        self._catalog, self._verifier, self._brute_force = catalog, verifier, brute_force

    def authenticate(self, header: str | None, address: str | None) -> Administrator:
        """The administrator of a key or token, never cached. Raises as `Authenticator`, and Denied without a role."""
        scheme, _, key = (header or "").partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key:
            raise Unauthenticated(KEY_MISSING)
        try:
            return self._look_up(key)
        except (Unauthenticated, IssuerUnavailable):
            self._brute_force.count(address, hashlib.sha256(key.encode("utf-8", "replace")).digest())
            raise

    def _look_up(self, key: str) -> Administrator:
        if len(key) > MAX_KEY_CHARS:
            raise Unauthenticated(KEY_INVALID)
        if key.startswith(KEY_PREFIX):
            with self._catalog.reading() as session:
                admin_key = find_admin_key(session, key)
            if admin_key is None:
                raise Unauthenticated(KEY_INVALID)
            return Administrator(admin_key.name, admin_key.role)
        issuer = self._issuer
        if issuer is None or key.count(".") != 2:
            raise Unauthenticated(KEY_INVALID)
        with hide_details():
            claims = self._verifier.verified_claims(key, issuer.issuer, issuer.audiences)
        return issuer.administrator(claims)


def _claim_values(claims: Mapping[str, Any], name: str) -> set[str]:
    """The texts of a claim, a text or a list; a dot in the name reads a nested claim, as Keycloak has them."""
    claim: Any = claims.get(name)
    if claim is None and "." in name:
        outer, _, inner = name.partition(".")
        nested = claims.get(outer)
        return _claim_values(nested, inner) if isinstance(nested, Mapping) else set()
    return {value for value in (claim if isinstance(claim, list) else [claim]) if isinstance(value, str)}


def make_profile(
    recipient: RecipientState, issued: IssuedSecret, settings: ServerSettings
) -> dict[str, object]:
    if issued.state.kind == "client_secret":
        return {
            "shareCredentialsVersion": 2,
            "type": "oauth_client_credentials",
            "endpoint": settings.base_url(),
            "tokenEndpoint": settings.base_url() + TOKEN_PATH,
            "clientId": recipient.id,
            "clientSecret": issued.secret,
            "icebergEndpoint": settings.iceberg_url(),
        }
    ends = [end for end in (issued.state.expires_at, recipient.expires_at) if end is not None]
    end = min(ends, default=None)
    return _make_bearer_profile(settings.base_url(), issued.secret, end, settings.iceberg_url())


def _make_bearer_profile(
    base_url: str, token: str, expires_at: datetime | None, iceberg_url: str | None = None
) -> dict[str, object]:
    profile: dict[str, object] = {"shareCredentialsVersion": 1, "endpoint": base_url, "bearerToken": token}
    if iceberg_url is not None:
        profile["icebergEndpoint"] = iceberg_url
    if expires_at is not None:
        profile["expirationTime"] = expires_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return profile


def format_profile(profile: Mapping[str, object]) -> str:
    return json.dumps(profile, indent=2) + "\n"


def write_profile(
    path: Path, base_url: str, token: str, expires_at: datetime | None, iceberg_url: str | None = None
) -> None:
    write_profile_file(path, _make_bearer_profile(base_url, token, expires_at, iceberg_url))


def write_profile_file(path: Path, profile: Mapping[str, object]) -> None:
    """Writes a profile atomically, readable by its owner only."""
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
