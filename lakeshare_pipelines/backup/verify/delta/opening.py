"""Opening a copied Delta table at a version, where it is, by a reader that is none of ours: deltalake."""

from importlib.metadata import version as version_of
from typing import TYPE_CHECKING

from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.readers import storage_options
from lakeshare_pipelines.errors import BackupError

if TYPE_CHECKING:
    from deltalake import DeltaTable

READ_WHOLE_FILES = 20_000
"""Tables of more files are opened, but their data files are not: those of new ones were compared one by one."""


def opened_rows(address: StoreAddress, root: str, version: int, files: int) -> tuple[int | None, str]:
    """How many rows the table has at a version, and who says so; None where it has too many files to read each.

    `root` is the key of the table's copy, `files` how many it has.

    Raises:
        BackupError: it does not open at that version, or a file of it cannot be read.
    """
    from deltalake import DeltaTable

    location = address.location(root)
    reader = f"deltalake {version_of('deltalake')}"
    try:
        table = DeltaTable(location, version=version, storage_options=storage_options(address) or None)
        if files > READ_WHOLE_FILES:
            return None, f"{reader}, the log only"
        return _counted(table), reader
    # What object stores and DataFusion raise through deltalake has no class of its own.
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BackupError(
            f"{location} at version {version}", f"deltalake cannot open it: {said}", ""
        ) from error


def _counted(table: "DeltaTable") -> int:
    """All rows; a column is looked at, because the log alone would answer a mere count."""
    from deltalake import QueryBuilder

    partitions = set(table.metadata().partition_columns)
    names = [field.name for field in table.schema().fields]
    name = next((one for one in names if one not in partitions), names[0])
    column = '"' + name.replace('"', '""') + '"'
    query = f"SELECT count(*) AS rows FROM copy WHERE {column} IS NULL OR {column} IS NOT NULL"  # noqa: S608 (quoted)
    counted = QueryBuilder().register("copy", table).execute(query)
    return int(counted.read_all().column(0)[0].as_py())
