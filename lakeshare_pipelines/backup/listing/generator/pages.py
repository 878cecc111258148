"""One answer of ListObjectsV2 or ListObjectVersions as columns of a listing.

Fields are found by expressions over the bytes: a tree of elements costs several times as much as all the rest.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.rows import LISTING

ENDS = (b"</ListBucketResult>", b"</ListVersionsResult>")
OBJECT, VERSION, MARKER = b"<Contents>", b"<Version>", b"<DeleteMarker>"
_ENTRY = re.compile(rb"<(Contents|Version|DeleteMarker)>(.*?)</\1>", re.DOTALL)
_FIELDS = {
    "key": re.compile(rb"<Key>([^<]*)</Key>"),
    "version_id": re.compile(rb"<VersionId>([^<]*)</VersionId>"),
    "is_latest": re.compile(rb"<IsLatest>([^<]*)</IsLatest>"),
    "size_bytes": re.compile(rb"<Size>([0-9]+)</Size>"),
    "last_modified": re.compile(rb"<LastModified>([^<]*)</LastModified>"),
    # Quoted as it is, by name or by number.
    "etag": re.compile(rb'<ETag>(?:"|&quot;|&#34;)?([^<"&]*)'),
    "storage_class": re.compile(rb"<StorageClass>([^<]*)</StorageClass>"),
    "checksum_algorithm": re.compile(rb"<ChecksumAlgorithm>([^<]*)</ChecksumAlgorithm>"),
}
OF_EVERY_OBJECT = ("key", "size_bytes", "last_modified", "etag")
OF_EVERY_VERSION = (*OF_EVERY_OBJECT, "version_id", "is_latest")
OF_SOME = ("storage_class", "checksum_algorithm")
# Escapes that many keys have; the rest costs a step each.
_FREQUENT = ((b"%2F", b"/"), (b"%3D", b"="), (b"%3A", b":"), (b"+", b" "))
_PREFIX = re.compile(rb"<CommonPrefixes>\s*<Prefix>([^<]*)</Prefix>")
_NEXT = {
    "continuation-token": re.compile(rb"<NextContinuationToken>([^<]*)</NextContinuationToken>"),
    "key-marker": re.compile(rb"<NextKeyMarker>([^<]*)</NextKeyMarker>"),
    "version-id-marker": re.compile(rb"<NextVersionIdMarker>([^<]*)</NextVersionIdMarker>"),
}
Column = Sequence[bytes | None]


@dataclass(frozen=True)
class Page:
    """Columns of what one answer lists, in its order, spelt as the store spells them but for the keys.

    `next` is what the next request adds to its query; empty at the end. `prefixes` are those of a delimiter listing.
    """

    keys: list[str]
    columns: Mapping[str, Column]
    is_marker: list[bool] | None
    prefixes: list[str]
    next: Mapping[str, str]

    def rows(self, bucket: str) -> pa.RecordBatch:
        """The page as rows of schema LISTING."""
        count = len(self.keys)
        etags = _text(self.columns["etag"])
        found = {
            "bucket": pa.repeat(pa.scalar(bucket, pa.string()), count),
            "key": pa.array(self.keys, pa.string()),
            "version_id": _versions(self.columns.get("version_id"), count),
            "is_latest": _latest(self.columns.get("is_latest"), count),
            "is_delete_marker": pa.array(self.is_marker or [False] * count, pa.bool_()),
            "size_bytes": _text(self.columns["size_bytes"]).cast(pa.int64()),
            "last_modified": _text(self.columns["last_modified"]).cast(LISTING.field("last_modified").type),
            "etag": etags,
            "storage_class": _classes(self.columns["storage_class"], self.is_marker, count),
            # A listing does not tell; the ETag of what was uploaded in parts ends in their number.
            "is_multipart": pc.match_substring(etags, "-"),
            "encryption": pa.nulls(count, pa.string()),
            "checksum_algorithm": _text(self.columns["checksum_algorithm"]),
        }
        return pa.RecordBatch.from_arrays([found[name] for name in LISTING.names], schema=LISTING)


def read_page(body: bytes) -> Page:
    """Take one answer apart.

    Raises:
        ValueError: it is no listing, or not a whole one.
    """
    if not body.rstrip().endswith(ENDS):
        raise ValueError("the answer is no listing, or not a whole one")
    is_encoded = b"<EncodingType>url</EncodingType>" in body
    columns = _in_step(body) or _by_entry(body)
    kinds = None
    if MARKER in body:
        kinds = [kind == b"DeleteMarker" for kind, _ in _ENTRY.findall(body)]
    keys = _decoded([key for key in columns["key"] if key is not None], is_encoded)
    if len(keys) != len(columns["etag"]):
        raise ValueError("the answer tells of objects without a key")
    prefixes = _decoded(_PREFIX.findall(body), is_encoded)
    return Page(keys, columns, kinds, prefixes, _next(body, is_encoded))


def _next(body: bytes, is_encoded: bool) -> dict[str, str]:
    if b"<IsTruncated>true</IsTruncated>" not in body:
        return {}
    found = {name: expression.search(body) for name, expression in _NEXT.items()}
    told = {name: match[1] for name, match in found.items() if match and match[1]}
    if not told:
        raise ValueError("the answer is not the last, but does not tell how to go on")
    return {name: _decoded([value], is_encoded and name == "key-marker")[0] for name, value in told.items()}


def _in_step(body: bytes) -> dict[str, Column] | None:
    """All columns at once, when every entry has every field; None when some differ."""
    if MARKER in body:
        return None
    objects, versions = body.count(OBJECT), body.count(VERSION)
    count = objects or versions
    names = OF_EVERY_OBJECT if versions == 0 else OF_EVERY_VERSION
    columns: dict[str, Column] = {name: _FIELDS[name].findall(body) for name in names}
    for name in OF_SOME:
        # A search for what is nowhere is nearly free.
        found = _FIELDS[name].findall(body)
        columns[name] = found or [None] * count
    return columns if all(len(column) == count for column in columns.values()) else None


def _by_entry(body: bytes) -> dict[str, Column]:
    entries = [content for _, content in _ENTRY.findall(body)]
    has_versions = OBJECT not in body
    names = (*(OF_EVERY_VERSION if has_versions else OF_EVERY_OBJECT), *OF_SOME)
    return {name: [_first(_FIELDS[name], entry) for entry in entries] for name in names}


def _first(expression: re.Pattern[bytes], entry: bytes) -> bytes | None:
    found = expression.search(entry)
    return found[1] if found else None


def _decoded(spelt: Sequence[bytes], is_encoded: bool) -> list[str]:
    """Keys as they are: S3 encodes them like forms (a blank is a plus), or escapes them as XML does."""
    joined = b"\n".join(spelt)
    is_plain = b"&" not in joined and b"%0A" not in joined and b"%0a" not in joined
    if not spelt or not is_plain or joined.count(b"\n") >= len(spelt):
        return [_one(key, is_encoded) for key in spelt]
    if is_encoded and (b"%" in joined or b"+" in joined):
        for escape, plain in _FREQUENT:
            joined = joined.replace(escape, plain)
        if b"%" in joined:
            joined = unquote_to_bytes(joined)
    return joined.decode().split("\n")


def _one(spelt: bytes, is_encoded: bool) -> str:
    text = unescape(spelt.decode()) if b"&" in spelt else spelt.decode()
    return unquote_to_bytes(text.replace("+", " ")).decode() if is_encoded else text


def _text(column: Column) -> pa.Array:
    return pa.array(column, pa.binary()).cast(pa.string())


def _versions(column: Column | None, count: int) -> pa.Array:
    if column is None:
        return pa.nulls(count, pa.string())
    return _text([None if one in {b"null", b""} else one for one in column])


def _latest(column: Column | None, count: int) -> pa.Array:
    return pa.array([one == b"true" for one in column] if column else [True] * count, pa.bool_())


def _classes(column: Column, is_marker: list[bool] | None, count: int) -> pa.Array:
    """The classes told; S3 does not tell that of delete markers, and some stores tell none at all."""
    told = _text(column)
    if told.null_count == 0:
        return told
    markers = pa.array(is_marker or [False] * count, pa.bool_())
    return pc.if_else(markers, told, pc.fill_null(told, "STANDARD"))
