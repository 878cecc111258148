"""Scan requests of Iceberg clients, and the tokens of what is left of a plan (REST specification, `planTableScan`).

Nothing of a plan is kept: a token says which question it belongs to and where the next page begins.
"""

import base64
import hashlib
import json
import logging
import mmap
import os
import time
import zlib
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from lakeshare_server.access.table_access import TableView
from lakeshare_server.errors import BadRequest, Denied, NotFound, Unavailable, Unserveable, shorten_value
from lakeshare_server.iceberg_rest.filters import ColumnNames, Filter, Statistics, parse_filter
from lakeshare_server.iceberg_rest.metadata import list_data_files, list_readable_files
from lakeshare_server.iceberg_rest.tables import LoadedTable
from lakeshare_server.protocol.requests import MAX_PARTS
from lakeshare_server.protocol.tokens import TokenHolder, TokenSealer
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.storage.locations import local_path
from lakeshare_server.tables.iceberg.deletes import Targets, targets_of
from lakeshare_server.tables.iceberg.manifests import DataFiles, DeleteFile, live_files
from lakeshare_server.tables.iceberg.metadata import NO_SNAPSHOT, open_metadata, schema_at
from lakeshare_server.tables.iceberg.partitions import (
    PartitionTexts,
    bounded_type,
    column_bounds,
    identity_columns,
    null_counts,
    partition_columns,
    partition_ranges,
    partition_values,
)
from lakeshare_server.tables.index import CacheFolder
from lakeshare_server.tables.predicates import ColumnName, limit_parts, rename_columns
from lakeshare_server.tables.pruning import evaluate
from lakeshare_server.tables.restrictions import SPEC_PARTITION, only_within
from lakeshare_server.versions import PinnedSnapshot

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

TOO_LONG = "It is too long for a plan of more than one page; ask for less, or plan the scan in the client."
INCREMENTAL = "Changes between snapshots are not planned here; leave it out, or plan the scan in the client."


@dataclass(frozen=True, kw_only=True)
class ScanRequest:
    """What a client asks for; `filter` is the expression as it came, `snapshot_id` None means the newest snapshot."""

    snapshot_id: int | None
    filter: Any
    is_case_sensitive: bool
    is_of_snapshot: bool
    stats_fields: tuple[str, ...]


@dataclass(frozen=True)
class PlanTask:
    """Where a page of a plan begins: of this snapshot, at this place among its files."""

    snapshot_id: int
    start: int


def parse_scan_request(fields: Mapping[str, Any]) -> ScanRequest:
    """The request in a body.

    Raises:
        BadRequest: a field has a value that cannot be used, or asks for what is not planned here.
    """
    for name in ("start-snapshot-id", "end-snapshot-id"):
        if fields.get(name) is not None:
            raise BadRequest(name, fields[name], INCREMENTAL)
    _texts(fields, "select")
    return ScanRequest(
        snapshot_id=_whole_number(fields, "snapshot-id"),
        filter=fields.get("filter"),
        is_case_sensitive=_flag(fields, "case-sensitive", default=True),
        is_of_snapshot=_flag(fields, "use-snapshot-schema", default=False),
        stats_fields=_texts(fields, "stats-fields"),
    )


@dataclass(frozen=True)
class _PlanToken:
    """What a token holds; `until` is in seconds since 1970, `question` the scan request in few characters."""

    recipient: str
    table: str
    until: int
    question: str
    task: PlanTask


SCAN_REQUEST = TypeAdapter(ScanRequest)


class PlanTasks:
    """Makes and reads the tokens of plans; their life is in seconds.

    They carry the whole question, and come back in a body of at most `max_body_bytes`.
    """

    def __init__(self, key: bytes, life_s: int, max_body_bytes: int) -> None:
        self._seals, self._life_s = TokenSealer(key, "iceberg plan task v1"), life_s
        # A seal makes a third more of it.
        self._longest = max_body_bytes // 2

    def token(self, token_holder: TokenHolder, scan: ScanRequest, task: PlanTask) -> str:
        """The token of a page.

        Raises:
            BadRequest: the filter is too long to be carried about.
        """
        question = base64.b85encode(zlib.compress(json.dumps(asdict(scan)).encode())).decode()
        if len(question) > self._longest:
            raise BadRequest("filter", scan.filter, TOO_LONG)
        until = int(time.time()) + self._life_s
        who = {"recipient": token_holder.recipient_id, "table": token_holder.table_id, "until": until}
        return self._seals.seal({**who, "question": question, "task": asdict(task)})

    def open(self, token_holder: TokenHolder, token: str) -> tuple[ScanRequest, PlanTask]:
        """What a token asks for.

        Raises:
            NotFound: it is not one of ours, has expired, or is of another table or recipient.
        """
        found = self._seals.open(token, _PlanToken)
        whose = (token_holder.recipient_id, token_holder.table_id)
        if found is None or (found.recipient, found.table) != whose or found.until < time.time():
            raise NotFound("plan-task", shorten_value(token))
        try:
            text = zlib.decompress(base64.b85decode(found.question))
            return SCAN_REQUEST.validate_json(text, strict=True), found.task
        except (zlib.error, ValueError) as error:
            # Of another lakeshare version.
            raise NotFound("plan-task", shorten_value(token)) from error


def tasks_json(tasks: Sequence[str], deletes: Sequence[Mapping[str, Any]], following: str | None) -> str:
    """The members of an answer that are its tasks; files of deletes go only with tasks that name them."""
    members = [f'"file-scan-tasks":[{",".join(tasks)}]']
    if deletes:
        members.append(f'"delete-files":{json.dumps(deletes, separators=(",", ":"))}')
    if following is not None:
        members.append(f'"plan-tasks":[{json.dumps(following)}]')
    return ",".join(members)


def _whole_number(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise BadRequest(name, value, "Give a whole number.")


def _flag(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    raise BadRequest(name, value, "Give true or false.")


def _texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = fields.get(name)
    if value is None:
        return ()
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return tuple(value)
    raise BadRequest(name, value, "Give a list of names of columns.")


LAYOUT = 3
BATCH_ROWS = 16_000
# An equality delete of an unpartitioned table applies to all older data files: only so many pairs are kept.
MAX_REFERENCES = 5_000_000
DELETE_FILES, MAY_LACK_COLUMNS = b"delete files", b"may lack columns"
# In JSON, partition values of other types are texts, which stand for something else.
SAME_IN_JSON = frozenset({"boolean", "int", "long", "float", "double", "string"})
# Raw statistics, for those who ask for them; the column's id stands behind the name.
STATISTICS = ("lower", "upper", "null_counts", "nan_counts")


class ScanFiles:
    """The data files, mapped; `delete_files` are JSON objects, `delete_paths` where they are.

    `may_lack_columns` is whether a file may be without a column whose partition value is a text in a plan, like a date:
    its statistics do not show that it has the column.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        reader = pa.ipc.open_file(pa.py_buffer(mapped))
        self.delete_files: Sequence[Mapping[str, Any]] = orjson.loads(reader.schema.metadata[DELETE_FILES])
        self.may_lack_columns = reader.schema.metadata[MAY_LACK_COLUMNS] == b"true"
        self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The files in the order of the manifests, some thousand at a time."""
        return iter(self._batches)


def write_scan_files(
    stores: Stores, metadata_location: str, snapshot_id: int, client_schema: "Schema", path: Path
) -> None:
    """Write the files of a snapshot; `told` is the schema that clients bind partition specs to.

    Raises:
        Unserveable: the metadata or a manifest cannot be read, or the files have what cannot be told.
        Unavailable: the store does not answer.
    """
    table, snapshot = open_metadata(stores, metadata_location, snapshot_id)
    root = local_path(table.location)
    live = live_files(stores, snapshot, root)
    targets = targets_of(table, live.data) if live.deletes else Targets(())
    by_file, used = _deletes_of(targets, live.deletes, len(live.data), root)
    columns = _by_id(client_schema, schema_at(table, snapshot))
    partitions = PartitionTexts(table, client_schema, root)
    rows = pa.table(
        {
            "path": live.data.column("path"),
            "rows": live.data.column("rows"),
            "spec_id": live.data.column("spec_id"),
            **_own_partitions(columns, live.data, table),
            **_pruning(columns, live.data, partition_columns(table, columns, live.data), table),
            "data_file": pa.array(_data_files(live.data, partitions), pa.string()),
            "deletes": pa.array(by_file, pa.list_(pa.int32())),
            **_statistics(live.data, columns),
        }
    )
    told_deletes = [_delete_file(delete, partitions) for delete in used]
    lacks = _may_lack_columns(table, columns, live.data)
    noted = {DELETE_FILES: orjson.dumps(told_deletes), MAY_LACK_COLUMNS: orjson.dumps(lacks)}
    schema = rows.schema.with_metadata(noted)
    with pa.OSFile(os.fsencode(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_table(rows.cast(schema).combine_chunks(), max_chunksize=BATCH_ROWS)


def _may_lack_columns(table: "TableMetadata", columns: "Schema", files: DataFiles) -> bool:
    for field_id, is_partitioned in identity_columns(table, columns, files).items():
        counts = files.null_counts.get(field_id, pa.nulls(len(files), pa.int64()))
        is_lacking = pc.any(pc.and_(is_partitioned, pc.is_null(counts)), min_count=0).as_py()
        if is_lacking and str(columns.find_type(field_id)) not in SAME_IN_JSON:
            return True
    return False


def _by_id(client_schema: "Schema", own: "Schema") -> "Schema":
    """All primitive columns that rows have at most one value of, flat, each named by its id."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField, StructType

    found: dict[int, NestedField] = {}

    def collect(fields: Sequence[NestedField]) -> None:
        for field in fields:
            if isinstance(field.field_type, StructType):
                collect(field.field_type.fields)
            elif field.field_type.is_primitive:
                found.setdefault(
                    field.field_id, NestedField(field.field_id, str(field.field_id), field.field_type, False)
                )

    # Clients read with the types that they are told, into which columns of older snapshots were promoted.
    collect(client_schema.fields)
    collect(own.fields)
    return Schema(*found.values())


def _pruning(
    columns: "Schema", files: DataFiles, partitioned_by: tuple[str, ...], table: "TableMetadata"
) -> dict[str, pa.Array]:
    ranges = partition_ranges(table, columns, files, bounded_type)
    structs = {
        "partition": partition_values(table, columns, files, partitioned_by),
        "min": column_bounds(columns.fields, files, ranges, is_upper=False),
        "max": column_bounds(columns.fields, files, ranges, is_upper=True),
        "null_count": null_counts(columns.fields, files, ranges),
    }
    return {name: struct for name, struct in structs.items() if struct.type.num_fields}


def _own_partitions(columns: "Schema", files: DataFiles, table: "TableMetadata") -> dict[str, pa.Array]:
    """For each spec, what its files are partitioned by, null for all others."""
    found: dict[str, pa.Array] = {}
    for spec_id in pc.unique(files.column("spec_id")).to_pylist():
        is_own = files.in_spec(spec_id)
        own = files.filtered(is_own)
        values = partition_values(table, columns, own, partition_columns(table, columns, own))
        if values.type.num_fields:
            places = pc.subtract(pc.cumulative_sum(is_own.cast(pa.int64())), 1)
            found[f"{SPEC_PARTITION}{spec_id}"] = pc.take(values, pc.if_else(is_own, places, None))
    return found


def _statistics(files: DataFiles, columns: "Schema") -> dict[str, pa.Array]:
    known = columns.field_ids
    return {
        f"{name}:{field_id}": values
        for name in STATISTICS
        for field_id, values in getattr(files, name).items()
        if field_id in known
    }


def _data_files(files: DataFiles, partitions: PartitionTexts) -> Iterator[str]:
    names = ("path", "format", "spec_id", "size", "rows", "first_row_id", "sequence_number")
    columns = [files.column(name).to_pylist() for name in names]
    for (path, kind, spec_id, size, rows, row_id, number), partition in zip(
        zip(*columns, strict=True), partitions.of(files), strict=True
    ):
        lineage = "" if row_id is None else f',"first-row-id":{row_id}'
        lineage += f',"data-sequence-number":{number}' if lineage and number is not None else ""
        yield (
            f'{{"spec-id":{spec_id},"content":"data","file-path":{orjson.dumps(path).decode()},'
            f'"file-format":"{kind.lower()}","partition":{partition},"file-size-in-bytes":{size},'
            f'"record-count":{rows}{lineage}}}'
        )


def _delete_file(delete: DeleteFile, partitions: PartitionTexts) -> dict[str, Any]:
    described: dict[str, Any] = {
        "spec-id": delete.spec_id,
        "content": f"{delete.content}-deletes",
        "file-path": delete.path,
        "file-format": delete.format.lower(),
        "partition": partitions.values(delete.spec_id, dict(delete.partition)),
        "file-size-in-bytes": delete.size_bytes,
        "record-count": delete.rows,
        "referenced-data-file": delete.referenced_data_file,
        "content-offset": delete.content_offset,
        "content-size-in-bytes": delete.content_size_in_bytes,
        "equality-ids": list(delete.equality_ids) or None,
    }
    return {name: value for name, value in described.items() if value is not None}


def _deletes_of(
    targets: Targets, deletes: Sequence[DeleteFile], files: int, root: str
) -> tuple[list[list[int]], list[DeleteFile]]:
    """For each data file the places of the deletes that apply to it, among those that apply to any."""
    by_file: list[list[int]] = [[] for _ in range(files)]
    vectors: dict[int, int] = {}
    used: list[DeleteFile] = []
    by_equality: set[int] = set()
    references = 0
    for delete in deletes:
        numbers = _numbers(targets, delete)
        references += len(numbers)
        if references > MAX_REFERENCES:
            raise Unserveable(
                f"{root} has more than {MAX_REFERENCES} pairs of data files and files of deletes.",
                "Plan scans in the client, or compact the table.",
            )
        if not numbers:
            continue
        if delete.content == "equality":
            by_equality.add(len(used))
        for number in numbers:
            if delete.format == "PUFFIN":
                vectors[number] = len(used)
            by_file[number].append(len(used))
        used.append(delete)
    # A vector has taken over all positions that were deleted before it, but no keys.
    for number, place in vectors.items():
        by_file[number] = [one for one in by_file[number] if one == place or one in by_equality]
    return by_file, used


def _numbers(targets: Targets, delete: DeleteFile) -> list[int]:
    if delete.content == "equality":
        return targets.older_in_scope(delete)
    found = (targets.number_of(path, delete) for path in targets.near(delete))
    return [number for number in found if number is not None]


PAGE_BYTES = 64 << 20

_log = logging.getLogger(__name__)


@dataclass
class ScanPage:
    """Some tasks of a plan as JSON objects, the deletes that they name, and where the following page begins."""

    tasks: list[str] = dataclass_field(default_factory=list)
    deletes: list[Mapping[str, Any]] = dataclass_field(default_factory=list)
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
        scan: ScanRequest,
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
        names = _names(table, scan, task.snapshot_id)
        if task.snapshot_id == NO_SNAPSHOT:
            return ScanPage()
        scan_filter = parse_filter(scan.filter, names, is_of_snapshot=scan.is_of_snapshot)
        files = self._scan_files(table, _pin_of(table, task.snapshot_id))
        if is_for_pyiceberg and files.may_lack_columns:
            # PyIceberg 0.12 compares the texts in plans with numbers of days, and loses the rows of such a file.
            in_client = "Plan scans in the client: set scan-planning-mode to client."
            raise Unserveable(
                "Files of the table may lack partition columns, whose values PyIceberg does not read from plans.",
                "Query it by Delta Sharing." if view.is_restricted else in_client,
            )
        statistics = Statistics.of([names.column(name) for name in scan.stats_fields])
        _require_own_deletes(view, table, files)
        page = _Page(files, scan_filter, statistics)
        most = min(most, max(1, PAGE_BYTES // len(scan_filter.residual)))
        for begin, batch, kept in _select_files(view, table, files, scan_filter, task.start):
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
            allowed = batch.filter(_render_tasks(view, table, batch))
            yield from allowed.column("path").to_pylist()
            for place in pc.unique(pc.list_flatten(allowed.column("deletes"))).to_pylist():
                yield files.delete_files[place]["file-path"]

    def _scan_files(self, table: LoadedTable, pin: PinnedSnapshot) -> ScanFiles:
        said = orjson.dumps(table.schema())
        # Partition values are told in the types of the schema, so that they are others with another one.
        identity = ("iceberg scan", LAYOUT, pin.metadata_location, pin.snapshot_id)
        return self._files.get(
            (*identity, hashlib.sha256(said).hexdigest()), lambda path: self._write(pin, _schema(said), path)
        )

    def _write(self, pin: PinnedSnapshot, client_schema: "Schema", path: Path) -> None:
        # Nothing of what the reader says goes out: it names places of the server.
        try:
            write_scan_files(self._stores, pin.metadata_location, pin.snapshot_id, client_schema, path)
        except Unserveable as error:
            _log.error("scans of %s cannot be planned: %s", pin.metadata_location, error)
            raise Unserveable(
                "Scans of the table cannot be planned by the server.",
                "Plan them in the client: set scan-planning-mode to client. Provider: the server's log says why.",
            ) from error
        except Unavailable as error:
            _log.warning("scans of %s cannot be planned now: %s", pin.metadata_location, error)
            raise Unavailable("the table's store does not answer", "Try again in a moment.") from error


def first_task(table: LoadedTable, scan: ScanRequest) -> PlanTask:
    """Where the first page of a scan begins.

    Raises:
        BadRequest: the snapshot is not one that the recipient may read.
    """
    newest = table.pins[-1].snapshot_id
    snapshot_id = newest if scan.snapshot_id is None else scan.snapshot_id
    if snapshot_id == newest == NO_SNAPSHOT:
        return PlanTask(NO_SNAPSHOT, 0)
    return PlanTask(_pin_of(table, snapshot_id).snapshot_id, 0)


def _pin_of(table: LoadedTable, snapshot_id: int) -> PinnedSnapshot:
    snapshot_ids = {snapshot["snapshot-id"] for snapshot in table.snapshots}
    found = [pin for pin in table.pins if pin.snapshot_id == snapshot_id and snapshot_id in snapshot_ids]
    if not found:
        raise BadRequest("snapshot-id", snapshot_id, "The table has no such snapshot; load it again.")
    return found[-1]


def _names(table: LoadedTable, scan: ScanRequest, snapshot_id: int) -> ColumnNames:
    snapshot = next((snapshot for snapshot in table.snapshots if snapshot["snapshot-id"] == snapshot_id), {})
    # Readers of the newest snapshot get the table's own columns.
    is_newest = snapshot_id == table.pins[-1].snapshot_id
    then = table.schema(None if is_newest else snapshot.get("schema-id"))
    return ColumnNames(table.schema(), then, is_case_sensitive=scan.is_case_sensitive)


def _select_files(
    view: TableView, table: LoadedTable, files: ScanFiles, scan_filter: Filter, start: int
) -> Iterator[tuple[int, pa.RecordBatch, list[int]]]:
    """Batches with the places in them that are wanted; `start` is a place among all files."""
    predicate, begin = limit_parts(scan_filter.predicate, MAX_PARTS), 0
    for batch in files.batches():
        if begin + batch.num_rows > start:
            kept = pc.and_(evaluate(predicate, batch).true, _render_tasks(view, table, batch))
            places: list[int] = pc.indices_nonzero(kept).to_pylist()
            yield begin, batch, [place for place in places if begin + place >= start]
        begin += batch.num_rows


def _render_tasks(view: TableView, table: LoadedTable, batch: pa.RecordBatch) -> pa.BooleanArray:
    """The files that this recipient may know of."""
    if not view.is_restricted:
        return pa.repeat(pa.scalar(True), batch.num_rows)
    schema = table.schema()
    names = ColumnNames(schema, schema, is_case_sensitive=False)

    def by_id(name: ColumnName) -> ColumnName | None:
        column = names.column(name if isinstance(name, str) else ".".join(name))
        return None if column is None else str(column.field_id)

    return only_within(rename_columns(view.rule, by_id), batch)


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
        told = _render_tasks(view, table, batch)
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


def _schema(content: bytes) -> "Schema":
    from pyiceberg.schema import Schema

    from lakeshare_server.tables.iceberg.metadata import with_foreign_types

    return Schema.model_validate(with_foreign_types(orjson.loads(content)))


MAX_CACHED_SNAPSHOTS = 64  # snapshots, each with the locations of its files


class SignableFiles:
    """The files of snapshots, looked up once; for many threads."""

    def __init__(self, stores: Stores, scans: IcebergScans) -> None:
        self._stores, self._scans = stores, scans
        self._known: OrderedDict[Hashable, frozenset[str]] = OrderedDict()
        self._turn = Lock()

    def require(self, view: TableView, table: LoadedTable, location: str) -> None:
        """Refuse to sign for a file that is not one of the table's published ones.

        Raises:
            Denied: it is none, or not one that this recipient may read.
            StoreError, Unavailable: what tells cannot be read, or not now.
        """
        by_id = {snapshot["snapshot-id"]: snapshot for snapshot in table.snapshots}
        # What is read nearly always is of the newest publication.
        for pin in reversed(table.pins):
            snapshot = by_id.get(pin.snapshot_id)
            if snapshot is None:
                continue
            key = view.entry.lake_table, pin, view.restriction
            files = self._known.get(key)
            if files is None:
                files = self._keep(key, self._files(view, table, pin, snapshot))
            if location in files:
                return
        raise Denied(f"{location} is not a file of a publication of {view.entry.path} that you may read.")

    def _files(
        self, view: TableView, table: LoadedTable, pin: PinnedSnapshot, snapshot: Mapping[str, Any]
    ) -> frozenset[str]:
        if view.is_restricted:
            # No manifests: they tell of all files.
            paths = self._scans.readable(view, table, pin)
            return frozenset(self._stores.place(path).location for path in paths)
        return list_data_files(view, pin, self._stores) | list_readable_files(snapshot, self._stores)

    def _keep(self, key: Hashable, files: frozenset[str]) -> frozenset[str]:
        with self._turn:
            self._known[key] = files
            while len(self._known) > MAX_CACHED_SNAPSHOTS:
                self._known.popitem(last=False)
        return files
