"""Azure blob storage: accounts, the credentials the server runs with, and a container opened for reading."""

from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from math import inf
from os import environ
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from obstore.store import AzureStore

from lakeshare_server.errors import Unavailable, Unserveable
from lakeshare_server.outbound import Services
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage.locations import ParsedLocation, azure_host
from lakeshare_server.storage.remote import (
    MAX_URL_LIFE_S,
    RemoteStore,
    TemporaryCredentials,
    client_options,
    missing_extra_error,
    prepare_hmac,
    quote_keys,
    remaining_life,
    retries,
)

if TYPE_CHECKING:
    from obstore.store import AzureConfig, AzureCredential

TIMEOUTS: dict[str, Any] = {
    "connection_timeout": 5,
    "read_timeout": 15,
    "retry_total": 1,
    "initial_backoff": 1,
    "increment_base": 1,
}
# As it is named where services are.
IDENTITY = "identity service of Azure"
SCOPE = "https://storage.azure.com/.default"


class AzureAccess:
    """Azure's storage accounts: one may have a key or a signature of its own, all take the server's identity."""

    def __init__(self, settings: StoreSettings, services: Services) -> None:
        self._settings, self.services = settings, services

    def open(self, place: ParsedLocation) -> RemoteStore:
        """A container, ready for reading.

        Raises:
            Unavailable: azure-identity is not installed, or finds no identity.
        """
        account, _ = azure_host(place)
        endpoint = self.endpoint(place)
        config: AzureConfig = {"account_name": account, "endpoint": endpoint}
        key, signature = self.account_key(account), self.account_sas(account)
        provider = None
        if key:
            config["account_key"] = key
        elif signature:
            config["sas_key"] = signature.removeprefix("?")
        else:
            self.token()
            provider = self._token_for_obstore
        store = AzureStore(
            place.bucket,
            config=config,
            client_options=client_options(endpoint),
            retry_config=retries(),
            credential_provider=provider,
        )
        # An account with folders lists by folders, "t/x" before "t-1".
        return RemoteStore(place.root, store, self.services.of(place.root), in_key_order=False)

    def endpoint(self, place: ParsedLocation, public: bool = False) -> str:
        """The URL in front of `/container/key`, as the server or, if `public`, as recipients reach it."""
        account, domain = azure_host(place)
        settings = self._settings
        if settings.azure_account in (None, account):
            set_one = (settings.azure_public_endpoint if public else None) or settings.azure_endpoint
            if set_one:
                return set_one.rstrip("/")
        return f"https://{account}.blob.{domain}"

    def account_key(self, account: str) -> str | None:
        """The account's key, if we have it."""
        found = self._settings.azure_account_key
        named = found.get_secret_value() if found else environ.get("AZURE_STORAGE_ACCOUNT_KEY")
        return named if self._is_ours(account) else None

    # An azure.identity credential; the library is an extra.
    @cached_property
    def identity(self) -> Any:
        """The identity the server runs with.

        Raises:
            Unavailable: azure-identity is not installed.
        """
        try:
            from azure.identity import DefaultAzureCredential
        except ImportError:
            raise missing_extra_error("azure-identity", "azure") from None
        return DefaultAzureCredential(**TIMEOUTS)

    def token(self) -> tuple[str, datetime]:
        """An access token that is valid now, and when it ends.

        Raises:
            Unavailable: none could be had.
        """
        identity = self.identity
        from azure.core.exceptions import AzureError, ServiceRequestError, ServiceResponseError

        no_answer = (ServiceRequestError, ServiceResponseError)
        try:
            found = self.services.of(IDENTITY).call(lambda: identity.get_token(SCOPE), no_answer)
        except (AzureError, ValueError) as error:
            raise credentials_error(error) from None
        return found.token, datetime.fromtimestamp(found.expires_on, UTC)

    def account_sas(self, account: str) -> str | None:
        """A shared access signature to read the account with, if we have one and no key."""
        found = self._settings.azure_sas_token
        named = found.get_secret_value() if found else environ.get("AZURE_STORAGE_SAS_TOKEN")
        return named if self._is_ours(account) else None

    def _is_ours(self, account: str) -> bool:
        named = self._settings.azure_account or environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        return named in (None, account)

    def _token_for_obstore(self) -> "AzureCredential":
        token, ends = self.token()
        return {"token": token, "expires_at": ends}


def credentials_error(error: Exception) -> Unavailable:
    """What is said when Azure's library fails; its own words tell of every identity it tried."""
    return Unavailable(
        f"no credentials for Azure could be had ({type(error).__name__})",
        "Give the server an identity (AZURE_CLIENT_ID and its kin, or that of its host) or "
        "LAKESHARE_AZURE_ACCOUNT_KEY.",
    )


VERSION = "2026-10-06"
DELEGATION_S = 86_400
CLOCK_SKEW = timedelta(minutes=5)
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
        inner, outer = (state.copy for state in prepare_hmac(self._key, before))
        urls = []
        for key, name in zip(keys, quote_keys(keys, safe=b"/"), strict=True):
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

    def signer(self, place: ParsedLocation, life_s: int, now_s: int) -> AzureSigner:
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
        life_s = remaining_life(now_s, life_s, lent.ends_ms if lent else None)
        endpoint = self._access.endpoint(place, public=True)
        return azure_signer(endpoint, place, key, lent, now_s, life_s)

    def delegation_key(self, place: ParsedLocation, life_s: int, now_s: int) -> DelegationKey:
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
            wanted_s = min(life_s, MAX_URL_LIFE_S - DELEGATION_S // 24)
            if known is None or known.ends_ms // 1000 - now_s < wanted_s:
                known = self._lend(place, now_s, min(MAX_URL_LIFE_S, max(DELEGATION_S, 2 * life_s)))
                self._delegated[account] = known
            return known

    def _lend(self, place: ParsedLocation, now_s: int, life_s: int) -> DelegationKey:
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
            raise missing_extra_error("azure-storage-blob", "azure") from None
        try:
            with BlobServiceClient(self._access.endpoint(place), identity, **TIMEOUTS) as service:
                lent = self._access.services.of(place.root).call(
                    lambda: service.get_user_delegation_key(now - CLOCK_SKEW, ends),
                    (ServiceRequestError, ServiceResponseError),
                )
        except ClientAuthenticationError as error:
            raise credentials_error(error) from None
        except HttpResponseError as error:
            raise Unavailable(
                f"Azure lends no key to sign URLs with (status {error.status_code})",
                "Grant the server's identity the role Storage Blob Delegator on the account.",
            ) from None
        except AzureError as error:
            raise Unavailable(f"Azure does not answer ({type(error).__name__})", "Try again later.") from None
        return to_delegation_key(lent)


# A UserDelegationKey of azure.storage.blob; the library is an extra.
def to_delegation_key(lent: Any) -> DelegationKey:
    """A key as Azure's own library holds it."""
    ends = datetime.strptime(lent.signed_expiry, TIME).replace(tzinfo=UTC)
    whose = (lent.signed_oid, lent.signed_tid)
    fields = (*whose, lent.signed_start, lent.signed_expiry, lent.signed_service, lent.signed_version)
    return DelegationKey(fields, int(ends.timestamp()) * 1000, lent.value)


def azure_signer(
    endpoint: str, place: ParsedLocation, key: str, lent: DelegationKey | None, now_s: int, life_s: int
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


KIND = "azureUserDelegationSas"
READ_AND_LIST = "rl"
# An account that does not tell what it is, for want of a permission, say, is asked again after so long.
CLIENT_MARGIN_S = 300


class AzureVendor:
    """Issues them with the account's key, or with one that Azure lends to the server's identity."""

    def __init__(self, access: AzureAccess, urls: AzureUrls) -> None:
        self._access = access
        self._urls = urls
        # What an account told, and until when that is believed.
        self._has_folders: dict[str, tuple[bool, float]] = {}

    def refusal(self, place: ParsedLocation) -> str | None:
        account, _ = azure_host(place)
        if self._access.account_key(account) is None and self._access.account_sas(account):
            return "the server reads with a shared access signature, which issues no other"
        if place.key and not self._keeps_folders(place):
            return f"storage account {account} has no hierarchical namespace, so nothing can be limited to a folder"
        return None

    def vend(self, place: ParsedLocation, life_s: int, now_s: int) -> TemporaryCredentials:
        account, _ = azure_host(place)
        key = self._access.account_key(account)
        lent = None if key else self._urls.delegation_key(place, life_s, now_s)
        life_s = remaining_life(now_s, life_s, lent.ends_ms if lent else None)
        ends = datetime.fromtimestamp(now_s + life_s, UTC)
        token = sign_directory(place, key or (lent and _as_azure_holds_it(lent)), ends)
        return TemporaryCredentials(place.location, KIND, {"sasToken": token}, (now_s + life_s) * 1000)

    def _keeps_folders(self, place: ParsedLocation) -> bool:
        """Asked once of each account; one that does not tell is taken to keep them, and asked again some time later."""
        account, _ = azure_host(place)
        keeps, until = self._has_folders.get(account, (True, -inf))
        if until <= monotonic():
            told = self._told(place)
            keeps, until = told is not False, inf if told is not None else monotonic() + CLIENT_MARGIN_S
            self._has_folders[account] = keeps, until
        return keeps

    def _told(self, place: ParsedLocation) -> bool | None:
        """Whether the account says that it keeps folders; None when it does not say."""
        try:
            from azure.core.credentials import AzureNamedKeyCredential
            from azure.core.exceptions import AzureError, ServiceRequestError, ServiceResponseError
            from azure.storage.blob import BlobServiceClient
        except ImportError:
            raise missing_extra_error("azure-storage-blob", "azure") from None
        account, _ = azure_host(place)
        key = self._access.account_key(account)
        credential = AzureNamedKeyCredential(account, key) if key else self._access.identity
        try:
            with BlobServiceClient(self._access.endpoint(place), credential, **TIMEOUTS) as service:
                told = self._access.services.of(place.root).call(
                    lambda: service.get_account_information().get("is_hns_enabled"),
                    (ServiceRequestError, ServiceResponseError),
                )
        except (AzureError, ValueError, Unavailable):
            return None
        return str(told).lower() != "false"


# An account key as text, or a UserDelegationKey of azure.storage.blob.
def sign_directory(place: ParsedLocation, key: Any, ends: datetime) -> str:
    """What Azure's own library makes for the directory, or for the container when the place names no more."""
    try:
        from azure.storage.filedatalake import generate_directory_sas, generate_file_system_sas
    except ImportError:
        raise missing_extra_error("azure-storage-file-datalake", "azure") from None
    account, _ = azure_host(place)
    if not place.key.strip("/"):
        return str(generate_file_system_sas(account, place.bucket, key, READ_AND_LIST, ends))
    folder = place.key.strip("/")
    return str(generate_directory_sas(account, place.bucket, folder, key, READ_AND_LIST, ends))


def _as_azure_holds_it(lent: DelegationKey) -> Any:
    try:
        from azure.storage.filedatalake import UserDelegationKey
    except ImportError:
        raise missing_extra_error("azure-storage-file-datalake", "azure") from None
    key: Any = UserDelegationKey.__new__(UserDelegationKey)
    names = ("signed_oid", "signed_tid", "signed_start", "signed_expiry", "signed_service", "signed_version")
    for name, value in zip(names, lent.fields, strict=True):
        setattr(key, name, value)
    key.value = lent.value
    return key
