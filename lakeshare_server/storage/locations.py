"""Locations: a local one is an absolute path, any other `scheme://root/key`.

Keys are exact text, never encoded, decoded or folded. Forms of other tools are normalised.
"""

import posixpath
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

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
        "org.apache.iceberg:iceberg-gcp-bundle:1.12.0",
        "gcs",
    ),
    AZURE: StoreKind(
        ("abfss", "abfs", "wasbs", "wasb", "az", "azure"),
        "lakeshare_server.storage.azure:AzureAccess",
        "org.apache.iceberg:iceberg-azure-bundle:1.12.0",
        "azure",
        "adlfs",
    ),
}

_KINDS = {scheme: kind for kind, store in STORE_KINDS.items() for scheme in store.schemes}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ROOT = re.compile(r"[A-Za-z0-9_.-]+")
_AZURE_ROOT = re.compile(r"([A-Za-z0-9$_-]+)@([A-Za-z0-9-]+)\.(?:dfs|blob)\.([A-Za-z0-9.-]+)")
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


NOT_PLAIN = r"[%:]|//|/\.|^[/.]"


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


def find_outside_files(location: str, files: pa.Table) -> list[str]:
    """Returns the files and deletion vectors outside of the table's own location."""
    found: list[str] = []
    for name in ("path", "dv_path"):
        if name in files.column_names:
            paths = files.column(name)
            inside = pc.starts_with(paths, location.rstrip("/") + "/")
            if location.startswith("/"):
                inside = pc.and_not(inside, pc.match_substring(paths, "/../"))
            found += [path for path in paths.filter(pc.invert(inside)).to_pylist() if path is not None]
    return found


def find_roots(location: str, others: Iterable[str]) -> set[str]:
    """Returns the stores of a table and its outside files; of files on the local disk, the folders."""
    roots = {find_root(location)}
    for path in others:
        if not path.startswith("/"):
            roots.add(find_root(path))
            continue
        # Without the folders of partitions, of which a table may have thousands.
        folder = posixpath.dirname(posixpath.normpath(path))
        while "=" in posixpath.basename(folder):
            folder = posixpath.dirname(folder)
        roots.add(folder)
    return roots


def is_absolute(name: str) -> bool:
    return name.startswith("/") or bool(urlsplit(name).scheme)


def resolve_names(root: str, names: pa.Array) -> pa.Array:
    """Returns absolute locations of a Delta log's files, whose names are URL-encoded and mostly relative."""
    root = root.rstrip("/") + "/"
    if not pc.any(pc.match_substring_regex(names, NOT_PLAIN), min_count=0).as_py():
        return pc.binary_join_element_wise(root, names, "")
    resolved: list[str | None] = []
    for name in names.to_pylist():
        if name is None:
            resolved.append(None)
            continue
        location = local_path(unquote(name) if is_absolute(name) else root + unquote(name))
        # Clients fold dots in a signed URL's path, which invalidates its signature.
        resolved.append(posixpath.normpath(location) if location.startswith("/") else location)
    return pa.array(resolved, pa.string())


def byte_strings(values: pa.StringArray) -> list[bytes]:
    """Returns the UTF-8 of each text of a column without nulls."""
    _, offsets, characters = values.buffers()
    if characters is None:
        return [b""] * len(values)
    ends = memoryview(offsets).cast("i")[values.offset : values.offset + len(values) + 1].tolist()
    first = ends[0]
    text = memoryview(characters)[first : ends[-1]].tobytes()
    return [text[start - first : end - first] for start, end in pairwise(ends)]


def is_printable(values: pa.StringArray) -> bool:
    """Whether no text of a column has a control character below the space."""
    characters = _characters(values)
    if not len(characters):
        return True
    least = pc.min(pa.UInt8Array.from_buffers(pa.uint8(), len(characters), [None, characters])).as_py()
    return bool(least >= ord(" "))


def is_plain(values: pa.StringArray, *, without: bytes = b"") -> bool:
    """Whether no text of a column has a backslash, a control character (with DEL) or the character `without`."""
    if not is_printable(values):
        return False
    text = memoryview(_characters(values)).tobytes()
    return all(character not in text for character in (b"\\", b"\x7f", without) if character)


def _characters(values: pa.StringArray) -> pa.Buffer:
    _, offsets, characters = values.buffers()
    if characters is None:
        return pa.py_buffer(b"")
    ends = memoryview(offsets).cast("i")
    first = ends[values.offset]
    return characters.slice(first, ends[values.offset + len(values)] - first)


def texts(values: Sequence[bytes]) -> pa.StringArray:
    """Returns UTF-8 texts as a column. `pa.array` would import pandas."""
    ends = array("i", accumulate(map(len, values), initial=0))
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(values)))


def texts_of_width(characters: bytes, width: int) -> pa.StringArray:
    """Returns a column of ASCII texts of `width` characters each."""
    ends = array("i", range(0, len(characters) + 1, width))
    return pa.StringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(characters))
