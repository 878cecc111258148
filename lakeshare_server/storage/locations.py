"""How a location is spelt: a local one as an absolute path, any other as `scheme://root/key` of its store.

Keys are exact text: nothing here encodes, decodes or folds one. Spellings of other tools become ours.
"""

import posixpath
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import BadRequest

LOCAL, S3, GCS, AZURE = "local", "s3", "gcs", "azure"

_SCHEMES = {
    "s3": S3, "s3a": S3, "s3n": S3,
    "gs": GCS, "gcs": GCS,
    "abfss": AZURE, "abfs": AZURE, "wasbs": AZURE, "wasb": AZURE, "az": AZURE, "azure": AZURE,
}  # fmt: skip
_SPELT = {S3: "s3", GCS: "gs", AZURE: "abfss"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ROOT = re.compile(r"[A-Za-z0-9_.-]+")
_AZURE_ROOT = re.compile(r"([A-Za-z0-9$_-]+)@([A-Za-z0-9-]+)\.(?:dfs|blob)\.([A-Za-z0-9.-]+)")
_SPELLINGS = (
    "Give an absolute path, s3://bucket/key, gs://bucket/key or "
    "abfss://container@account.dfs.core.windows.net/key."
)


@dataclass(frozen=True)
class ParsedLocation:
    """A location taken apart: the kind of store, its root (`""` for the local disk) and the key below it."""

    kind: str
    root: str
    key: str

    @property
    def location(self) -> str:
        """The location in our spelling."""
        return self.key if self.kind == LOCAL else f"{self.root}/{self.key}" if self.key else self.root

    @property
    def bucket(self) -> str:
        """The bucket, or the container."""
        return self.root.partition("://")[2].partition("@")[0]


def parse_location(location: str, azure_account: str | None = None) -> ParsedLocation:
    """Take a location in any known spelling apart; `azure_account` completes one that names a container only.

    Raises:
        BadRequest: it is relative, of an unknown scheme or without a bucket.
    """
    if location.startswith("/"):
        return ParsedLocation(LOCAL, "", location)
    spelt = _SCHEME.match(location)
    if spelt is None:
        raise BadRequest("location", _redact(location), _SPELLINGS)
    scheme, rest = spelt[1].lower(), location[spelt.end() :]
    if scheme == "file":
        return ParsedLocation(LOCAL, "", "/" + rest.removeprefix("//localhost/").lstrip("/"))
    kind = _SCHEMES.get(scheme)
    if kind is None or not rest.startswith("//"):
        raise BadRequest("location", _redact(location), _SPELLINGS)
    root, _, key = rest[2:].partition("/")
    return ParsedLocation(kind, f"{_SPELT[kind]}://{_root(kind, root, location, azure_account)}", key)


def normalise_location(location: str, azure_account: str | None = None) -> str:
    """The location in our own spelling: the same object has the same text.

    Raises:
        BadRequest: it is relative, of an unknown scheme or without a bucket.
    """
    return parse_location(location, azure_account).location


def azure_host(place: ParsedLocation) -> tuple[str, str]:
    """The account of an Azure place and the domain of its cloud, `core.windows.net` for most."""
    account, _, domain = place.root.partition("@")[2].partition(".dfs.")
    return account, domain


def _root(kind: str, root: str, location: str, azure_account: str | None) -> str:
    if kind != AZURE:
        if not _ROOT.fullmatch(root):
            raise BadRequest("location", _redact(location), "It names no bucket. " + _SPELLINGS)
        return root
    if "@" not in root and azure_account:
        root = f"{root}@{azure_account}.dfs.core.windows.net"
    spelt = _AZURE_ROOT.fullmatch(root)
    if spelt is None:
        hint = "Spell it abfss://container@account.dfs.core.windows.net/key, or set LAKESHARE_AZURE_ACCOUNT."
        raise BadRequest("location", _redact(location), hint)
    return f"{spelt[1]}@{spelt[2].lower()}.dfs.{spelt[3].lower()}"


def _redact(location: str) -> str:
    """The location without what may be a password or a signature in it."""
    # Keys of AWS hold slashes, and whoever copies a signed URL may change its scheme.
    return re.sub(r"(?s)//[^@]*:.*@", "//…@", re.sub(r"(?s)\?.*", "?…", location))


NOT_PLAIN = r"[%:]|//|/\.|^[/.]"


def local_path(location: str) -> str:
    """A `file:` URI in any of its spellings, or a path, as a path; other URIs stay as they are.

    Nothing is decoded: Iceberg and Hadoop write `file:/a b` as it is.
    """
    if not location.startswith("file:"):
        return location
    return "/" + location.removeprefix("file:").lstrip("/")


def from_uri(location: str) -> str:
    """Like `local_path`, for a location in which `%20` stands for a space when it is a `file:` URI."""
    return unquote(local_path(location)) if location.startswith("file:") else location


def find_root(location: str) -> str:
    """The store a location is in: `scheme://bucket`, or nothing for the local disk."""
    if location.startswith("/"):
        return ""
    parts = urlsplit(location)
    return f"{parts.scheme}://{parts.netloc}"


def find_outside_files(location: str, files: pa.Table) -> list[str]:
    """The files and deletion vectors outside of the table's own location; nearly always there are none."""
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
    """The stores that a table and its files elsewhere are in; of those on the server's own disk, the folders."""
    return {
        find_root(location),
        *(_folder_of(path) if path.startswith("/") else find_root(path) for path in others),
    }


def is_absolute(name: str) -> bool:
    """Whether a file's name says where it is without knowing the table's root."""
    return name.startswith("/") or bool(urlsplit(name).scheme)


def resolve_names(root: str, names: pa.Array) -> pa.Array:
    """Absolute locations of a Delta log's files, whose names are URL-encoded and mostly relative; null for none."""
    root = root.rstrip("/") + "/"
    if not pc.any(pc.match_substring_regex(names, NOT_PLAIN), min_count=0).as_py():
        return pc.binary_join_element_wise(root, names, "")
    resolved = [None if name is None else _resolve(root, name) for name in names.to_pylist()]
    return pa.array(resolved, pa.string())


def _folder_of(path: str) -> str:
    """The folder that a local file is in, without those of its partitions: of these a table may have thousands."""
    folder = posixpath.dirname(posixpath.normpath(path))
    while "=" in posixpath.basename(folder):
        folder = posixpath.dirname(folder)
    return folder


def _resolve(root: str, name: str) -> str:
    decoded = unquote(name)
    if not is_absolute(name):
        decoded = root + decoded
    location = local_path(decoded)
    # A signed URL with dots in its path would be folded by clients, and its signature not match any more.
    return posixpath.normpath(location) if location.startswith("/") else location


def byte_strings(values: pa.StringArray) -> list[bytes]:
    """The UTF-8 of each text of a column without nulls."""
    _, offsets, characters = values.buffers()
    if characters is None:
        return [b""] * len(values)
    ends = memoryview(offsets).cast("i")[values.offset : values.offset + len(values) + 1].tolist()
    first = ends[0]
    text = memoryview(characters)[first : ends[-1]].tobytes()
    return [text[start - first : end - first] for start, end in pairwise(ends)]


def is_printable(values: pa.StringArray) -> bool:
    """Whether no text of a column has a character below the space: no line breaks, no tabs."""
    characters = _characters(values)
    if not len(characters):
        return True
    least = pc.min(pa.UInt8Array.from_buffers(pa.uint8(), len(characters), [None, characters])).as_py()
    return bool(least >= ord(" "))


def is_plain(values: pa.StringArray, *, without: bytes = b"") -> bool:
    """Whether no text of a column has a backslash, a control character, DEL included, or the character `without`."""
    if not is_printable(values):
        return False
    text = memoryview(_characters(values)).tobytes()
    return all(found not in text for found in (b"\\", b"\x7f", without) if found)


def _characters(values: pa.StringArray) -> pa.Buffer:
    """The UTF-8 of all texts of a column, one after the other."""
    _, offsets, characters = values.buffers()
    if characters is None:
        return pa.py_buffer(b"")
    ends = memoryview(offsets).cast("i")
    first = ends[values.offset]
    return characters.slice(first, ends[values.offset + len(values)] - first)


def texts(values: Sequence[bytes]) -> pa.StringArray:
    """UTF-8 texts as a column. `pa.array` would import pandas to ask whether a list is one of its own."""
    ends = array("i", accumulate(map(len, values), initial=0))
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(values)))


def texts_of_width(characters: bytes, width: int) -> pa.StringArray:
    """A column of ASCII texts that are all `width` characters long and stand one after the other."""
    ends = array("i", range(0, len(characters) + 1, width))
    return pa.StringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(characters))
