"""Copies of a table beside what is at the place they are to go to: there, missing, or taken by something else."""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pyarrow as pa

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.restore.chosen import Chosen
from lakeshare_pipelines.backup.stores import BackupStore, Listed, StoreAddress, open_store
from lakeshare_pipelines.errors import BackupError

DAY = r"\d{4}-\d\d-\d\d(T\d{6}Z)?"
ROW = pa.schema([pa.field("to_bucket", pa.string()), pa.field("to_key", pa.string())])
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Placed:
    """Rows of HELD, with `to_bucket` and `to_key`, by what is at that place."""

    missing: pa.Table
    there: int
    differing: tuple[str, ...]
    """Locations where something else is."""
    others: tuple[str, ...]
    """Keys below the root that the point does not tell of."""


def placed(
    choice: Chosen,
    address: StoreAddress,
    root: str,
    goes: Callable[[str, str], tuple[str, str]],
) -> Placed:
    """Compare the copies of a table with the place they are to go to: `root` is the key of that place in `address`.

    `goes` gives the new bucket and key of an object of the source.

    Raises:
        BackupError: the place cannot be looked at.
    """
    rows = choice.rows.to_pylist()
    prefix = f"{root}/" if root else ""
    found = {one.key: one for one in open_store(address).list(prefix) if not one.is_delete_marker}
    missing: list[dict[str, Any]] = []
    differing: list[str] = []
    wanted: set[str] = set()
    for row in rows:
        bucket, key = goes(row["bucket"], row["key"])
        store = address if bucket == address.bucket else address.at(bucket)
        there = found.get(key) if bucket == address.bucket else _head(open_store(store), key)
        wanted.add(key)
        if there is None:
            missing.append({**row, "to_bucket": bucket, "to_key": key})
        elif not _is_same(choice, row, open_store(store), there):
            differing.append(store.location(key))
    schema = pa.schema([*choice.rows.schema, *ROW])
    others = tuple(key for key in found if key not in wanted)
    table = pa.Table.from_pylist(missing, schema)
    return Placed(table, len(rows) - len(missing) - len(differing), tuple(differing), others)


def require_outside_target(backup: Backup, to: StoreAddress) -> None:
    """Refuse a place inside the target of a backup: a sweep, a scrub and the next listing would take it for copies.

    Raises:
        BackupError: it is there.
    """
    for target in (backup.target, backup.records):
        if to.kind != target.kind or to.endpoint != target.endpoint:
            continue
        above, place = target.url.rstrip("/"), to.url.rstrip("/")
        if to.kind == "folder":
            above, place = os.path.realpath(above), os.path.realpath(place)
        if re.match(rf"{re.escape(above).replace(re.escape('{day}'), DAY)}(/|$)", place):
            raise BackupError(
                f"--to {to.url}",
                f"it is inside {target.url}, the target of backup {backup.name}",
                "Name an empty place outside of it.",
            )


def _head(store: BackupStore, key: str) -> Listed | None:
    head = store.head(key)
    return None if head is None else Listed(key, head.size_bytes, head.last_modified, head.etag)


def _is_same(choice: Chosen, row: dict[str, Any], store: BackupStore, there: Listed) -> bool:
    """By size and ETag; where only the ETag differs, by content: a copy may have got another one."""
    if there.size_bytes != row["size_bytes"]:
        return False
    if there.etag in (row["etag"], row["stored_etag"]):
        return True
    kind, _, checksum = (row["checksum"] or "").partition(":")
    digest = _digest(store, there.key)
    if kind == "sha256":
        return digest == checksum
    return digest == _digest(open_store(choice.copies), row["stored_key"], row["stored_version_id"])


def _digest(store: BackupStore, key: str, version_id: str | None = None) -> str:
    digest = sha256()
    with store.open(key, version_id) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def refuse_taken(place: str, taken: Iterable[str]) -> None:
    """Refuse a place where something is that is none of the table's.

    Raises:
        BackupError: there is something.
    """
    first = next(iter(taken), None)
    if first is not None:
        raise BackupError(
            place, f"something else is there already: {first}", "Give an empty place; nothing was written."
        )
