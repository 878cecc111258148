"""Copies of a table brought to their place by a copy engine: data first, then what makes it a table."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.copy.engine import CopyEngine, CopyTask, Tell
from lakeshare_pipelines.backup.copy.thaw import ARCHIVES, Archived, thaw
from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.restore.chosen import OF_TABLE, Chosen
from lakeshare_pipelines.backup.rows import DONE, PLAN, whole_table, write_rows
from lakeshare_pipelines.backup.stores import BackupStore, Listed, StoreAddress, open_store
from lakeshare_pipelines.backup.workspace import Workspace
from lakeshare_pipelines.errors import BackupError

ASKED_AT_ONCE = 16
DAMAGED = "Restore from another point; `lakeshare backup drill` tells which ones are whole."
Row: TypeAlias = dict[str, Any]  # of HELD, with `to_bucket` and `to_key`


@dataclass(frozen=True)
class Copying:
    """One restore's copying; done again after a crash it goes on where it was."""

    backup: Backup
    choice: Chosen
    workspace: Workspace
    work_prefix: str
    engine: CopyEngine
    tell: Tell

    def bring(self, rows: pa.Table, to: StoreAddress, *, into_live_log: bool = False) -> None:
        """Bring rows (schema HELD, with `to_bucket` and `to_key`) to their places, which are empty.

        Where others may commit to the log meanwhile, its files are written only if nobody has.

        Raises:
            BackupError: a copy is missing or damaged, or its place cannot be written. What was brought stays.
        """
        stored = stored_objects(self.choice, rows)
        self._thaw(stored)
        makes_table = pc.match_substring_regex(rows["to_key"], OF_TABLE)
        for step, chosen_rows in (("data", pc.invert(makes_table)), ("table", makes_table)):
            part = rows.filter(chosen_rows)
            for number, bucket in enumerate(sorted(set(part["to_bucket"].to_pylist()))):
                mine = part.filter(pc.equal(part["to_bucket"], bucket)).to_pylist()
                if step == "table" and into_live_log:
                    self._commit(mine, to)
                    continue
                self._copy(f"{step}-{number}", mine, stored, to if bucket == to.bucket else to.at(bucket))

    def _thaw(self, stored: dict[str, Listed]) -> None:
        frozen = [
            Archived(self.choice.copies.bucket, one.key, one.version_id, one.size_bytes or 0)
            for one in archived(stored)
        ]
        if frozen:
            thaw(self.choice.copies, frozen, self.tell)

    def _copy(self, name: str, rows: list[Row], stored: dict[str, Listed], to: StoreAddress) -> None:
        plan, done = self.workspace.clear(f"plan-{name}"), self.workspace.clear(f"done-{name}")
        planned = [self._planned(row, stored[row["stored_key"]]) for row in rows]
        write_rows(plan, PLAN, [pa.Table.from_pylist(planned, PLAN)])
        task = CopyTask(
            source=self.choice.copies,
            target=to,
            plan=plan,
            done=done,
            work_prefix=f"{self.work_prefix}{name}/",
            as_of=datetime.now(UTC),
            copy_limit_bytes=self.backup.copy_limit_bytes,
            in_flight=self.backup.in_flight,
        )
        self.engine.copy(task, self.tell)
        _require_done(self.choice, rows, whole_table(done, DONE).to_pylist(), to)

    def _commit(self, rows: list[Row], to: StoreAddress) -> None:
        copies, store = open_store(self.choice.copies), open_store(to)
        for row in sorted(rows, key=lambda one: str(one["to_key"])):
            content = read_whole(self.choice, copies, row)
            if not store.put(row["to_key"], content, if_absent=True) and store.read(row["to_key"]) != content:
                raise BackupError(
                    to.location(row["to_key"]),
                    "somebody wrote it meanwhile",
                    "Run the restore again: it goes by what is there then.",
                )

    def _planned(self, row: Row, stored: Listed) -> Row:
        return {
            "bucket": self.choice.copies.bucket,
            "key": row["stored_key"],
            "version_id": stored.version_id,
            "is_latest": True,
            "is_delete_marker": False,
            "size_bytes": stored.size_bytes,
            "last_modified": stored.last_modified,
            "etag": stored.etag,
            "storage_class": stored.storage_class,
            "lane": "large" if row["size_bytes"] > self.backup.copy_limit_bytes else "small",
            "stored_key": row["to_key"],
            "table_root": row["table_root"],
            "first_point": self.choice.point.day,
        }


def read_whole(choice: Chosen, copies: BackupStore, row: Row) -> bytes:
    """The content of a copy (a row of schema HELD).

    Raises:
        BackupError: it is not there, or is not what was backed up.
    """
    content = copies.read(row["stored_key"], row["stored_version_id"])
    kind, _, digest = (row["checksum"] or "").partition(":")
    if kind == "sha256" and sha256(content).hexdigest() != digest:
        raise _damaged(choice, row, "it was changed since it was backed up")
    return content


def stored_objects(choice: Chosen, rows: pa.Table) -> dict[str, Listed]:
    """What the store of the copies says of those that rows tell of, by key.

    Raises:
        BackupError: a copy is not there any more, has another size, or is another than the point holds.
    """
    store = open_store(choice.copies)
    root = choice.table.stored_root
    # Of what belongs to no table each is asked for by itself.
    listed = {one.key: one for one in store.list(f"{root}/") if not one.is_delete_marker} if root else {}

    def found(row: Row) -> Listed:
        there = listed.get(row["stored_key"])
        if there is None or (row["stored_etag"] not in (None, there.etag) and row["stored_version_id"]):
            there = _version(store, row)
        if there is None:
            raise _damaged(choice, row, "it is not there any more")
        if there.size_bytes != row["size_bytes"]:
            raise _damaged(
                choice, row, f"it has {there.size_bytes} bytes, {row['size_bytes']} were backed up"
            )
        if row["stored_etag"] not in (None, there.etag):
            raise _damaged(choice, row, "it was changed since it was backed up")
        return there

    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        told = rows.to_pylist()
        return {row["stored_key"]: there for row, there in zip(told, pool.map(found, told), strict=True)}


def archived(stored: dict[str, Listed]) -> list[Listed]:
    """Those that have to be thawed before they can be copied."""
    return [one for one in stored.values() if one.storage_class in ARCHIVES]


def _version(store: BackupStore, row: Row) -> Listed | None:
    head = store.head(row["stored_key"], row["stored_version_id"])
    if head is None:
        return None
    return Listed(
        head.key,
        head.size_bytes,
        head.last_modified,
        head.etag,
        row["stored_version_id"],
        storage_class=head.storage_class,
    )


def _damaged(choice: Chosen, row: Row, reason: str) -> BackupError:
    return BackupError(f"the copy {choice.copies.location(row['stored_key'])}", reason, DAMAGED)


def _require_done(choice: Chosen, rows: list[Row], done: list[Row], to: StoreAddress) -> None:
    """Every row copied, with the content that was backed up where both sides know it."""
    backed_up = {row["stored_key"]: row for row in rows}
    for one in _failed(done):
        said = one["message"] or one["error_code"] or "no reason was given"
        raise BackupError(
            to.location(one["stored_key"]), f"it could not be copied there: {said}", "Run the restore again."
        )
    for one in done:
        row = backed_up[one["key"]]
        kinds = {(checksum or "").partition(":")[0] for checksum in (one["checksum"], row["checksum"])}
        if len(kinds) == 1 and one["checksum"] != row["checksum"]:
            # It was written to an empty place a moment ago, and must not pass for what was lost there.
            open_store(to).delete(one["stored_key"])
            raise _damaged(choice, row, f"its content is {one['checksum']}, {row['checksum']} was backed up")
    if len(done) != len(rows):
        raise BackupError(
            str(to), f"{len(rows) - len(done)} copies are not told of", "Run the restore again."
        )


def _failed(done: list[Row]) -> Iterator[Row]:
    return (one for one in done if one["status"] != "succeeded")
