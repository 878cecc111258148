"""What a dump of the catalog consists of, in `manifest.json`: every file with its digest, and where it was dumped.

The manifest is written last; a dump without one is none.
"""

import datetime as dt
from collections.abc import Iterator
from hashlib import sha256

from pydantic import BaseModel, ConfigDict, ValidationError

from lakeshare_pipelines.backup.points import OWN_PREFIX, Points
from lakeshare_pipelines.errors import BackupError, ObjectMissing

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


def dump_folder(points: Points, day: str) -> str:
    """The key prefix of a point's dump."""
    return f"{points.folder(day)}catalog/"


def index_key(points: Points, digest: str) -> str:
    """Where the index of a digest is: of all points of the backup, for its name is its content."""
    return f"{points.backup.records.prefix}{OWN_PREFIX}{points.backup.name}/indexes/{digest}.arrow"


def read_manifest(points: Points, day: str) -> Manifest:
    """The manifest of a point's dump.

    Raises:
        BackupError: the point has none, or it cannot be read.
    """
    key = f"{dump_folder(points, day)}{MANIFEST}"
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
    folder = dump_folder(points, day)
    for file in files:
        yield from read_file(points, folder + file.name, file).splitlines()
