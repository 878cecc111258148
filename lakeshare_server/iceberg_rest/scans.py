"""Scan planning for Iceberg clients (REST specification, `planTableScan`), and the files that they may have signed.

No plan is stored: a token has the scan request and the start of the next page.
"""

import base64
import hashlib
import json
import mmap
import os
import time
import zlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from dataclasses import field as dataclass_field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lakeshare_server.access.table_access import TableView
from lakeshare_server.errors import BadRequest, Denied, NotFound, Unavailable, Unserveable, shorten_value
from lakeshare_server.iceberg_rest.filters import ColumnNames, Filter, add_statistics, parse_filter
from lakeshare_server.iceberg_rest.metadata import list_data_files, list_readable_files, replace_errors
from lakeshare_server.iceberg_rest.tables import LoadedTable
from lakeshare_server.locations import local_path
from lakeshare_server.protocol.requests import MAX_PARTS
from lakeshare_server.protocol.tokens import StampedToken, TokenHolder, TokenSealer, stamp
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables.iceberg.deletes import Targets, targets_of
from lakeshare_server.tables.iceberg.manifests import DataFiles, DeleteFile, live_files
from lakeshare_server.tables.iceberg.metadata import NO_SNAPSHOT, list_paths, open_metadata, schema_at
from lakeshare_server.tables.iceberg.partitions import (
    PartitionTexts,
    identity_columns,
    partition_columns,
    pruning_columns,
)
from lakeshare_server.tables.index import CacheFolder, RecentValues
from lakeshare_server.tables.predicates import limit_parts
from lakeshare_server.tables.pruning import evaluate
from lakeshare_server.versions import PinnedSnapshot

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

TOO_LONG = "It is too long for a plan of more than one page; ask for less, or plan the scan in the client."
INCREMENTAL = "The server plans no changes between snapshots; leave it out, or plan the scan in the client."
HINTS = {
    "snapshot-id": "Give a whole number.",
    **dict.fromkeys(("select", "stats-fields"), "Give a list of names of columns."),
}


class ScanRequest(BaseModel):
    """A scan request; `filter` is the unparsed expression, `snapshot_id` None means the newest snapshot."""

    model_config = ConfigDict(strict=True, populate_by_name=True)

    select: list[str] = Field(default_factory=list, exclude=True)
    snapshot_id: int | None = Field(None, alias="snapshot-id")
    filter: Any = None
    is_case_sensitive: bool = Field(True, alias="case-sensitive")
    is_of_snapshot: bool = Field(False, alias="use-snapshot-schema")
    stats_fields: list[str] = Field(default_factory=list, alias="stats-fields")


@dataclass(frozen=True)
class PlanTask:
    snapshot_id: int
    start: int


def parse_scan_request(fields: Mapping[str, Any]) -> ScanRequest:
    for name in ("start-snapshot-id", "end-snapshot-id"):
        if fields.get(name) is not None:
            raise BadRequest(name, fields[name], INCREMENTAL)
    try:
        return ScanRequest.model_validate(
            {name: value for name, value in fields.items() if value is not None}
        )
    except ValidationError as error:
        name = str(error.errors(include_url=False)[0]["loc"][0])
        raise BadRequest(name, fields[name], HINTS.get(name, "Give true or false.")) from error


@dataclass(frozen=True)
class _PlanToken(StampedToken):
    """The content of a token; `question` is the compressed scan request."""

    question: str
    task: PlanTask


class PlanTasks:
    def __init__(self, key: bytes, life_s: int, max_body_bytes: int) -> None:
        self._sealer, self._life_s = TokenSealer(key, "iceberg plan task v1"), life_s
        # Tokens come back in a body of at most `max_body_bytes`; sealing adds a third.
        self._max_chars = max_body_bytes // 2

    def token(self, token_holder: TokenHolder, scan: ScanRequest, task: PlanTask) -> str:
        """The token of a page. Raises BadRequest if the filter is too long for a token."""
        question = base64.b85encode(zlib.compress(json.dumps(scan.model_dump()).encode())).decode()
        if len(question) > self._max_chars:
            raise BadRequest("filter", scan.filter, TOO_LONG)
        content = {"question": question, "task": asdict(task)}
        return self._sealer.seal({**stamp(token_holder, self._life_s), **content})

    def open(self, token_holder: TokenHolder, token: str) -> tuple[ScanRequest, PlanTask]:
        """The scan and page of a token. Raises NotFound if it is invalid, expired or another holder's."""
        opened = self._sealer.open(token, _PlanToken)
        holder = (token_holder.recipient_id, token_holder.table_id)
        if opened is None or (opened.recipient, opened.table) != holder or opened.until < time.time():
            raise NotFound("plan-task", shorten_value(token))
        try:
            text = zlib.decompress(base64.b85decode(opened.question))
            return ScanRequest.model_validate_json(text), opened.task
        except (zlib.error, ValueError) as error:
            # Issued by another version of lakeshare.
            raise NotFound("plan-task", shorten_value(token)) from error


def tasks_json(tasks: Sequence[str], deletes: Sequence[Mapping[str, Any]], following: str | None) -> str:
    members = [f'"file-scan-tasks":[{",".join(tasks)}]']
    if deletes:
        members.append(f'"delete-files":{json.dumps(deletes, separators=(",", ":"))}')
    if following is not None:
        members.append(f'"plan-tasks":[{json.dumps(following)}]')
    return ",".join(members)


LAYOUT = 4
BATCH_ROWS = 16_000
# Limit for pairs of data and delete files: an equality delete without partition applies to all older data files.
MAX_REFERENCES = 5_000_000
DELETE_FILES, MAY_LACK_COLUMNS = b"delete files", b"may lack columns"
# Partition values of other types are texts in JSON.
SAME_IN_JSON = frozenset({"boolean", "int", "long", "float", "double", "string"})
# Columns of raw statistics, with the field id after the name.
STATISTICS = ("lower", "upper", "null_counts", "nan_counts")


class ScanFiles:
    """A snapshot's data files, memory-mapped, with paths as in the file index, and its delete files as JSON objects.

    `may_lack_columns`: a file may lack a column whose partition value is a text in JSON, like a date.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        reader = pa.ipc.open_file(pa.py_buffer(mapped))
        self.delete_files: Sequence[Mapping[str, Any]] = orjson.loads(reader.schema.metadata[DELETE_FILES])
        self.may_lack_columns = reader.schema.metadata[MAY_LACK_COLUMNS] == b"true"
        self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]

    def batches(self) -> Iterator[pa.RecordBatch]:
        return iter(self._batches)


def write_scan_files(
    stores: Stores, metadata_location: str, snapshot_id: int, client_schema: "Schema", path: Path
) -> None:
    """Writes a snapshot's files; clients bind partition specs to `client_schema`. Raises Unserveable or Unavailable."""
    table, snapshot = open_metadata(stores, metadata_location, snapshot_id)
    root = local_path(table.location)
    live = live_files(stores, snapshot, root)
    files = live.data
    targets = targets_of(table, files) if live.deletes else Targets(())
    by_file, used = _deletes_of(targets, live.deletes, len(files), root)
    columns = _by_id(client_schema, schema_at(table, snapshot))
    partitions = PartitionTexts(table, client_schema, root)
    pruning = pruning_columns(table, columns, files, partition_columns(table, columns, files))
    statistics = {
        f"{name}:{field_id}": values
        for name in STATISTICS
        for field_id, values in getattr(files, name).items()
        if field_id in columns.field_ids
    }
    rows = pa.table(
        {
            "path": list_paths(files),
            "rows": files.column("rows"),
            **{name: struct for name, struct in pruning.items() if struct.type.num_fields},
            "data_file": pa.array(_data_files(files, partitions), pa.string()),
            "deletes": pa.array(by_file, pa.list_(pa.int32())),
            **statistics,
        }
    )
    schema = rows.schema.with_metadata(
        {
            DELETE_FILES: orjson.dumps([_delete_file(delete, partitions) for delete in used]),
            MAY_LACK_COLUMNS: orjson.dumps(_may_lack_columns(table, columns, files)),
        }
    )
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
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField, StructType

    columns: dict[int, NestedField] = {}

    def collect(fields: Sequence[NestedField]) -> None:
        for field in fields:
            if isinstance(field.field_type, StructType):
                collect(field.field_type.fields)
            elif field.field_type.is_primitive:
                column = NestedField(field.field_id, str(field.field_id), field.field_type, False)
                columns.setdefault(field.field_id, column)

    # The client's types come first: columns of older snapshots are promoted to them.
    collect(client_schema.fields)
    collect(own.fields)
    return Schema(*columns.values())


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
    """The deletes that apply to any data file, and for each data file the places of its own among them."""
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
    # A deletion vector includes all earlier position deletes, but no equality deletes.
    for number, place in vectors.items():
        by_file[number] = [other for other in by_file[number] if other == place or other in by_equality]
    return by_file, used


def _numbers(targets: Targets, delete: DeleteFile) -> list[int]:
    if delete.content == "equality":
        return targets.older_in_scope(delete)
    numbers = (targets.number_of(path, delete) for path in targets.near(delete))
    return [number for number in numbers if number is not None]


PAGE_BYTES = 64 << 20
MAX_CACHED_MASKS = 64  # snapshots and rules, a bit for each file


@dataclass
class ScanPage:
    tasks: list[str] = dataclass_field(default_factory=list)
    deletes: list[Mapping[str, Any]] = dataclass_field(default_factory=list)
    following: int | None = None


class IcebergScans:
    """Plans scans of tables as recipients may read them; safe from any thread."""

    def __init__(self, stores: Stores, settings: ServerSettings) -> None:
        self._stores = stores
        self._files = CacheFolder(settings.index_dir / "cache", "scan", settings.index_cache_bytes, ScanFiles)
        self._masks = RecentValues[Hashable, Sequence[pa.BooleanArray]](MAX_CACHED_MASKS)

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
        """The tasks of at most `most` files. Raises BadRequest, Unserveable or Unavailable."""
        snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in table.snapshots}
        is_newest = task.snapshot_id == table.pins[-1].snapshot_id
        # Readers of the newest snapshot use the table's own columns.
        schema_id = None if is_newest else snapshots.get(task.snapshot_id, {}).get("schema-id")
        schema = table.schema(schema_id)
        names = ColumnNames(table.schema(), schema, is_case_sensitive=scan.is_case_sensitive)
        page = ScanPage()
        if task.snapshot_id == NO_SNAPSHOT:
            return page
        scan_filter = parse_filter(scan.filter, names, is_of_snapshot=scan.is_of_snapshot)
        files, masks = self._open(view, table, _pin_of(table, task.snapshot_id))
        if is_for_pyiceberg and files.may_lack_columns:
            # PyIceberg 0.12 compares the texts in plans with numbers of days, and loses the rows of such a file.
            in_client = "Plan scans in the client: set scan-planning-mode to client."
            raise Unserveable(
                "Files of the table may lack partition columns, whose values PyIceberg does not read from plans.",
                "Query it by Delta Sharing." if view.is_restricted else in_client,
            )
        columns = [names.column(name) for name in scan.stats_fields]
        counted = sorted({column.field_id for column in columns if column is not None})
        most = min(most, max(1, PAGE_BYTES // len(scan_filter.residual)))
        references: dict[int, int] = {}
        for begin, batch, places in _select_files(files, masks, scan_filter, task.start):
            room = most - len(page.tasks)
            selected = batch.take(pa.array(places[:room], pa.int64()))
            texts = add_statistics(selected, counted)
            for text, deletes in zip(texts, selected.column("deletes").to_pylist(), strict=True):
                for place in deletes:
                    if place not in references:
                        references[place] = len(references)
                        page.deletes.append(files.delete_files[place])
                numbers = [references[place] for place in deletes]
                named = f',"delete-file-references":{numbers}' if deletes else ""
                page.tasks.append(f'{{"data-file":{text}{named},"residual-filter":{scan_filter.residual}}}')
            if len(places) > room:
                page.following = begin + places[room]
                break
        return page

    def readable(self, view: TableView, table: LoadedTable, pin: PinnedSnapshot) -> Iterator[str]:
        """Paths of a snapshot's data and delete files that a restricted recipient may read. Raises Unserveable."""
        files, masks = self._open(view, table, pin)
        for batch, mask in zip(files.batches(), masks, strict=True):
            allowed = batch.filter(mask)
            yield from allowed.column("path").to_pylist()
            for place in pc.unique(pc.list_flatten(allowed.column("deletes"))).to_pylist():
                yield files.delete_files[place]["file-path"]

    def _open(
        self, view: TableView, table: LoadedTable, pin: PinnedSnapshot
    ) -> tuple[ScanFiles, Sequence[pa.BooleanArray]]:
        """A snapshot's files, and for each batch which of them the recipient may read. Raises Unserveable."""
        files = self._scan_files(table, pin)
        if not view.is_restricted:
            return files, [pa.repeat(pa.scalar(True), batch.num_rows) for batch in files.batches()]
        key = view.entry.table, pin, view.restriction
        masks = self._masks.get(key)
        if masks is None:
            masks = self._find_readable(view, pin, files)
            _require_own_deletes(view, files, masks)
            self._masks.keep(key, masks)
        return files, masks

    def _find_readable(
        self, view: TableView, pin: PinnedSnapshot, files: ScanFiles
    ) -> Sequence[pa.BooleanArray]:
        """For each batch, which of its files are in the restricted index of the version."""
        index = view.index(pin.version)
        sources = (index.batches(), files.batches())
        own, paths = (
            pa.chunked_array([batch.column("path") for batch in batches], pa.string()) for batches in sources
        )
        if index.header.table_format != "iceberg":
            # The log of a Delta table spells locations in another way than its Iceberg metadata (UniForm).
            own, paths = (self._normalise(column) for column in (own, paths))
        is_own = pc.is_in(paths, value_set=own.combine_chunks()).combine_chunks()
        ends = accumulate(batch.num_rows for batch in files.batches())
        return [
            is_own.slice(end - batch.num_rows, batch.num_rows)
            for end, batch in zip(ends, files.batches(), strict=True)
        ]

    def _normalise(self, paths: pa.ChunkedArray) -> pa.ChunkedArray:
        place = self._stores.place
        chunks = [[place(path).location for path in chunk.to_pylist()] for chunk in paths.chunks]
        return pa.chunked_array(chunks, pa.string())

    def _scan_files(self, table: LoadedTable, pin: PinnedSnapshot) -> ScanFiles:
        schema = orjson.dumps(table.schema())
        # Partition values are written in the schema's types, so the schema is part of the key.
        digest = hashlib.sha256(schema).hexdigest()
        key = ("iceberg scan", LAYOUT, pin.metadata_location, pin.snapshot_id, digest)
        return self._files.get(key, lambda path: self._write(pin, schema, path))

    def _write(self, pin: PinnedSnapshot, schema: bytes, path: Path) -> None:
        from pyiceberg.schema import Schema

        from lakeshare_server.tables.iceberg.parsing import with_foreign_types

        client_schema = Schema.model_validate(with_foreign_types(orjson.loads(schema)))
        what = f"scans of {pin.metadata_location} cannot be planned"
        reason = "Scans of the table cannot be planned by the server."
        fix = (
            "Plan them in the client: set scan-planning-mode to client. Provider: the server's log says why."
        )
        with replace_errors(what, (Unserveable, Unavailable), reason, fix):
            write_scan_files(self._stores, pin.metadata_location, pin.snapshot_id, client_schema, path)


def first_task(table: LoadedTable, scan: ScanRequest) -> PlanTask:
    newest = table.pins[-1].snapshot_id
    snapshot_id = newest if scan.snapshot_id is None else scan.snapshot_id
    if snapshot_id == newest == NO_SNAPSHOT:
        return PlanTask(NO_SNAPSHOT, 0)
    return PlanTask(_pin_of(table, snapshot_id).snapshot_id, 0)


def _pin_of(table: LoadedTable, snapshot_id: int) -> PinnedSnapshot:
    snapshot_ids = {snapshot["snapshot-id"] for snapshot in table.snapshots}
    pins = [pin for pin in table.pins if pin.snapshot_id == snapshot_id and snapshot_id in snapshot_ids]
    if not pins:
        raise BadRequest("snapshot-id", snapshot_id, "The table has no such snapshot; load it again.")
    return pins[-1]


def _select_files(
    files: ScanFiles, masks: Sequence[pa.BooleanArray], scan_filter: Filter, start: int
) -> Iterator[tuple[int, pa.RecordBatch, list[int]]]:
    """Batches, each with its start and the places of selected files in it; `start` is a place among all files."""
    predicate, begin = limit_parts(scan_filter.predicate, MAX_PARTS), 0
    for batch, mask in zip(files.batches(), masks, strict=True):
        if begin + batch.num_rows > start:
            kept = pc.and_(evaluate(predicate, batch).true, mask)
            places: list[int] = pc.indices_nonzero(kept).to_pylist()
            yield begin, batch, [place for place in places if begin + place >= start]
        begin += batch.num_rows


def _require_own_deletes(view: TableView, files: ScanFiles, masks: Sequence[pa.BooleanArray]) -> None:
    """Checks that no delete file of readable files references other files or, by equality, keys of any row."""
    if not files.delete_files:
        return
    own: set[str] = set()
    foreign: set[str] = set()
    has_any_keys = False
    for batch, is_readable in zip(files.batches(), masks, strict=True):
        for paths, is_selected in ((own, is_readable), (foreign, pc.invert(is_readable))):
            places = pc.unique(pc.list_flatten(batch.column("deletes").filter(is_selected))).to_pylist()
            deletes = [files.delete_files[place] for place in places]
            paths.update(delete["file-path"] for delete in deletes)
            has_any_keys |= paths is own and any(
                delete["content"] == "equality-deletes" and not delete["partition"] for delete in deletes
            )
    if has_any_keys or own & foreign:
        raise Unserveable(
            f"{view.entry.path} has delete files that also cover rows which are not shared with you.",
            "Query it by Delta Sharing. Provider: rewrite its data files, so that no deletes are left.",
        )


MAX_CACHED_SNAPSHOTS = 64  # snapshots, each with the locations of its files


class SignableFiles:
    """The files that a recipient may have signed, cached by snapshot; safe from any thread."""

    def __init__(self, stores: Stores, scans: IcebergScans) -> None:
        self._stores, self._scans = stores, scans
        self._known = RecentValues[Hashable, frozenset[str]](MAX_CACHED_SNAPSHOTS)

    def require(self, view: TableView, table: LoadedTable, location: str) -> None:
        """Raises Denied if a file is in no readable publication of the table; StoreError or Unavailable."""
        by_id = {snapshot["snapshot-id"]: snapshot for snapshot in table.snapshots}
        # Nearly all requests are for files of the newest publication.
        for pin in reversed(table.pins):
            snapshot = by_id.get(pin.snapshot_id)
            if snapshot is None:
                continue
            key = view.entry.table, pin, view.restriction
            files = self._known.get(key)
            if files is None:
                files = self._known.keep(key, self._list(view, table, pin, snapshot))
            if location in files:
                return
        raise Denied(f"{location} is not a file of a publication of {view.entry.path} that you may read.")

    def _list(
        self, view: TableView, table: LoadedTable, pin: PinnedSnapshot, snapshot: Mapping[str, Any]
    ) -> frozenset[str]:
        if view.is_restricted:
            # Without manifests, which name all files.
            paths = self._scans.readable(view, table, pin)
            return frozenset(self._stores.place(path).location for path in paths)
        return list_data_files(view, pin, self._stores) | list_readable_files(snapshot, self._stores)
