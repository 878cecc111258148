"""The catalog that goes with a point: ledger, shares, grants, contracts and Nessie's main, dumped and brought back."""

import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import JSON, Connection, DateTime, MetaData, Table, delete, func, select, text
from sqlalchemy.orm import Session

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import CatalogRecord
from lakeshare_pipelines.backup.points import OWN_PREFIX, Points
from lakeshare_pipelines.contracts.loader import PACKAGED
from lakeshare_pipelines.errors import BackupError, ObjectMissing
from lakeshare_pipelines.nessie.client import Nessie, TableContent
from lakeshare_pipelines.nessie.server import nessie_dir, nessie_for
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.catalog import Catalog, open_catalog
from lakeshare_server.catalog.database import HEAD, WRITES, new_catalog
from lakeshare_server.catalog.models import AuditChainRow, Base, PublicationRow, UtcDateTime
from lakeshare_server.settings import make_private
from lakeshare_server.tables.index import index_path, scratch_file, sync_folder

MANIFEST = "manifest.json"
OTHER_POINT = "Restore the catalog of another point; `lakeshare backup list` shows them."


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class DumpedFile(_Part):
    """One object of a dump; `name` is its key behind the dump's folder."""

    name: str
    size_bytes: int
    sha256: str
    rows: int | None = None


class DumpedTable(_Part):
    """The rows of one table, in the order of its files."""

    name: str
    rows: int
    files: tuple[DumpedFile, ...]


class DumpedNessie(_Part):
    """Nessie's main at the moment of the dump."""

    hash: str
    tables: int
    state: tuple[DumpedFile, ...]
    """A JSON line for each Iceberg table: its name and its content."""
    log: tuple[DumpedFile, ...]
    """All commits, newest first, a JSON line each, as Nessie tells them."""


class Manifest(_Part):
    """A dump of the catalog."""

    lakeshare: str
    revision: str
    """Alembic's, of the tables' columns."""
    dumped_at: dt.datetime
    tables: tuple[DumpedTable, ...]
    left_out: tuple[str, ...]
    audit_head: str | None
    """Hash of the newest event of the audit log, which itself is not dumped."""
    contracts: tuple[DumpedFile, ...]
    backups: DumpedFile | None = None
    indexes: tuple[DumpedFile, ...] = ()
    """File indexes and changes of publications; they lie beside the points, once for all of them."""
    missing_indexes: tuple[str, ...] = ()
    """Digests that publications name and the state folder does not have."""
    nessie: DumpedNessie | None = None

    def table(self, name: str) -> DumpedTable:
        """The dump of one table; of one that was not there yet, an empty one."""
        found = (table for table in self.tables if table.name == name)
        return next(found, DumpedTable(name=name, rows=0, files=()))


def get_dump_folder(points: Points, day: str) -> str:
    """The key prefix of a point's dump."""
    return f"{points.folder(day)}catalog/"


def get_index_key(points: Points, digest: str) -> str:
    """Where the index of a digest is: of all points of the backup, for its name is its content."""
    return f"{points.backup.records.prefix}{OWN_PREFIX}{points.backup.name}/indexes/{digest}.arrow"


def read_manifest(points: Points, day: str) -> Manifest:
    """The manifest of a point's dump.

    Raises:
        BackupError: the point has none, or it cannot be read.
    """
    key = f"{get_dump_folder(points, day)}{MANIFEST}"
    where = points.store.address.location(key)
    try:
        return Manifest.model_validate_json(points.store.read(key))
    except ObjectMissing:
        raise BackupError(where, "the point has no dump of the catalog", OTHER_POINT) from None
    except ValidationError as error:
        first = error.errors()[0]["msg"]
        raise BackupError(where, f"it is no manifest of a dump: {first}", OTHER_POINT) from error


def read_file(points: Points, key: str, file: DumpedFile) -> bytes:
    """The content of a dumped file.

    Raises:
        BackupError: it is not there, or not what was dumped.
    """
    content = points.store.read(key)
    if sha256(content).hexdigest() != file.sha256:
        where = points.store.address.location(key)
        raise BackupError(where, "it is not what was dumped: its SHA-256 is another", OTHER_POINT)
    return content


def read_lines(points: Points, day: str, files: tuple[DumpedFile, ...]) -> Iterator[bytes]:
    """The lines of dumped files.

    Raises:
        BackupError: as `read_file`.
    """
    folder = get_dump_folder(points, day)
    for file in files:
        yield from read_file(points, folder + file.name, file).splitlines()


LEFT_OUT = frozenset(
    {
        # Events prove each other in a chain of their own, which is exported by `lakeshare audit export`.
        "audit_log",
        "audit_chain",
        "audit_journals",
        "usage_days",
        # What is under way: nobody comes back for it to another database.
        "async_queries",
        "set_locks",
        "allowances",
    }
)
GENERATION = "catalog_state"
AT_ONCE = 1000


def list_dumped_tables() -> list[Table]:
    """The tables whose rows are kept, those first that others refer to."""
    return [table for table in Base.metadata.sorted_tables if table.name not in LEFT_OUT]


def dump_rows(session: Session, table: Table) -> Iterator[bytes]:
    """Each row of a table as a line of JSON, in the order of its key; times are ISO 8601 in UTC."""
    rows = session.execute(
        select(table).order_by(*table.primary_key), execution_options={"yield_per": AT_ONCE}
    )
    for row in rows.mappings():
        values = {name: _to_json_value(value) for name, value in row.items()}
        yield json.dumps(values, separators=(",", ":")).encode() + b"\n"


def reflect_tables(connection: Connection, names: Sequence[str]) -> list[Table]:
    """The tables of a database as they are there, whatever its revision; in the order of `names`.

    Raises:
        KeyError: the database has no such table.
    """
    metadata = MetaData()
    metadata.reflect(connection)
    found = [metadata.tables[name] for name in names]
    for table in found:
        for column in table.columns:
            if isinstance(column.type, DateTime):
                column.type = UtcDateTime()
            elif isinstance(column.type, JSON):
                column.type = JSON(none_as_null=True)
    return found


def find_filled_tables(connection: Connection, tables: Sequence[Table]) -> list[str]:
    """The names of tables that have rows, but for the count of generations, which has one from the beginning."""
    counted = (table for table in tables if table.name != GENERATION)
    return [table.name for table in counted if connection.execute(select(table).limit(1)).first() is not None]


def insert_rows(connection: Connection, table: Table, lines: Iterator[bytes]) -> int:
    """Insert rows as `lines_of` told them; returns how many."""
    if table.name == GENERATION:
        connection.execute(delete(table))
    times = {column.name for column in table.columns if isinstance(column.type, UtcDateTime)}
    rows, count = (_row(line, times) for line in lines), 0
    while some := list(islice(rows, AT_ONCE)):
        if table.name == GENERATION:
            # Whoever has cached answers of the lost database must not take them for this one's.
            some = [{**row, "generation": row["generation"] + 1} for row in some]
        connection.execute(table.insert(), some)
        count += len(some)
    _advance_sequence(connection, table)
    return count


def _advance_sequence(connection: Connection, table: Table) -> None:
    """Let the next key be a new one: PostgreSQL's sequences do not notice keys that are given."""
    if connection.dialect.name != "postgresql" or "key" not in table.columns:
        return
    owned = text("SELECT pg_get_serial_sequence(:table, 'key')")
    sequence = connection.execute(owned, {"table": table.name}).scalar()
    highest = connection.execute(select(func.max(table.c.key))).scalar()
    if sequence is not None and highest is not None:
        connection.execute(
            text("SELECT setval(:sequence, :highest)"), {"sequence": sequence, "highest": highest}
        )


def _to_json_value(value: object) -> object:
    return value.astimezone(dt.UTC).isoformat() if isinstance(value, dt.datetime) else value


def _row(line: bytes, times: set[str]) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(line)
    return {
        name: dt.datetime.fromisoformat(value) if name in times and value is not None else value
        for name, value in row.items()
    }


PROGRESS_INDEXES = 100
ReportProgress = Callable[[str], None]


@dataclass(frozen=True)
class RestoredCatalog:
    """What came back; `rows` by table, `contracts` as files."""

    rows: dict[str, int]
    indexes: int
    missing_indexes: tuple[str, ...]
    contracts: tuple[Path, ...]


def restore_catalog(
    settings: LakeSettings,
    points: Points,
    day: str,
    contracts_to: Path | None = None,
    report_progress: ReportProgress = print,
) -> RestoredCatalog:
    """Bring the catalog of a point back into the database of the settings, which must be empty or not there yet.

    File indexes go into the state folder, contracts into `contracts_to` where one is given; files that are there
    already stay as they are. All rows come back or none.

    Raises:
        BackupError: the database has rows, the dump is damaged, or a folder cannot be written.
        CatalogConflict: a newer lakeshare made the dump, or there is a catalog of another revision.
    """
    manifest = read_manifest(points, day)
    catalog = new_catalog(settings.catalog_url, manifest.revision)
    try:
        _require_empty(catalog, manifest)
        indexes = _restore_indexes(settings, points, manifest, report_progress)
        rows = _restore_rows(catalog, points, day, manifest)
    finally:
        catalog.close()
    # The dump of an older lakeshare comes into tables as they were then; now they are made today's.
    open_catalog(settings.catalog_url).close()
    contracts = _restore_contracts(points, day, manifest, contracts_to) if contracts_to else ()
    return RestoredCatalog(rows, indexes, manifest.missing_indexes, contracts)


def read_nessie_tables(points: Points, day: str) -> dict[str, TableContent]:
    """Iceberg tables as they were on Nessie's main, by name; none where there was no Nessie.

    Raises:
        BackupError: the point has no dump, or it is damaged.
    """
    manifest = read_manifest(points, day)
    if manifest.nessie is None:
        return {}
    records = (json.loads(line) for line in read_lines(points, day, manifest.nessie.state))
    return {one.pop("table"): TableContent(**one) for one in records}


def _require_empty(catalog: Catalog, manifest: Manifest) -> None:
    with catalog.engine.connect() as connection:
        names = [table.name for table in manifest.tables]
        found = find_filled_tables(connection, reflect_tables(connection, names))
    if found:
        raise BackupError(
            f"the catalog at {_format_location(catalog)}",
            f"it is not empty: there are rows in {', '.join(found)}",
            "A catalog is never overwritten: set LAKESHARE_STATE_DIR or LAKESHARE_DATABASE_URL to an empty one.",
        )


def _restore_rows(catalog: Catalog, points: Points, day: str, manifest: Manifest) -> dict[str, int]:
    brought: dict[str, int] = {}
    with catalog.engine.execution_options(**{WRITES: True}).begin() as connection:
        for table in reflect_tables(connection, [one.name for one in manifest.tables]):
            dumped = manifest.table(table.name)
            count = insert_rows(connection, table, read_lines(points, day, dumped.files))
            if count != dumped.rows:
                raise BackupError(
                    f"table {table.name} of the dump", f"it has {count} rows, not {dumped.rows}", OTHER_POINT
                )
            brought[table.name] = count
    return brought


def _restore_indexes(
    settings: LakeSettings, points: Points, manifest: Manifest, report_progress: ReportProgress
) -> int:
    brought = 0
    for file in manifest.indexes:
        path = index_path(settings.index_dir, file.sha256)
        if path.exists():
            continue
        _write(path, read_file(points, get_index_key(points, file.sha256), file))
        brought += 1
        if brought % PROGRESS_INDEXES == 0:
            report_progress(f"{brought:,} of {len(manifest.indexes):,} file indexes")
    if brought:
        sync_folder(settings.index_dir)
    return brought


def _restore_contracts(points: Points, day: str, manifest: Manifest, folder: Path) -> tuple[Path, ...]:
    brought = []
    for file in manifest.contracts:
        path = folder / Path(file.name).name
        content = read_file(points, get_dump_folder(points, day) + file.name, file)
        if not path.exists():
            _write(path, content)
            brought.append(path)
    return tuple(brought)


def _write(path: Path, content: bytes) -> None:
    scratch = scratch_file(path.parent)
    try:
        make_private(path.parent)
        scratch.write_bytes(content)
        scratch.replace(path)
    except OSError as error:
        fix = "Correct the folder, then run it again: the database is still empty."
        raise BackupError(str(path), f"it cannot be written: {error.strerror}", fix) from error
    finally:
        scratch.unlink(missing_ok=True)


def _format_location(catalog: Catalog) -> str:
    return catalog.engine.url.set(query={}).render_as_string(hide_password=True)


FILE_BYTES = 32 * 1024**2
"""Lines go into files of about this size: none is held in memory whole with all the others."""


def dump_catalog(settings: LakeSettings, backup: Backup, points: Points, day: str) -> CatalogRecord:
    """Write the catalog into the folder of a day's point; again, it is written again, as it is then.

    The database is read in one look, Nessie after it: what is in the ledger is on main, and what is on main but not
    yet in the ledger is repaired from there (`lakeshare repair`).

    Raises:
        BackupError: the store of the points refuses, or a contract cannot be read.
        Unavailable: the database does not answer.
        NessieError: Nessie does not.
    """
    dump = _Dump(points, get_dump_folder(points, day))
    with closing(open_catalog(settings.catalog_url)) as catalog, catalog.reading() as session:
        tables = tuple(dump.table(session, table) for table in list_dumped_tables())
        audit_head = session.scalar(select(AuditChainRow.hash).where(AuditChainRow.name == "head"))
        digests = _digests(session)
        published = session.scalar(select(func.count(PublicationRow.table_name.distinct()))) or 0
    indexes, missing = dump.indexes(settings, digests)
    declared = [settings.backups_file] if settings.backups_file else []
    manifest = Manifest(
        lakeshare=version("lakeshare"),
        revision=HEAD,
        dumped_at=dt.datetime.now(dt.UTC),
        tables=tables,
        left_out=tuple(sorted(LEFT_OUT)),
        audit_head=audit_head,
        contracts=tuple(dump.files("contracts", _contracts(settings))),
        backups=next(dump.files("declared", declared), None),
        indexes=indexes,
        missing_indexes=missing,
        nessie=_dump_nessie(settings, dump),
    )
    dump.put(MANIFEST, manifest.model_dump_json(indent=1).encode())
    counted = manifest.table
    return CatalogRecord(
        key=f"{dump.folder}{MANIFEST}",
        nessie_hash=manifest.nessie.hash if manifest.nessie else None,
        tables=published,
        publications=counted("publications").rows,
        shares=counted("shares").rows,
        grants=counted("grants").rows + counted("group_grants").rows,
    )


class _Dump:
    """Files on their way into a dump."""

    def __init__(self, points: Points, folder: str) -> None:
        self.points, self.folder = points, folder

    def put(self, name: str, content: bytes, rows: int | None = None) -> DumpedFile:
        """Write one file."""
        self.points.store.put(self.folder + name, content)
        return DumpedFile(name=name, size_bytes=len(content), sha256=sha256(content).hexdigest(), rows=rows)

    def lines(self, name: str, lines: Iterable[bytes]) -> tuple[DumpedFile, ...]:
        """Write lines as files `<name>-00000.jsonl`, …; no line, no file."""
        files: list[DumpedFile] = []
        lines_of_file, size = list[bytes](), 0
        for line in lines:
            lines_of_file.append(line)
            size += len(line)
            if size >= FILE_BYTES:
                files.append(
                    self.put(f"{name}-{len(files):05}.jsonl", b"".join(lines_of_file), len(lines_of_file))
                )
                lines_of_file, size = [], 0
        if lines_of_file:
            files.append(
                self.put(f"{name}-{len(files):05}.jsonl", b"".join(lines_of_file), len(lines_of_file))
            )
        return tuple(files)

    def table(self, session: Session, table: Table) -> DumpedTable:
        """Write the rows of one table."""
        files = self.lines(f"tables/{table.name}", dump_rows(session, table))
        return DumpedTable(name=table.name, rows=sum(file.rows or 0 for file in files), files=files)

    def files(self, folder: str, paths: Iterable[Path]) -> Iterator[DumpedFile]:
        """Write files of this host under their names."""
        for path in paths:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise BackupError(
                    str(path),
                    f"it cannot be read: {error.strerror}",
                    "Correct it, then make the point again.",
                ) from error
            yield self.put(f"{folder}/{path.name}", content)

    def indexes(
        self, settings: LakeSettings, digests: Iterable[str]
    ) -> tuple[tuple[DumpedFile, ...], tuple[str, ...]]:
        """Write what no point before had; returns the indexes there are, and the digests of those there are not."""
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


def _digests(session: Session) -> list[str]:
    """The digests of all file indexes and changes that publications name."""
    rows = session.execute(select(PublicationRow.index_digest, PublicationRow.changes_digest)).all()
    return sorted({digest for row in rows for digest in row if digest})


def _contracts(settings: LakeSettings) -> list[Path]:
    folder = settings.contracts_dir or PACKAGED
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])


def _dump_nessie(settings: LakeSettings, dump: _Dump) -> DumpedNessie | None:
    """The state and the commits of main; None where there never was a Nessie."""
    if settings.nessie_uri is None and not nessie_dir(settings).exists():
        return None
    with nessie_for(settings, keep=False) as endpoint:
        nessie = Nessie.connect(endpoint, "writer")
        head = nessie.reference("main").hash
        contents = sorted(nessie.contents(f"main@{head}"))
        records = ({"table": table, **asdict(content)} for table, content in contents)
        state = dump.lines("nessie/main", map(_to_json_line, records))
        log = dump.lines("nessie/log", map(_to_json_line, nessie.log(f"main@{head}")))
    return DumpedNessie(hash=head, tables=len(contents), state=state, log=log)


def _to_json_line(record: object) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
