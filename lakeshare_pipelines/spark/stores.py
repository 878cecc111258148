"""How Spark, Iceberg, deltalake and pyiceberg reach the stores of the settings.

The engines have the server's endpoints. Keys of S3 and Google are not passed to Spark: its own chains of credentials
(environment, profile, web identity, role of the host) renew them during a run.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lakeshare_pipelines.contracts import SetContract, load_contract
from lakeshare_pipelines.contracts.loader import list_contract_files
from lakeshare_pipelines.contracts.sources import SourceEntry
from lakeshare_pipelines.errors import StoreError, WarehouseError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import AZURE_JARS, GCS_JARS, S3_JARS
from lakeshare_server.locations import AZURE, GCS, LOCAL, S3, azure_host
from lakeshare_server.storage import ParsedLocation, Stores, parse_location
from lakeshare_server.storage.remote import CONNECT_S, READ_TIMEOUT_S, RETRIES, RETRIES_S
from lakeshare_server.storage.sigv4 import is_aws
from lakeshare_server.storage.stores import RIGHTS

if TYPE_CHECKING:
    from lakeshare_server.storage.azure import AzureAccess
    from lakeshare_server.storage.gcs import GcsAccess

JARS: Mapping[str, tuple[str, ...]] = {S3: S3_JARS, GCS: GCS_JARS, AZURE: AZURE_JARS}
"""The jars beside Spark's own, by kind of store."""
SDK_CHAIN = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
ATTEMPTS = 5
UNUSED = ".lakeshare-probe"
"""Name of an object that nothing writes: the store refuses the request for it, or has no such object."""
NO_KEYS = re.compile(
    r"(?:Unable|Failed) to load credentials|ExpiredToken|Application Default Credentials|DefaultAzureCredential"
)
NO_BUCKET = re.compile(
    r"NoSuchBucket|bucket does not exist|UnknownStoreException|ContainerNotFound|FilesystemNotFound|"
    r"container does not exist"
)
DENIED = re.compile(
    r"(?i)\b(?:401|403)\b|AccessDenied|necessary privileges|Unauthenticated|SignatureDoesNotMatch"
)
FAILURES = (
    *("software.amazon.awssdk", "org.apache.hadoop.fs.s3a", "S3Exception", "UnknownStoreException"),
    *("com.google.cloud.storage", "com.google.cloud.hadoop", "com.google.auth"),
    *("com.azure.", "org.apache.hadoop.fs.azurebfs"),
)
"""Names in errors of Spark that are failures of a store."""
WITHOUT_OAUTH = json.dumps(
    {"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": True}
)
"""The account of Google's that deltalake sends no credentials for."""


def list_warehouses(settings: LakeSettings) -> tuple[str, ...]:
    """The warehouse of the settings, and those that servers of contracts name.

    Raises:
        ContractError: a contract is invalid.
    """
    named = [contract.warehouse for contract in _read_contracts(settings) if contract.warehouse is not None]
    return tuple(dict.fromkeys((settings.lake_root, *named)))


def list_sources(settings: LakeSettings) -> tuple[SourceEntry, ...]:
    """The sources other than landing that contracts name. Raises `ContractError`: a contract is invalid."""
    tables = (table for contract in _read_contracts(settings) for table in contract.tables)
    return tuple(table.reads for table in tables if table.reads is not None)


def _read_contracts(settings: LakeSettings) -> tuple[SetContract, ...]:
    paths = list_contract_files(settings.contracts_dir)
    return _load_contracts(tuple((path, path.stat().st_mtime_ns) for path in paths))


@lru_cache(maxsize=4)
def _load_contracts(files: tuple[tuple[Path, int], ...]) -> tuple[SetContract, ...]:
    return tuple(load_contract(path, None) for path, _ in files)


def require_reachable(stores: Stores, contract: SetContract) -> None:
    """Raises WarehouseError if the settings do not reach the warehouse that a contract's server names.

    Raises StoreDenied or Unavailable: the store refuses the credentials, has none, or does not respond.
    """
    location, wanted = contract.warehouse, contract.endpoint
    if location is None:
        return
    place, settings = stores.place(location), stores.settings
    endpoints = {S3: settings.s3_endpoint, GCS: settings.gcs_endpoint, AZURE: settings.azure_endpoint}
    found, variable = endpoints[place.kind], f"LAKESHARE_{place.kind.upper()}_ENDPOINT"
    if wanted is not None and wanted.rstrip("/") != (found or "").rstrip("/"):
        reason = f"its contract has the endpointUrl {wanted}, and {variable} is {found or 'not set'}"
        fix = f"Set {variable} to it, or correct or remove servers[0].endpointUrl in {contract.path.name}."
        raise WarehouseError(location, reason, fix)
    stores.head(f"{location}/{UNUSED}")


def list_store_jars(locations: Iterable[str]) -> tuple[str, ...]:
    """The jars that Spark needs for these locations, beside those that it always needs."""
    kinds = {parse_location(location).kind for location in locations}
    return tuple(jar for kind in JARS if kind in kinds for jar in JARS[kind])


def make_java_options(stores: Stores, location: str) -> tuple[str, ...]:
    """Options of Spark's JVMs for the store of a location: compatible stores refuse checksums that are not required."""
    place = stores.place(location)
    if place.kind != S3 or is_aws(stores.s3.bucket(place.bucket).endpoint):
        return ()
    return "-Daws.requestChecksumCalculation=WHEN_REQUIRED", "-Daws.responseChecksumValidation=WHEN_REQUIRED"


def make_hadoop_conf(stores: Stores, location: str) -> dict[str, str]:
    """Configuration of Hadoop for the bucket of a location, as options of a Spark session.

    Nothing for the local disk. S3 keeps the scheme `s3` of Iceberg and deltalake. That of Azure has the account's key,
    if the settings have one: Hadoop knows no chain of identities.
    """
    return _make(stores, location, {S3: _make_s3a_conf, GCS: _make_gcs_conf, AZURE: _make_abfs_conf})


def make_file_io_properties(stores: Stores, location: str) -> dict[str, str]:
    """Properties of an Iceberg catalog for files in the store of a location; nothing for the local disk."""
    return _make(stores, location, {S3: _make_s3_io, GCS: _make_gcs_io, AZURE: _make_azure_io})


def make_delta_options(stores: Stores, location: str) -> dict[str, str]:
    """The options of deltalake for a table's store, with the keys of now; nothing for the local disk.

    Raises:
        Unavailable: the keys are not available.
        WarehouseError: deltalake cannot use the credentials of this host.
    """
    options = _make(
        stores, location, {S3: _make_s3_options, GCS: _make_gcs_options, AZURE: _make_azure_options}
    )
    if stores.place(location).kind == LOCAL:
        return {}
    return {
        "connect_timeout": f"{CONNECT_S}s",
        "timeout": f"{READ_TIMEOUT_S}s",
        "max_retries": str(RETRIES),
        "retry_timeout": f"{RETRIES_S}s",
        **options,
    }


def make_catalog_io(stores: Stores, locations: Sequence[str]) -> dict[str, str]:
    """Properties of an Iceberg catalog for files in the stores of all locations; those of the first prevail."""
    properties: dict[str, str] = {}
    kinds = {stores.place(location).kind for location in locations}
    for location in reversed(locations):
        properties |= make_file_io_properties(stores, location)
    if len(kinds) > 1:
        properties["io-impl"] = "org.apache.iceberg.io.ResolvingFileIO"
    regions = {
        stores.s3.bucket(place.bucket).region for place in map(stores.place, locations) if place.kind == S3
    }
    return {**properties, "s3.cross-region-access-enabled": "true"} if len(regions) > 1 else properties


def make_pyiceberg_properties(stores: Stores, location: str) -> dict[str, str]:
    """Properties of a catalog of pyiceberg for files in the store of a location; nothing for the local disk."""
    return _make(stores, location, {S3: _make_s3_arrow, GCS: _make_gcs_arrow, AZURE: _make_azure_arrow})


Maker = Callable[[Stores, ParsedLocation], dict[str, str]]


def _make(stores: Stores, location: str, makers: Mapping[str, Maker]) -> dict[str, str]:
    place = stores.place(location)
    return {} if place.kind == LOCAL else makers[place.kind](stores, place)


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
    if NO_KEYS.search(text):
        reason, fix = (
            "Spark found no valid credentials of the store",
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


def _make_s3a_conf(stores: Stores, place: ParsedLocation) -> dict[str, str]:
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


def _make_s3_io(stores: Stores, place: ParsedLocation) -> dict[str, str]:
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


def _make_s3_arrow(stores: Stores, place: ParsedLocation) -> dict[str, str]:
    bucket = stores.s3.bucket(place.bucket)
    return {"s3.endpoint": bucket.endpoint, "s3.region": bucket.region}


def _gcs_endpoint(stores: Stores, place: ParsedLocation) -> str:
    return cast("GcsAccess", stores.access(place)).endpoint()


def _make_gcs_conf(stores: Stores, place: ParsedLocation) -> dict[str, str]:
    endpoint = _gcs_endpoint(stores, place)
    return {
        "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
        "fs.gs.storage.root.url": f"{endpoint}/",
        "fs.gs.auth.type": "UNAUTHENTICATED" if _is_plain(endpoint) else "APPLICATION_DEFAULT",
        # Otherwise it writes an empty object for the folder of each deleted one.
        "fs.gs.implicit.dir.repair.enable": "false",
        # Its vectored reads call a method of Hadoop 3.3, which Hadoop 3.4 has with another return type.
        "parquet.hadoop.vectored.io.enabled": "false",
        "fs.gs.http.connect-timeout": f"{CONNECT_S}s",
        "fs.gs.http.read-timeout": f"{READ_TIMEOUT_S}s",
        "fs.gs.http.max.retry": str(ATTEMPTS),
    }


def _make_gcs_io(stores: Stores, place: ParsedLocation) -> dict[str, str]:
    endpoint = _gcs_endpoint(stores, place)
    properties = {"io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO", "gcs.service.host": endpoint}
    return {**properties, "gcs.no-auth": "true"} if _is_plain(endpoint) else properties


def _make_gcs_options(stores: Stores, place: ParsedLocation) -> dict[str, str]:
    access = cast("GcsAccess", stores.access(place))
    endpoint = access.endpoint()
    options = {"google_base_url": endpoint}
    if _is_plain(endpoint):
        return {**options, "allow_http": "true", "google_service_account_key": WITHOUT_OAUTH}
    if not access.has_common_credentials:
        reason = f"Delta tables are not written with credentials of {type(access.credentials).__module__}"
        fix = "Give the key file of a service account, or run on a host with one; Iceberg takes all of Google's."
        raise WarehouseError(place.location, reason, fix)
    return options


def _make_gcs_arrow(stores: Stores, place: ParsedLocation) -> dict[str, str]:
    return {"gcs.service.host": _gcs_endpoint(stores, place)}


def _azure(stores: Stores, place: ParsedLocation) -> "tuple[AzureAccess, str, str]":
    """The access to an account, its name and the name of its host."""
    access = cast("AzureAccess", stores.access(place))
    return access, azure_host(place)[0], place.root.partition("@")[2]


def _make_abfs_conf(stores: Stores, place: ParsedLocation) -> dict[str, str]:
    access, account, host = _azure(stores, place)
    endpoint = access.endpoint(place)
    conf = {
        "fs.azure.http.connection.timeout": str(CONNECT_S * 1000),
        "fs.azure.http.read.timeout": str(READ_TIMEOUT_S * 1000),
        "fs.azure.io.retry.max.retries": str(ATTEMPTS),
    }
    scheme, _, authority = endpoint.partition("://")
    if authority.endswith(f"/{account}"):
        # Another host than the account's, which has the account in the path of URLs, and no folders.
        conf["fs.azure.abfs.endpoint"] = authority.removesuffix(f"/{account}")
        if scheme == "http":
            # The implementation of the scheme without TLS.
            conf["fs.abfss.impl"] = "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem"
            conf["fs.azure.always.use.https"] = "false"
        conf["fs.azure.account.hns.enabled"] = "false"
        conf["fs.azure.fns.account.service.type"] = "BLOB"
    if key := access.account_key(account):
        options = {"auth.type": "SharedKey", "key": key}
    elif signature := access.account_sas(account):
        conf[f"fs.azure.sas.fixed.token.{host}"] = signature.removeprefix("?")
        options = {"auth.type": "SAS"}
    else:
        options = {"auth.type": "OAuth", **_make_identity()}
    return {**conf, **{f"fs.azure.account.{name}.{host}": value for name, value in options.items()}}


def _make_identity() -> dict[str, str]:
    """The identity of the environment as Hadoop's options: a secret, a federated token, or else the host's."""
    classes = "org.apache.hadoop.fs.azurebfs.oauth2"
    names = ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE")
    client, tenant, secret, token_file = (os.environ.get(name) for name in names)
    authority = os.environ.get("AZURE_AUTHORITY_HOST", "https://login.microsoftonline.com").rstrip("/")
    given = {"oauth2.client.id": client} if client else {}
    if client and tenant and secret:
        endpoint = f"{authority}/{tenant}/oauth2/token"
        options = {"oauth2.client.secret": secret, "oauth2.client.endpoint": endpoint}
        return {"oauth.provider.type": f"{classes}.ClientCredsTokenProvider", **given, **options}
    if client and tenant and token_file:
        options = {"oauth2.msi.tenant": tenant, "oauth2.token.file": token_file}
        options["oauth2.msi.authority"] = f"{authority}/"
        return {"oauth.provider.type": f"{classes}.WorkloadIdentityTokenProvider", **given, **options}
    return {"oauth.provider.type": f"{classes}.MsiTokenProvider", **given}


def _make_azure_io(stores: Stores, place: ParsedLocation) -> dict[str, str]:
    access, account, host = _azure(stores, place)
    properties = {"io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO"}
    if (endpoint := access.endpoint(place)) != access.usual_endpoint(place):
        properties |= {f"adls.connection-string.{name}": endpoint for name in (account, host)}
    if key := access.account_key(account):
        own = {"adls.auth.shared-key.account.name": account, "adls.auth.shared-key.account.key": key}
        return properties | own
    if signature := access.account_sas(account):
        properties |= {f"adls.sas-token.{name}": signature.removeprefix("?") for name in (account, host)}
    return properties


def _make_azure_options(stores: Stores, place: ParsedLocation) -> dict[str, str]:
    access, account, _ = _azure(stores, place)
    endpoint = access.endpoint(place)
    options = {
        "azure_storage_account_name": account,
        "azure_container_name": place.bucket,
        "azure_endpoint": endpoint,
        "allow_http": _flag(_is_plain(endpoint)),
    }
    if key := access.account_key(account):
        return {**options, "azure_storage_account_key": key}
    if signature := access.account_sas(account):
        return {**options, "azure_storage_sas_token": signature.removeprefix("?")}
    return {**options, "azure_storage_token": access.token()["token"]}


def _make_azure_arrow(stores: Stores, place: ParsedLocation) -> dict[str, str]:
    access, account, host = _azure(stores, place)
    properties = {"adls.account-name": account, "adls.account-host": host.replace(".dfs.", ".blob.")}
    if (endpoint := access.endpoint(place)) != access.usual_endpoint(place):
        scheme, _, authority = endpoint.partition("://")
        for service in ("blob", "dfs"):
            properties[f"adls.{service}-storage-authority"] = authority.partition("/")[0]
            properties[f"adls.{service}-storage-scheme"] = scheme
    if key := access.account_key(account):
        properties["adls.account-key"] = key
    elif signature := access.account_sas(account):
        properties["adls.sas-token"] = signature.removeprefix("?")
    return properties


def _is_plain(endpoint: str) -> bool:
    """Whether an endpoint is without TLS: a stand-in, which gets no credentials of Google's."""
    return endpoint.startswith("http:")


def _flag(value: bool) -> str:
    return str(value).lower()
