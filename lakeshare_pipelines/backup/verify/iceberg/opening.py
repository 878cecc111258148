"""Opening a copied Iceberg table on its mount, by a reader that is none of ours: pyiceberg."""

from importlib.metadata import version as version_of
from typing import TYPE_CHECKING

from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.readers import file_properties
from lakeshare_pipelines.errors import BackupError

if TYPE_CHECKING:
    from pyiceberg.table import DataScan

READ_WHOLE_FILES = 20_000
"""Tables of more files are planned, but their data files are not read: new ones were compared one by one."""


def opened_rows(address: StoreAddress, metadata_location: str, files: int) -> tuple[int | None, str]:
    """How many rows the table has, and who says so; None where it has too many files to read each.

    Raises:
        BackupError: it does not open, or a file of it cannot be read.
    """
    from pyiceberg.table import StaticTable

    reader = f"pyiceberg {version_of('pyiceberg')}"
    try:
        table = StaticTable.from_metadata(metadata_location, file_properties(address))
        if table.current_snapshot() is None:
            return 0, reader
        if files > READ_WHOLE_FILES:
            sum(1 for _ in table.scan().plan_files())
            return None, f"{reader}, planned only"
        batches = table.scan(selected_fields=(column_of_files(table.scan()),)).to_arrow_batch_reader()
        return sum(batch.num_rows for batch in batches), reader
    # pyiceberg, pyarrow and what they call raise of everything; nothing of it may pass for an opened table.
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BackupError(
            metadata_location,
            f"pyiceberg cannot open it: {said}",
            "Another reader, or an older state, is tried.",
        ) from error


def column_of_files(scan: "DataScan") -> str:
    """A column whose values are in the data files: those of partitions pyiceberg takes from the manifests."""
    partitions = {field.source_id for spec in scan.table_metadata.partition_specs for field in spec.fields}
    columns = scan.projection().fields
    plain = [field for field in columns if field.field_type.is_primitive]
    chosen = [field for field in plain if field.field_id not in partitions] or plain or list(columns)
    return chosen[0].name
