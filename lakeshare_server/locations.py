"""Locations: a local one is an absolute path, any other `scheme://root/key`.

Keys are exact text, never encoded, decoded or folded. Forms of other tools are normalised. Columns of locations are in
`lakeshare_server.storage.location_columns`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lakeshare_server.errors import BadRequest

LOCAL, S3, GCS, AZURE = "local", "s3", "gcs", "azure"


@dataclass(frozen=True)
class StoreKind:
    """A kind of object store: its schemes, its access (`module:class`, imported at first use) and its clients."""

    schemes: Sequence[str]  # locations are normalised to the first
    access: str
    spark_package: str  # for Spark with Iceberg
    trino_file_system: str
    pyiceberg_extra: str = ""


STORE_KINDS: Mapping[str, StoreKind] = {
    S3: StoreKind(
        ("s3", "s3a", "s3n"),
        "lakeshare_server.storage.s3:S3Access",
        "org.apache.iceberg:iceberg-aws-bundle:1.12.0",
        "s3",
    ),
    GCS: StoreKind(
        ("gs", "gcs"),
        "lakeshare_server.storage.gcs:GcsAccess",
        "org.apache.iceberg:iceberg-gcp-bundle:1.10.0",
        "gcs",
    ),
    AZURE: StoreKind(
        ("abfss", "abfs", "wasbs", "wasb", "az", "azure"),
        "lakeshare_server.storage.azure:AzureAccess",
        "org.apache.iceberg:iceberg-azure-bundle:1.10.0",
        "azure",
        "adlfs",
    ),
}

_KINDS = {scheme: kind for kind, store in STORE_KINDS.items() for scheme in store.schemes}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ROOT = re.compile(r"[A-Za-z0-9_.-]+")
_AZURE_ROOT = re.compile(r"([A-Za-z0-9$_-]+)@([A-Za-z0-9-]+)\.(?:dfs|blob)\.([A-Za-z0-9.-]+)")
_LAKES = (
    "give a folder, s3://bucket/prefix, gs://bucket/prefix or "
    "abfss://container@account.dfs.core.windows.net/prefix"
)
_SPELLINGS = (
    "Give an absolute path, s3://bucket/key, gs://bucket/key or "
    "abfss://container@account.dfs.core.windows.net/key."
)


def find_store_kind(scheme: str) -> StoreKind | None:
    """Returns the kind of store of a normalised location's scheme; None for the local disk."""
    return STORE_KINDS.get(_KINDS.get(scheme, LOCAL))


@dataclass(frozen=True)
class ParsedLocation:
    """The parts of a location: kind of store, root (`""` for the local disk) and key below it."""

    kind: str
    root: str
    key: str

    @property
    def location(self) -> str:
        return self.key if self.kind == LOCAL else f"{self.root}/{self.key}" if self.key else self.root

    @property
    def bucket(self) -> str:
        return self.root.partition("://")[2].partition("@")[0]

    @property
    def prefix(self) -> str:
        """The beginning of every key below it in a store: empty, or with a slash at its end."""
        prefix = self.key.strip("/")
        return f"{prefix}/" if prefix else ""


def parse_location(location: str, azure_account: str | None = None) -> ParsedLocation:
    """Parses a location in any known form; `azure_account` completes one that names a container only.

    Raises:
        BadRequest: it is relative, of an unknown scheme or without a bucket.
    """
    if location.startswith("/"):
        return ParsedLocation(LOCAL, "", location)
    scheme = _SCHEME.match(location)
    kind = _KINDS.get(scheme[1].lower()) if scheme else None
    rest = location[scheme.end() :] if scheme else ""
    if scheme and scheme[1].lower() == "file":
        return ParsedLocation(LOCAL, "", "/" + rest.removeprefix("//localhost/").lstrip("/"))
    if kind is None or not rest.startswith("//"):
        raise BadRequest("location", _redact(location), _SPELLINGS)
    root, _, key = rest[2:].partition("/")
    if kind == AZURE:
        if "@" not in root and azure_account:
            root = f"{root}@{azure_account}.dfs.core.windows.net"
        parts = _AZURE_ROOT.fullmatch(root)
        if parts is None:
            hint = (
                "Spell it abfss://container@account.dfs.core.windows.net/key, or set LAKESHARE_AZURE_ACCOUNT."
            )
            raise BadRequest("location", _redact(location), hint)
        root = f"{parts[1]}@{parts[2].lower()}.dfs.{parts[3].lower()}"
    elif not _ROOT.fullmatch(root):
        raise BadRequest("location", _redact(location), "It names no bucket. " + _SPELLINGS)
    return ParsedLocation(kind, f"{STORE_KINDS[kind].schemes[0]}://{root}", key)


def split_location(location: str) -> ParsedLocation:
    """Splits a location that is normalised, or would be without its placeholders; nothing is checked."""
    if location.startswith("/"):
        return ParsedLocation(LOCAL, "", location)
    scheme, _, rest = location.partition("://")
    root, _, key = rest.partition("/")
    return ParsedLocation(_KINDS[scheme], f"{scheme}://{root}", key)


def parse_lake_location(text: str) -> ParsedLocation:
    """Parses a setting that names where pipelines read or write: a folder, also relative, or a location in a store.

    Raises:
        ValueError: it is no such location.
    """
    if "://" not in text and not text.startswith("file:"):
        return ParsedLocation(LOCAL, "", str(Path(text).expanduser().resolve()))
    try:
        place = parse_location(text)
    except BadRequest as error:
        raise ValueError(f"pipelines do not use {error.value}; {_LAKES}") from None
    key = str(Path(place.key).resolve()) if place.kind == LOCAL else place.key.rstrip("/")
    return ParsedLocation(place.kind, place.root, key)


def normalise_location(location: str, azure_account: str | None = None) -> str:
    """Returns the normalised location: the same object has the same text."""
    return parse_location(location, azure_account).location


def azure_host(place: ParsedLocation) -> tuple[str, str]:
    """Returns the account of an Azure location and the domain of its cloud, such as `core.windows.net`."""
    account, _, domain = place.root.partition("@")[2].partition(".dfs.")
    return account, domain


def _redact(location: str) -> str:
    """Removes possible passwords and signatures."""
    # AWS keys may hold slashes, and a copied signed URL may have another scheme.
    return re.sub(r"(?s)//[^@]*:.*@", "//…@", re.sub(r"(?s)\?.*", "?…", location))


def local_path(location: str) -> str:
    """Returns the path of a `file:` URI; other locations stay unchanged.

    Nothing is decoded: Iceberg and Hadoop write `file:/a b` without encoding.
    """
    if not location.startswith("file:"):
        return location
    return "/" + location.removeprefix("file:").lstrip("/")


def from_uri(location: str) -> str:
    """Returns the same for an encoded location: `%20` in a `file:` URI is a space."""
    return unquote(local_path(location)) if location.startswith("file:") else location


def find_root(location: str) -> str:
    """Returns the store of a location: `scheme://bucket`, or `""` for the local disk."""
    if location.startswith("/"):
        return ""
    parts = urlsplit(location)
    return f"{parts.scheme}://{parts.netloc}"


def is_absolute(name: str) -> bool:
    return name.startswith("/") or bool(urlsplit(name).scheme)


def is_web_address(text: str) -> bool:
    """Whether a text is a URL with a host of http or https."""
    try:
        parts = urlsplit(text)
    except ValueError:  # as for https://[
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
