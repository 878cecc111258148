"""How Spark, Iceberg and deltalake reach the stores of the settings.

The engines have the server's endpoints. Keys of S3 and Google are not passed to Spark: its own chains of credentials
(environment, profile, web identity, role of the host) renew them during a run.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from lakeshare_pipelines.errors import StoreError, WarehouseError
from lakeshare_pipelines.spark.jars import S3_JARS
from lakeshare_server.locations import LOCAL, S3
from lakeshare_server.storage import ParsedLocation, Stores, parse_location
from lakeshare_server.storage.probing import RIGHTS
from lakeshare_server.storage.remote import CONNECT_S, READ_TIMEOUT_S, RETRIES, RETRIES_S
from lakeshare_server.storage.sigv4 import is_aws

JARS: Mapping[str, tuple[str, ...]] = {S3: S3_JARS}
"""The jars beside Spark's own, by kind of store."""
SDK_CHAIN = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
ATTEMPTS = 5
NO_KEYS = "Unable to load credentials"
NO_BUCKET = re.compile(r"NoSuchBucket|bucket does not exist|UnknownStoreException")
DENIED = re.compile(
    r"(?i)\b(?:401|403)\b|AccessDenied|necessary privileges|Unauthenticated|SignatureDoesNotMatch"
)


def list_store_jars(locations: Iterable[str]) -> tuple[str, ...]:
    """The jars that Spark needs for these locations, beside those that it always needs."""
    kinds = {parse_location(location).kind for location in locations}
    return tuple(jar for kind in JARS if kind in kinds for jar in JARS[kind])


def make_java_options(stores: Stores, location: str) -> tuple[str, ...]:
    """Options of Spark's JVMs for the store of a location: compatible stores refuse checksums that are not required."""
    place = stores.place(location)
    if place.kind == LOCAL or is_aws(stores.s3.bucket(place.bucket).endpoint):
        return ()
    return "-Daws.requestChecksumCalculation=WHEN_REQUIRED", "-Daws.responseChecksumValidation=WHEN_REQUIRED"


def make_hadoop_conf(stores: Stores, location: str) -> dict[str, str]:
    """Configuration of Hadoop for the bucket of a location, as options of a Spark session.

    Nothing for the local disk. S3 keeps the scheme `s3` of Iceberg and deltalake.
    """
    place = stores.place(location)
    if place.kind == LOCAL:
        return {}
    bucket = stores.s3.bucket(place.bucket)
    options = {
        "endpoint": bucket.endpoint,
        "endpoint.region": bucket.region,
        "path.style.access": _flag(bucket.path_style),
        "requester.pays.enabled": _flag(stores.settings.s3_request_payer),
        "aws.credentials.provider": SDK_CHAIN,
        "connection.establish.timeout": f"{CONNECT_S}s",
        "connection.timeout": f"{READ_TIMEOUT_S}s",
        "attempts.maximum": str(ATTEMPTS),
        "retry.limit": str(ATTEMPTS),
    }
    conf = {f"fs.s3a.bucket.{bucket.name}.{name}": value for name, value in options.items()}
    return {"fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem", **conf}


def make_file_io_properties(stores: Stores, location: str) -> dict[str, str]:
    """Properties of an Iceberg catalog for files in the store of a location; nothing for the local disk."""
    place = stores.place(location)
    if place.kind == LOCAL:
        return {}
    bucket = stores.s3.bucket(place.bucket)
    return {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "client.region": bucket.region,
        "s3.endpoint": bucket.endpoint,
        "s3.path-style-access": _flag(bucket.path_style),
        "s3.chunked-encoding-enabled": _flag(is_aws(bucket.endpoint)),
        "s3.retry.num-retries": str(ATTEMPTS),
        "http-client.apache.connection-timeout-ms": str(CONNECT_S * 1000),
        "http-client.apache.socket-timeout-ms": str(READ_TIMEOUT_S * 1000),
    }


def make_delta_options(stores: Stores, location: str) -> dict[str, str]:
    """The options of deltalake for a table's store, with the keys of now; nothing for the local disk.

    Raises:
        Unavailable: the keys are not available.
    """
    place = stores.place(location)
    if place.kind == LOCAL:
        return {}
    limits = {
        "connect_timeout": f"{CONNECT_S}s",
        "timeout": f"{READ_TIMEOUT_S}s",
        "max_retries": str(RETRIES),
        "retry_timeout": f"{RETRIES_S}s",
    }
    return {**limits, **_make_s3_options(stores, place)}


@contextmanager
def translate_delta_errors(location: str) -> Iterator[None]:
    """Raises WarehouseError for what deltalake raises about the store of a location; other errors pass."""
    try:
        yield
    except OSError as error:
        if location.startswith("/"):
            raise
        raise make_warehouse_error(location, str(error)) from error


def make_warehouse_error(location: str, text: str) -> WarehouseError:
    """The error for a failure of a store that an engine describes in `text`."""
    if NO_BUCKET.search(text):
        return WarehouseError(
            location, "its bucket does not exist", "Create it, or correct LAKESHARE_WAREHOUSE."
        )
    if NO_KEYS in text:
        reason, fix = (
            "Spark found no credentials of the store",
            "Give the hosts of driver and executors a role or keys.",
        )
        return WarehouseError(location, reason, fix)
    if DENIED.search(text):
        fix = f"Allow the credentials of this host to read, write, list and delete there ({RIGHTS})."
        return WarehouseError(location, "the store refuses the request", fix)
    fix = "Run again when it answers, which also completes what was begun; `lakeshare doctor` checks it."
    return WarehouseError(location, "the store does not answer", fix)


def make_landing_error(location: str, text: str) -> StoreError:
    """The same for the store of deliveries, which Spark reads."""
    fix = "Nothing was published. Let the hosts of driver and executors read there, and run again when it answers."
    return StoreError(location, make_warehouse_error(location, text).reason, fix)


def _make_s3_options(stores: Stores, place: ParsedLocation) -> dict[str, str]:
    bucket, keys = stores.s3.bucket(place.bucket), stores.s3.keys()
    return {
        "aws_endpoint_url": bucket.endpoint if bucket.path_style else bucket.url,
        "aws_region": bucket.region,
        "aws_virtual_hosted_style_request": _flag(not bucket.path_style),
        "aws_allow_http": _flag(bucket.endpoint.startswith("http:")),
        "aws_request_payer": _flag(stores.settings.s3_request_payer),
        # Of two commits of one version, the store takes the first.
        "aws_conditional_put": "etag",
        "aws_access_key_id": keys.access_key,
        "aws_secret_access_key": keys.secret_key,
        **({"aws_session_token": keys.token} if keys.token else {}),
    }


def _flag(value: bool) -> str:
    return str(value).lower()
