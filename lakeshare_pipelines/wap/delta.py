"""Delta staging: a run writes its own table under `_staged/`; one commit on the real table publishes those files.

The commit adds the staged files without a copy, removes what they replace, and carries the run in `txn` and in its
commit info. It is not retried: a commit in between is a conflict.
"""

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.model import Write
from lakeshare_pipelines.contracts.partitioning import split_key
from lakeshare_pipelines.errors import BranchMoved, Conflict, NotAudited, WarehouseError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.rows import column_by_name
from lakeshare_pipelines.spark.session import escape_glob, to_hadoop_path
from lakeshare_pipelines.spark.stores import make_delta_options, translate_delta_errors
from lakeshare_pipelines.wap import stage
from lakeshare_pipelines.wap.merge import (
    BEFORE,
    DELETED,
    FILES,
    ROW_FILE,
    align,
    compare_states,
    find_new_rows,
    list_change_rows,
    match_rows,
    plan_changes,
)
from lakeshare_pipelines.wap.serveable import ClientMatrix, compute_delta_matrix
from lakeshare_pipelines.wap.stage import PROPERTY, Landed
from lakeshare_pipelines.wap.staged import WHOLE, Lake, Staged
from lakeshare_server.errors import StoreMissing, TableFilesMissing
from lakeshare_server.lazy import LazyModule
from lakeshare_server.locations import find_root, is_absolute, normalise_location
from lakeshare_server.storage import Stores
from lakeshare_server.storage.stores import ONE_WRITER, takes_first_write
from lakeshare_server.tables.delta.files import keys_of
from lakeshare_server.tables.delta.log import LOG, TableState, head_actions, list_for_latest, list_log, replay

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import functions as F

    from lakeshare_server.catalog import Publication
else:
    F = LazyModule("pyspark.sql.functions")

log = logging.getLogger(__name__)

STAGED_FOLDER = "_staged"
PUBLISHED = "_PUBLISHED"
"""Marks a staging location whose files belong to the table; the log may no longer have the commit."""
REPLACED = "_REPLACED"
"""The file of a staging location with the files of main that a merge wrote again."""
CHANGE_DATA = "_change_data"
"""The folder of a staging location with a Delta table of the changed rows, for readers of changes."""
CHANGE_DATA_FEED = "delta.enableChangeDataFeed"
FILE_PATH = "_metadata.file_path"
COMMITS_PER_CHECKPOINT = 10
MAX_SENT_ROWS = 1_000_000
"""Of changed rows as many keys are sent to each task that writes a file again; more are sorted with the file's rows."""
# Features of Delta's writers that a commit of adds and removes need not know of.
FEATURES = frozenset(
    {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "timestampNtz"}
    | {"deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"}
)
LAST_SIMPLE_WRITER = 4  # from the next writer version on, columns may be mapped
REVERTED_PROPERTY = PROPERTY + "taken-back"
"""Commit info of a commit that reverts another: the staging location of that other commit."""
ABSENT = -1
COMMIT = re.compile(r"/\d+\.json")
# Commits carry the clock of their writer.
CLOCK_SLACK_MS = 24 * 3600 * 1000
IN_FOLDERS = {"date", "string", "integer", "long"}
"""Types of partition columns that Spark reads from the names of folders as Delta does from its log."""


@dataclass
class StagedLog:
    """The log of a staging table: its last protocol and metadata, and its live files by their path as in the log."""

    protocol: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    adds: dict[str, dict[str, Any]] = field(default_factory=dict)


class DeltaStaging:
    """The tables of a set, each with a staging table of the run below it."""

    def __init__(self, lake: Lake, contract: SetContract) -> None:
        self.lake, self.contract = lake, contract
        self.tables = {table.name: table for table in contract.tables}
        self._on_main: dict[tuple[str, int], DataFrame] = {}

    def open(self, ref: str) -> str:
        lake_root = self.contract.warehouse or self.lake.settings.lake_root
        for location in map(self.location, self.tables):
            if find_root(location) != find_root(lake_root):
                fix = f"Give the table a location below {lake_root}, or set LAKESHARE_WAREHOUSE."
                raise WarehouseError(location, "it is in another store than the warehouse", fix)
        if find_root(lake_root) and not takes_first_write(self.lake.stores, lake_root):
            raise WarehouseError(lake_root, "the store lets one commit overwrite another", ONE_WRITER)
        self.discard(ref)
        return json.dumps({name: self._version(name) for name in self.tables}, sort_keys=True)

    def holds(self, base: str, publication: "Publication") -> bool:
        published = publication.delta_version
        return published is not None and json.loads(base)[publication.table] >= published

    def write(
        self, ref: str, table: Table, frame: "DataFrame", partitions: Sequence[str], run_id: str
    ) -> int:
        location = self.staged_location(table.name, ref)
        self._save(frame, location, table, run_id)
        stats = [json.loads(add.get("stats") or "{}") for add in self.list_staged_adds(table.name, ref)]
        if all("numRecords" in one for one in stats):
            return sum(one["numRecords"] for one in stats)
        return self.lake.spark.read.format("delta").load(location).count()

    def _save(self, frame: "DataFrame", location: str, table: Table, run_id: str) -> None:
        metadata = json.dumps(stage.run_properties(self.contract, run_id))
        # To overwrite, Delta looks for files to remove by a Spark job, for a new table, too.
        mode = "overwrite" if any(self.lake.stores.list(f"{location}/{LOG}")) else "error"
        writer = frame.write.format("delta").mode(mode).option("userMetadata", metadata)
        columns = [column for column, _ in table.partition_by]
        if columns:
            writer = writer.partitionBy(*columns)
        writer.save(location)

    def merge(self, staged: Staged, table: Table, rows: "DataFrame") -> None:
        version, location = json.loads(staged.base)[table.name], self.staged_location(table.name, staged.ref)
        before = self.on_main(staged, table)
        with_files = None if before is None else before.select("*", F.col(FILE_PATH).alias(ROW_FILE))
        changes = plan_changes(self.contract, table, with_files, rows)
        frame = changes.where(~F.col(DELETED)).select(*(column_by_name(c.name) for c in table.columns))
        removed, records_changes = list[str](), False
        if before is not None:
            state = self._read_state(table, version)
            known = changes.where(F.col(BEFORE).isNotNull())
            counted = known.select(F.explode(FILES).alias(ROW_FILE)).groupBy(ROW_FILE).count().collect()
            paths = [row[ROW_FILE] for row in counted]
            names = set(map(_get_name, paths))
            removed = [path for path in state.adds.column("path").to_pylist() if _get_name(path) in names]
            if sum(row["count"] for row in counted) <= MAX_SENT_ROWS:
                known = F.broadcast(known)  # Spark does not know how few they are, and would sort the files
            if len(removed) < state.adds.num_rows:
                before = before.where(F.col(FILE_PATH).isin(paths))
            others = match_rows(before, known, table.primary_key, "left_anti")
            frame = align(table, others).unionByName(frame)
            records_changes = _is_set(state.metadata, CHANGE_DATA_FEED)
        if table.partition_by:
            frame = frame.repartition(*(column_by_name(column) for column, _ in table.partition_by))
        self._save(frame, location, table, staged.run_id)
        self.lake.stores.write(f"{location}/{REPLACED}", json.dumps(removed).encode())
        if records_changes:
            self._save(list_change_rows(table, changes), f"{location}/{CHANGE_DATA}", table, staged.run_id)

    def record_changes_again(self, staged: Staged, table: Table) -> None:
        before, version = self.on_main(staged, table), json.loads(staged.base)[table.name]
        if before is None or not _is_set(self._read_state(table, version).metadata, CHANGE_DATA_FEED):
            return
        names = {_get_name(path) for path in self._list_replaced(table, staged.ref)}
        old = align(table, before.where(_file_name().isin(names)))
        changes = compare_states(table, old, self._read_staged_rows(staged, table))
        location = f"{self.staged_location(table.name, staged.ref)}/{CHANGE_DATA}"
        self._save(list_change_rows(table, changes), location, table, staged.run_id)

    def make_serveable(self, ref: str, table: Table) -> tuple[str, ...]:
        # Staged files need no rewrite, and files of main are not at the staging location: see docs/adr/0017.
        return ()

    def clients(self, staged: Staged, table: Table) -> ClientMatrix:
        version = json.loads(staged.base)[table.name]
        return compute_delta_matrix(
            self.lake.stores,
            self.staged_location(table.name, staged.ref),
            self.location(table.name),
            None if version == ABSENT else version,
            self._list_replaced_values(staged, table),
            self._list_replaced(table, staged.ref) if table.write.is_incremental else None,
        )

    def seal(self, ref: str) -> str:
        digest = hashlib.sha256()
        for name in sorted(self.tables):
            digest.update(name.encode())
            for line in sorted(json.dumps(add, sort_keys=True) for add in self.list_staged_adds(name, ref)):
                digest.update(line.encode())
            if self.tables[name].write.mode != Write().mode:
                # The commit depends on the mode, which a contract may change before a crashed run is completed.
                digest.update(self.tables[name].write.mode.encode())
                digest.update(json.dumps(self._list_replaced(self.tables[name], ref)).encode())
                for add in self._list_change_files(name, ref):
                    digest.update(json.dumps(add, sort_keys=True).encode())
        return digest.hexdigest()

    def rows_of_run(self, staged: Staged, table: Table) -> "DataFrame":
        rows = self._read_staged_rows(staged, table)
        before = self.on_main(staged, table) if table.write.has_key else None
        if before is None:
            return rows
        # Rewritten files have other rows, too.
        names = {_get_name(path) for path in self._list_replaced(table, staged.ref)}
        return rows.exceptAll(align(table, before.where(_file_name().isin(names))).select(*rows.columns))

    def _read_staged_rows(self, staged: Staged, table: Table) -> "DataFrame":
        from pyspark.sql import types as T

        read, location = self.lake.spark.read, self.staged_location(table.name, staged.ref)
        log = self._read_staged_log(table.name, staged.ref)
        if not log.adds or log.protocol["minReaderVersion"] > 1:
            return read.format("delta").load(location)
        schema = T.StructType.fromJson(json.loads(log.metadata["schemaString"]))
        if not {schema[name].dataType.typeName() for name in log.metadata["partitionColumns"]} <= IN_FOLDERS:
            return read.format("delta").load(location)
        # Without features a reader has nothing to do but to read the files of the log (Delta protocol, "Reader
        # Version Requirements"). Delta takes several Spark jobs to read the log, and more for each query.
        paths = [to_hadoop_path(f"{location}/{unquote(path)}") for path in log.adds]
        read = read.schema(schema).option("basePath", to_hadoop_path(location))
        return read.parquet(*map(escape_glob, paths)).select(*map(column_by_name, schema.names))

    def count_written(self, staged: Staged, table: Table) -> int:
        return self._read_staged_rows(staged, table).count()

    def table_after(self, staged: Staged, table: Table) -> "DataFrame":
        return self.table_around(staged, table, self.rows_of_run(staged, table))

    def table_around(self, staged: Staged, table: Table, rows: "DataFrame") -> "DataFrame":
        before = self.on_main(staged, table)
        if before is not None and table.write.is_incremental:
            names = {_get_name(path) for path in self._list_replaced(table, staged.ref)}
            rows = self._read_staged_rows(staged, table)
            return before.where(~_file_name().isin(names)).unionByName(rows, allowMissingColumns=True)
        values = self._list_replaced_values(staged, table)
        if before is None or values is None:
            return rows
        others = [~F.col(column).cast("string").isin(found) for column, found in values.items()]
        unchanged = before.where(reduce(or_, others))
        return unchanged.unionByName(rows, allowMissingColumns=True)

    def state_on_main(self, staged: Staged, table: Table) -> int | None:
        version: int = json.loads(staged.base)[table.name]
        return None if version == ABSENT else version

    def select_own(
        self, staged: Staged, table: Table, published: "Sequence[Publication]"
    ) -> "Sequence[Publication]":
        version, root = self.state_on_main(staged, table), self.location(table.name)
        if version is None or not published:
            return ()
        listing = list_for_latest(self.lake.stores, root)
        if listing.latest != version:
            listing = list_log(self.lake.stores, root)
        # A table that another writer put in the place of this one may have the same version numbers.
        _, metadata = head_actions(self.lake.stores, listing, version)
        return [each for each in published if each.table_id == metadata["id"]]

    def rows_since(
        self, staged: Staged, table: Table, published: "Publication", known: "DataFrame"
    ) -> "DataFrame":
        main, listing = self.on_main(staged, table), list_log(self.lake.stores, self.location(table.name))
        versions = published.delta_version, self.state_on_main(staged, table)
        if main is None or None in versions:
            raise ValueError(f"publication {published.version} of {table.name} and main are no two versions")
        states = (replay(self.lake.stores, listing, version or 0).adds for version in versions)
        # A file with another deletion vector has other rows.
        old, new = (set(keys_of(adds)) for adds in states)
        names = {_get_name(path) for path, _ in old ^ new}
        if any(quote(name) != name for name in names):
            raise ValueError("names of files are encoded in its log")
        is_other = _file_name().isin(names)
        return find_new_rows(known.where(is_other), main.where(is_other))

    def on_main(self, staged: Staged, table: Table) -> "DataFrame | None":
        version = self.state_on_main(staged, table)
        if version is None:
            return None
        # Delta rebuilds the state of a table each time that a version is read.
        if (table.name, version) not in self._on_main:
            reader = self.lake.spark.read.format("delta").option("versionAsOf", version)
            self._on_main[table.name, version] = reader.load(self.location(table.name))
        return self._on_main[table.name, version]

    def definition(self, staged: Staged, table: Table) -> str | None:
        base = json.loads(staged.base)[table.name]
        # Read from commits, not from table properties: recipients can read those.
        origin: Staged | None = staged
        if base != ABSENT:
            records = (
                stage.parse_commit_properties(commit)[0]
                for version, commit in self._effective_commits(table.name)
                if version <= base and PROPERTY + "staged" in commit
            )
            origin = next(records, None)
        record = None if origin is None else origin.find_table(table.name)
        return None if record is None else record.view

    def land(self, staged: Staged, evidence: Mapping[str, object]) -> Landed:
        head = self.seal(staged.ref)
        if head != staged.head:
            raise BranchMoved(staged.ref, staged.head, head)
        for name in self.tables:
            if any("deletionVector" in add for add in self.list_staged_adds(name, staged.ref)):
                why = f"{name} was changed there with deletion vectors; run the partition again"
                raise NotAudited(staged.ref, why)
        base = json.loads(staged.base)
        landed = self._landed_versions(staged)
        changed = [name for name in self.tables if landed[name] is None and self._version(name) != base[name]]
        if changed:
            raise Conflict(changed, staged.base, json.dumps({name: self._version(name) for name in changed}))
        for name, version in landed.items():
            if version is None:
                with translate_delta_errors(self.location(name)):
                    landed[name] = self._commit(self.tables[name], staged, evidence, base[name])
        return Landed(staged, evidence, None, {name: v for name, v in landed.items() if v is not None})

    def find_incomplete(self, is_known: Callable[[str], bool]) -> list[Landed]:
        incomplete: dict[str, Mapping[str, Any]] = {}
        for name in self.tables:
            for _, commit in self._effective_commits(name):
                run = stage.get_landed_run(commit, self.contract.name)
                if run is None:
                    continue
                if is_known(run):
                    break
                incomplete.setdefault(run, commit)
        oldest_first = sorted(incomplete.values(), key=lambda commit: commit.get("timestamp", 0))
        completed = (self._complete(*stage.parse_commit_properties(commit)) for commit in oldest_first)
        return [landed for landed in completed if landed is not None]

    def _complete(self, staged: Staged, evidence: Mapping[str, object]) -> Landed | None:
        """Land the rest of a set that landed in part; if that is impossible, revert it and return None."""
        try:
            return self.land(staged, evidence)
        except (Conflict, BranchMoved, WarehouseError) as obstacle:
            landed = self._landed_versions(staged)
            # Of a store that does not respond, the set is completed later.
            if None not in landed.values() or isinstance(obstacle.__cause__, OSError):
                raise
            log.warning(
                "%s landed in part and cannot be completed: %s It is reverted; run it again, or `wap retry`.",
                staged.title,
                obstacle,
            )
        base = json.loads(staged.base)
        for name, version in landed.items():
            if version is not None:
                self._revert(name, staged.ref, version, base[name])
        return None

    def _revert(self, name: str, ref: str, version: int, base: int) -> None:
        """Undo the commit of a staging location. Later commits of other writers stay, and then so do its rows."""
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import CommitProperties

        table = self._require(self.location(name))
        commit = CommitProperties(custom_metadata={REVERTED_PROPERTY: ref}, max_commit_retries=0)
        try:
            if table.version() != version:
                columns = [column for column, _ in self.tables[name].partition_by]
                schema = table.schema()
                table.create_write_transaction([], "append", schema, columns, commit_properties=commit)
            elif base == ABSENT:
                table.delete(commit_properties=commit)
            else:
                table.restore(base, commit_properties=commit)
        except CommitFailedError as error:
            raise Conflict([name], str(version), str(self._version(name))) from error
        # The history of the table names these files.
        self.mark_published(self.staged_location(name, ref))

    def list_unpublished(self) -> list[tuple[str, datetime]]:
        since_ms: dict[str, int] = {}
        for name in self.tables:
            published: set[str] = set()
            written_ms: dict[str, int] = {}
            # One listing: a location stays for each publication, and the store may be far away.
            for found in self.lake.stores.list(self.staged_location(name, "")):
                ref, _, file = found.location.removeprefix(self.staged_location(name, "")).partition("/")
                if file == PUBLISHED:
                    published.add(ref)
                elif found.size_bytes:  # some tools write empty objects for folders
                    written_ms[ref] = max(written_ms.get(ref, 0), found.modified_ms)
            for ref in written_ms.keys() - published:
                since_ms[ref] = max(since_ms.get(ref, 0), written_ms[ref])
        # A run that ended before its locations were marked; otherwise no commit is read.
        names = self.tables if since_ms else ()
        commits = (commit for name in names for _, commit in self._effective_commits(name))
        landed = {ref for commit in commits if (ref := str(commit.get(PROPERTY + "ref"))) in since_ms}
        return [
            (ref, datetime.fromtimestamp(at_ms / 1000, UTC))
            for ref, at_ms in since_ms.items()
            if ref not in landed
        ]

    def discard(self, ref: str) -> None:
        stores, staged = self.lake.stores, {name: self.staged_location(name, ref) for name in self.tables}
        unpublished = {name: at for name, at in staged.items() if stores.head(f"{at}/{PUBLISHED}") is None}
        written = {name: stores.written_between(folder) for name, folder in unpublished.items()}
        folders = [unpublished[name] for name, times_ms in written.items() if times_ms is not None]
        if folders:
            landed = [self._has_landed(name, ref, times_ms) for name, times_ms in written.items()]
            if all(landed):
                for folder in folders:
                    self.mark_published(folder)
                return
            # A crash came between two tables' commits: the repair still needs the other folders.
            if any(landed):
                return
        for folder in unpublished.values():
            stores.delete_folder(folder)

    def mark_published(self, folder: str) -> None:
        self.lake.stores.write(f"{folder}/{PUBLISHED}", b"{}")

    def location(self, name: str) -> str:
        return table_location(self.lake.settings, self.tables[name])

    def commits(self, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """`(version, commit info)` of a table, newest first, read as far back as the caller iterates.

        The log is read without deltalake, which lets no other thread run while it waits for the store.
        """
        root = self.location(name)
        for version in range(self._version(name), ABSENT, -1):
            location = f"{root}/{LOG}/{version:020d}.json"
            try:
                lines = self.lake.stores.read(location).splitlines()
            except StoreMissing:
                return  # removed by a clean-up of the log
            infos = (json.loads(line)["commitInfo"] for line in lines if line.startswith(b'{"commitInfo":'))
            yield version, next(infos, {})

    def _effective_commits(self, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """`commits` without those that were reverted."""
        reverted: set[str] = set()
        for version, commit in self.commits(name):
            if REVERTED_PROPERTY in commit:
                reverted.add(commit[REVERTED_PROPERTY])
            if commit.get(PROPERTY + "ref") not in reverted:
                yield version, commit

    def _commit(self, table: Table, staged: Staged, evidence: Mapping[str, object], base: int) -> int:
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import CommitProperties, Transaction, create_table_with_add_actions

        def properties(ordinal: int) -> CommitProperties:
            return CommitProperties(
                custom_metadata=stage.commit_properties(staged, evidence),
                app_transactions=[Transaction(staged.set_name, ordinal)],
                max_commit_retries=0,
            )

        if table.write.is_incremental and base != ABSENT:
            return self._commit_changes(table, staged, evidence, base)
        location = self.location(table.name)
        schema = self._require(self.staged_location(table.name, staged.ref)).schema()
        adds = make_add_actions(
            self.list_staged_adds(table.name, staged.ref), f"{STAGED_FOLDER}/{staged.ref}"
        )
        columns = [column for column, _ in table.partition_by]
        values = self._list_replaced_values(staged, table)
        replaced = None if values is None else [(column, "in", found) for column, found in values.items()]
        try:
            if base == ABSENT:
                create_table_with_add_actions(
                    location,
                    schema,
                    adds,
                    mode="error",
                    partition_by=columns,
                    name=table.name,
                    description=table.description,
                    configuration={CHANGE_DATA_FEED: "true"} if table.write.is_incremental else None,
                    storage_options=make_delta_options(self.lake.stores, location),
                    commit_properties=properties(ordinal=1),
                )
                return 0
            main = self._require(location, base)
            ordinal = (main.transaction_version(staged.set_name) or 0) + 1
            main.create_write_transaction(
                [*adds],
                "overwrite",
                schema,
                columns,
                partition_filters=replaced,
                commit_properties=properties(ordinal),
            )
        except DeltaError as error:
            now = self._version(table.name)
            if now != base:
                raise Conflict([table.name], "no table" if base == ABSENT else str(base), str(now)) from error
            fix = "Write to a table without it; new ones have the defaults of LAKESHARE_SPARK_CONF"
            raise WarehouseError(location, f"deltalake does not write the table: {error}", fix) from error
        return base + 1

    def _list_replaced_values(self, staged: Staged, table: Table) -> dict[str, list[str]] | None:
        """The values, as in the log, that the partitions of the run have, by column; None for the whole table.

        Rows with one of the values in each column are replaced: the run's partitions are a range in each dimension.
        """
        column = get_replaced_column(staged, table)
        if column is None:
            return None
        partitioning = self.contract.partitioning
        keys, names = zip(*map(split_key, staged.partitions), strict=True)
        second = (
            {} if partitioning.second is None else {partitioning.second.column: list(dict.fromkeys(names))}
        )
        values = list(dict.fromkeys(keys))
        if not partitioning.has_one_value_each:
            values = [day.isoformat() for key in values for day in partitioning.list_days(key)]
        return {column: values} | second

    def _commit_changes(self, table: Table, staged: Staged, evidence: Mapping[str, object], base: int) -> int:
        """Write the commit of appended or merged rows, which also removes the files that were rewritten."""
        location, prefix, now_ms = self.location(table.name), f"{STAGED_FOLDER}/{staged.ref}", time_ms()
        state = self._read_state(table, base)
        main = self._require(location, base)
        log = self._read_staged_log(table.name, staged.ref)
        ordinal = (main.transaction_version(staged.set_name) or 0) + 1
        transaction = {"appId": staged.set_name, "version": ordinal, "lastUpdated": now_ms}
        replaced = set(self._list_replaced(table, staged.ref))
        actions: list[Mapping[str, Any]] = [{"txn": transaction}]
        if (metadata := _add_columns(state.metadata, log.metadata)) is not None:
            actions.append({"metaData": metadata})
        removed = {"deletionTimestamp": now_ms, "dataChange": True, "extendedFileMetadata": True}
        live = state.adds.filter(pc.is_in(state.adds.column("path"), pa.array(sorted(replaced), pa.string())))
        if live.num_rows != len(replaced):
            raise Conflict([table.name], str(base), "a state without files that the run replaces")
        for row in live.to_pylist():
            named = {
                "path": row["path"],
                "partitionValues": row["partition_values"] or {},
                "size": row["size"],
            }
            actions.append({"remove": {**named, **removed, **_get_vector(row)}})
        for add in log.adds.values():
            actions.append({"add": {**add, "path": f"{prefix}/{add['path']}", "dataChange": True}})
        for add in self._list_change_files(table.name, staged.ref):
            named = {"path": f"{prefix}/{CHANGE_DATA}/{add['path']}", "dataChange": False}
            actions.append({"cdc": {**named, **{key: add[key] for key in ("partitionValues", "size")}}})
        properties = stage.commit_properties(staged, evidence)
        kind = "MERGE" if table.write.has_key else "WRITE"
        operation: dict[str, Any] = {"operation": kind, "operationParameters": {}}
        is_blind = {"readVersion": base, "isBlindAppend": not table.write.has_key}
        if not write_commit(self.lake.stores, location, base + 1, actions, operation | is_blind | properties):
            raise Conflict([table.name], str(base), str(self._version(table.name)))
        if (base + 1) % COMMITS_PER_CHECKPOINT == 0:
            self._require(location, base + 1).create_checkpoint()
        return base + 1

    def _read_state(self, table: Table, version: int) -> TableState:
        """The table at a version; raises `WarehouseError` if our commits cannot change it."""
        location = self.location(table.name)
        state = replay(self.lake.stores, list_log(self.lake.stores, location), version)
        others = find_other_features(state.protocol)
        if others:
            fix = "Use the write mode replace_partitions or replace, or write the rows to a new table"
            reason = f"the table uses {', '.join(others)}, and {table.write.mode} writes no such commits"
            raise WarehouseError(location, reason, fix)
        if table.write.has_key and _is_set(state.metadata, "delta.appendOnly"):
            fix = "Unset the property, or use the write mode append"
            raise WarehouseError(location, "delta.appendOnly forbids to update and delete rows", fix)
        return state

    def _list_replaced(self, table: Table, ref: str) -> list[str]:
        """The paths of the files of main, as in its log, whose rows a merge wrote again; none in other modes."""
        try:
            content = self.lake.stores.read(f"{self.staged_location(table.name, ref)}/{REPLACED}")
        except StoreMissing:  # written in another mode
            return []
        return sorted(json.loads(content))

    def _list_change_files(self, name: str, ref: str) -> list[dict[str, Any]]:
        return sorted(self.list_staged_adds(name, f"{ref}/{CHANGE_DATA}"), key=lambda add: str(add["path"]))

    def list_staged_adds(self, name: str, ref: str) -> list[dict[str, Any]]:
        """The live `add` entries in the log of a staging table."""
        return list(self._read_staged_log(name, ref).adds.values())

    def _read_staged_log(self, name: str, ref: str) -> StagedLog:
        log = StagedLog()
        log_folder = f"{self.staged_location(name, ref)}/{LOG}"
        for found in self.lake.stores.list(log_folder):
            if not COMMIT.fullmatch(found.location.removeprefix(log_folder)):
                continue
            actions = [*map(json.loads, self.lake.stores.read(found.location).splitlines())]
            # First the files that are removed: one with a new deletion vector is removed and added, in any order.
            for action in sorted(actions, key=lambda action: "remove" not in action):
                log.protocol = action.get("protocol", log.protocol)
                log.metadata = action.get("metaData", log.metadata)
                if "remove" in action:
                    log.adds.pop(action["remove"]["path"], None)
                if "add" in action:
                    log.adds[action["add"]["path"]] = action["add"]
        return log

    def staged_location(self, name: str, ref: str) -> str:
        """Root folder of a table at a staging location."""
        return f"{self.location(name)}/{STAGED_FOLDER}/{ref}"

    def _require(self, location: str, version: int | None = None) -> "DeltaTable":
        table = self.lake.open_delta(location, version)
        if table is None:
            raise StoreMissing(f"{location}/{LOG}")
        return table

    def _version(self, name: str) -> int:
        try:
            return list_for_latest(self.lake.stores, self.location(name)).latest
        except TableFilesMissing:
            return ABSENT

    def _landed_versions(self, staged: Staged) -> dict[str, int | None]:
        """Per table the version that the staged set landed with; None where it did not, or was reverted."""
        base = json.loads(staged.base)

        def find_version(name: str) -> int | None:
            for version, commit in self._effective_commits(name):
                if version <= base[name]:
                    return None
                if commit.get(PROPERTY + "ref") == staged.ref:
                    return version
            return None

        return {name: find_version(name) for name in self.tables}

    def _has_landed(self, name: str, ref: str, times_ms: tuple[int, int] | None) -> bool:
        """Whether a staging location, written between these times, landed; its commit is younger than its files."""
        created_ms = 0 if times_ms is None else times_ms[0]
        for _, commit in self.commits(name):
            if commit.get(PROPERTY + "ref") == ref:
                return True
            if commit.get("timestamp", created_ms) < created_ms - CLOCK_SLACK_MS:
                return False
        return False


def find_other_features(protocol: Mapping[str, Any]) -> list[str]:
    """What a table has for which a commit needs more than adds and removes; empty for a table that can have ours."""
    features = protocol.get("writerFeatures")
    others = sorted(set(features or ()) - FEATURES)
    if others or (features is None and int(protocol.get("minWriterVersion", 1)) > LAST_SIMPLE_WRITER):
        return others or ["features of a newer writer"]
    return []


def write_commit(
    stores: Stores, root: str, version: int, actions: Sequence[Mapping[str, Any]], info: Mapping[str, Any]
) -> bool:
    """Write a commit of a log with its commit info (Delta's PROTOCOL.md, "Delta Log Entries"); False if it exists."""
    lines = [{"commitInfo": {"timestamp": time_ms(), **info}}, *actions]
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    return stores.write(f"{root}/{LOG}/{version:020d}.json", text.encode(), if_absent=True)


def time_ms() -> int:
    return int(time.time() * 1000)


def _add_columns(metadata: Mapping[str, Any], staged: Mapping[str, Any]) -> dict[str, Any] | None:
    """The metadata of a table with the columns that only its staging table has; None if there are none."""
    schema = json.loads(metadata["schemaString"])
    names = {field["name"].lower() for field in schema["fields"]}
    new = [f for f in json.loads(staged["schemaString"])["fields"] if f["name"].lower() not in names]
    if not new:
        return None
    schema["fields"] += new
    known = {key: value for key, value in metadata.items() if value is not None}
    return {**known, "schemaString": json.dumps(schema, separators=(",", ":"))}


def _get_vector(row: Mapping[str, Any]) -> dict[str, Any]:
    """The deletion vector of a file as in a log; a file is named by its path and its vector."""
    if row["dv_storage"] is None:
        return {}
    names = {
        "dv_storage": "storageType",
        "dv_path": "pathOrInlineDv",
        "dv_offset": "offset",
        "dv_size": "sizeInBytes",
        "dv_cardinality": "cardinality",
    }
    vector = {name: row[column] for column, name in names.items() if row[column] is not None}
    return {"deletionVector": vector}


def _is_set(metadata: Mapping[str, Any], name: str) -> bool:
    return str((metadata.get("configuration") or {}).get(name)).lower() == "true"


def _file_name() -> "Column":
    """The name of the file of a row of a Delta table."""
    return F.element_at(F.split(FILE_PATH, "/"), -1)


def _get_name(path: str) -> str:
    # Names of data files have no characters that a log or Spark would encode.
    return path.rpartition("/")[2]


def table_location(settings: LakeSettings, table: Table) -> str:
    """Root folder of a Delta table: the contract's location (below its warehouse unless absolute), or by its name."""
    location = table.location or table.name.replace(".", "/")
    if is_absolute(location):
        return normalise_location(location, settings.azure_account).rstrip("/")
    return f"{table.warehouse or settings.lake_root}/{location.strip('/')}"


def make_add_actions(adds: Iterable[Mapping[str, Any]], folder: str) -> "list[AddAction]":
    """The actions of deltalake that add the files of another table, in a folder below the root of this one."""
    from deltalake.transaction import AddAction

    # The log holds the path percent-encoded, and AddAction encodes it again.
    return [
        AddAction(
            f"{folder}/{unquote(add['path'])}",
            add["size"],
            add["partitionValues"],
            add["modificationTime"],
            True,
            add.get("stats") or "{}",
        )
        for add in adds
    ]


def get_replaced_column(staged: Staged, table: Table) -> str | None:
    """The column whose values a run replaces; None when the run replaces the whole table."""
    is_whole = table.write.mode == "replace" or staged.partitions_of(table.name) == WHOLE
    return None if is_whole or not table.partition_by else table.partition_by[0][0]
