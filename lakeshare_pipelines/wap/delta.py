"""Delta without branches: a run's own table under `_staged/` is the staging place, one commit publishes its files.

That commit adds the staged files where they lie, removes what they replace and carries the run in `txn` and in
its commit info. It is never retried blindly: a commit in between is a conflict.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.errors import BranchMoved, Conflict, NotAudited
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.serveable import ClientMatrix, compute_delta_matrix
from lakeshare_pipelines.wap.stage import (
    PROPERTY,
    IsInLedger,
    Landed,
    commit_properties,
    get_landed_run,
    parse_commit_properties,
)
from lakeshare_pipelines.wap.staged import WHOLE, Lake, Staged
from lakeshare_server.tables import Stores

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, CommitProperties
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

STAGED_FOLDER = "_staged"
PUBLISHED = "_PUBLISHED"
"""Marks a staging place whose files are a table's by now, for when the log has forgotten which commit it was."""
REVERTED_PROPERTY = PROPERTY + "taken-back"
"""What a commit says that undoes the one of a staging place, by the place's name."""
ABSENT = -1
FIRST_COMMITS = 20
# Commits are timed by whoever wrote them.
CLOCK_SLACK_MS = 24 * 3600 * 1000


class DeltaStaging:
    """Tables of a set, each with a staging table of the run below it."""

    def __init__(self, lake: Lake, contract: SetContract) -> None:
        self.lake, self.contract = lake, contract
        self.tables = {table.name: table for table in contract.tables}

    def open(self, ref: str) -> str:
        self.discard(ref)
        return json.dumps({name: self._version(name) for name in self.tables}, sort_keys=True)

    def write(
        self,
        ref: str,
        table: Table,
        frame: "DataFrame",
        partitions: Sequence[str],
        properties: Mapping[str, str],
    ) -> None:
        metadata = json.dumps({PROPERTY + name: value for name, value in properties.items()})
        # Views alone are written twice: when their table was repaired on the staging place.
        mode = "error" if table.view is None else "overwrite"
        writer = frame.write.format("delta").mode(mode).option("userMetadata", metadata)
        columns = [column for column, _ in table.partition_by]
        if columns:
            writer = writer.partitionBy(*columns)
        writer.save(str(self._staged(table.name, ref)))

    def make_serveable(self, ref: str, table: Table) -> tuple[str, ...]:
        # Staged files have nothing to rewrite, and those of main are not on the staging place: see docs/adr/0017.
        return ()

    def clients(self, staged: Staged, table: Table) -> ClientMatrix:
        version = json.loads(staged.base)[table.name]
        return compute_delta_matrix(
            Stores(self.lake.settings),
            self._staged(table.name, staged.ref),
            self.location(table.name),
            None if version == ABSENT else version,
            get_replaced_column(staged, table),
            staged.partitions,
        )

    def seal(self, ref: str) -> str:
        digest = hashlib.sha256()
        for name in sorted(self.tables):
            digest.update(name.encode())
            for line in sorted(json.dumps(add, sort_keys=True) for add in self._staged_adds(name, ref)):
                digest.update(line.encode())
        return digest.hexdigest()

    def rows_of_run(self, staged: Staged, table: Table) -> "DataFrame":
        return self.lake.spark.read.format("delta").load(str(self._staged(table.name, staged.ref)))

    def count_written(self, staged: Staged, table: Table) -> int:
        return self.rows_of_run(staged, table).count()

    def table_after(self, staged: Staged, table: Table) -> "DataFrame":
        from pyspark.sql import functions as F

        rows = self.rows_of_run(staged, table)
        before = self.on_main(staged, table)
        column = get_replaced_column(staged, table)
        if before is None or column is None:
            return rows
        unchanged = before.where(~F.col(column).cast("string").isin(list(staged.partitions)))
        return unchanged.unionByName(rows, allowMissingColumns=True)

    def on_main(self, staged: Staged, table: Table) -> "DataFrame | None":
        version = json.loads(staged.base)[table.name]
        if version == ABSENT:
            return None
        path = str(self.location(table.name))
        return self.lake.spark.read.format("delta").option("versionAsOf", version).load(path)

    def definition(self, staged: Staged, table: Table) -> str | None:
        base = json.loads(staged.base)[table.name]
        # Not in the table's own properties: recipients are told those.
        commits = self._standing_commits(table.name)
        records = (
            parse_commit_properties(info)[0] for version, info in commits if _is_run(version, info, base)
        )
        origin = staged if base == ABSENT else next(records, None)
        record = None if origin is None else origin.find_table(table.name)
        return None if record is None else record.view

    def land(self, staged: Staged, evidence: Mapping[str, object]) -> Landed:
        found = self.seal(staged.ref)
        if found != staged.head:
            raise BranchMoved(staged.ref, staged.head, found)
        base = json.loads(staged.base)
        mine = {name: self._landed_at(name, staged.ref, base[name]) for name in self.tables}
        changed = [name for name in self.tables if mine[name] is None and self._version(name) != base[name]]
        if changed:
            raise Conflict(changed, staged.base, json.dumps({name: self._version(name) for name in changed}))
        for name, version in mine.items():
            if version is None:
                mine[name] = self._commit(self.tables[name], staged, evidence, base[name])
        return Landed(staged, evidence, None, {name: v for name, v in mine.items() if v is not None})

    def find_incomplete(self, is_known: IsInLedger) -> list[Landed]:
        found: dict[str, Mapping[str, Any]] = {}
        for name in self.tables:
            for _, info in self._standing_commits(name):
                run = get_landed_run(info, self.contract.name)
                if run is None:
                    continue
                if is_known(run):
                    break
                found.setdefault(run, info)
        oldest_first = sorted(found.values(), key=lambda info: info["timestamp"])
        landed = (self._completed(*parse_commit_properties(info)) for info in oldest_first)
        return [one for one in landed if one is not None]

    def _completed(self, staged: Staged, evidence: Mapping[str, object]) -> Landed | None:
        """A set that a crash let land in part, landed whole; None when that is impossible and it was taken back."""
        try:
            return self.land(staged, evidence)
        except (Conflict, BranchMoved) as obstacle:
            base = json.loads(staged.base)
            mine = {name: self._landed_at(name, staged.ref, base[name]) for name in self.tables}
            if None not in mine.values():
                raise
            log.warning(
                "%s landed in part and cannot be completed: %s It is taken back; run the partition again, or "
                "`lakeshare wap retry`.",
                staged.title,
                obstacle,
            )
        for name, version in mine.items():
            if version is not None:
                self._take_back(name, staged.ref, version, base[name])
        return None

    def _take_back(self, name: str, ref: str, version: int, base: int) -> None:
        """Undo the commit of a staging place. What somebody wrote on top of it stays, and so do its rows then."""
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import CommitProperties

        table = DeltaTable(self.location(name))
        note = CommitProperties(custom_metadata={REVERTED_PROPERTY: ref}, max_commit_retries=0)
        try:
            if table.version() != version:
                columns = [column for column, _ in self.tables[name].partition_by]
                table.create_write_transaction([], "append", table.schema(), columns, commit_properties=note)
            elif base == ABSENT:
                table.delete(commit_properties=note)
            else:
                table.restore(base, commit_properties=note)
        except CommitFailedError as error:
            raise Conflict([name], str(version), str(self._version(name))) from error
        # The history of the table names these files.
        (self._staged(name, ref) / PUBLISHED).touch()

    def list_unpublished(self) -> list[tuple[str, datetime]]:
        commits = (info for name in self.tables for _, info in self._standing_commits(name))
        landed = {info.get(PROPERTY + "ref") for info in commits}
        since: dict[str, float] = {}
        for name in self.tables:
            folder = self.location(name) / STAGED_FOLDER
            for place in folder.iterdir() if folder.is_dir() else ():
                if place.name not in landed and not (place / PUBLISHED).exists():
                    since[place.name] = max(since.get(place.name, 0.0), place.stat().st_mtime)
        return [(ref, datetime.fromtimestamp(at, UTC)) for ref, at in since.items()]

    def discard(self, ref: str) -> None:
        unpublished = [name for name in self.tables if not (self._staged(name, ref) / PUBLISHED).exists()]
        places = [place for name in unpublished if (place := self._staged(name, ref)).exists()]
        if not places:
            return
        landed = [self._has_landed(name, ref) for name in unpublished]
        if all(landed):
            for place in places:
                (place / PUBLISHED).touch()
        elif not any(landed):
            for place in places:
                shutil.rmtree(place)
        # Else a crash came between two tables' commits: the repair still needs the places of the others.

    def location(self, name: str) -> Path:
        """Root folder of a table."""
        return table_location(self.lake.settings, self.tables[name])

    def commits(self, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """`(version, commit info)` of a table, newest first, read as far back as they are asked for."""
        table = self._open(name)
        wanted, seen = FIRST_COMMITS, 0
        while table is not None:
            infos = table.history(limit=wanted)
            for info in infos[seen:]:
                yield info["version"], info
            if len(infos) < wanted:
                return
            wanted, seen = wanted * 10, len(infos)

    def _standing_commits(self, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """`commits` without those of staging places that were taken back."""
        taken_back: set[str] = set()
        for version, info in self.commits(name):
            if REVERTED_PROPERTY in info:
                taken_back.add(info[REVERTED_PROPERTY])
            if info.get(PROPERTY + "ref") not in taken_back:
                yield version, info

    def _commit(self, table: Table, staged: Staged, evidence: Mapping[str, object], base: int) -> int:
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import create_table_with_add_actions

        schema = DeltaTable(self._staged(table.name, staged.ref)).schema()
        adds = list(self._add_actions(table.name, staged.ref))
        columns = [column for column, _ in table.partition_by]
        try:
            if base == ABSENT:
                create_table_with_add_actions(
                    str(self.location(table.name)),
                    schema,
                    adds,
                    mode="error",
                    partition_by=columns,
                    name=table.name,
                    description=table.description,
                    commit_properties=self._properties(staged, evidence, ordinal=1),
                )
                return 0
            main = DeltaTable(self.location(table.name), version=base)
            ordinal = (main.transaction_version(staged.set_name) or 0) + 1
            main.create_write_transaction(
                [*adds],
                "overwrite",
                schema,
                columns,
                partition_filters=self._filter(staged, table),
                commit_properties=self._properties(staged, evidence, ordinal),
            )
        except CommitFailedError as error:
            raise Conflict([table.name], str(base), str(self._version(table.name))) from error
        except DeltaError as error:
            if base == ABSENT and self._version(table.name) != ABSENT:
                raise Conflict([table.name], "no table", str(self._version(table.name))) from error
            raise
        return base + 1

    def _properties(self, staged: Staged, evidence: Mapping[str, object], ordinal: int) -> "CommitProperties":
        from deltalake.transaction import CommitProperties, Transaction

        return CommitProperties(
            custom_metadata=commit_properties(staged, evidence),
            app_transactions=[Transaction(staged.set_name, ordinal)],
            max_commit_retries=0,
        )

    def _filter(self, staged: Staged, table: Table) -> "list[tuple[str, str, Any]] | None":
        column = get_replaced_column(staged, table)
        return None if column is None else [(column, "in", list(staged.partitions))]

    def _add_actions(self, name: str, ref: str) -> "Iterator[AddAction]":
        from deltalake.transaction import AddAction

        for add in self._staged_adds(name, ref):
            if "deletionVector" in add:
                raise NotAudited(
                    ref, f"{name} was changed there with deletion vectors; run the partition again"
                )
            yield AddAction(
                # The log holds the path percent-encoded; AddAction encodes what it is given.
                f"{STAGED_FOLDER}/{ref}/{unquote(add['path'])}",
                add["size"],
                add["partitionValues"],
                add["modificationTime"],
                True,
                add.get("stats") or "{}",
            )

    def _staged_adds(self, name: str, ref: str) -> list[dict[str, Any]]:
        """The live `add` entries of a staging table, as its log has them, whoever wrote to it since."""
        adds: dict[str, dict[str, Any]] = {}
        for commit in sorted((self._staged(name, ref) / "_delta_log").glob("[0-9]*.json")):
            for line in commit.read_text(encoding="utf-8").splitlines():
                action = json.loads(line)
                if "remove" in action:
                    adds.pop(action["remove"]["path"], None)
                if "add" in action:
                    adds[action["add"]["path"]] = action["add"]
        return list(adds.values())

    def _staged(self, name: str, ref: str) -> Path:
        return self.location(name) / STAGED_FOLDER / ref

    def _open(self, name: str) -> "DeltaTable | None":
        from deltalake import DeltaTable

        path = self.location(name)
        # `_staged/` makes the folder exist before the table does.
        return DeltaTable(path) if DeltaTable.is_deltatable(str(path)) else None

    def _version(self, name: str) -> int:
        table = self._open(name)
        return ABSENT if table is None else table.version()

    def _landed_at(self, name: str, ref: str, after: int) -> int | None:
        """The version above `after` that a staging place landed with; None when it has not, or was taken back."""
        for version, info in self._standing_commits(name):
            if version <= after:
                return None
            if info.get(PROPERTY + "ref") == ref:
                return version
        return None

    def _has_landed(self, name: str, ref: str) -> bool:
        """Whether a staging place landed; only commits younger than the place can be it."""
        place = self._staged(name, ref)
        made_ms = place.stat().st_ctime * 1000 if place.exists() else 0.0
        for _, info in self.commits(name):
            if info.get(PROPERTY + "ref") == ref:
                return True
            if info["timestamp"] < made_ms - CLOCK_SLACK_MS:
                return False
        return False


def table_location(settings: LakeSettings, table: Table) -> Path:
    """Root folder of a Delta table: the contract's location, below the warehouse unless absolute, or by its name."""
    return settings.warehouse.joinpath(*([table.location] if table.location else table.name.split(".")))


def _is_run(version: int, info: Mapping[str, Any], base: int) -> bool:
    return version <= base and PROPERTY + "staged" in info


def get_replaced_column(staged: Staged, table: Table) -> str | None:
    """The column whose values a run replaces; None when the run replaces the whole table."""
    if not table.partition_by or staged.partitions_of(table.name) == WHOLE:
        return None
    return table.partition_by[0][0]
