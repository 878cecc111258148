"""S3 and its relatives: where the endpoint is, which keys we have, and a bucket opened for reading.

boto3 is asked for what everybody sets up for it: profile, region, endpoint, and its chain of credentials.
"""

import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import httpx
from obstore.store import S3Store

from lakeshare_server.errors import Denied, LakeshareError, Unavailable, Unserveable, shorten_value
from lakeshare_server.outbound import Services
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage.locations import ParsedLocation
from lakeshare_server.storage.remote import (
    CONNECT_S,
    RemoteStore,
    TemporaryCredentials,
    client_options,
    host_header,
    missing_extra_error,
    prepare_hmac,
    quote_keys,
    remaining_life,
    retries,
)

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

    def open(self, place: ParsedLocation) -> RemoteStore:
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
            now, ends = _freeze(held)
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
            found = _freeze(credentials)
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
                known = self.services.of(endpoint).call(lambda: read_bucket_region(endpoint, bucket))
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
            raise missing_extra_error("boto3", "s3") from None
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
def _freeze(credentials: Any) -> tuple[Any, datetime | None]:
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


def read_bucket_region(endpoint: str, bucket: str) -> str | None:
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


ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True)
class S3Signer:
    """Signs keys of one bucket, all with the same end."""

    expires_at_ms: int
    _url: bytes
    _query: bytes = field(repr=False)
    _canonical: tuple[bytes, bytes] = field(repr=False)
    _key: bytes = field(repr=False)
    _to_sign: bytes = field(repr=False)

    def sign(self, keys: list[bytes]) -> list[bytes]:
        """A URL for each key, in order."""
        url, query = self._url, self._query + b"&X-Amz-Signature="
        before, after = self._canonical
        inner, outer = (state.copy for state in prepare_hmac(self._key, self._to_sign))
        urls = []
        for key in quote_keys(keys, safe=b"/"):
            within, around = inner(), outer()
            within.update(sha256(before + key + after).hexdigest().encode())
            around.update(within.digest())
            urls.append(url + key + query + around.hexdigest().encode())
        return urls


def s3_signer(
    bucket: Bucket, keys: AwsKeys, life_s: int, now_s: int, request_payer: bool = False
) -> S3Signer:
    """A signer of URLs that live `life_s` from `now_s` on, or as long as the keys if that is shorter.

    Raises:
        Unavailable: the keys have ended.
    """
    life_s = remaining_life(now_s, life_s, keys.expires_at_ms)
    moment = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{moment[:8]}/{bucket.region}/s3/aws4_request"
    asked = {"x-amz-request-payer": "requester"} if request_payer else {}
    signed = {
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{keys.access_key}/{scope}",
        "X-Amz-Date": moment,
        "X-Amz-Expires": str(life_s),
        "X-Amz-SignedHeaders": "host",
    }
    if keys.token:
        signed["X-Amz-Security-Token"] = keys.token
    query = _encode_query(asked | signed)
    path = urlsplit(bucket.url).path
    in_order = _encode_query(dict(sorted((asked | signed).items())))
    after = f"\n{in_order}\nhost:{host_header(bucket.url)}\n\nhost\nUNSIGNED-PAYLOAD"
    return S3Signer(
        expires_at_ms=(now_s + life_s) * 1000,
        _url=f"{bucket.url}/".encode(),
        _query=f"?{query}".encode(),
        _canonical=(f"GET\n{path}/".encode(), after.encode()),
        _key=_derived_key(keys.secret_key, moment[:8], bucket.region),
        _to_sign=f"{ALGORITHM}\n{moment}\n{scope}\n".encode(),
    )


def _derived_key(secret_key: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _encode_query(query: dict[str, str]) -> str:
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())


METHODS = ("GET", "HEAD")
# What clients add to say which call they make; it changes nothing of what is read.
CALLS = ("", "x-id=GetObject", "x-id=HeadObject")
# What the client says of its own signature, which ours takes the place of.
OF_THE_SIGNATURE = ("x-amz-date", "x-amz-content-sha256", "x-amz-security-token")

Headers = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class SignedRequest:
    """The request as the client has to send it."""

    uri: str
    headers: dict[str, list[str]]


def read_key(bucket: Bucket, method: str, uri: str) -> str:
    """The key that a request reads from a bucket.

    Raises:
        Denied: it does anything else.
    """
    address, _, query = uri.partition("?")
    if method not in METHODS or query not in CALLS:
        raise Denied(
            f"Only plain reads of a table's files are signed, this is none: {shorten_value(method)}."
        )
    before = f"{bucket.url}/"
    if not address.startswith(before):
        raise Denied(
            f"Requests are signed for {before}… only. Take endpoint and addressing from the table's config."
        )
    try:
        return unquote(address.removeprefix(before), errors="strict")
    except UnicodeDecodeError:
        raise Denied("The key in the URL is not UTF-8; no file of a table has such a name.") from None


def signed_request(bucket: Bucket, keys: AwsKeys, method: str, key: str, headers: Headers) -> SignedRequest:
    """The read of a key with its signature; S3 takes it for 15 minutes."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    # Spelt anew from the key that was looked up, so that nothing else can be read with the signature.
    uri = f"{bucket.url}/{quote(key, safe='/~')}"
    request = AWSRequest(method, uri, headers=_to_sign(headers))
    S3SigV4Auth(Credentials(keys.access_key, keys.secret_key, keys.token), "s3", bucket.region).add_auth(
        request
    )
    return SignedRequest(uri, {name: [value] for name, value in request.headers.items()})


def _to_sign(headers: Headers) -> dict[str, str]:
    return {
        name: ",".join(values)
        for name, values in headers.items()
        if name.lower().startswith("x-amz-") and name.lower() not in OF_THE_SIGNATURE
    }


KIND = "awsTempCredentials"
# As it is named where services are.
STS = "STS"
SESSION = "lakeshare"
# STS hands out nothing shorter, and roles that were not changed nothing longer.
SHORTEST_S, LONGEST_S = 900, 3600
MAX_POLICY_CHARS = 2048
PATTERNS = "*?$"
THROTTLED = {
    "Throttling",
    "ThrottlingException",
    "RequestLimitExceeded",
    "ServiceUnavailable",
    "InternalFailure",
}


class S3Vendor:
    """Issues them with the keys the server runs with."""

    def __init__(self, access: S3Access, settings: StoreSettings) -> None:
        self._access = access
        self._settings = settings

    def refusal(self, place: ParsedLocation) -> str | None:
        if self._settings.s3_role_arn is None and self._access.keys().token:
            return (
                "the server's own S3 keys are temporary, and such keys get no federation token; "
                "set LAKESHARE_S3_ROLE_ARN"
            )
        if not self._on_aws(place) and any(one in place.key for one in PATTERNS):
            return f"the store's policies take one of {PATTERNS} in the folder's name for a pattern"
        if len(self._policy(place)) > MAX_POLICY_CHARS:
            return "the folder's name is too long for a session policy"
        return None

    def vend(self, place: ParsedLocation, life_s: int, now_s: int) -> TemporaryCredentials:
        from botocore.exceptions import BotoCoreError, ClientError

        life_s = max(SHORTEST_S, min(life_s, LONGEST_S))
        bucket = self._access.bucket(place.bucket)
        endpoint = self._settings.s3_sts_endpoint or self._settings.s3_endpoint
        try:
            sts = self._access.client("sts", bucket.region, endpoint)
            handed = self._access.services.of(STS).call(
                lambda: self._asked(sts, place, life_s), (BotoCoreError,)
            )
        except ClientError as error:
            raise _refused(error.response) from None
        except BotoCoreError as error:
            raise Unavailable(f"STS does not answer ({type(error).__name__})", "Try again later.") from None
        fields = {
            "accessKeyId": handed["AccessKeyId"],
            "secretAccessKey": handed["SecretAccessKey"],
            "sessionToken": handed["SessionToken"],
        }
        return TemporaryCredentials(
            place.location, KIND, fields, int(handed["Expiration"].timestamp() * 1000)
        )

    # A client of boto3 comes without types.
    def _asked(self, sts: Any, place: ParsedLocation, life_s: int) -> Any:
        policy, role = self._policy(place), self._settings.s3_role_arn
        if role is None:
            return sts.get_federation_token(Name=SESSION, Policy=policy, DurationSeconds=life_s)[
                "Credentials"
            ]
        return sts.assume_role(RoleArn=role, RoleSessionName=SESSION, Policy=policy, DurationSeconds=life_s)[
            "Credentials"
        ]

    def _policy(self, place: ParsedLocation) -> str:
        region = self._access.bucket(place.bucket).region
        return session_policy(place.bucket, place.key, region, on_aws=self._on_aws(place))

    def _on_aws(self, place: ParsedLocation) -> bool:
        return AWS.fullmatch(self._access.bucket(place.bucket).endpoint) is not None


def session_policy(bucket: str, key: str, region: str, on_aws: bool) -> str:
    """A policy that allows to read and to list below `key`, and nothing else."""
    arn = f"arn:{_partition(region)}:s3:::{bucket}"
    below = f"{_literal(key)}/*" if key else "*"
    statements: list[dict[str, Any]] = [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"{arn}/{below}"},
        # Not the bare name: that would list its siblings' names, too.
        {
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": arn,
            "Condition": {"StringLike": {"s3:prefix": below}},
        },
    ]
    if on_aws:  # objects that are encrypted by KMS are decrypted on behalf of whoever reads them
        by_s3 = {"StringLike": {"kms:ViaService": "s3.*.amazonaws.com*"}}
        statements.append({"Effect": "Allow", "Action": "kms:Decrypt", "Resource": "*", "Condition": by_s3})
    policy = {"Version": "2012-10-17", "Statement": statements}
    return json.dumps(policy, separators=(",", ":"), ensure_ascii=False)


def _literal(key: str) -> str:
    """What policies match as patterns, as the letters they are; AWS alone has a spelling for it."""
    return "".join(f"${{{one}}}" if one in PATTERNS else one for one in key.strip("/"))


def _partition(region: str) -> str:
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


def _refused(response: dict[str, Any]) -> LakeshareError:
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status >= 500 or code in THROTTLED:
        return Unavailable(f"STS does not answer as it should ({code})", "Try again later.")
    return Unserveable(
        f"STS issues no credentials ({code}).",
        "Let the server's identity assume the role of LAKESHARE_S3_ROLE_ARN, or call sts:GetFederationToken.",
    )
