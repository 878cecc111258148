"""Dump and restore of the catalog of a point: ledger, shares, grants, contracts and Nessie's main."""

import datetime as dt
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel, ValidationError
from sqlalchemy import Table, func, select
from sqlalchemy.orm import Session

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import CatalogRecord, ReportMessage
from lakeshare_pipelines.backup.points import OWN_PREFIX, Points
from lakeshare_pipelines.contracts.loader import PACKAGED
from lakeshare_pipelines.errors import BackupError, ObjectMissing
from lakeshare_pipelines.nessie.client import Nessie
from lakeshare_pipelines.nessie.server import nessie_dir, nessie_for
from lakeshare_pipelines.settings import NESSIE, LakeSettings
from lakeshare_server.catalog import Catalog, open_catalog
from lakeshare_server.catalog.database import HEAD, WRITES, migrate, new_catalog
from lakeshare_server.catalog.models import AuditChainRow, Base, EvidenceRow, PublicationRow
from lakeshare_server.catalog.transfer import (
    dump_rows,
    find_filled_tables,
    insert_rows,
    reflect_tables,
    to_json_line,
)
from lakeshare_server.storage.stores import write_file
from lakeshare_server.tables.index import index_path, sync_folder

MANIFEST = "manifest.json"
OTHER_POINT = "Restore the catalog of another point; `lakeshare backup list` shows them."


class DumpedFile(BaseModel, frozen=True):
    """One object of a dump; `name` is its key below the dump's folder."""

    name: str
    size_bytes: int
    sha256: str
    rows: int | None = None


class DumpedTable(BaseModel, frozen=True):
    name: str
    rows: int
    files: tuple[DumpedFile, ...]


class DumpedNessie(BaseModel, frozen=True):
    hash: str
    tables: int
    state: tuple[DumpedFile, ...]  # A JSON line for each Iceberg table: name and content
    log: tuple[DumpedFile, ...]  # All commits as Nessie returns them, newest first, a JSON line each


class Manifest(BaseModel, frozen=True):
    lakeshare: str
    revision: str  # Alembic revision of the tables
    dumped_at: dt.datetime
    tables: tuple[DumpedTable, ...]
    left_out: tuple[str, ...]
    audit_head: str | None  # Hash of the newest event of the audit log, which is not dumped
    contracts: tuple[DumpedFile, ...]
    backups: DumpedFile | None = None
    indexes: tuple[DumpedFile, ...] = ()  # File indexes of publications; all points share their files
    missing_indexes: tuple[str, ...] = ()  # Digests of publications that the state folder does not have
    nessie: DumpedNessie | None = None

    def table(self, name: str) -> DumpedTable:
        empty = DumpedTable(name=name, rows=0, files=())
        return next((table for table in self.tables if table.name == name), empty)


def get_dump_folder(points: Points, day: str) -> str:
    return f"{points.folder(day)}catalog/"


def get_index_key(points: Points, digest: str) -> str:
    return f"{points.backup.records.prefix}{OWN_PREFIX}{points.backup.name}/indexes/{digest}.arrow"


def read_manifest(points: Points, day: str) -> Manifest:
    key = f"{get_dump_folder(points, day)}{MANIFEST}"
    where = points.store.address.location(key)
    try:
        return Manifest.model_validate_json(points.store.read(key))
    except ObjectMissing:
        raise BackupError(where, "the point has no dump of the catalog", OTHER_POINT) from None
    except ValidationError as error:
        reason = f"not a manifest of a dump: {error.errors()[0]['msg']}"
        raise BackupError(where, reason, OTHER_POINT) from error


def read_file(points: Points, key: str, file: DumpedFile) -> bytes:
    """The content of a dumped file; an error if its digest differs."""
    content = points.store.read(key)
    if sha256(content).hexdigest() != file.sha256:
        where = points.store.address.location(key)
        raise BackupError(where, "it is not what was dumped: its SHA-256 differs", OTHER_POINT)
    return content


def read_lines(points: Points, day: str, files: tuple[DumpedFile, ...]) -> Iterator[bytes]:
    folder = get_dump_folder(points, day)
    for file in files:
        yield from read_file(points, folder + file.name, file).splitlines()


LEFT_OUT = frozenset(
    {
        # Events are chained by hashes; `lakeshare audit export` exports them.
        "audit_log", "audit_chain", "audit_journals", "usage_days",
        # State of requests and runs in progress.
        "async_queries", "set_locks", "allowances",
    }
)  # fmt: skip


def list_dumped_tables() -> list[Table]:
    """The dumped tables, referenced tables first."""
    return [table for table in Base.metadata.sorted_tables if table.name not in LEFT_OUT]


PROGRESS_INDEXES = 100


@dataclass(frozen=True)
class RestoredCatalog:
    """Restored rows by table, number of file indexes, digests without an index, and written contract files."""

    rows: dict[str, int]
    indexes: int
    missing_indexes: tuple[str, ...]
    contracts: tuple[Path, ...]


def restore_catalog(
    settings: LakeSettings,
    points: Points,
    day: str,
    contracts_to: Path | None = None,
    report_progress: ReportMessage = print,
) -> RestoredCatalog:
    """Restore the catalog of a point into the database of the settings, which must be empty or not exist.

    File indexes are written to the state folder, contracts to `contracts_to`; existing files stay unchanged. All rows
    are restored or none. Raises BackupError if the database has rows, the dump is damaged, or a folder cannot be
    written, and CatalogConflict if a newer lakeshare made the dump, or the catalog has another revision.
    """
    manifest = read_manifest(points, day)
    catalog = new_catalog(settings.catalog_url, manifest.revision)
    try:
        _require_empty(catalog, manifest)
        indexes = _restore_indexes(settings, points, manifest, report_progress)
        rows: dict[str, int] = {}
        with catalog.engine.execution_options(**{WRITES: True}).begin() as connection:
            for table in reflect_tables(connection, [dumped.name for dumped in manifest.tables]):
                dumped = manifest.table(table.name)
                count = insert_rows(connection, table, read_lines(points, day, dumped.files))
                if count != dumped.rows:
                    reason = f"it has {count} rows, not {dumped.rows}"
                    raise BackupError(f"table {table.name} of the dump", reason, OTHER_POINT)
                rows[table.name] = count
        # An older lakeshare's dump is restored into tables of its revision, then migrated.
        migrate(catalog, with_copy=False)
    finally:
        catalog.close()
    contracts = []
    if contracts_to is not None:
        for file in manifest.contracts:
            path = contracts_to / Path(file.name).name
            content = read_file(points, get_dump_folder(points, day) + file.name, file)
            if not path.exists():
                _write(path, content)
                contracts.append(path)
    return RestoredCatalog(rows, indexes, manifest.missing_indexes, tuple(contracts))


def _require_empty(catalog: Catalog, manifest: Manifest) -> None:
    with catalog.engine.connect() as connection:
        filled = find_filled_tables(connection, [table.name for table in manifest.tables])
    if filled:
        location = catalog.engine.url.set(query={}).render_as_string(hide_password=True)
        reason = f"it is not empty: there are rows in {', '.join(filled)}"
        fix = "A catalog is never overwritten: set LAKESHARE_STATE_DIR or LAKESHARE_DATABASE_URL to an empty one."
        raise BackupError(f"the catalog at {location}", reason, fix)


def _restore_indexes(
    settings: LakeSettings, points: Points, manifest: Manifest, report_progress: ReportMessage
) -> int:
    restored = 0
    for file in manifest.indexes:
        path = index_path(settings.index_dir, file.sha256)
        if path.exists():
            continue
        _write(path, read_file(points, get_index_key(points, file.sha256), file))
        restored += 1
        if restored % PROGRESS_INDEXES == 0:
            report_progress(f"{restored:,} of {len(manifest.indexes):,} file indexes")
    if restored:
        sync_folder(settings.index_dir)
    return restored


def _write(path: Path, content: bytes) -> None:
    try:
        write_file(path, content, if_absent=False)
    except OSError as error:
        fix = "Correct the folder, then run it again: the database is still empty."
        raise BackupError(str(path), f"it cannot be written: {error.strerror}", fix) from error


FILE_BYTES = 32 * 1024**2  # Approximate size of files of lines, which bounds the memory of a dump


def dump_catalog(settings: LakeSettings, backup: Backup, points: Points, day: str) -> CatalogRecord:
    """Write the catalog into the folder of a day's point; a second call replaces the dump.

    The database is read in one snapshot, Nessie after it: what is in the ledger is on main; what is on main but not
    yet in the ledger is repaired after a restore (`lakeshare repair`).
    """
    dump = _Dump(points, get_dump_folder(points, day))
    with closing(open_catalog(settings.catalog_url)) as catalog, catalog.reading() as session:
        tables = tuple(dump.table(session, table) for table in list_dumped_tables())
        audit_head = session.scalar(select(AuditChainRow.hash).where(AuditChainRow.name == "head"))
        rows = session.execute(select(PublicationRow.index_digest, PublicationRow.changes_digest)).all()
        published = session.scalar(select(func.count(PublicationRow.table.distinct()))) or 0
        entries = session.scalars(select(EvidenceRow.entries_digest)).all()
    digests = {digest for row in rows for digest in row if digest} | set(entries)
    indexes, missing = dump.indexes(settings, sorted(digests))
    contracts = settings.contracts_dir or PACKAGED
    manifest = Manifest(
        lakeshare=version("lakeshare"),
        revision=HEAD,
        dumped_at=dt.datetime.now(dt.UTC),
        tables=tables,
        left_out=tuple(sorted(LEFT_OUT)),
        audit_head=audit_head,
        contracts=tuple(
            dump.files("contracts", sorted([*contracts.glob("*.yaml"), *contracts.glob("*.yml")]))
        ),
        backups=next(dump.files("declared", [settings.backups_file] if settings.backups_file else []), None),
        indexes=indexes,
        missing_indexes=missing,
        nessie=_dump_nessie(settings, dump),
    )
    dump.put(MANIFEST, manifest.model_dump_json(indent=1).encode())
    rows_of = {table.name: table.rows for table in manifest.tables}
    return CatalogRecord(
        key=f"{dump.folder}{MANIFEST}",
        nessie_hash=manifest.nessie.hash if manifest.nessie else None,
        tables=published,
        publications=rows_of["publications"],
        shares=rows_of["shares"],
        grants=rows_of["grants"] + rows_of["group_grants"],
    )


class _Dump:
    def __init__(self, points: Points, folder: str) -> None:
        self.points, self.folder = points, folder

    def put(self, name: str, content: bytes, rows: int | None = None) -> DumpedFile:
        self.points.store.put(self.folder + name, content)
        return DumpedFile(name=name, size_bytes=len(content), sha256=sha256(content).hexdigest(), rows=rows)

    def lines(self, name: str, lines: Iterable[bytes]) -> tuple[DumpedFile, ...]:
        """Write lines as files `<name>-00000.jsonl`, …; no line, no file."""
        files: list[DumpedFile] = []
        lines_of_file, size = list[bytes](), 0

        def write() -> None:
            content = b"".join(lines_of_file)
            files.append(self.put(f"{name}-{len(files):05}.jsonl", content, len(lines_of_file)))

        for line in lines:
            lines_of_file.append(line)
            size += len(line)
            if size >= FILE_BYTES:
                write()
                lines_of_file, size = [], 0
        if lines_of_file:
            write()
        return tuple(files)

    def table(self, session: Session, table: Table) -> DumpedTable:
        files = self.lines(f"tables/{table.name}", dump_rows(session, table))
        return DumpedTable(name=table.name, rows=sum(file.rows or 0 for file in files), files=files)

    def files(self, folder: str, paths: Iterable[Path]) -> Iterator[DumpedFile]:
        for path in paths:
            try:
                content = path.read_bytes()
            except OSError as error:
                reason = f"it cannot be read: {error.strerror}"
                raise BackupError(str(path), reason, "Correct it, then make the point again.") from error
            yield self.put(f"{folder}/{path.name}", content)

    def indexes(
        self, settings: LakeSettings, digests: Iterable[str]
    ) -> tuple[tuple[DumpedFile, ...], tuple[str, ...]]:
        found, missing = list[DumpedFile](), list[str]()
        for digest in digests:
            path, key = index_path(settings.index_dir, digest), get_index_key(self.points, digest)
            if not path.exists():
                missing.append(digest)
                continue
            existing = self.points.store.head(key)
            if existing is None or existing.size_bytes != path.stat().st_size:
                self.points.store.put(key, path.read_bytes())
            found.append(DumpedFile(name=path.name, size_bytes=path.stat().st_size, sha256=digest))
        return tuple(found), tuple(missing)


def _dump_nessie(settings: LakeSettings, dump: _Dump) -> DumpedNessie | None:
    has_nessie = settings.nessie_uri is not None or nessie_dir(settings).exists()
    if settings.iceberg_catalog != NESSIE or not has_nessie:
        return None
    with nessie_for(settings, keep=False) as endpoint:
        nessie = Nessie.connect(endpoint, "writer")
        head = nessie.reference("main").hash
        contents = sorted(nessie.contents(f"main@{head}"))
        records = ({"table": table, **asdict(content)} for table, content in contents)
        state = dump.lines("nessie/main", map(to_json_line, records))
        log = dump.lines("nessie/log", map(to_json_line, nessie.log(f"main@{head}")))
    return DumpedNessie(hash=head, tables=len(contents), state=state, log=log)
