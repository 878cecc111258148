"""Google Cloud Storage: the credentials the server runs with, and a bucket opened for reading."""

from datetime import UTC, datetime
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from obstore.store import GCSStore

from lakeshare_server.errors import Unavailable
from lakeshare_server.outbound import Services
from lakeshare_server.settings import StoreSettings
from lakeshare_server.stores.extras import not_installed
from lakeshare_server.stores.locations import Place
from lakeshare_server.stores.remote import CONNECT_S, RemoteStore, client_options, retries

if TYPE_CHECKING:
    from obstore.store import GCSCredential

GOOGLE = "https://storage.googleapis.com"
# Signing by IAM and narrowing a token both need it; what may be done is up to the account's roles.
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
# Google's token services and IAM, as they are named where services are.
TOKENS = "token services of Google"
# To connect, and between two pieces of an answer; Google's own library would wait for two minutes.
PATIENCE_S = (CONNECT_S, 15)


class GcsAccess:
    """Google Cloud Storage with the application's default credentials; for many threads."""

    def __init__(self, settings: StoreSettings, services: Services) -> None:
        self._settings, self.services = settings, services
        self._lock = Lock()

    def open(self, place: Place) -> RemoteStore:
        """A bucket, ready for reading.

        Raises:
            Unavailable: google-auth is not installed, or finds no credentials.
        """
        self.token()
        endpoint = self.endpoint()
        store = GCSStore(
            place.bucket,
            config={"base_url": endpoint},
            client_options=client_options(endpoint),
            retry_config=retries(),
            credential_provider=self._token_for_obstore,
        )
        return RemoteStore(place.root, store, self.services.of(place.root))

    def endpoint(self, public: bool = False) -> str:
        """The URL in front of `/bucket/key`, as the server or, if `public`, as recipients reach it."""
        settings = self._settings
        found = (settings.gcs_public_endpoint if public else None) or settings.gcs_endpoint or GOOGLE
        return found.rstrip("/")

    # A google.auth.credentials.Credentials; the library is an extra.
    @cached_property
    def credentials(self) -> Any:
        """The application's default credentials.

        Raises:
            Unavailable: there are none.
        """
        try:
            import google.auth
            from google.auth.exceptions import GoogleAuthError
        except ImportError:
            raise not_installed("google-auth", "gcs") from None
        try:
            found, _ = google.auth.default(scopes=SCOPES)
        except GoogleAuthError as error:
            raise no_credentials(error) from None
        return found

    def token(self) -> tuple[str, datetime | None]:
        """An access token that is valid now, and when it ends.

        Raises:
            Unavailable: none could be had.
        """
        credentials = self.credentials
        from google.auth.exceptions import GoogleAuthError

        try:
            return self.refreshed(credentials, only_if_needed=True)
        except GoogleAuthError as error:
            raise no_credentials(error) from None

    # A google.auth.credentials.Credentials.
    def refreshed(self, credentials: Any, only_if_needed: bool = False) -> tuple[str, datetime | None]:
        """A token of credentials that are ours or made of ours, and when it ends; one thread at a time.

        Raises:
            GoogleAuthError: Google's library says why.
        """
        transport = self.transport()
        with self._lock:
            if not (only_if_needed and credentials.valid):
                credentials.refresh(transport)
            ends: datetime | None = credentials.expiry
            return credentials.token, ends.replace(tzinfo=UTC) if ends else None

    # A google.auth.transport.Request.
    def transport(self) -> Any:
        """How Google's own library reaches its token services."""
        try:
            from google.auth.exceptions import TransportError
            from google.auth.transport.requests import Request
        except ImportError:
            raise not_installed("requests", "gcs") from None

        service = self.services.of(TOKENS)

        class PatientRequest(Request):
            def __call__(self, url: str, *request: Any, **options: Any) -> Any:
                untyped: Any = super().__call__
                patient = {"timeout": PATIENCE_S, **options}
                return service.call(lambda: untyped(url, *request, **patient), (TransportError,))

        return PatientRequest()

    def _token_for_obstore(self) -> "GCSCredential":
        token, ends = self.token()
        return {"token": token, "expires_at": ends}


def no_credentials(error: Exception) -> Unavailable:
    """What is said when Google's library fails; its own words may hold what a token service answered."""
    return Unavailable(
        f"no credentials for Google Cloud Storage could be had ({type(error).__name__})",
        "Give the server GOOGLE_APPLICATION_CREDENTIALS or the service account of its host.",
    )
