"""Scans of Iceberg clients planned by the server: which files may have rows that are wanted, and may be told.

It is the only way in which a grant that is restricted to some rows gets at a table's files: `_told` is the one place
where the restriction is applied.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.access.iceberg import LoadedTable
from lakeshare_server.access.view import TableView
from lakeshare_server.errors import BadRequest, Unavailable, Unserveable
from lakeshare_server.protocol.iceberg_filter import Filter, parse_filter
from lakeshare_server.protocol.iceberg_names import ColumnNames
from lakeshare_server.protocol.iceberg_scans import PlanTask, ScanRequest
from lakeshare_server.protocol.iceberg_statistics import Statistics
from lakeshare_server.protocol.requests import MAX_PARTS
from lakeshare_server.settings import ServerSettings
from lakeshare_server.stores import Stores
from lakeshare_server.tables.cache_folder import CacheFolder
from lakeshare_server.tables.exact_files import only_within
from lakeshare_server.tables.iceberg.metadata import NO_SNAPSHOT
from lakeshare_server.tables.iceberg.scan_files import LAYOUT, ScanFiles, write_scan_files
from lakeshare_server.tables.predicate import ColumnName, affordable, with_columns
from lakeshare_server.tables.pruning import evaluate
from lakeshare_server.versions import PinnedSnapshot

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

# Each task has the filter in it: of a long one fewer tasks make a page.
PAGE_BYTES = 64 << 20

_log = logging.getLogger(__name__)


@dataclass
class ScanPage:
    """Some tasks of a plan as JSON objects, the deletes that they name, and where the following page begins."""

    tasks: list[str] = field(default_factory=list)
    deletes: list[Mapping[str, Any]] = field(default_factory=list)
    following: int | None = None


class IcebergScans:
    """Plans scans of tables as recipients may read them; for many threads."""

    def __init__(self, stores: Stores, settings: ServerSettings) -> None:
        self._stores = stores
        self._files = CacheFolder(settings.index_dir / "cache", "scan", settings.index_cache_bytes, ScanFiles)

    def page(
        self,
        view: TableView,
        table: LoadedTable,
        asked: ScanRequest,
        task: PlanTask,
        most: int,
        *,
        is_for_pyiceberg: bool = False,
    ) -> ScanPage:
        """The tasks of at most so many files, from a place on.

        Raises:
            BadRequest: the snapshot is not one that the recipient may read, or the filter is no filter.
            Unserveable: the table's files cannot be planned, or files of deletes also tell of others.
            Unavailable: its store does not answer.
        """
        names = _names(table, asked, task.snapshot_id)
        if task.snapshot_id == NO_SNAPSHOT:
            return ScanPage()
        wanted = parse_filter(asked.filter, names, is_of_snapshot=asked.is_of_snapshot)
        files = self._scan_files(table, _pin_of(table, task.snapshot_id))
        if is_for_pyiceberg and files.may_lack_columns:
            # PyIceberg 0.12 compares the texts in plans with numbers of days, and loses the rows of such a file.
            in_client = "Plan scans in the client: set scan-planning-mode to client."
            raise Unserveable(
                "Files of the table may lack partition columns, whose values PyIceberg does not read from plans.",
                "Query it by Delta Sharing." if view.is_restricted else in_client,
            )
        statistics = Statistics.of([names.column(name) for name in asked.stats_fields])
        _require_own_deletes(view, table, files)
        page = _Page(files, wanted, statistics)
        most = min(most, max(1, PAGE_BYTES // len(wanted.residual)))
        for begin, batch, kept in _kept(view, table, files, wanted, task.start):
            if not page.add(begin, batch, kept, most):
                break
        return page.made

    def readable(self, view: TableView, table: LoadedTable, pin: PinnedSnapshot) -> Iterator[str]:
        """Paths of the data files of a snapshot that a restricted recipient may read, and of their deletes.

        Raises:
            Unserveable: files of deletes also tell of files that it may not read.
        """
        files = self._scan_files(table, pin)
        _require_own_deletes(view, table, files)
        for batch in files.batches():
            told = batch.filter(_told(view, table, batch))
            yield from told.column("path").to_pylist()
            for place in pc.unique(pc.list_flatten(told.column("deletes"))).to_pylist():
                yield files.delete_files[place]["file-path"]

    def _scan_files(self, table: LoadedTable, pin: PinnedSnapshot) -> ScanFiles:
        said = orjson.dumps(table.schema())
        # Partition values are told in the types of the schema, so that they are others with another one.
        identity = ("iceberg scan", LAYOUT, pin.metadata_location, pin.snapshot_id)
        return self._files.get(
            (*identity, hashlib.sha256(said).hexdigest()), lambda path: self._write(pin, _schema(said), path)
        )

    def _write(self, pin: PinnedSnapshot, told: "Schema", path: Path) -> None:
        # Nothing of what the reader says goes out: it names places of the server.
        try:
            write_scan_files(self._stores, pin.metadata_location, pin.snapshot_id, told, path)
        except Unserveable as error:
            _log.error("scans of %s cannot be planned: %s", pin.metadata_location, error)
            raise Unserveable(
                "Scans of the table cannot be planned by the server.",
                "Plan them in the client: set scan-planning-mode to client. Provider: the server's log says why.",
            ) from error
        except Unavailable as error:
            _log.warning("scans of %s cannot be planned now: %s", pin.metadata_location, error)
            raise Unavailable("the table's store does not answer", "Try again in a moment.") from error


def asked_task(table: LoadedTable, asked: ScanRequest) -> PlanTask:
    """Where the first page of a scan begins.

    Raises:
        BadRequest: the snapshot is not one that the recipient may read.
    """
    newest = table.pins[-1].snapshot_id
    snapshot_id = newest if asked.snapshot_id is None else asked.snapshot_id
    if snapshot_id == newest == NO_SNAPSHOT:
        return PlanTask(NO_SNAPSHOT, 0)
    return PlanTask(_pin_of(table, snapshot_id).snapshot_id, 0)


def _pin_of(table: LoadedTable, snapshot_id: int) -> PinnedSnapshot:
    told = {one["snapshot-id"] for one in table.snapshots}
    found = [pin for pin in table.pins if pin.snapshot_id == snapshot_id and snapshot_id in told]
    if not found:
        raise BadRequest("snapshot-id", snapshot_id, "The table has no such snapshot; load it again.")
    return found[-1]


def _names(table: LoadedTable, asked: ScanRequest, snapshot_id: int) -> ColumnNames:
    snapshot = next((one for one in table.snapshots if one["snapshot-id"] == snapshot_id), {})
    # Readers of the newest snapshot get the table's own columns.
    is_newest = snapshot_id == table.pins[-1].snapshot_id
    then = table.schema(None if is_newest else snapshot.get("schema-id"))
    return ColumnNames(table.schema(), then, is_case_sensitive=asked.is_case_sensitive)


def _kept(
    view: TableView, table: LoadedTable, files: ScanFiles, wanted: Filter, start: int
) -> Iterator[tuple[int, pa.RecordBatch, list[int]]]:
    """Batches with the places in them that are wanted; `start` is a place among all files."""
    predicate, begin = affordable(wanted.predicate, MAX_PARTS), 0
    for batch in files.batches():
        if begin + batch.num_rows > start:
            kept = pc.and_(evaluate(predicate, batch).true, _told(view, table, batch))
            places: list[int] = pc.indices_nonzero(kept).to_pylist()
            yield begin, batch, [place for place in places if begin + place >= start]
        begin += batch.num_rows


def _told(view: TableView, table: LoadedTable, batch: pa.RecordBatch) -> pa.BooleanArray:
    """The files that this recipient may know of."""
    if not view.is_restricted:
        return pa.repeat(pa.scalar(True), batch.num_rows)
    schema = table.schema()
    names = ColumnNames(schema, schema, is_case_sensitive=False)

    def by_id(name: ColumnName) -> ColumnName | None:
        column = names.column(name if isinstance(name, str) else ".".join(name))
        return None if column is None else str(column.field_id)

    return only_within(with_columns(view.rule, by_id), batch)


def _require_own_deletes(view: TableView, table: LoadedTable, files: ScanFiles) -> None:
    """See that no file of deletes, which one puffin file may have for many, names a file that is not told of.

    Equality deletes of no partition may have keys of any row.
    """
    if not view.is_restricted or not files.delete_files:
        return
    own: set[str] = set()
    foreign: set[str] = set()
    has_any_keys = False
    for batch in files.batches():
        told = _told(view, table, batch)
        for paths, of_files in ((own, told), (foreign, pc.invert(told))):
            places = pc.unique(pc.list_flatten(batch.column("deletes").filter(of_files))).to_pylist()
            paths.update(files.delete_files[place]["file-path"] for place in places)
            has_any_keys |= of_files is told and any(
                _may_have_any_keys(files.delete_files[at]) for at in places
            )
    if has_any_keys or own & foreign:
        raise Unserveable(
            f"{view.entry.path} has files of deletes that tell of rows which are not shared with you, too.",
            "Query it by Delta Sharing. Provider: rewrite its data files, so that no deletes are left.",
        )


def _may_have_any_keys(delete: Mapping[str, Any]) -> bool:
    return delete["content"] == "equality-deletes" and not delete["partition"]


class _Page:
    """A page being filled."""

    def __init__(self, files: ScanFiles, wanted: Filter, statistics: Statistics) -> None:
        self.made = ScanPage()
        self._files, self._statistics = files, statistics
        self._residual = f',"residual-filter":{wanted.residual}}}'
        self._deletes: dict[int, int] = {}

    def add(self, begin: int, batch: pa.RecordBatch, places: list[int], most: int) -> bool:
        """Take the files at these places; False when there was no room for all of them."""
        room = most - len(self.made.tasks)
        if len(places) > room:
            self.made.following = begin + places[room]
        chosen = batch.take(pa.array(places[:room], pa.int64()))
        texts = self._statistics.added(chosen)
        for text, deletes in zip(texts, chosen.column("deletes").to_pylist(), strict=True):
            named = f',"delete-file-references":{self._references(deletes)}' if deletes else ""
            self.made.tasks.append(f'{{"data-file":{text}{named}{self._residual}')
        return self.made.following is None

    def _references(self, deletes: list[int]) -> list[int]:
        for place in deletes:
            if place not in self._deletes:
                self._deletes[place] = len(self._deletes)
                self.made.deletes.append(self._files.delete_files[place])
        return [self._deletes[place] for place in deletes]


def _schema(said: bytes) -> "Schema":
    from pyiceberg.schema import Schema

    from lakeshare_server.tables.iceberg.foreign_types import with_foreign_types

    return Schema.model_validate(with_foreign_types(orjson.loads(said)))
