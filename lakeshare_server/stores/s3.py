"""S3 and its relatives: where the endpoint is, which keys we have, and a bucket opened for reading.

boto3 is asked for what everybody sets up for it: profile, region, endpoint, and its chain of credentials.
"""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

import httpx
from obstore.store import S3Store

from lakeshare_server.errors import Unavailable
from lakeshare_server.outbound import Services
from lakeshare_server.settings import StoreSettings
from lakeshare_server.stores.extras import not_installed
from lakeshare_server.stores.locations import Place
from lakeshare_server.stores.remote import CONNECT_S, RemoteStore, client_options, retries

if TYPE_CHECKING:
    from obstore.store import S3Credential

DEFAULT_REGION = "us-east-1"
AWS = re.compile(r"https://(\S+\.)?amazonaws\.com(\.cn)?")
# What may stand in front of a host whose certificate covers one label.
HOST_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
ANSWER_S = 15
# The chain of credentials, which may ask STS, SSO or the host: as it is named where services are.
CREDENTIALS = "credentials of S3"
# Keys that do not say when they end are looked at again after so long.
KEYS_LIFE = timedelta(minutes=5)


@dataclass(frozen=True)
class AwsKeys:
    """Keys as they are now; `expires_at_ms` is None when they do not say."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(repr=False)
    expires_at_ms: int | None


@dataclass(frozen=True)
class Bucket:
    """How a bucket is addressed."""

    name: str
    region: str
    endpoint: str
    path_style: bool

    @property
    def url(self) -> str:
        """The URL in front of `/key`."""
        if self.path_style:
            return f"{self.endpoint}/{self.name}"
        scheme, _, rest = self.endpoint.partition("://")
        return f"{scheme}://{self.name}.{rest}"


class S3Access:
    """The one S3 of the settings, with the credentials the server runs with; for many threads."""

    def __init__(self, settings: StoreSettings, services: Services) -> None:
        self._settings, self.services = settings, services
        self._lock = Lock()
        self._regions: dict[str, str] = {}
        # Credentials of botocore, which come without types; None before keys were taken from them.
        self._held: Any = None
        self._endpoints: dict[str, str] = {}

    def open(self, place: Place) -> RemoteStore:
        """A bucket, ready for reading.

        Raises:
            Unavailable: boto3 is not installed, or finds no credentials.
        """
        bucket = self.bucket(place.bucket)
        self.keys()
        store = S3Store(
            bucket.name,
            endpoint=bucket.endpoint if bucket.path_style else bucket.url,
            region=bucket.region,
            virtual_hosted_style_request=not bucket.path_style,
            request_payer=self._settings.s3_request_payer,
            client_options=client_options(bucket.endpoint),
            retry_config=retries(),
            credential_provider=self._keys_for_obstore,
        )
        # Relatives of S3 that keep folders list by folders, "t/x" before "t-1".
        return RemoteStore(
            place.root,
            store,
            self.services.of(place.root),
            in_key_order=AWS.fullmatch(bucket.endpoint) is not None,
        )

    def bucket(self, name: str, public: bool = False) -> Bucket:
        """How the server addresses a bucket or, if `public`, how recipients do.

        Raises:
            Unavailable: AWS does not tell now where the bucket is, or boto3 is not installed.
        """
        region = self._settings.s3_region or self._region_of(name)
        endpoint = (self._settings.s3_public_endpoint if public else None) or self._endpoint(region)
        by_path = self._settings.s3_path_style
        if by_path is None:
            by_path = not (AWS.fullmatch(endpoint) and HOST_LABEL.fullmatch(name))
        return Bucket(name, region, endpoint.rstrip("/"), by_path)

    def keys(self) -> AwsKeys:
        """The keys of now; those that can be refreshed are, when they are about to end.

        Raises:
            Unavailable: there are none.
        """
        held = self._held
        if held is not None and not _may_refresh(held):
            now, ends = _taken(held)
        else:
            # Loading the library is no part of what the service may take.
            session = self._session
            try:
                now, ends = self.services.of(CREDENTIALS).call(lambda: self._refreshed(session))
            except Unavailable:
                # Keys are refreshed minutes before they end: those of before are good until then.
                if held is None or not _are_valid(held):
                    raise
                now, ends = held._frozen_credentials, _end_of(held)
        ends_ms = int(ends.timestamp() * 1000) if ends else None
        return AwsKeys(now.access_key, now.secret_key, now.token, ends_ms)

    def _refreshed(self, session: Any) -> tuple[Any, datetime | None]:
        credentials = self._found(session)
        try:
            found = _taken(credentials)
        except Exception as error:  # each provider of the chain has errors of its own, none for other ears
            raise _no_keys(type(error).__name__) from None
        self._held = credentials
        return found

    def client(self, service: str, region: str, endpoint: str | None = None) -> Any:
        """A client of boto3 with our credentials, which gives up soon."""
        session = self._session
        with self._lock:  # a session makes one client at a time
            return session.client(service, region_name=region, endpoint_url=endpoint)

    def _endpoint(self, region: str) -> str:
        if self._settings.s3_endpoint:
            return self._settings.s3_endpoint
        # Making a client takes milliseconds, and every answer asks.
        known = self._endpoints.get(region)
        if known is None:
            known = self._endpoints[region] = str(self.client("s3", region).meta.endpoint_url)
        return known

    def _region_of(self, bucket: str) -> str:
        """AWS tells everybody where a bucket is; other stores are taken to have one region."""
        known = self._regions.get(bucket)
        if known is None:
            usual = self._session.region_name or DEFAULT_REGION
            endpoint = self._endpoint(usual)
            known = usual
            if AWS.fullmatch(endpoint):
                known = self.services.of(endpoint).call(lambda: told_region(endpoint, bucket))
            if known is None:  # a bucket that is not there yet, say: the next answer may tell
                return str(usual)
            self._regions[bucket] = known
        return known

    def _keys_for_obstore(self) -> "S3Credential":
        keys = self.keys()
        look_again = datetime.now(UTC) + KEYS_LIFE
        ends = datetime.fromtimestamp(keys.expires_at_ms / 1000, UTC) if keys.expires_at_ms else look_again
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": min(ends, look_again),
        }

    @cached_property
    def _session(self) -> Any:
        try:
            import boto3
        except ImportError:
            raise not_installed("boto3", "s3") from None
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
        from botocore.session import get_session

        patience = Config(connect_timeout=CONNECT_S, read_timeout=ANSWER_S, retries={"total_max_attempts": 2})
        # The chain of credentials makes clients of its own, of STS and SSO, which would wait for minutes.
        below = get_session()
        below.set_default_client_config(patience)
        try:
            return boto3.Session(botocore_session=below)
        except BotoCoreError as error:  # a profile that is not there
            raise _no_keys(str(error)) from None

    # Credentials of botocore, which come without types.
    def _found(self, session: Any) -> Any:
        if self._held is not None:
            return self._held
        try:
            found = session.get_credentials()
        except Exception as error:  # as above
            raise _no_keys(type(error).__name__) from None
        if found is None:
            raise _no_keys("none was found")
        return found


# Credentials of botocore come without types.
def _taken(credentials: Any) -> tuple[Any, datetime | None]:
    """Keys of one moment and when they end; another thread may refresh them at any time."""
    before = _end_of(credentials)
    while True:
        keys, after = credentials.get_frozen_credentials(), _end_of(credentials)
        if after == before:
            return keys, after
        before = after


def _may_refresh(credentials: Any) -> bool:
    """Whether taking the keys may call the service that issues them."""
    refresh_needed = getattr(credentials, "refresh_needed", None)
    return refresh_needed is not None and bool(refresh_needed())


def _are_valid(credentials: Any) -> bool:
    """Whether keys that are about to be refreshed are still good."""
    ends = _end_of(credentials)
    return ends is not None and ends > datetime.now(UTC) and credentials._frozen_credentials is not None


def _end_of(credentials: Any) -> datetime | None:
    # Only keys that are refreshed say when they end, and they say it here alone.
    ends: datetime | None = getattr(credentials, "_expiry_time", None)
    return ends


def told_region(endpoint: str, bucket: str) -> str | None:
    """The region that an endpoint of AWS names in its answer about a bucket, whatever the answer is.

    Raises:
        Unavailable: it does not answer, or cannot now.
    """
    try:
        answer = httpx.head(f"{endpoint}/{bucket}", timeout=CONNECT_S)
    except httpx.HTTPError as error:
        raise _no_region(bucket, type(error).__name__) from None
    region: str | None = answer.headers.get("x-amz-bucket-region")
    if region is None and answer.status_code >= 500:
        raise _no_region(bucket, f"status {answer.status_code}")
    return region


def _no_region(bucket: str, why: str) -> Unavailable:
    return Unavailable(
        f"AWS does not tell the region of the bucket {bucket} ({why})",
        "Try again later, or set LAKESHARE_S3_REGION.",
    )


def _no_keys(why: str) -> Unavailable:
    return Unavailable(
        f"no credentials for S3 could be had ({why})",
        "Give the server AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role of its host.",
    )
