"""Rows of the catalog as lines of JSON, from one database into another of any kind.

An archive of `lakeshare db export` is a ZIP file: `manifest.json`, and `tables/NAME.jsonl` with a line for each row in
the order of the primary key.
"""

import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import IO

from pydantic import AwareDatetime, BaseModel, ValidationError
from sqlalchemy import JSON, Connection, DateTime, MetaData, Table, delete, func, select, text
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import WRITES, Catalog, migrate, new_catalog, read_schema_state
from lakeshare_server.catalog.models import UtcDateTime
from lakeshare_server.errors import BadRequest, CatalogConflict

GENERATION = "catalog_state"
# Tables in which a new catalog has rows.
PREPARED = frozenset({GENERATION, "audit_chain"})
AT_ONCE = 1000


def dump_rows(session: Session | Connection, table: Table) -> Iterator[bytes]:
    """Each row of a table as a line of JSON, in the order of the primary key; times are ISO 8601 in UTC."""
    rows = select(table).order_by(*table.primary_key)
    with closing(session.execute(rows, execution_options={"yield_per": AT_ONCE})) as found:
        for row in found.mappings():
            values = {
                name: value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
                for name, value in row.items()
            }
            yield to_json_line(values)


def to_json_line(record: object) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def reflect_tables(connection: Connection, names: Sequence[str] | None = None) -> list[Table]:
    """Tables of a database with the columns of its own revision: those named, in this order, or all, parents first."""
    metadata = MetaData()
    metadata.reflect(connection)
    if names is None:
        found = [table for table in metadata.sorted_tables if table.name != "alembic_version"]
    else:
        found = [metadata.tables[name] for name in names]
    for table in found:
        for column in table.columns:
            if isinstance(column.type, DateTime):
                column.type = UtcDateTime()
            elif isinstance(column.type, JSON):
                column.type = JSON(none_as_null=True)
    return found


def find_filled_tables(connection: Connection, names: Iterable[str]) -> list[str]:
    """Those of the named tables that have rows, besides the rows that a new catalog has."""
    tables = reflect_tables(connection, [name for name in names if name not in PREPARED])
    return [table.name for table in tables if connection.execute(select(table).limit(1)).first()]


def insert_rows(connection: Connection, table: Table, lines: Iterator[bytes]) -> int:
    """Inserts the lines of `dump_rows` into a table and returns their number; the generation becomes the next one."""
    if table.name in PREPARED:
        connection.execute(delete(table))
    times = {column.name for column in table.columns if isinstance(column.type, UtcDateTime)}
    rows, count = map(json.loads, lines), 0
    while some := list(islice(rows, AT_ONCE)):
        for row in some:
            for name in times & row.keys():
                row[name] = row[name] and datetime.fromisoformat(row[name])
        if table.name == GENERATION:
            # Responses that were cached for the other database must not be valid for this one.
            some = [{**row, "generation": row["generation"] + 1} for row in some]
        connection.execute(table.insert(), some)
        count += len(some)
    if connection.dialect.name == "postgresql" and "key" in table.columns:
        # PostgreSQL's sequences do not advance when keys are given.
        owned = text("SELECT pg_get_serial_sequence(:table, 'key')")
        sequence = connection.execute(owned, {"table": table.name}).scalar()
        highest = connection.execute(select(func.max(table.c.key))).scalar()
        if sequence is not None and highest is not None:
            setval = text("SELECT setval(:sequence, :highest)")
            connection.execute(setval, {"sequence": sequence, "highest": highest})
    return count


MANIFEST = "manifest.json"
ANOTHER = "Give a file that `lakeshare db export` wrote."
REPORTED_ROWS = 10_000
Report = Callable[[str], None]
"""Gets a line of progress every `REPORTED_ROWS` rows of a table."""


class ExportedTable(BaseModel, frozen=True):
    name: str
    rows: int
    sha256: str

    @property
    def member(self) -> str:
        return f"tables/{self.name}.jsonl"


class ExportManifest(BaseModel, frozen=True):
    """What an archive holds: the revision of its tables, and the digest of each table's lines."""

    lakeshare: str
    revision: str
    exported_at: AwareDatetime
    tables: tuple[ExportedTable, ...]

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)


def export_catalog(catalog: Catalog, to: Path, report: Report = lambda _: None) -> ExportManifest:
    """Writes all rows of a catalog of any revision, as of one moment, into a new archive that its owner alone can read.

    Raises:
        BadRequest: the file exists, or it cannot be written. Nothing is left of it then.
        CatalogConflict: the database has no catalog.
    """
    if to.exists():
        raise BadRequest("FILE", str(to), "It exists; give the name of a new file.")
    part = to.with_name(f"{to.name}.part")
    try:
        with (
            open(part, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
            catalog.reading() as session,
        ):
            manifest = _write_archive(archive, session.connection(), report)
            archive.close()
            file.flush()
            os.fsync(file.fileno())
        part.rename(to)
    except OSError as error:
        raise BadRequest(
            "FILE", str(to), f"Give a path that can be written ({error.strerror or error})."
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return manifest


def _write_archive(archive: zipfile.ZipFile, connection: Connection, report: Report) -> ExportManifest:
    revision = read_schema_state(connection).revision
    if revision is None:
        raise CatalogConflict("the database has no catalog", "Check LAKESHARE_DATABASE_URL.")
    tables = []
    for table in reflect_tables(connection):
        digest, rows = sha256(), 0
        with archive.open(f"tables/{table.name}.jsonl", "w", force_zip64=True) as member:
            for line in dump_rows(connection, table):
                digest.update(line)
                member.write(line)
                rows += 1
                if rows % REPORTED_ROWS == 0:
                    report(f"{table.name}: {rows:,} rows")
        tables.append(ExportedTable(name=table.name, rows=rows, sha256=digest.hexdigest()))
    manifest = ExportManifest(
        lakeshare=version("lakeshare"), revision=revision, exported_at=datetime.now(UTC), tables=tuple(tables)
    )
    archive.writestr(MANIFEST, manifest.model_dump_json(indent=1))
    return manifest


def import_catalog(url: str, path: Path, report: Report = lambda _: None) -> ExportManifest:
    """Fills an empty database of any kind with all rows of an archive, or with none, then migrates it to this revision.

    Raises:
        BadRequest: the file is no archive, or it is damaged.
        CatalogConflict: the database has rows, or a newer lakeshare wrote the archive.
        Unavailable: the database cannot be reached or written.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = ExportManifest.model_validate_json(archive.read(MANIFEST))
            catalog = new_catalog(url, manifest.revision)
            with closing(catalog):
                _fill(catalog, archive, manifest, report)
                migrate(catalog, with_copy=False)
    except (KeyError, ValidationError, zipfile.BadZipFile, EOFError) as error:
        raise BadRequest("FILE", str(path), f"{ANOTHER} This is none: {type(error).__name__}.") from error
    except OSError as error:
        raise BadRequest("FILE", str(path), f"{ANOTHER} It cannot be read: {error.strerror}.") from error
    return manifest


def _fill(catalog: Catalog, archive: zipfile.ZipFile, manifest: ExportManifest, report: Report) -> None:
    with catalog.engine.execution_options(**{WRITES: True}).begin() as connection:
        names = [table.name for table in manifest.tables]
        if filled := find_filled_tables(connection, names):
            location = catalog.engine.url.set(query={}).render_as_string(hide_password=True)
            raise CatalogConflict(
                f"the catalog at {location} is not empty: there are rows in {', '.join(filled)}",
                "A catalog is never overwritten: set LAKESHARE_DATABASE_URL to an empty database.",
            )
        for exported, table in zip(manifest.tables, reflect_tables(connection, names), strict=True):
            with archive.open(exported.member) as member:
                lines = _DigestedLines(member, table.name, report)
                count = insert_rows(connection, table, iter(lines))
            if count != exported.rows or lines.digest.hexdigest() != exported.sha256:
                hint = f"{ANOTHER} Its table {table.name} is not what was exported."
                raise BadRequest("FILE", str(archive.filename), hint)


class _DigestedLines:
    def __init__(self, member: IO[bytes], name: str, report: Report) -> None:
        self._member, self._name, self._report, self.digest = member, name, report, sha256()

    def __iter__(self) -> Iterator[bytes]:
        for number, line in enumerate(self._member, 1):
            self.digest.update(line)
            if number % REPORTED_ROWS == 0:
                self._report(f"{self._name}: {number:,} rows")
            yield line
