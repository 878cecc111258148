"""Google Cloud Storage: the credentials the server runs with, and a bucket opened for reading."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from obstore.store import GCSStore

from lakeshare_server.errors import Unavailable, Unserveable
from lakeshare_server.outbound import Services
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage.locations import ParsedLocation
from lakeshare_server.storage.remote import (
    CONNECT_S,
    MAX_URL_LIFE_S,
    RemoteStore,
    TemporaryCredentials,
    client_options,
    host_header,
    missing_extra_error,
    quote_keys,
    remaining_life,
    retries,
)

if TYPE_CHECKING:
    from obstore.store import GCSCredential

GOOGLE = "https://storage.googleapis.com"
# Signing by IAM and narrowing a token both need it; what may be done is up to the account's roles.
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
# Google's token services and IAM, as they are named where services are.
TOKENS = "token services of Google"
# To connect, and between two pieces of an answer; Google's own library would wait for two minutes.
TIMEOUT_S = (CONNECT_S, 15)


class GcsAccess:
    """Google Cloud Storage with the application's default credentials; for many threads."""

    def __init__(self, settings: StoreSettings, services: Services) -> None:
        self._settings, self.services = settings, services
        self._lock = Lock()

    def open(self, place: ParsedLocation) -> RemoteStore:
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
            raise missing_extra_error("google-auth", "gcs") from None
        try:
            found, _ = google.auth.default(scopes=SCOPES)
        except GoogleAuthError as error:
            raise credentials_error(error) from None
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
            raise credentials_error(error) from None

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
            raise missing_extra_error("requests", "gcs") from None

        service = self.services.of(TOKENS)

        class PatientRequest(Request):
            def __call__(self, url: str, *request: Any, **options: Any) -> Any:
                untyped: Any = super().__call__
                patient = {"timeout": TIMEOUT_S, **options}
                return service.call(lambda: untyped(url, *request, **patient), (TransportError,))

        return PatientRequest()

    def _token_for_obstore(self) -> "GCSCredential":
        token, ends = self.token()
        return {"token": token, "expires_at": ends}


def credentials_error(error: Exception) -> Unavailable:
    """What is said when Google's library fails; its own words may hold what a token service answered."""
    return Unavailable(
        f"no credentials for Google Cloud Storage could be had ({type(error).__name__})",
        "Give the server GOOGLE_APPLICATION_CREDENTIALS or the service account of its host.",
    )


ALGORITHM = "GOOG4-RSA-SHA256"
# IAM rotates the keys it signs with.
MAX_IAM_LIFE_S = 43_200
IAM_REQUESTS = 16


class Identity(NamedTuple):
    """Who signs: the service account, how it signs one text, and for how long its signatures are good."""

    email: str
    sign: Callable[[bytes], bytes]
    longest_s: int
    at_once: int


@dataclass(frozen=True)
class GcsSigner:
    """Signs keys of one bucket, all with the same end."""

    expires_at_ms: int
    _url: bytes
    _query: bytes
    _canonical: tuple[bytes, bytes]
    _to_sign: bytes
    _sign_all: Callable[[list[bytes]], list[bytes]] = field(repr=False)

    def sign(self, keys: list[bytes]) -> list[bytes]:
        """A URL for each key, in order.

        Raises:
            Unavailable: IAM does not sign now.
        """
        names = quote_keys(keys, safe=b"/")
        before, after = self._canonical
        hashes = [sha256(before + name + after).hexdigest().encode() for name in names]
        signatures = self._sign_all([self._to_sign + one for one in hashes])
        return [
            self._url + name + self._query + signature.hex().encode()
            for name, signature in zip(names, signatures, strict=True)
        ]


class GcsUrls:
    """Signers for the buckets that the server's credentials may read."""

    def __init__(self, access: GcsAccess) -> None:
        self._access = access

    def signer(self, bucket: str, life_s: int, now_s: int) -> GcsSigner:
        """A signer of URLs that live `life_s` from `now_s` on, or as long as IAM's signatures do.

        Raises:
            Unserveable: the credentials are a person's, who signs nothing.
            Unavailable: there are no credentials.
        """
        identity = self.identity
        life_s = remaining_life(now_s, life_s, None, identity.longest_s)
        moment = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{moment[:8]}/auto/storage/goog4_request"
        signed = {
            "X-Goog-Algorithm": ALGORITHM,
            "X-Goog-Credential": f"{identity.email}/{scope}",
            "X-Goog-Date": moment,
            "X-Goog-Expires": str(life_s),
            "X-Goog-SignedHeaders": "host",
        }
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in signed.items())
        url = f"{self._access.endpoint(public=True)}/{bucket}/"
        return GcsSigner(
            expires_at_ms=(now_s + life_s) * 1000,
            _url=url.encode(),
            _query=f"?{query}&X-Goog-Signature=".encode(),
            _canonical=(
                f"GET\n{urlsplit(url).path}".encode(),
                f"\n{query}\nhost:{host_header(url)}\n\nhost\nUNSIGNED-PAYLOAD".encode(),
            ),
            _to_sign=f"{ALGORITHM}\n{moment}\n{scope}\n".encode(),
            _sign_all=self._sign_all,
        )

    @cached_property
    def identity(self) -> Identity:
        """Who signs.

        Raises:
            Unserveable: a person's credentials.
            Unavailable: there are none.
        """
        credentials = self._access.credentials
        from google.auth import iam
        from google.auth.credentials import Signing
        from google.oauth2 import service_account

        untyped_iam: Any = iam
        if isinstance(credentials, service_account.Credentials):
            return Identity(
                credentials.signer_email, credentials.sign_bytes, MAX_URL_LIFE_S, at_once=os.cpu_count() or 1
            )
        if isinstance(credentials, Signing):  # impersonation: it asks IAM by itself
            return Identity(credentials.signer_email, credentials.sign_bytes, MAX_IAM_LIFE_S, IAM_REQUESTS)
        self._access.token()  # an instance learns its account's name from its first token
        email = getattr(credentials, "service_account_email", None)
        if not email:
            raise Unserveable(
                "The Google credentials of the server are of no service account, and nobody else signs URLs.",
                "Run the server as a service account, or set LAKESHARE_GCS_HMAC_ID and LAKESHARE_GCS_HMAC_SECRET.",
            )
        signer = untyped_iam.Signer(self._access.transport(), credentials, email)
        return Identity(email, signer.sign, MAX_IAM_LIFE_S, IAM_REQUESTS)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.identity.at_once, thread_name_prefix="gcs-signing")

    def _sign_all(self, texts: list[bytes]) -> list[bytes]:
        from google.auth.exceptions import GoogleAuthError

        try:
            return list(self._pool.map(self.identity.sign, texts))
        except GoogleAuthError as error:
            raise Unavailable(
                f"Google's IAM signs no URLs ({type(error).__name__})",
                f"Grant {self.identity.email} roles/iam.serviceAccountTokenCreator on itself.",
            ) from None


KIND = "gcpOauthToken"
# Google's tokens live an hour; one that is narrowed, as long as the one it is made of.
TOKEN_S = 3600


class GcsVendor:
    """Issues them with the credentials the server runs with."""

    def __init__(self, access: GcsAccess) -> None:
        self._access = access

    def refusal(self, place: ParsedLocation) -> str | None:
        return None

    def vend(self, place: ParsedLocation, life_s: int, now_s: int) -> TemporaryCredentials:
        """Whatever `life_s`, they live for an hour."""
        source = self._access.credentials
        from google.auth import downscoped as untyped
        from google.auth.exceptions import GoogleAuthError

        downscoped: Any = untyped

        rule = downscoped.AccessBoundaryRule(
            available_resource=f"//storage.googleapis.com/projects/_/buckets/{place.bucket}",
            available_permissions=["inRole:roles/storage.objectViewer"],
            availability_condition=downscoped.AvailabilityCondition(access_condition(place))
            if place.key
            else None,
        )
        narrowed = downscoped.Credentials(source, downscoped.CredentialAccessBoundary([rule]))
        try:
            token, ends = self._access.refreshed(narrowed)
        except GoogleAuthError as error:
            if getattr(error, "retryable", False):
                raise Unavailable("Google's token service does not answer", "Try again later.") from None
            raise Unserveable(
                f"Google narrows no token for {place.root} ({type(error).__name__}).",
                "The bucket needs uniform bucket-level access, the server's account roles/storage.objectViewer.",
            ) from None
        ends_ms = int(ends.timestamp() * 1000) if ends else (now_s + TOKEN_S) * 1000
        return TemporaryCredentials(place.location, KIND, {"oauthToken": token}, ends_ms)


def access_condition(place: ParsedLocation) -> str:
    """Only objects below the folder, and only listings of what is below it."""
    key = place.key.strip("/")
    # JSON's way of quoting a text is one of those of the expression language.
    objects = json.dumps(f"projects/_/buckets/{place.bucket}/objects/{key}/", ensure_ascii=False)
    listed = json.dumps(f"{key}/", ensure_ascii=False)
    return (
        f"resource.name.startsWith({objects}) || "
        f"api.getAttribute('storage.googleapis.com/objectListPrefix', '').startsWith({listed})"
    )
