"""Columns of locations: files of tables, their stores, and their texts as bytes."""

import posixpath
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.locations import find_root, is_absolute, local_path

Key = TypeVar("Key")
# What only paths that are encoded, absolute or not normalised have.
NOT_PLAIN = (b"%", b":", b"//", b"/.")


def find_outside_files(location: str, files: pa.Table) -> list[str]:
    """Returns the files and deletion vectors outside of the table's own location."""
    found: list[str] = []
    for name in ("path", "dv_path"):
        if name in files.column_names:
            for paths in files.column(name).chunks:
                inside = pc.starts_with(paths, location.rstrip("/") + "/")
                # The column is searched as a whole first, which takes a fifth of the time.
                if location.startswith("/") and has_any(paths, b"/../"):
                    inside = pc.and_not(inside, pc.match_substring(paths, "/../"))
                if inside.false_count:
                    outside = paths.filter(pc.invert(inside)).to_pylist()
                    found += [path for path in outside if path is not None]
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


def resolve_names(root: str, names: pa.Array) -> pa.Array:
    """Returns absolute locations of a Delta log's files, whose names are URL-encoded and mostly relative."""
    root = root.rstrip("/") + "/"
    is_relative = pc.invert(pc.or_(pc.starts_with(names, "/"), pc.starts_with(names, ".")))
    if pc.all(is_relative, min_count=0).as_py() and not has_any(names, *NOT_PLAIN):
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
    unwanted = [character for character in (b"\\", b"\x7f", without) if character]
    return is_printable(values) and not has_any(values, *unwanted)


def has_any(values: pa.StringArray, *parts: bytes) -> bool:
    """Whether the characters of a column, all texts joined, have one of the parts."""
    text = memoryview(_characters(values)).tobytes()
    return any(part in text for part in parts)


def _characters(values: pa.StringArray) -> pa.Buffer:
    _, offsets, characters = values.buffers()
    if characters is None or not len(values):
        return pa.py_buffer(b"")
    ends = memoryview(offsets).cast("i")
    first = ends[values.offset]
    return characters.slice(first, ends[values.offset + len(values)] - first)


def texts(values: Sequence[bytes]) -> pa.StringArray:
    """Returns UTF-8 texts as a column. `pa.array` would import pandas."""
    ends = array("i", accumulate(map(len, values), initial=0))
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(values)))


def join_groups(
    rows: Mapping[Key, Sequence[int]], texts_of: Callable[[Key, Sequence[int]], pa.StringArray]
) -> pa.StringArray:
    """Returns the texts of groups of rows as one column, in the order of the row numbers."""
    parts = [texts_of(key, numbers) for key, numbers in rows.items()]
    numbers = pa.array(chain.from_iterable(rows.values()), pa.int64())
    return pa.chunked_array(parts, pa.string()).combine_chunks().take(pc.sort_indices(numbers))


def hex_texts(values: Sequence[bytes]) -> pa.StringArray:
    """Returns the hexadecimal texts of values of one length, such as digests, as a column."""
    width = 2 * len(values[0]) if values else 0
    ends = array("i", range(0, width * len(values) + 1, width) if width else [0])
    characters = b"".join(values).hex().encode()
    if len(characters) != ends[-1]:
        raise ValueError("the values have several lengths")
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(characters))
