"""Shared access signatures of Azure: for reading one blob, signed with the account's key or a delegation key.

Only the blob's name differs between two signatures of a session. The tests compare with Azure's own library, byte
for byte.
"""

from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any
from urllib.parse import quote

from lakeshare_server.errors import Unavailable, Unserveable
from lakeshare_server.signing.life import LONGEST_S, life_left
from lakeshare_server.signing.prepared_hmac import prepared_hmac
from lakeshare_server.signing.quoting import quoted
from lakeshare_server.stores.azure import PATIENCE, AzureAccess, no_credentials
from lakeshare_server.stores.extras import not_installed
from lakeshare_server.stores.locations import Place, azure_host

# What is signed depends on it; that of the library the tests compare with.
VERSION = "2026-10-06"
DELEGATION_S = 86_400
CLOCKS_DIFFER = timedelta(minutes=5)
TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class DelegationKey:
    """A key that Azure lends to an identity, for days at most."""

    fields: tuple[str, str, str, str, str, str]  # whose, of which tenant, from, until, service, version
    ends_ms: int
    value: str = field(repr=False)


@dataclass(frozen=True)
class AzureSigner:
    """Signs blobs of one container, all with the same end."""

    expires_at_ms: int
    _url: bytes
    _query: bytes
    _to_sign: tuple[bytes, bytes] = field(repr=False)
    _key: bytes = field(repr=False)

    def sign(self, keys: list[bytes]) -> list[bytes]:
        """A URL for each blob, in order."""
        before, after = self._to_sign
        inner, outer = (state.copy for state in prepared_hmac(self._key, before))
        urls = []
        for key, name in zip(keys, quoted(keys, safe=b"/"), strict=True):
            within, around = inner(), outer()
            within.update(key + after)
            around.update(within.digest())
            signature = b64encode(around.digest()).replace(b"+", b"%2B").replace(b"=", b"%3D")
            urls.append(self._url + name + self._query + signature)
        return urls


class AzureUrls:
    """Signers for the containers that the server's credentials may read."""

    def __init__(self, access: AzureAccess) -> None:
        self._access = access
        # One for each account: one that does not answer holds up no other.
        self._lending: dict[str, Lock] = {}
        self._delegated: dict[str, DelegationKey] = {}

    def signer(self, place: Place, life_s: int, now_s: int) -> AzureSigner:
        """A signer of URLs that live `life_s` from `now_s` on, or as long as the delegation key.

        Raises:
            Unserveable: all we have is a signature of somebody else's.
            Unavailable: there are no credentials, or Azure lends no key now.
        """
        account, _ = azure_host(place)
        lent = None
        key = self._access.account_key(account)
        if key is None:
            lent = self.delegation_key(place, life_s, now_s)
            key = lent.value
        life_s = life_left(now_s, life_s, lent.ends_ms if lent else None)
        endpoint = self._access.endpoint(place, public=True)
        return azure_signer(endpoint, place, key, lent, now_s, life_s)

    def delegation_key(self, place: Place, life_s: int, now_s: int) -> DelegationKey:
        """A key of the place's account that lasts `life_s` or as long as Azure lends one; kept while it does.

        Raises:
            Unserveable: all we have is a signature of somebody else's.
            Unavailable: there are no credentials, or Azure lends no key now.
        """
        account, _ = azure_host(place)
        if self._access.account_sas(account):
            raise Unserveable(
                "A shared access signature reads, but signs no URLs.",
                "Give the server an identity or LAKESHARE_AZURE_ACCOUNT_KEY.",
            )
        with self._lending.setdefault(account, Lock()):
            known = self._delegated.get(account)
            wanted_s = min(life_s, LONGEST_S - DELEGATION_S // 24)
            if known is None or known.ends_ms // 1000 - now_s < wanted_s:
                known = self._lend(place, now_s, min(LONGEST_S, max(DELEGATION_S, 2 * life_s)))
                self._delegated[account] = known
            return known

    def _lend(self, place: Place, now_s: int, life_s: int) -> DelegationKey:
        now = datetime.fromtimestamp(now_s, UTC)
        ends = now + timedelta(seconds=life_s)
        identity = self._access.identity
        try:
            from azure.core.exceptions import (
                AzureError,
                ClientAuthenticationError,
                HttpResponseError,
                ServiceRequestError,
                ServiceResponseError,
            )
            from azure.storage.blob import BlobServiceClient
        except ImportError:
            raise not_installed("azure-storage-blob", "azure") from None
        try:
            with BlobServiceClient(self._access.endpoint(place), identity, **PATIENCE) as service:
                lent = self._access.services.of(place.root).call(
                    lambda: service.get_user_delegation_key(now - CLOCKS_DIFFER, ends),
                    (ServiceRequestError, ServiceResponseError),
                )
        except ClientAuthenticationError as error:
            raise no_credentials(error) from None
        except HttpResponseError as error:
            raise Unavailable(
                f"Azure lends no key to sign URLs with (status {error.status_code})",
                "Grant the server's identity the role Storage Blob Delegator on the account.",
            ) from None
        except AzureError as error:
            raise Unavailable(f"Azure does not answer ({type(error).__name__})", "Try again later.") from None
        return delegation_key(lent)


# A UserDelegationKey of azure.storage.blob; the library is an extra.
def delegation_key(lent: Any) -> DelegationKey:
    """A key as Azure's own library holds it."""
    ends = datetime.strptime(lent.signed_expiry, TIME).replace(tzinfo=UTC)
    whose = (lent.signed_oid, lent.signed_tid)
    fields = (*whose, lent.signed_start, lent.signed_expiry, lent.signed_service, lent.signed_version)
    return DelegationKey(fields, int(ends.timestamp()) * 1000, lent.value)


def azure_signer(
    endpoint: str, place: Place, key: str, lent: DelegationKey | None, now_s: int, life_s: int
) -> AzureSigner:
    """A signer with the account's key or, if `lent` tells of it, a delegation key."""
    account, _ = azure_host(place)
    ends = datetime.fromtimestamp(now_s + life_s, UTC).strftime(TIME)
    protocol = "https" if endpoint.startswith("https:") else ""
    query = {"se": ends, "sp": "r", "spr": protocol, "sv": VERSION, "sr": "b"}
    lender = ""
    if lent:
        query |= dict(zip(("skoid", "sktid", "skt", "ske", "sks", "skv"), lent.fields, strict=True))
        # Empty: authorised and unauthorised users, correlation id, delegated user's tenant and id.
        lender = "\n".join((*lent.fields, "", "", "", "", ""))
    # Empty behind the resource kind: snapshot, encryption scope, (for a lent key: headers, query,) answer's headers.
    after = ["", lender, "", protocol, VERSION, "b", "", "", *(["", ""] if lent else []), "", "", "", "", ""]
    shown = "&".join(f"{name}={quote(value)}" for name, value in query.items() if value)
    return AzureSigner(
        expires_at_ms=(now_s + life_s) * 1000,
        _url=f"{endpoint}/{place.bucket}/".encode(),
        _query=f"?{shown}&sig=".encode(),
        _to_sign=(f"r\n\n{ends}\n/blob/{account}/{place.bucket}/".encode(), "\n".join(after).encode()),
        _key=b64decode(key),
    )
