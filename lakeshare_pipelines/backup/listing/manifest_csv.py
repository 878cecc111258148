"""A manifest CSV (Bucket,Key[,VersionId], as S3 Batch Operations takes it) as a listing: the store tells the rest.

Keys are URL-encoded, there is no header. What the manifest names and the store does not have is left out, and told.
"""

import csv
import datetime as dt
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import md5
from urllib.parse import unquote_plus

import pyarrow as pa

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.listing.own_keys import own_prefixes, reached
from lakeshare_pipelines.backup.listing.telling import Tell
from lakeshare_pipelines.backup.records import ListingRecord
from lakeshare_pipelines.backup.rows import LISTING, write_rows
from lakeshare_pipelines.backup.stores import Head, StoreAddress, open_store
from lakeshare_pipelines.backup.stores.address import FOLDER
from lakeshare_pipelines.backup.workspace import Workspace
from lakeshare_pipelines.errors import BackupError

HEADS_AT_ONCE = 10
HEADS_A_BATCH = 1_000
TOLD_MISSING = 20
"""So many keys that are not there are named; the others are counted."""


@dataclass(frozen=True)
class Named:
    """One line of a manifest."""

    key: str
    version_id: str | None
    """`null` is the null version, None the current one."""


def list_manifest(backup: Backup, workspace: Workspace, now: dt.datetime, tell: Tell) -> ListingRecord:
    """Ask the source for each object of a manifest, into the workspace's folder `listing`.

    Raises:
        BackupError: a line is not one of a manifest or names another bucket, or the source has none of the objects.
    """
    location = backup.listing.location or ""
    content = _manifest(reached(backup, location))
    own = own_prefixes(backup)
    named = [
        one
        for one in named_in(content, location, backup.source.bucket)
        if one.key.startswith(backup.source.prefix) and not one.key.startswith(own)
    ]
    store, missing, size = open_store(backup.source), list[str](), 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal size
        with ThreadPoolExecutor(HEADS_AT_ONCE) as pool:
            for start in range(0, len(named), HEADS_A_BATCH):
                some = named[start : start + HEADS_A_BATCH]
                heads = list(pool.map(lambda one: store.head(one.key, one.version_id), some))
                there = [(one, head) for one, head in zip(some, heads, strict=True) if head is not None]
                missing.extend(one.key for one, head in zip(some, heads, strict=True) if head is None)
                size += sum(head.size_bytes for _, head in there)
                tell(f"asked for {min(start + HEADS_A_BATCH, len(named)):,} of {len(named):,} objects")
                yield _rows(backup.source.bucket, there)

    rows = write_rows(workspace.clear("listing"), LISTING, batches())
    if not rows:
        workspace.clear("listing")
        raise BackupError(
            location, f"{backup.source} has no object that it names", "Correct the manifest, or the source."
        )
    return ListingRecord(
        kind="manifest_csv",
        location=location,
        scan_started_at=now,
        scan_ended_at=dt.datetime.now(dt.UTC),
        manifest_md5=md5(content, usedforsecurity=False).hexdigest(),
        has_versions=any(one.version_id for one in named),
        rows=rows,
        size_bytes=size,
        warnings=_missing(location, missing),
    )


def named_in(content: bytes, location: str, bucket: str) -> list[Named]:
    """The objects that a manifest names, each once, in its order.

    Raises:
        BackupError: a line has not two or three columns, a key that is no UTF-8, or another bucket.
    """
    found: dict[Named, None] = {}
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _refusal(location, line, f"cannot be read: {error}") from error
    lines = csv.reader(io.StringIO(text, newline=""))
    try:
        for fields in lines:
            if not fields:
                continue
            if len(fields) not in (2, 3) or not fields[1]:
                raise _refusal(location, lines.line_num, f"has {len(fields)} columns, or no key")
            if fields[0] != bucket:
                raise _refusal(
                    location, lines.line_num, f"names bucket {fields[0]!r}, the source is {bucket!r}"
                )
            version = fields[2] if len(fields) == 3 else ""
            named = Named(unquote_plus(fields[1], errors="strict"), version or None)
            found[named] = None
    except (UnicodeDecodeError, csv.Error) as error:
        raise _refusal(location, lines.line_num, f"cannot be read: {error}") from error
    return list(found)


def _refusal(location: str, line: int, problem: str) -> BackupError:
    return BackupError(
        location, f"line {line} {problem}", "Each line is bucket,key or bucket,key,version, keys URL-encoded."
    )


def _manifest(address: StoreAddress) -> bytes:
    if address.kind == FOLDER:
        folder, _, name = address.url.rpartition("/")
        return open_store(address.at(folder)).read(name)
    return open_store(address.at(address.bucket)).read(address.prefix.rstrip("/"))


def _rows(bucket: str, found: list[tuple[Named, Head]]) -> pa.RecordBatch:
    newest: dict[str, Head] = {}
    for _, head in found:
        if head.key not in newest or head.last_modified > newest[head.key].last_modified:
            newest[head.key] = head
    return pa.RecordBatch.from_pylist(
        [
            {
                "bucket": bucket,
                "key": head.key,
                "version_id": None if named.version_id == "null" else named.version_id,
                "is_latest": newest[head.key] is head,
                "is_delete_marker": False,
                "size_bytes": head.size_bytes,
                "last_modified": head.last_modified,
                "etag": head.etag,
                "storage_class": head.storage_class,
                "is_multipart": "-" in head.etag,
                "encryption": head.encryption,
                "checksum_algorithm": next(iter(head.checksums), "").upper() or None,
            }
            for named, head in found
        ],
        LISTING,
    )


def _missing(location: str, missing: list[str]) -> tuple[str, ...]:
    if not missing:
        return ()
    more = f" and {len(missing) - TOLD_MISSING:,} more" if len(missing) > TOLD_MISSING else ""
    return (
        f"{location} names {len(missing):,} objects that the source does not have: "
        f"{', '.join(missing[:TOLD_MISSING])}{more}. They are left out.",
    )
