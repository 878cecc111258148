"""Azure blob storage: accounts, the credentials the server runs with, and a container opened for reading."""

from datetime import UTC, datetime
from functools import cached_property
from os import environ
from typing import TYPE_CHECKING, Any

from obstore.store import AzureStore

from lakeshare_server.errors import Unavailable
from lakeshare_server.outbound import Services
from lakeshare_server.settings import StoreSettings
from lakeshare_server.stores.extras import not_installed
from lakeshare_server.stores.locations import Place, azure_host
from lakeshare_server.stores.remote import RemoteStore, client_options, retries

if TYPE_CHECKING:
    from obstore.store import AzureConfig, AzureCredential

# For Azure's own libraries, which otherwise wait for minutes.
PATIENCE: dict[str, Any] = {
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

    def open(self, place: Place) -> RemoteStore:
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

    def endpoint(self, place: Place, public: bool = False) -> str:
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
            raise not_installed("azure-identity", "azure") from None
        return DefaultAzureCredential(**PATIENCE)

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
            raise no_credentials(error) from None
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


def no_credentials(error: Exception) -> Unavailable:
    """What is said when Azure's library fails; its own words tell of every identity it tried."""
    return Unavailable(
        f"no credentials for Azure could be had ({type(error).__name__})",
        "Give the server an identity (AZURE_CLIENT_ID and its kin, or that of its host) or "
        "LAKESHARE_AZURE_ACCOUNT_KEY.",
    )
