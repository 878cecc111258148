"""Tokens of other issuers: whose policy they fit, once their signature is right."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from lakeshare_server.access.oidc import PAUSE_S, Issuers
from lakeshare_server.catalog import Catalog, GenerationCache
from lakeshare_server.catalog.credentials import Access, Credentials, Policy
from lakeshare_server.errors import Unauthenticated, Unavailable, shown
from lakeshare_server.outbound import Services
from lakeshare_server.settings import ServerSettings

_log = logging.getLogger(__name__)


class IssuerUnavailable(Unavailable):
    """The keys of a token's issuer cannot be had now; says nothing of the issuer, since anybody can ask for it."""

    def __init__(self, retry_s: int) -> None:
        super().__init__("the issuer of the token does not answer", "Try again in a moment.", retry_s)


@contextmanager
def no_details() -> Iterator[None]:
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
            with no_details():
                claims = self._issuers.verified_claims(token, issuer, audiences)
        except Unauthenticated as error:
            _log.info("%s", error)
            return None
        fitting = {policy.access.reader.id: policy for policy in policies if _fits(policy, claims)}
        if len(fitting) > 1:
            names = ", ".join(sorted(policy.access.reader.name for policy in fitting.values()))
            _log.warning("a token of %s fits the policies of several recipients (%s): refused", issuer, names)
        if len(fitting) != 1:
            return None
        end = self._end(claims)
        if end is None:
            _log.info(
                "a token of %s is refused: its exp is %s, which is no time", issuer, shown(claims["exp"])
            )
            return None
        return next(iter(fitting.values())).access.until(end)

    def _end(self, claims: Mapping[str, Any]) -> datetime | None:
        """Until when a token is good; None when no calendar has the time that it says."""
        try:
            return datetime.fromtimestamp(int(claims["exp"]), UTC) + self._leeway
        except (ValueError, OverflowError, OSError):
            return None


def _fits(policy: Policy, claims: Mapping[str, Any]) -> bool:
    said, audience = claims.get(policy.subject_claim), claims["aud"]
    audiences = audience if isinstance(audience, list) else [audience]
    # A claim of groups is a list; one of scopes a text, which is compared as a whole.
    return policy.subject in (said if isinstance(said, list) else [said]) and not set(
        policy.audiences
    ).isdisjoint(audiences)
