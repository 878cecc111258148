"""S3 and compatible stores: endpoints, keys, buckets, signed URLs and requests, temporary credentials.

boto3 provides profile, region, endpoint and the chain of credentials.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property, partial
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import httpx
from obstore.store import S3Store

from lakeshare_server.errors import (
    ODD_ANSWER,
    Denied,
    LakeshareError,
    StoreDenied,
    StoreMissing,
    Unavailable,
    Unserveable,
    shorten_value,
)
from lakeshare_server.locations import ParsedLocation
from lakeshare_server.outbound import Service, Services
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import remote, sigv4
from lakeshare_server.storage.remote import CONNECT_S, host_header

if TYPE_CHECKING:
    from obstore.store import S3Credential

ANSWER_S = 15
# Name of the service that stands for the chain of credentials, which may call STS, SSO or the host.
CREDENTIALS = "credentials of S3"
# Keys without an end are read again after this time.
KEYS_LIFE = timedelta(minutes=5)


KIND = "awsTempCredentials"
STS = "STS"
SESSION = "lakeshare"
# STS issues nothing shorter, and roles with default settings nothing longer.
SHORTEST_S, LONGEST_S = 900, 3600
MAX_POLICY_CHARS = 2048
PATTERNS = "*?$"
THROTTLED = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"}


class NoKeys(Unavailable):
    """The chain has no keys, or cannot refresh them; `detail` is its own text, which may hold secrets."""

    def __init__(self, why: str, detail: str = "") -> None:
        fix = "Give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role of the host."
        super().__init__(f"no credentials for S3 are available ({why})", fix)
        self.detail = detail


def make_session(profile: str | None = None, region: str | None = None) -> Any:
    """A session of boto3, which has no types, that reads the credentials of now. Raises NoKeys: no such profile."""
    with remote.require_extra("boto3", "s3"):
        import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from botocore.session import get_session

    timeouts = Config(connect_timeout=CONNECT_S, read_timeout=ANSWER_S, retries={"total_max_attempts": 2})
    session = get_session()
    session.register_component("data_loader", _service_models())
    # Also for the STS and SSO clients of the chain of credentials, which would wait for minutes.
    session.set_default_client_config(timeouts)
    try:
        made = boto3.Session(profile_name=profile, region_name=region, botocore_session=session)
        session.get_scoped_config()  # fails for a profile that no file has
    except BotoCoreError as error:
        raise NoKeys(str(error).rstrip(".")) from None
    return made


@cache
def _service_models() -> Any:
    """botocore's service descriptions, shared: reading them takes most of the time of making a client."""
    from botocore.loaders import create_loader

    return create_loader()


class S3Refused(LakeshareError):
    """A response of S3 or of a service beside it that is an error (S3 API reference, "Error responses").

    `code` is `403` or `404` for a response to HEAD, which has no body; `operation` is the name in the API.
    """

    def __init__(self, text: str, operation: str, code: str, message: str, status: int) -> None:
        super().__init__(text)
        self.operation, self.code, self.message, self.status = operation, code, message, status


class S3Unreachable(LakeshareError):
    """A request that boto3 could not send, or that had no whole response; `kind` is the error's name in botocore."""

    def __init__(self, text: str, kind: str, *, is_cut_off: bool) -> None:
        super().__init__(text)
        self.kind, self.is_cut_off = kind, is_cut_off


REFUSED_KEYS = {
    "InvalidAccessKeyId": "the access key is not known there",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key",
    "ExpiredToken": "the credentials have expired",
}
OTHER_REGION = "PermanentRedirect", "AuthorizationHeaderMalformed"
REASONS: Mapping[str, str] = {
    "NoSuchBucket": "there is no such bucket",
    **dict.fromkeys(("AccessDenied", "403"), "access is denied"),
    **REFUSED_KEYS,
    **dict.fromkeys(OTHER_REGION, "the bucket is in another region"),
    "SlowDown": "the store is overloaded",
}
"""What error codes mean, of errors about a bucket."""


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raises S3Refused and S3Unreachable for the errors of a boto3 client in the block."""
    from botocore import exceptions, parsers

    try:
        yield
    except exceptions.ClientError as error:
        details = error.response.get("Error", {})
        code, message = str(details.get("Code", "")), str(details.get("Message", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        raise S3Refused(str(error), error.operation_name, code, message, status) from error
    except (exceptions.BotoCoreError, parsers.ResponseParserError) as error:
        cut_off = exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError
        text, kind = str(error).rstrip("."), type(error).__name__
        raise S3Unreachable(text, kind, is_cut_off=isinstance(error, cut_off)) from error


class KeyChain:
    """The keys that the chain of credentials of a session has; thread-safe.

    Refreshing is a call of `service`, with its deadline: the chain may ask STS, SSO or the host.
    """

    def __init__(self, session: Callable[[], Any], service: Callable[[], Service]) -> None:
        self._session, self._service = session, service
        # Credentials of botocore, which has no types; None before the first use.
        self._credentials: Any = None

    def keys(self) -> sigv4.AwsKeys:
        """The current keys, as `find`; raises NoKeys also if there are none."""
        keys = self.find()
        if keys is None:
            raise NoKeys("none was found")
        return keys

    def find(self) -> sigv4.AwsKeys | None:
        """The current keys, None if there are none; those that are about to end are refreshed.

        Raises:
            NoKeys: they cannot be read or refreshed.
            Unavailable: the chain does not answer within the deadline.
        """
        credentials = self._credentials
        refresh_needed = getattr(credentials, "refresh_needed", None)
        if credentials is not None and not (refresh_needed and refresh_needed()):
            keys, ends = _freeze(credentials)
        else:
            # Loading the library does not count against the service's deadline.
            session = self._session()
            try:
                found = self._service().call(lambda: self._refresh(session))
                if found is None:
                    return None
                keys, ends = found
            except Unavailable:
                # Keys are refreshed minutes before they end: the old ones are valid until then.
                ends = _end_of(credentials)
                keys = getattr(credentials, "_frozen_credentials", None)
                if keys is None or ends is None or ends <= datetime.now(UTC):
                    raise
        ends_ms = int(ends.timestamp() * 1000) if ends else None
        return sigv4.AwsKeys(keys.access_key, keys.secret_key, keys.token, ends_ms)

    def _refresh(self, session: Any) -> tuple[Any, datetime | None] | None:
        try:
            credentials = self._credentials or session.get_credentials()
            found = _freeze(credentials) if credentials else None
        except Exception as error:  # each provider of the chain has its own errors
            raise NoKeys(type(error).__name__, str(error).rstrip(".")) from None
        self._credentials = credentials
        return found


# botocore has no types.
def _freeze(credentials: Any) -> tuple[Any, datetime | None]:
    """Returns keys and their end of the same moment: another thread may refresh them at any time."""
    before = _end_of(credentials)
    while True:
        keys, after = credentials.get_frozen_credentials(), _end_of(credentials)
        if after == before:
            return keys, after
        before = after


def _end_of(credentials: Any) -> datetime | None:
    # Only refreshable keys have an end, in this attribute alone.
    ends: datetime | None = getattr(credentials, "_expiry_time", None)
    return ends


class S3Access:
    """Access to the S3 of the settings with the server's credentials; thread-safe."""

    signs_slowly = False

    def __init__(self, settings: StoreSettings, services: Services) -> None:
        self._settings, self.services = settings, services
        self._lock = Lock()
        self._regions: dict[str, str] = {}
        self.keys = KeyChain(lambda: self._session, lambda: services.of(CREDENTIALS)).keys
        self._endpoints: dict[str, str] = {}
        self._clients: dict[tuple[object, ...], Any] = {}

    def open(self, place: ParsedLocation) -> remote.RemoteStore:
        """Opens a bucket."""
        bucket = self.bucket(place.bucket)
        self.keys()
        store = S3Store(
            bucket.name,
            endpoint=bucket.endpoint if bucket.path_style else bucket.url,
            region=bucket.region,
            virtual_hosted_style_request=not bucket.path_style,
            request_payer=self._settings.s3_request_payer,
            client_options=remote.client_options(bucket.endpoint),
            retry_config=remote.retries(),
            credential_provider=self._keys_for_obstore,
        )
        # Compatible stores with folders list by folders: "t/x" before "t-1".
        in_key_order = sigv4.is_aws(bucket.endpoint)
        service = self.services.of(place.root)
        return remote.RemoteStore(
            place.root, store, service, in_key_order, partial(self._delete_keys, bucket)
        )

    def _delete_keys(self, bucket: sigv4.Bucket, keys: Sequence[str]) -> None:
        try:
            with translate_errors():
                client = self._shared_client(bucket)
                for key in keys:
                    client.delete_object(Bucket=bucket.name, Key=key)
        except (S3Refused, S3Unreachable) as error:
            raise Unavailable(f"{bucket.url}/{keys[-1]} is not deleted: {error}", remote.LATER) from None

    def stored_sha256(self, place: ParsedLocation) -> str | None:
        """Returns the SHA-256 of an object if its writer had the store keep it (full object), in hexadecimal."""
        bucket = self.bucket(place.bucket)
        try:
            with translate_errors():
                found = self._shared_client(bucket).head_object(
                    Bucket=bucket.name, Key=place.key, ChecksumMode="ENABLED"
                )
        except (S3Refused, S3Unreachable, *ODD_ANSWER) as error:
            status = getattr(error, "status", None)
            if status in (403, 404):
                raise (StoreMissing if status == 404 else StoreDenied)(place.location) from None
            raise Unavailable(f"{place.location} cannot be described: {error}", remote.LATER) from None
        checksum = found.get("ChecksumSHA256")
        # That of an object in parts is of the digests of its parts.
        is_whole = found.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT" and "-" not in (checksum or "")
        return base64.b64decode(checksum).hex() if checksum and is_whole else None

    def bucket(self, name: str, public: bool = False) -> sigv4.Bucket:
        """Returns the address of a bucket for the server or, if `public`, for recipients."""
        region = self._settings.s3_region or self._region_of(name)
        endpoint = (self._settings.s3_public_endpoint if public else None) or self._endpoint(region)
        return sigv4.Bucket.at(name, region, endpoint, self._settings.s3_path_style)

    def _shared_client(self, bucket: sigv4.Bucket) -> Any:
        """The client for all requests to an endpoint: creating one takes milliseconds."""
        address = bucket.region, bucket.endpoint, bucket.path_style
        if address not in self._clients:
            self._clients[address] = self.client("s3", *address[:2], path_style=bucket.path_style)
        return self._clients[address]

    def client(
        self, service: str, region: str | None, endpoint: str | None = None, *, path_style: bool = False
    ) -> Any:
        """Returns a client of boto3 with the server's credentials and short timeouts."""
        session = self._session
        from botocore.config import Config

        config = Config(s3={"addressing_style": "path" if path_style else "auto"})
        with self._lock:  # a session creates one client at a time
            return session.client(service, region_name=region, endpoint_url=endpoint, config=config)

    def _endpoint(self, region: str) -> str:
        if self._settings.s3_endpoint:
            return self._settings.s3_endpoint
        # A client takes milliseconds, and every response needs the endpoint.
        known = self._endpoints.get(region)
        if known is None:
            known = self._endpoints[region] = str(self.client("s3", region).meta.endpoint_url)
        return known

    def _region_of(self, bucket: str) -> str:
        """Returns the bucket's region, which AWS publishes; other stores have one region."""
        known = self._regions.get(bucket)
        if known is None:
            usual = self._session.region_name or sigv4.DEFAULT_REGION
            endpoint = self._endpoint(usual)
            known = usual
            if sigv4.is_aws(endpoint):
                known = self.services.of(endpoint).call(lambda: read_bucket_region(endpoint, bucket))
            if known is None:  # for example a bucket that does not exist yet
                return str(usual)
            self._regions[bucket] = known
        return known

    def _keys_for_obstore(self) -> "S3Credential":
        keys = self.keys()
        refresh_at = datetime.now(UTC) + KEYS_LIFE
        ends = datetime.fromtimestamp(keys.expires_at_ms / 1000, UTC) if keys.expires_at_ms else refresh_at
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": min(ends, refresh_at),
        }

    @cached_property
    def _session(self) -> Any:
        return make_session()

    def refusal(self, place: ParsedLocation) -> str | None:
        if self._settings.s3_role_arn is None and self.keys().token:
            return (
                "the server's own S3 keys are temporary, and such keys get no federation token; "
                "set LAKESHARE_S3_ROLE_ARN"
            )
        if not self._on_aws(place) and any(sign in place.key for sign in PATTERNS):
            return f"the store's policies take one of {PATTERNS} in the folder's name for a pattern"
        if len(self._policy(place)) > MAX_POLICY_CHARS:
            return "the folder's name is too long for a session policy"
        return None

    def vend(self, place: ParsedLocation, life_s: int, now_s: int) -> remote.TemporaryCredentials:
        bucket = self.bucket(place.bucket)
        endpoint = self._settings.s3_sts_endpoint or self._settings.s3_endpoint
        role = self._settings.s3_role_arn
        options = {"Policy": self._policy(place), "DurationSeconds": max(SHORTEST_S, min(life_s, LONGEST_S))}

        def issue() -> Any:
            with translate_errors():
                if role is None:
                    return sts.get_federation_token(Name=SESSION, **options)
                return sts.assume_role(RoleArn=role, RoleSessionName=SESSION, **options)

        try:
            with translate_errors():
                sts = self.client("sts", bucket.region, endpoint)
            issued = self.services.of(STS).call(issue, (S3Unreachable,))["Credentials"]
            fields = {
                "accessKeyId": issued["AccessKeyId"],
                "secretAccessKey": issued["SecretAccessKey"],
                "sessionToken": issued["SessionToken"],
            }
            ends_ms = int(issued["Expiration"].timestamp() * 1000)
        except S3Refused as refusal:
            raise _translate_refusal(refusal) from None
        except (S3Unreachable, *ODD_ANSWER) as error:
            what = f"STS does not answer ({getattr(error, 'kind', type(error).__name__)})"
            raise Unavailable(what, "Try again later, or set LAKESHARE_S3_STS_ENDPOINT.") from None
        return remote.TemporaryCredentials(
            place.location, KIND, fields, ends_ms, iceberg_config(fields, ends_ms)
        )

    def signer(self, place: ParsedLocation, life_s: int, now_s: int) -> sigv4.UrlSigner:
        bucket = self.bucket(place.bucket, public=True)
        more = {"x-amz-request-payer": "requester"} if self._settings.s3_request_payer else {}
        if not sigv4.is_aws(bucket.endpoint):
            # Some stores keep the transfer coding `aws-chunked` of uploads as Content-Encoding, which HTTP clients
            # cannot decode; AWS removes it.
            more["response-content-encoding"] = "identity"
        return sigv4.UrlSigner.of(bucket, self.keys(), life_s, now_s, more)

    def client_config(self, place: ParsedLocation) -> Mapping[str, str]:
        bucket = self.bucket(place.bucket, public=True)
        config = {"s3.region": bucket.region, "client.region": bucket.region}
        if not sigv4.is_aws(bucket.endpoint):
            config["s3.endpoint"] = bucket.endpoint
        return config | {"s3.path-style-access": str(bucket.path_style).lower()}

    def _policy(self, place: ParsedLocation) -> str:
        region = self.bucket(place.bucket).region
        return session_policy(place.bucket, place.key, region, on_aws=self._on_aws(place))

    def _on_aws(self, place: ParsedLocation) -> bool:
        return sigv4.is_aws(self.bucket(place.bucket).endpoint)


def iceberg_config(fields: Mapping[str, str], ends_ms: int) -> Mapping[str, str]:
    """Returns the properties by which an Iceberg client takes temporary credentials."""
    return {
        "s3.access-key-id": fields["accessKeyId"],
        "s3.secret-access-key": fields["secretAccessKey"],
        "s3.session-token": fields["sessionToken"],
        "s3.session-token-expires-at-ms": str(ends_ms),
    }


def read_bucket_region(endpoint: str, bucket: str) -> str | None:
    """Returns the region that an AWS endpoint names in any response about a bucket."""
    try:
        answer = httpx.head(f"{endpoint}/{bucket}", timeout=CONNECT_S)
    except httpx.HTTPError as error:
        raise _no_region(bucket, type(error).__name__) from None
    region: str | None = answer.headers.get("x-amz-bucket-region")
    if region is None and answer.status_code >= 500:
        raise _no_region(bucket, f"status {answer.status_code}")
    return region


def _no_region(bucket: str, why: str) -> Unavailable:
    what = f"AWS does not return the region of the bucket {bucket} ({why})"
    return Unavailable(what, "Try again later, or set LAKESHARE_S3_REGION.")


METHODS = ("GET", "HEAD")
# Queries that clients add to name the operation, without effect on the response.
CALLS = ("", "x-id=GetObject", "x-id=HeadObject")
# Headers of a signature, by their names in lower case; those of the client's own signature are replaced.
OF_THE_SIGNATURE = {
    name.lower(): name
    for name in ("Authorization", "X-Amz-Date", "X-Amz-Content-SHA256", "X-Amz-Security-Token")
}

Headers = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class SignedRequest:
    uri: str
    headers: dict[str, list[str]]


def read_key(bucket: sigv4.Bucket, method: str, uri: str) -> str:
    """Returns the key that a request reads from a bucket."""
    address, _, query = uri.partition("?")
    if method not in METHODS or query not in CALLS:
        reason = f"Only plain reads of a table's files are signed, this is none: {shorten_value(method)}."
        raise Denied(reason)
    before = f"{bucket.url}/"
    if not address.startswith(before):
        raise Denied(
            f"Requests are signed for {before}… only. Take endpoint and addressing from the table's config."
        )
    try:
        return unquote(address.removeprefix(before), errors="strict")
    except UnicodeDecodeError:
        raise Denied("The key in the URL is not UTF-8; no file of a table has such a name.") from None


def signed_request(
    bucket: sigv4.Bucket, keys: sigv4.AwsKeys, method: str, key: str, headers: Headers
) -> SignedRequest:
    """Signs the read of a key; S3 accepts it for 15 minutes."""
    # Encoded from the checked key, so that nothing else can be read with the signature.
    url = f"{bucket.url}/{sigv4.quote_path(key)}"
    given = {name.lower(): name for name in headers if name.lower().startswith("x-amz-")}
    names = given | OF_THE_SIGNATURE
    to_sign = {
        lowered: ",".join(headers[name]) for lowered, name in given.items() if lowered not in OF_THE_SIGNATURE
    }
    host, path = host_header(url), urlsplit(url).path
    signed = sigv4.RequestSigner(bucket.region).sign(keys, method, host, path, "", to_sign)
    del signed["host"]
    return SignedRequest(url, {names[lowered]: [value] for lowered, value in signed.items()})


def make_bucket_arn(bucket: str, region: str | None) -> str:
    """Returns the ARN of a bucket; its partition depends on the region."""
    partitions = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
    found = (name for start, name in partitions.items() if (region or "").startswith(start))
    return f"arn:{next(found, 'aws')}:s3:::{bucket}"


def session_policy(bucket: str, key: str, region: str, on_aws: bool) -> str:
    """Returns a policy that permits reading and listing below `key` only."""
    arn = make_bucket_arn(bucket, region)
    # Wildcards of policies are escaped, as AWS alone supports.
    literal = "".join(f"${{{sign}}}" if sign in PATTERNS else sign for sign in key.strip("/"))
    below = f"{literal}/*" if key else "*"
    statements: list[dict[str, Any]] = [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"{arn}/{below}"},
        # With the slash, so that names of siblings are not listed.
        {
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": arn,
            "Condition": {"StringLike": {"s3:prefix": below}},
        },
    ]
    if on_aws:  # KMS decrypts objects on behalf of their reader
        by_s3 = {"StringLike": {"kms:ViaService": "s3.*.amazonaws.com*"}}
        statements.append({"Effect": "Allow", "Action": "kms:Decrypt", "Resource": "*", "Condition": by_s3})
    policy = {"Version": "2012-10-17", "Statement": statements}
    return json.dumps(policy, separators=(",", ":"), ensure_ascii=False)


def _translate_refusal(refusal: S3Refused) -> LakeshareError:
    if refusal.status >= 500 or refusal.code in THROTTLED:
        return Unavailable(f"STS does not answer as it should ({refusal.code})", "Try again later.")
    return Unserveable(
        f"STS issues no credentials ({refusal.code}).",
        "Let the server's identity assume the role of LAKESHARE_S3_ROLE_ARN, or call sts:GetFederationToken.",
    )
