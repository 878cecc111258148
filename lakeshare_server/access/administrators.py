"""Who administers, and what each role may do. Recipients' tokens open nothing here."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from lakeshare_server.access.federation import IssuerUnavailable, no_details
from lakeshare_server.access.guesses import Guesses
from lakeshare_server.catalog import Catalog
from lakeshare_server.catalog.admin_keys import PREFIX, Role, admin_key_of
from lakeshare_server.errors import BadRequest, Denied, Unauthenticated
from lakeshare_server.settings import ServerSettings

MAX_KEY_CHARS = 16_384
REFUSED = "The key is unknown, expired or revoked. An owner gives new ones: `lakeshare admin key add`."
MISSING = "Send an administrator's key as `Authorization: Bearer <key>`."


class Permission(Enum):
    """What a call needs; the values are how it is said to somebody who has it not."""

    LOOK = "look at shares, recipients and grants"
    SHARE = "change shares, recipients and grants"
    ADMINISTER = "say who administers"


ALLOWED: Mapping[Role, frozenset[Permission]] = {
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
        if permission not in ALLOWED[self.role]:
            enough = [role for role, allowed in ALLOWED.items() if permission in allowed]
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
        values = _values(claims, self.role_claim)
        for role, wanted in self.roles.items():
            if values & wanted:
                # No key has a colon in its name: nobody can be taken for somebody with a key.
                return Administrator(f"oidc:{name}", role)
        raise Denied(f"oidc:{name} has no role here: none of its {self.role_claim} is one that administers.")


def admin_issuer(settings: ServerSettings) -> AdminIssuer | None:
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
        roles={role: frozenset(said.split()) for role, said in values.items()},
    )


class Administrators:
    """The administrators behind keys and tokens."""

    def __init__(
        self, catalog: Catalog, issuer: AdminIssuer | None, verifier: VerifiesTokens, guesses: Guesses
    ) -> None:
        self._catalog, self._issuer = catalog, issuer
        self._verifier, self._guesses = verifier, guesses

    def authenticated(self, header: str | None, address: str | None) -> Administrator:
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
            raise Unauthenticated(MISSING)
        digest = hashlib.sha256(key.encode("utf-8", "replace")).digest()
        try:
            return self._found(key)
        except (Unauthenticated, IssuerUnavailable):
            self._guesses.count(address, digest)
            raise

    def _found(self, key: str) -> Administrator:
        if len(key) > MAX_KEY_CHARS:
            raise Unauthenticated(REFUSED)
        if not key.startswith(PREFIX):
            return self._by_token(key)
        with self._catalog.reading() as session:
            found = admin_key_of(session, key)
        if found is None:
            raise Unauthenticated(REFUSED)
        return Administrator(found.name, found.role)

    def _by_token(self, token: str) -> Administrator:
        issuer = self._issuer
        if issuer is None or token.count(".") != 2:
            raise Unauthenticated(REFUSED)
        with no_details():
            claims = self._verifier.verified_claims(token, issuer.issuer, list(issuer.audiences))
        return issuer.administrator(claims)


def _values(claims: Mapping[str, Any], name: str) -> set[str]:
    """The texts of a claim, which is one or a list; `realm_access.roles` is looked for inside, as Keycloak has it."""
    said: Any = claims.get(name)
    if said is None and "." in name:
        outer, _, inner = name.partition(".")
        found = claims.get(outer)
        return _values(found, inner) if isinstance(found, Mapping) else set()
    many = said if isinstance(said, list) else [said]
    return {one for one in many if isinstance(one, str)}
