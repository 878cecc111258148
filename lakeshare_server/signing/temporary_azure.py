"""Temporary credentials of Azure: a shared access signature of one directory, for reading and listing it."""

from datetime import UTC, datetime
from math import inf
from time import monotonic
from typing import Any

from lakeshare_server.errors import Unavailable
from lakeshare_server.signing.azure import AzureUrls, DelegationKey
from lakeshare_server.signing.life import life_left
from lakeshare_server.signing.temporary import TemporaryCredentials
from lakeshare_server.stores import Place
from lakeshare_server.stores.azure import PATIENCE, AzureAccess
from lakeshare_server.stores.extras import not_installed
from lakeshare_server.stores.locations import azure_host

KIND = "azureUserDelegationSas"
READ_AND_LIST = "rl"
# An account that does not tell what it is, for want of a permission, say, is asked again after so long.
NOT_TOLD_S = 300


class AzureVendor:
    """Issues them with the account's key, or with one that Azure lends to the server's identity."""

    def __init__(self, access: AzureAccess, urls: AzureUrls) -> None:
        self._access = access
        self._urls = urls
        # What an account told, and until when that is believed.
        self._has_folders: dict[str, tuple[bool, float]] = {}

    def refusal(self, place: Place) -> str | None:
        account, _ = azure_host(place)
        if self._access.account_key(account) is None and self._access.account_sas(account):
            return "the server reads with a shared access signature, which issues no other"
        if place.key and not self._keeps_folders(place):
            return f"storage account {account} has no hierarchical namespace, so nothing can be limited to a folder"
        return None

    def vend(self, place: Place, life_s: int, now_s: int) -> TemporaryCredentials:
        account, _ = azure_host(place)
        key = self._access.account_key(account)
        lent = None if key else self._urls.delegation_key(place, life_s, now_s)
        life_s = life_left(now_s, life_s, lent.ends_ms if lent else None)
        ends = datetime.fromtimestamp(now_s + life_s, UTC)
        token = directory_signature(place, key or (lent and _as_azure_holds_it(lent)), ends)
        return TemporaryCredentials(place.location, KIND, {"sasToken": token}, (now_s + life_s) * 1000)

    def _keeps_folders(self, place: Place) -> bool:
        """Asked once of each account; one that does not tell is taken to keep them, and asked again some time later."""
        account, _ = azure_host(place)
        keeps, until = self._has_folders.get(account, (True, -inf))
        if until <= monotonic():
            told = self._told(place)
            keeps, until = told is not False, inf if told is not None else monotonic() + NOT_TOLD_S
            self._has_folders[account] = keeps, until
        return keeps

    def _told(self, place: Place) -> bool | None:
        """Whether the account says that it keeps folders; None when it does not say."""
        try:
            from azure.core.credentials import AzureNamedKeyCredential
            from azure.core.exceptions import AzureError, ServiceRequestError, ServiceResponseError
            from azure.storage.blob import BlobServiceClient
        except ImportError:
            raise not_installed("azure-storage-blob", "azure") from None
        account, _ = azure_host(place)
        key = self._access.account_key(account)
        credential = AzureNamedKeyCredential(account, key) if key else self._access.identity
        try:
            with BlobServiceClient(self._access.endpoint(place), credential, **PATIENCE) as service:
                told = self._access.services.of(place.root).call(
                    lambda: service.get_account_information().get("is_hns_enabled"),
                    (ServiceRequestError, ServiceResponseError),
                )
        except (AzureError, ValueError, Unavailable):
            return None
        return str(told).lower() != "false"


# An account key as text, or a UserDelegationKey of azure.storage.blob.
def directory_signature(place: Place, key: Any, ends: datetime) -> str:
    """What Azure's own library makes for the directory, or for the container when the place names no more."""
    try:
        from azure.storage.filedatalake import generate_directory_sas, generate_file_system_sas
    except ImportError:
        raise not_installed("azure-storage-file-datalake", "azure") from None
    account, _ = azure_host(place)
    if not place.key.strip("/"):
        return str(generate_file_system_sas(account, place.bucket, key, READ_AND_LIST, ends))
    folder = place.key.strip("/")
    return str(generate_directory_sas(account, place.bucket, folder, key, READ_AND_LIST, ends))


def _as_azure_holds_it(lent: DelegationKey) -> Any:
    try:
        from azure.storage.filedatalake import UserDelegationKey
    except ImportError:
        raise not_installed("azure-storage-file-datalake", "azure") from None
    key: Any = UserDelegationKey.__new__(UserDelegationKey)
    names = ("signed_oid", "signed_tid", "signed_start", "signed_expiry", "signed_service", "signed_version")
    for name, value in zip(names, lent.fields, strict=True):
        setattr(key, name, value)
    key.value = lent.value
    return key
