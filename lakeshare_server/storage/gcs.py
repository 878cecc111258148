"""Google Cloud Storage: credentials, buckets, signed URLs and temporary credentials."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cached_property, partial
from http import HTTPStatus
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import httpx
from obstore.store import GCSStore

from lakeshare_server.errors import ODD_ANSWER, Unavailable, Unserveable
from lakeshare_server.locations import ParsedLocation
from lakeshare_server.outbound import Services
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import remote
from lakeshare_server.storage.remote import CONNECT_S, MAX_URL_LIFE_S
from lakeshare_server.storage.sigv4 import AwsKeys, Bucket, UrlSigner

if TYPE_CHECKING:
    from obstore.store import GCSCredential

GOOGLE = "https://storage.googleapis.com"
# Required to sign with IAM and to narrow a token; the account's roles decide what is permitted.
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
# Name of the service that stands for Google's token services and IAM.
TOKENS = "token services of Google"
# For the connection, and between two pieces of a response; Google's library would wait for two minutes.
TIMEOUT_S = (CONNECT_S, 15)


def credentials_error(error: Exception) -> Unavailable:
    """Returns the error for a failure of Google's library, whose message may quote a token service."""
    fix = "Give the server GOOGLE_APPLICATION_CREDENTIALS or the service account of its host."
    return Unavailable(f"no credentials for Google Cloud Storage are available ({type(error).__name__})", fix)


KIND = "gcpOauthToken"
COMMON_CREDENTIALS = {
    "google.oauth2.service_account",
    "google.oauth2.credentials",
    "google.auth.compute_engine.credentials",
}
# Google's tokens live for an hour; a narrowed token lives as long as its source.
TOKEN_S = 3600
ALGORITHM = "GOOG4-RSA-SHA256"
# IAM rotates the keys it signs with.
MAX_IAM_LIFE_S = 43_200
IAM_REQUESTS = 16


class Identity(NamedTuple):
    """The service account that signs, its signing function and the longest life of its signatures."""

    email: str
    sign: Callable[[bytes], bytes]
    longest_s: int
    at_once: int


class GcsAccess:
    """Access to Google Cloud Storage with the application's default credentials; thread-safe."""

    def __init__(self, settings: StoreSettings, services: Services) -> None:
        self._settings, self.services = settings, services
        self._lock = Lock()

    def open(self, place: ParsedLocation) -> remote.RemoteStore:
        """Opens a bucket for reading."""
        self.token()
        endpoint = self.endpoint()
        store = GCSStore(
            place.bucket,
            config={"base_url": endpoint},
            client_options=remote.client_options(endpoint),
            retry_config=remote.retries(),
            credential_provider=self.token,
        )
        delete_keys = partial(self._delete_keys, place.bucket)
        return remote.RemoteStore(place.root, store, self.services.of(place.root), delete_keys=delete_keys)

    def _delete_keys(self, bucket: str, keys: Sequence[str]) -> None:
        headers = {"Authorization": f"Bearer {self.token()['token']}"}
        for key in keys:
            url = f"{self.endpoint()}/{bucket}/{quote(key)}"
            try:
                status = httpx.delete(url, headers=headers, timeout=TIMEOUT_S[1]).status_code
            except httpx.HTTPError:
                status = HTTPStatus.SERVICE_UNAVAILABLE
            if status >= HTTPStatus.BAD_REQUEST and status != HTTPStatus.NOT_FOUND:
                raise Unavailable(f"gs://{bucket}/{key} is not deleted (status {int(status)})", remote.LATER)

    def endpoint(self, public: bool = False) -> str:
        """Returns the URL in front of `/bucket/key`, for the server or, if `public`, for recipients."""
        public_endpoint = self._settings.gcs_public_endpoint if public else None
        return (public_endpoint or self._settings.gcs_endpoint or GOOGLE).rstrip("/")

    # A google.auth.credentials.Credentials; the library is an extra.
    @cached_property
    def credentials(self) -> Any:
        """The application's default credentials."""
        with remote.require_extra("google-auth", "gcs"):
            import google.auth
            from google.auth.exceptions import GoogleAuthError
        try:
            return google.auth.default(scopes=SCOPES)[0]
        except GoogleAuthError as error:
            raise credentials_error(error) from None

    @property
    def has_common_credentials(self) -> bool:
        """Whether libraries other than Google's use the credentials, too: an account's key, a user's, or the host's."""
        return type(self.credentials).__module__ in COMMON_CREDENTIALS

    def token(self) -> "GCSCredential":
        """Returns a valid access token and its end, as obstore takes them."""
        credentials = self.credentials
        from google.auth.exceptions import GoogleAuthError

        try:
            token, ends = self.refresh(credentials, only_if_needed=True)
        except (GoogleAuthError, *ODD_ANSWER) as error:
            raise credentials_error(error) from None
        return {"token": token, "expires_at": ends}

    # A google.auth.credentials.Credentials.
    def refresh(self, credentials: Any, only_if_needed: bool = False) -> tuple[str, datetime | None]:
        """Returns a token of `credentials` and its end; one thread at a time.

        Raises:
            GoogleAuthError: the refresh failed.
        """
        transport = self.transport()
        with self._lock:
            if not (only_if_needed and credentials.valid):
                credentials.refresh(transport)
            expiry: datetime | None = credentials.expiry
            return credentials.token, expiry.replace(tzinfo=UTC) if expiry else None

    # A google.auth.transport.Request.
    def transport(self) -> Any:
        """Returns a request object for Google's library, with a deadline and a circuit breaker."""
        with remote.require_extra("requests", "gcs"):
            from google.auth.exceptions import TransportError
            from google.auth.transport.requests import Request

        service = self.services.of(TOKENS)

        class BoundedRequest(Request):
            def __call__(self, *request: Any, **options: Any) -> Any:
                untyped: Any = super().__call__
                bounded = {"timeout": TIMEOUT_S, **options}
                return service.call(lambda: untyped(*request, **bounded), (TransportError,))

        return BoundedRequest()

    @property
    def signs_slowly(self) -> bool:
        return not self._settings.gcs_hmac_secret

    def signer(self, place: ParsedLocation, life_s: int, now_s: int) -> UrlSigner:
        """Returns a signer of URLs that live for `life_s` from `now_s`, or as long as IAM's signatures.

        Raises:
            Unserveable: the credentials are a person's, which cannot sign.
            Unavailable: there are no credentials.
        """
        secret, key_id = self._settings.gcs_hmac_secret, self._settings.gcs_hmac_id
        if secret and key_id:  # Google accepts S3 signatures with an HMAC key
            bucket = Bucket(place.bucket, "auto", self.endpoint(public=True), path_style=True)
            return UrlSigner.of(bucket, AwsKeys(key_id, secret.get_secret_value()), life_s, now_s)
        identity = self.identity
        life_s = remote.remaining_life(now_s, life_s, None, identity.longest_s)
        moment = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
        scope = f"{moment[:8]}/auto/storage/goog4_request"
        signed = {
            "X-Goog-Algorithm": ALGORITHM,
            "X-Goog-Credential": f"{identity.email}/{scope}",
            "X-Goog-Date": moment,
            "X-Goog-Expires": str(life_s),
            "X-Goog-SignedHeaders": "host",
        }
        before = f"{ALGORITHM}\n{moment}\n{scope}\n".encode()

        def sign(hashes: Iterator[bytes]) -> list[bytes]:
            return self._sign_all([before + digest for digest in hashes])

        url = f"{self.endpoint(public=True)}/{place.bucket}"
        return UrlSigner.of_query(url, signed, "X-Goog-Signature", (now_s + life_s) * 1000, sign)

    @cached_property
    def identity(self) -> Identity:
        credentials = self.credentials
        from google.auth import iam
        from google.auth.credentials import Signing
        from google.oauth2 import service_account

        if isinstance(credentials, service_account.Credentials):
            at_once = os.cpu_count() or 1
            return Identity(credentials.signer_email, credentials.sign_bytes, MAX_URL_LIFE_S, at_once)
        if isinstance(credentials, Signing):  # impersonation, which calls IAM itself
            return Identity(credentials.signer_email, credentials.sign_bytes, MAX_IAM_LIFE_S, IAM_REQUESTS)
        self.token()  # sets the account name of instance credentials
        email = getattr(credentials, "service_account_email", None)
        if not email:
            reason = "The server's Google credentials are of no service account and cannot sign URLs."
            fix = "Run the server as a service account, or set LAKESHARE_GCS_HMAC_ID and LAKESHARE_GCS_HMAC_SECRET."
            raise Unserveable(reason, fix)
        signer_type: Any = iam.Signer
        signer = signer_type(self.transport(), credentials, email)
        return Identity(email, signer.sign, MAX_IAM_LIFE_S, IAM_REQUESTS)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.identity.at_once, thread_name_prefix="gcs-signing")

    def _sign_all(self, texts: list[bytes]) -> list[bytes]:
        from google.auth.exceptions import GoogleAuthError

        try:
            return list(self._pool.map(self.identity.sign, texts))
        # Impersonated credentials sign with a session of their own, whose errors are OSErrors.
        except (GoogleAuthError, OSError, *ODD_ANSWER) as error:
            fix = f"Try again later, or grant {self.identity.email} roles/iam.serviceAccountTokenCreator on itself."
            raise Unavailable(f"Google's IAM signs no URLs ({type(error).__name__})", fix) from None

    def refusal(self, place: ParsedLocation) -> str | None:
        return None

    def vend(self, place: ParsedLocation, life_s: int, now_s: int) -> remote.TemporaryCredentials:
        """Issues a token; it lives for an hour, whatever `life_s` is."""
        source = self.credentials
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
            token, ends = self.refresh(narrowed)
            if not token:
                raise ValueError("a response without a token")
        except (GoogleAuthError, *ODD_ANSWER) as error:
            # Lasting is only a response by which the request itself is wrong (RFC 6749, section 5.2).
            if not re.match(r"\W*Error code (invalid|unauthorized)_", str(error)):
                what = f"Google's token service issues no token ({type(error).__name__})"
                raise Unavailable(what, remote.LATER) from None
            reason = f"Google narrows no token for {place.root} ({type(error).__name__})."
            fix = "The bucket needs uniform bucket-level access, the server's account roles/storage.objectViewer."
            raise Unserveable(reason, fix) from None
        ends_ms = int(ends.timestamp() * 1000) if ends else (now_s + TOKEN_S) * 1000
        config = {"gcs.oauth2.token": token, "gcs.oauth2.token-expires-at": str(ends_ms)}
        return remote.TemporaryCredentials(place.location, KIND, {"oauthToken": token}, ends_ms, config)


def access_condition(place: ParsedLocation) -> str:
    """Returns the condition that permits reading and listing below the folder only."""
    key = place.key.strip("/")
    # JSON string literals are valid in the expression language.
    objects = json.dumps(f"projects/_/buckets/{place.bucket}/objects/{key}/", ensure_ascii=False)
    listed = json.dumps(f"{key}/", ensure_ascii=False)
    return (
        f"resource.name.startsWith({objects}) || "
        f"api.getAttribute('storage.googleapis.com/objectListPrefix', '').startsWith({listed})"
    )
