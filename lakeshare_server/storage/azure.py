"""Azure Blob Storage: credentials, containers, signed URLs and temporary credentials."""

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from http import HTTPStatus
from math import inf
from os import environ
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import obstore
import pyarrow as pa
from obstore import exceptions
from obstore.store import AzureStore
from pydantic import SecretStr

from lakeshare_server.errors import ODD_ANSWER, StoreMissing, Unavailable, Unserveable
from lakeshare_server.locations import ParsedLocation, azure_host
from lakeshare_server.outbound import Services
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import remote
from lakeshare_server.storage.location_columns import texts
from lakeshare_server.storage.remote import MAX_URL_LIFE_S

if TYPE_CHECKING:
    from obstore.store import AzureBearerToken, AzureConfig

TIMEOUTS: dict[str, Any] = {"connection_timeout": 5, "read_timeout": 15, "retry_total": 1} | {
    "initial_backoff": 1,
    "increment_base": 1,
}
IDENTITY = "identity service of Azure"
SCOPE = "https://storage.azure.com/.default"


def credentials_error(error: Exception) -> Unavailable:
    """Returns the error for a failure of Azure's library, whose own message lists every identity it tried."""
    return Unavailable(
        f"no credentials for Azure are available ({type(error).__name__})",
        "Give the server an identity (AZURE_CLIENT_ID and related variables, or the identity of its host) or "
        "LAKESHARE_AZURE_ACCOUNT_KEY.",
    )


def _malformed(account: str) -> Unavailable:
    what = f"the key or shared access signature of storage account {account} is malformed"
    return Unavailable(what, "Correct LAKESHARE_AZURE_ACCOUNT_KEY or LAKESHARE_AZURE_SAS_TOKEN.")


KIND = "azureUserDelegationSas"
FOLDER_MARK, NOT_EMPTY = "hdi_isfolder", "DirectoryIsNotEmpty"
READ_AND_LIST = "rl"
# An account that does not report whether it has folders, for lack of a permission, is requested again after this time.
RETRY_S = 300
VERSION = "2026-10-06"
DELEGATION_S = 86_400
CLOCK_SKEW = timedelta(minutes=5)
TIME = "%Y-%m-%dT%H:%M:%SZ"
KEY_FIELDS = ("signed_oid", "signed_tid", "signed_start", "signed_expiry", "signed_service", "signed_version")


@dataclass(frozen=True)
class DelegationKey:
    """A user delegation key, which Azure issues to an identity for at most seven days."""

    fields: tuple[str, str, str, str, str, str]  # object id, tenant id, start, expiry, service, version
    ends_ms: int
    value: str = field(repr=False)


@dataclass(frozen=True)
class AzureSigner:
    """Signs blobs of one container; all URLs expire at the same time."""

    expires_at_ms: int
    _url: str
    _query: str
    _to_sign: tuple[bytes, bytes] = field(repr=False)
    _key: bytes = field(repr=False)

    def sign(self, keys: list[bytes]) -> pa.StringArray:
        before, after = self._to_sign
        signed = remote.sign_texts(self._key, before, (key + after for key in keys))
        signatures = [b64encode(each).replace(b"+", b"%2B").replace(b"=", b"%3D") for each in signed]
        names = remote.quote_keys(keys, safe=b"/")
        return remote.join_urls(self._url, names, self._query, texts(signatures))


class AzureAccess:
    """Access to storage accounts by account key, shared access signature or the server's identity."""

    signs_slowly = False

    def __init__(self, settings: StoreSettings, services: Services) -> None:
        self._settings, self.services = settings, services
        # One lock per account: an account without response delays no other.
        self._locks: dict[str, Lock] = {}
        self._keys: dict[str, DelegationKey] = {}
        # By account: whether it has folders, and until when that is assumed.
        self._has_folders: dict[str, tuple[bool, float]] = {}

    def open(self, place: ParsedLocation) -> remote.RemoteStore:
        """Opens a container."""
        account, _ = azure_host(place)
        endpoint = self.endpoint(place)
        config: AzureConfig = {"account_name": account, "endpoint": endpoint}
        provider = None
        if key := self.account_key(account):
            config["account_key"] = key
        elif signature := self.account_sas(account):
            config["sas_key"] = signature.removeprefix("?")
        else:
            self.token()
            provider = self.token
        try:
            store = AzureStore(
                place.bucket,
                config=config,
                client_options=remote.client_options(endpoint),
                retry_config=remote.retries(),
                credential_provider=provider,
            )
        except exceptions.BaseError:
            raise _malformed(account) from None
        # An account with a hierarchical namespace lists by folders: "t/x" before "t-1".
        return remote.RemoteStore(
            place.root,
            store,
            self.services.of(place.root),
            in_key_order=False,
            delete_keys=partial(_delete_folder_marks, place, store),
        )

    def endpoint(self, place: ParsedLocation, public: bool = False) -> str:
        """Returns the URL in front of `/container/key`, for the server or, if `public`, for recipients."""
        account, _ = azure_host(place)
        settings = self._settings
        if settings.azure_account in (None, account):
            endpoint = (settings.azure_public_endpoint if public else None) or settings.azure_endpoint
            if endpoint:
                return endpoint.rstrip("/")
        return self.usual_endpoint(place)

    def usual_endpoint(self, place: ParsedLocation) -> str:
        """Returns the URL of an account's blob service in Azure."""
        account, domain = azure_host(place)
        return f"https://{account}.blob.{domain}"

    def account_key(self, account: str) -> str | None:
        key = self._find_secret(account, self._settings.azure_account_key, "AZURE_STORAGE_ACCOUNT_KEY")
        try:
            b64decode(key or "", validate=True)
        except ValueError:
            raise _malformed(account) from None
        return key

    # An azure.identity credential; the library is an extra.
    @cached_property
    def identity(self) -> Any:
        """The identity the server runs with."""
        with remote.require_extra("azure-identity", "azure"):
            from azure.identity import DefaultAzureCredential
        return DefaultAzureCredential(**TIMEOUTS)

    def token(self) -> "AzureBearerToken":
        """Returns a valid access token and its end, as obstore takes them."""
        identity = self.identity
        from azure.core.exceptions import AzureError, ServiceRequestError, ServiceResponseError

        try:
            issued = self.services.of(IDENTITY).call(
                lambda: identity.get_token(SCOPE), (ServiceRequestError, ServiceResponseError)
            )
        except (AzureError, *ODD_ANSWER) as error:
            raise credentials_error(error) from None
        return {"token": issued.token, "expires_at": datetime.fromtimestamp(issued.expires_on, UTC)}

    # The credential, BlobServiceClient and what `request` returns are types of the extra.
    def call_blob_service(self, place: ParsedLocation, credential: Any, request: Callable[[Any], Any]) -> Any:
        """Sends a request to the account with a blob service client, as a call of the store's service."""
        with remote.require_extra("azure-storage-blob", "azure"):
            from azure.core.exceptions import ServiceRequestError, ServiceResponseError
            from azure.storage.blob import BlobServiceClient
        with BlobServiceClient(self.endpoint(place), credential, **TIMEOUTS) as service:
            return self.services.of(place.root).call(
                lambda: request(service), (ServiceRequestError, ServiceResponseError)
            )

    def account_sas(self, account: str) -> str | None:
        return self._find_secret(account, self._settings.azure_sas_token, "AZURE_STORAGE_SAS_TOKEN")

    def _find_secret(self, account: str, secret: SecretStr | None, variable: str) -> str | None:
        configured = self._settings.azure_account or environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        if configured not in (None, account):
            return None
        return secret.get_secret_value() if secret else environ.get(variable)

    def signer(self, place: ParsedLocation, life_s: int, now_s: int) -> AzureSigner:
        """Returns a signer of URLs that live for `life_s` from `now_s`, or as long as the delegation key.

        Raises:
            Unserveable: only a shared access signature is configured.
            Unavailable: there are no credentials, or Azure issues no delegation key now.
        """
        account, _ = azure_host(place)
        key = self.account_key(account)
        delegated = None if key else self.delegation_key(place, life_s, now_s)
        life_s = remote.remaining_life(now_s, life_s, delegated.ends_ms if delegated else None)
        endpoint = self.endpoint(place, public=True)
        return azure_signer(endpoint, place, key or "", delegated, now_s, life_s)

    def delegation_key(self, place: ParsedLocation, life_s: int, now_s: int) -> DelegationKey:
        account, _ = azure_host(place)
        if self.account_sas(account):
            reason = "A shared access signature reads, but signs no URLs."
            raise Unserveable(reason, "Give the server an identity or LAKESHARE_AZURE_ACCOUNT_KEY.")
        with self._locks.setdefault(account, Lock()):
            key = self._keys.get(account)
            needed_s = min(life_s, MAX_URL_LIFE_S - DELEGATION_S // 24)
            if key is None or key.ends_ms // 1000 - now_s < needed_s:
                key = self._request_key(place, now_s, min(MAX_URL_LIFE_S, max(DELEGATION_S, 2 * life_s)))
                self._keys[account] = key
            return key

    def _request_key(self, place: ParsedLocation, now_s: int, life_s: int) -> DelegationKey:
        now = datetime.fromtimestamp(now_s, UTC)
        ends = now + timedelta(seconds=life_s)
        identity = self.identity
        with remote.require_extra("azure-storage-blob", "azure"):
            from azure.core.exceptions import AzureError, ClientAuthenticationError
        try:
            issued = self.call_blob_service(
                place, identity, lambda service: service.get_user_delegation_key(now - CLOCK_SKEW, ends)
            )
            return to_delegation_key(issued)
        except ClientAuthenticationError as error:
            raise credentials_error(error) from None
        except (AzureError, *ODD_ANSWER) as error:
            status = getattr(error, "status_code", None)
            why = f"status {status}" if status else type(error).__name__
            fix = f"Try again later, or check that {self.endpoint(place)} is the account's blob service, with TLS."
            if status == HTTPStatus.FORBIDDEN:
                fix = "Grant the server's identity the role Storage Blob Delegator on the account."
            raise Unavailable(f"Azure issues no key to sign URLs with ({why})", fix) from None

    def refusal(self, place: ParsedLocation) -> str | None:
        account, _ = azure_host(place)
        if self.account_key(account) is None and self.account_sas(account):
            return "the server reads with a shared access signature, which issues no other"
        if place.key and not self._has_namespace(account, place):
            return f"storage account {account} has no hierarchical namespace, so nothing can be limited to a folder"
        return None

    def vend(self, place: ParsedLocation, life_s: int, now_s: int) -> remote.TemporaryCredentials:
        account, _ = azure_host(place)
        key = self.account_key(account)
        delegated = None if key else self.delegation_key(place, life_s, now_s)
        life_s = remote.remaining_life(now_s, life_s, delegated.ends_ms if delegated else None)
        token = _sign_directory(place, key, delegated, datetime.fromtimestamp(now_s + life_s, UTC))
        ends_ms = (now_s + life_s) * 1000
        host = place.root.partition("@")[2]
        config = {f"adls.sas-token.{host}": token, f"adls.sas-token-expires-at-ms.{host}": str(ends_ms)}
        return remote.TemporaryCredentials(place.location, KIND, {"sasToken": token}, ends_ms, config)

    def _has_namespace(self, account: str, place: ParsedLocation) -> bool:
        """Whether the account has a hierarchical namespace; assumed while the account does not report it."""
        has_folders, until = self._has_folders.get(account, (True, -inf))
        if until <= monotonic():
            reported = self._request_namespace(account, place)
            has_folders, until = reported is not False, inf if reported is not None else monotonic() + RETRY_S
            self._has_folders[account] = has_folders, until
        return has_folders

    def _request_namespace(self, account: str, place: ParsedLocation) -> bool | None:
        with remote.require_extra("azure-storage-blob", "azure"):
            import azure.storage.blob  # noqa: F401
            from azure.core.credentials import AzureNamedKeyCredential
            from azure.core.exceptions import AzureError
        key = self.account_key(account)
        credential = AzureNamedKeyCredential(account, key) if key else self.identity
        try:
            reported = self.call_blob_service(
                place, credential, lambda service: service.get_account_information().get("is_hns_enabled")
            )
        except (AzureError, Unavailable, *ODD_ANSWER):
            return None
        return str(reported).lower() != "false"


def _delete_folder_marks(place: ParsedLocation, store: AzureStore, keys: Sequence[str]) -> None:
    """Deletes the empty blobs, or directories, that stand for folders: "t" for the key "t/"."""
    for key in keys:
        name = key.rstrip("/")
        with suppress(StoreMissing), remote.translate_errors(ParsedLocation(place.kind, place.root, name)):
            found = obstore.get(store, name, options={"head": True})
            if found.meta["size"] or found.attributes.get(FOLDER_MARK) != "true":
                continue
            try:
                obstore.delete(store, name)
            except exceptions.BaseError as error:
                # A directory with further directories, which listings do not have, stays.
                if NOT_EMPTY not in str(error):
                    raise


def to_delegation_key(issued: Any) -> DelegationKey:
    ends = datetime.strptime(issued.signed_expiry, TIME).replace(tzinfo=UTC)
    oid, tid, start, expiry, service, version = (getattr(issued, name) for name in KEY_FIELDS)
    return DelegationKey(
        (oid, tid, start, expiry, service, version), int(ends.timestamp()) * 1000, issued.value
    )


def azure_signer(
    endpoint: str, place: ParsedLocation, key: str, delegated: DelegationKey | None, now_s: int, life_s: int
) -> AzureSigner:
    """Returns a signer with a delegation key, or with the account's `key` if there is none."""
    account, _ = azure_host(place)
    ends = datetime.fromtimestamp(now_s + life_s, UTC).strftime(TIME)
    protocol = "https" if endpoint.startswith("https:") else ""
    query = {"se": ends, "sp": "r", "spr": protocol, "sv": VERSION, "sr": "b"}
    key_fields = ""
    if delegated:
        query |= dict(zip(("skoid", "sktid", "skt", "ske", "sks", "skv"), delegated.fields, strict=True))
        # Empty: authorised and unauthorised users, correlation id, delegated user's tenant and id.
        key_fields = "\n".join((*delegated.fields, "", "", "", "", ""))
    # Empty after the resource kind: snapshot, encryption scope, (delegated: headers, query,) response headers.
    blank = [""] * (9 if delegated else 7)
    after = ["", key_fields, "", protocol, VERSION, "b", *blank]
    shown = "&".join(f"{name}={quote(value)}" for name, value in query.items() if value)
    return AzureSigner(
        expires_at_ms=(now_s + life_s) * 1000,
        _url=f"{endpoint}/{place.bucket}/",
        _query=f"?{shown}&sig=",
        _to_sign=(f"r\n\n{ends}\n/blob/{account}/{place.bucket}/".encode(), "\n".join(after).encode()),
        _key=b64decode(delegated.value if delegated else key),
    )


def _sign_directory(
    place: ParsedLocation, key: str | None, delegated: DelegationKey | None, ends: datetime
) -> str:
    """Signs the directory, or the container if the location names no directory."""
    with remote.require_extra("azure-storage-file-datalake", "azure"):
        import azure.storage.filedatalake as filedatalake
    credential: Any = key
    if delegated:
        credential = filedatalake.UserDelegationKey.__new__(filedatalake.UserDelegationKey)
        for name, value in zip(KEY_FIELDS, delegated.fields, strict=True):
            setattr(credential, name, value)
        credential.value = delegated.value
    account, _ = azure_host(place)
    folder = place.key.strip("/")
    rights = (credential, READ_AND_LIST, ends)
    if not folder:
        return str(filedatalake.generate_file_system_sas(account, place.bucket, *rights))
    return str(filedatalake.generate_directory_sas(account, place.bucket, folder, *rights))
