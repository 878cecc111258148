"""Where the bytes of deletion vectors are, as a log says it (Delta's PROTOCOL.md, "Deletion Vector Descriptor")."""

import posixpath
import uuid

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.tables.arrays import column_of
from lakeshare_server.tables.locations import resolve_names
from lakeshare_server.tables.z85 import z85_bytes

UUID_CHARS = 20


def vector_paths(root: str, adds: pa.Table) -> pa.Array:
    """Absolute locations of the files that hold deletion vectors; null for inline ones and for files without.

    Raises:
        TableFilesMissing: a descriptor is not what the specification says.
    """
    storage = column_of(adds, "dv_storage")
    described = column_of(adds, "dv_path")
    if storage.null_count == len(storage):
        return pa.nulls(len(storage), pa.string())
    pairs = zip(storage.to_pylist(), described.to_pylist(), strict=True)
    names = pa.array([_name(root, kind, path) for kind, path in pairs], pa.string())
    absolute = pc.equal(storage, "p")
    return pc.if_else(absolute, resolve_names(root, pc.if_else(absolute, names, None)), names)


def require_whole(root: str, adds: pa.Table) -> None:
    """Refuse descriptors that lack what clients cannot do without.

    Raises:
        TableFilesMissing: one does.
    """
    described = pc.is_valid(adds.column("dv_storage"))
    for name in ("dv_path", "dv_size", "dv_cardinality"):
        if pc.any(pc.and_(described, pc.is_null(adds.column(name))), min_count=0).as_py():
            raise TableFilesMissing(root, "the description of a deletion vector in its log is not whole")


def _name(root: str, storage: str | None, described: str | None) -> str | None:
    if storage is None or storage == "i":
        return None
    if described is None or storage not in ("u", "p"):
        raise TableFilesMissing(root, f"a deletion vector of storage type {storage!r} has no known place")
    if storage == "p":
        return described
    prefix, encoded = described[:-UUID_CHARS], described[-UUID_CHARS:]
    try:
        name = f"deletion_vector_{uuid.UUID(bytes=z85_bytes(encoded))}.bin"
    except (KeyError, ValueError, OverflowError) as error:
        raise TableFilesMissing(root, f"a deletion vector has the unreadable name {described!r}") from error
    location = "/".join(part for part in (root.rstrip("/"), prefix, name) if part)
    # As for data files: whether a file is the table's own is told by its folded path.
    return posixpath.normpath(location) if location.startswith("/") else location
