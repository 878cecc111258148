"""The difference between two versions of a table for the provider: columns, files, and a sample of changed rows."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.access.allowed_locations import local_folders
from lakeshare_server.access.table_access import TableView
from lakeshare_server.catalog import Reader
from lakeshare_server.pages.console.session import ConsoleRequest
from lakeshare_server.pages.portal import Previews, RowReader, format_type, local_request, query_lines
from lakeshare_server.routes.context import AuditRecord, TableRequest
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.lines import total
from lakeshare_server.tables.snapshot import Field, parse_schema

SHOWN_FILES = 20
# Rows are read from a few files and into memory; a larger table has a sample of its changes.
SAMPLED_FILES, SAMPLED_ROWS, SHOWN_ROWS = 4, 2000, 24
MAX_LINES = 50_000
VECTOR_COLUMNS = ("dv_path", "dv_rest")
NO_FILES = pa.RecordBatch.from_arrays([pa.nulls(0, pa.string()), pa.nulls(0, pa.int64())], ["path", "size"])


@dataclass(frozen=True)
class ColumnChange:
    """A column that two versions have with other types, or only one of them has; a type is None where it lacks."""

    name: str
    before: str | None
    after: str | None


def compare_columns(before: str, after: str) -> list[ColumnChange]:
    """The columns, and fields of structs, in which two schema strings differ, in the order of the later one."""
    old, new = dict(_list_types(parse_schema(before))), dict(_list_types(parse_schema(after)))
    names = dict.fromkeys([*new, *old])
    return [
        ColumnChange(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)
    ]


def _list_types(fields: Sequence[Field], path: str = "") -> Iterator[tuple[str, str]]:
    for column in fields:
        name = path + column.name
        if column.members is None:
            yield name, format_type(column.type)
        else:
            yield name, "struct"
            yield from _list_types(column.members, f"{name}.")


@dataclass
class FileSide:
    """The files that one of two versions has and the other does not; `paths` are the first of them, sizes in bytes."""

    files: int = 0
    size_bytes: int = 0
    paths: list[str] = field(default_factory=list)

    def add(self, files: pa.RecordBatch) -> None:
        self.files += files.num_rows
        self.size_bytes += total(files.column("size"))
        self.paths += files.column("path").slice(0, SHOWN_FILES - len(self.paths)).to_pylist()


@dataclass(frozen=True)
class FileChanges:
    """What changed between two indexes. A file with other deleted rows is in both `added` and `removed`."""

    added: FileSide
    removed: FileSide


def compare_files(before: FileIndex, after: FileIndex) -> FileChanges:
    """Compares two indexes a batch at a time: both have their files in the order of their paths."""
    changes = FileChanges(FileSide(), FileSide())
    old, new = _FileCursor(before), _FileCursor(after)
    while old.batch.num_rows and new.batch.num_rows:
        through = min(old.last_path, new.last_path)
        were, are = old.take(through), new.take(through)
        keys, others = _file_keys(were), _file_keys(are)
        changes.removed.add(were.filter(pc.invert(pc.is_in(keys, others))))
        changes.added.add(are.filter(pc.invert(pc.is_in(others, keys))))
    for cursor, side in ((old, changes.removed), (new, changes.added)):
        while cursor.batch.num_rows:
            side.add(cursor.take(cursor.last_path))
    return changes


def _file_keys(files: pa.RecordBatch) -> pa.Array:
    """Paths with the deletion vectors of the files."""
    names = [name for name in VECTOR_COLUMNS if name in files.schema.names]
    vectors = [pc.fill_null(files.column(name), "") for name in names]
    return pc.binary_join_element_wise(files.column("path"), *vectors, "\n")


class _FileCursor:
    """The files of an index that were not taken yet; `batch` has no rows at the end."""

    def __init__(self, index: FileIndex) -> None:
        self._index, self._batches = index, index.batches(["path", "size", *VECTOR_COLUMNS])
        self.batch = self._whole = NO_FILES
        self._advance()

    @property
    def last_path(self) -> str:
        return str(self.batch.column("path")[self.batch.num_rows - 1].as_py())

    def take(self, through: str) -> pa.RecordBatch:
        """The files of the batch up to a path."""
        count = total(pc.less_equal(self.batch.column("path"), through))
        taken, rest = self.batch.slice(0, count), self.batch.slice(count)
        self.batch = rest
        if not rest.num_rows:
            self._advance()
        return taken

    def _advance(self) -> None:
        if self._whole.num_rows:
            self._index.give_back(self._whole)
        self.batch = self._whole = next((batch for batch in self._batches if batch.num_rows), NO_FILES)


@dataclass(frozen=True)
class RowSample:
    """Rows that only one of two versions has, as texts; `is_partial`: more rows may have changed than were read."""

    columns: Sequence[str]
    added: Sequence[Sequence[str | None]]
    removed: Sequence[Sequence[str | None]]
    is_partial: bool


@dataclass(frozen=True)
class _SampledFiles:
    columns: Sequence[str]
    rows: Sequence[Mapping[str, str | None]]
    is_partial: bool


def sample_changed_rows(
    request: ConsoleRequest, view: TableView, before: int, after: int, changes: FileChanges
) -> RowSample:
    """Reads rows of the changed files of both versions, and keeps those that only one of them has.

    Raises:
        LakeshareError: a version cannot be read by clients, or a file cannot be read.
    """
    old = _read_files(request, view, before, changes.removed)
    new = _read_files(request, view, after, changes.added)
    columns = list(dict.fromkeys([*new.columns, *old.columns]))
    common = [name for name in columns if name in old.columns and name in new.columns]

    def find_others(rows: _SampledFiles, others: _SampledFiles) -> list[list[str | None]]:
        known = Counter(tuple(row[name] for name in common) for row in others.rows)
        found: list[list[str | None]] = []
        for row in rows.rows:
            key = tuple(row[name] for name in common)
            if known[key]:
                known[key] -= 1
            elif len(found) < SHOWN_ROWS:
                found.append([row.get(name) for name in columns])
        return found

    sample = RowSample(
        columns, find_others(new, old), find_others(old, new), old.is_partial or new.is_partial
    )
    audit_record: AuditRecord = request.http_request.state.audit_record
    audit_record.version, audit_record.rows = after, len(sample.added) + len(sample.removed)
    return sample


def _read_files(request: ConsoleRequest, view: TableView, version: int, side: FileSide) -> _SampledFiles:
    wanted = set(side.paths[:SAMPLED_FILES])
    previews: Previews = request.http_request.app.state.server.state.previews
    table_request = local_request(make_provider_request(request, view), previews.signers)
    reader: RowReader | None = None
    rows: list[list[str | None]] = []
    is_partial = side.files > len(wanted)
    for number, line in enumerate(query_lines(table_request, {"version": version})):
        if "metaData" in line:
            metadata = line["metaData"]["deltaMetadata"]
            header = view.index(view.at_version(version)).header
            folders = local_folders(header.location, header.roots)
            reader = RowReader(request.app_state.settings, previews.stores, metadata, folders)
        elif "file" in line and reader is not None:
            add = line["file"]["deltaSingleAction"]["add"]
            if unquote(add["path"]) in wanted:
                wanted.discard(unquote(add["path"]))
                rows += reader.rows(add, SAMPLED_ROWS + 1 - len(rows))
        if not wanted or len(rows) > SAMPLED_ROWS or number > MAX_LINES:
            break
    is_partial |= bool(wanted) or len(rows) > SAMPLED_ROWS
    names = [column.name for column in reader.columns] if reader else []
    return _SampledFiles(
        names, [dict(zip(names, row, strict=True)) for row in rows[:SAMPLED_ROWS]], is_partial
    )


def make_provider_request(request: ConsoleRequest, view: TableView) -> TableRequest:
    """The request of the provider itself for a view, in place of a recipient's."""
    app_state = request.app_state
    reader = Reader("", request.administrator.name)
    audit_record: AuditRecord = request.http_request.state.audit_record
    return TableRequest(
        request.http_request, app_state, audit_record, reader, app_state.catalog.generation(), view
    )
