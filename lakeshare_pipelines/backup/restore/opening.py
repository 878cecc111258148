"""A table opened where it was restored, by a reader that knows nothing of backups, and counted."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.readers import file_properties, storage_options
from lakeshare_pipelines.backup.verify.delta.opening import opened_rows
from lakeshare_pipelines.backup.verify.iceberg.opening import column_of_files
from lakeshare_pipelines.errors import BackupError

if TYPE_CHECKING:
    from pyiceberg.table import StaticTable

ANOTHER = "Restore from another point; what is there now was not registered."


@dataclass(frozen=True)
class Opened:
    """What an independent reader found: all rows, each read, and how many data files they are in.

    `rows` is None where the reader does not read all: a Delta table of very many files, deletes by value.
    """

    rows: int | None
    files: int
    reader: str


def opened_delta(address: StoreAddress, root: str, version: int) -> Opened:
    """A Delta table at a version, read by delta-rs.

    Raises:
        BackupError: it does not open, or a file that it needs cannot be read.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    location = address.location(root)
    try:
        files = len(DeltaTable(location, version, storage_options(address) or None).file_uris())
        rows, reader = opened_rows(address, root, version, files)
    except (DeltaError, OSError, ValueError) as error:
        raise _does_not_open(location, error) from error
    return Opened(rows, files, reader)


def opened_iceberg(address: StoreAddress, metadata_location: str, snapshot_id: int) -> Opened:
    """An Iceberg table at a snapshot, read by PyIceberg: every data file is opened.

    Raises:
        BackupError: it does not open, or a file that it needs cannot be read.
    """
    from importlib.metadata import version as version_of

    from pyiceberg.table import StaticTable

    reader = f"pyiceberg {version_of('pyiceberg')}"
    try:
        table = StaticTable.from_metadata(metadata_location, file_properties(address))
        counted = _counted(table, snapshot_id)
    # What file systems and decoders raise through PyIceberg has no class of its own.
    except Exception as error:
        raise _does_not_open(metadata_location, error) from error
    return Opened(*counted, reader)


def _counted(table: "StaticTable", snapshot_id: int) -> tuple[int | None, int]:
    scan = table.scan(snapshot_id=snapshot_id)
    try:
        files = [task.file for task in scan.plan_files()]
    except ValueError as error:
        if "equality deletes" not in str(error):
            raise
        # The one thing of a table that PyIceberg does not read.
        at = table.inspect.data_files(snapshot_id=snapshot_id)
        return None, len(at)
    # A column is looked at, because the manifests alone would answer a mere count.
    smallest = table.scan(snapshot_id=snapshot_id, selected_fields=(column_of_files(scan),))
    return sum(batch.num_rows for batch in smallest.to_arrow_batch_reader()), len(files)


def _does_not_open(location: str, error: Exception) -> BackupError:
    if isinstance(error, BackupError):
        return error
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return BackupError(location, f"it does not open: {said}", ANOTHER)
