"""A dumped catalog back into an empty database, with its contracts and file indexes.

Nessie is not written here: tables are put back on its main one by one, when they are restored (backup/restore).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lakeshare_pipelines.backup.catalog.manifest import (
    OTHER_POINT,
    Manifest,
    dump_folder,
    index_key,
    read_file,
    read_lines,
    read_manifest,
)
from lakeshare_pipelines.backup.catalog.state import fill, occupied, tables_of
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.nessie.records import TableContent
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.catalog import Catalog, open_catalog
from lakeshare_server.catalog.database import WRITES, new_catalog
from lakeshare_server.settings import make_private
from lakeshare_server.tables.index import index_path
from lakeshare_server.tables.scratch import scratch_file, sync_folder

INDEXES_TOLD = 100
Tell = Callable[[str], None]


@dataclass(frozen=True)
class BroughtBack:
    """What came back; `rows` by table, `contracts` as files."""

    rows: dict[str, int]
    indexes: int
    missing_indexes: tuple[str, ...]
    contracts: tuple[Path, ...]


def restore_catalog(
    settings: LakeSettings, points: Points, day: str, contracts_to: Path | None = None, tell: Tell = print
) -> BroughtBack:
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
        indexes = _bring_indexes(settings, points, manifest, tell)
        rows = _bring_rows(catalog, points, day, manifest)
    finally:
        catalog.close()
    # The dump of an older lakeshare comes into tables as they were then; now they are made today's.
    open_catalog(settings.catalog_url).close()
    contracts = _bring_contracts(points, day, manifest, contracts_to) if contracts_to else ()
    return BroughtBack(rows, indexes, manifest.missing_indexes, contracts)


def nessie_tables(points: Points, day: str) -> dict[str, TableContent]:
    """Iceberg tables as they were on Nessie's main, by name; none where there was no Nessie.

    Raises:
        BackupError: the point has no dump, or it is damaged.
    """
    manifest = read_manifest(points, day)
    if manifest.nessie is None:
        return {}
    told = (json.loads(line) for line in read_lines(points, day, manifest.nessie.state))
    return {one.pop("table"): TableContent(**one) for one in told}


def _require_empty(catalog: Catalog, manifest: Manifest) -> None:
    with catalog.engine.connect() as connection:
        names = [table.name for table in manifest.tables]
        found = occupied(connection, tables_of(connection, names))
    if found:
        raise BackupError(
            f"the catalog at {_place(catalog)}",
            f"it is not empty: there are rows in {', '.join(found)}",
            "A catalog is never overwritten: set LAKESHARE_STATE_DIR or LAKESHARE_DATABASE_URL to an empty one.",
        )


def _bring_rows(catalog: Catalog, points: Points, day: str, manifest: Manifest) -> dict[str, int]:
    brought: dict[str, int] = {}
    with catalog.engine.execution_options(**{WRITES: True}).begin() as connection:
        for table in tables_of(connection, [one.name for one in manifest.tables]):
            dumped = manifest.table(table.name)
            count = fill(connection, table, read_lines(points, day, dumped.files))
            if count != dumped.rows:
                raise BackupError(
                    f"table {table.name} of the dump", f"it has {count} rows, not {dumped.rows}", OTHER_POINT
                )
            brought[table.name] = count
    return brought


def _bring_indexes(settings: LakeSettings, points: Points, manifest: Manifest, tell: Tell) -> int:
    brought = 0
    for file in manifest.indexes:
        path = index_path(settings.index_dir, file.sha256)
        if path.exists():
            continue
        _write(path, read_file(points, index_key(points, file.sha256), file))
        brought += 1
        if brought % INDEXES_TOLD == 0:
            tell(f"{brought:,} of {len(manifest.indexes):,} file indexes")
    if brought:
        sync_folder(settings.index_dir)
    return brought


def _bring_contracts(points: Points, day: str, manifest: Manifest, folder: Path) -> tuple[Path, ...]:
    brought = []
    for file in manifest.contracts:
        path = folder / Path(file.name).name
        content = read_file(points, dump_folder(points, day) + file.name, file)
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


def _place(catalog: Catalog) -> str:
    return catalog.engine.url.set(query={}).render_as_string(hide_password=True)
