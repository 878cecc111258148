"""Where files are: local ones as absolute paths, others as the URI of their store."""

import posixpath
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

# What makes a name more than text to put behind the root: something to decode, fold or find elsewhere.
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


def root_of(location: str) -> str:
    """The store a location is in: `scheme://bucket`, or nothing for the local disk."""
    if location.startswith("/"):
        return ""
    parts = urlsplit(location)
    return f"{parts.scheme}://{parts.netloc}"


def elsewhere(location: str, files: pa.Table) -> list[str]:
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


def roots_of(location: str, others: Iterable[str]) -> set[str]:
    """The stores that a table and its files elsewhere are in; of those on the server's own disk, the folders."""
    return {
        root_of(location),
        *(_folder_of(path) if path.startswith("/") else root_of(path) for path in others),
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
