"""What the LOCATION of a followed table may be, and what is found there.

s3://lake/sales/orders                         a folder: of a Delta table, else of an Iceberg table
s3://lake/sales/orders/metadata/v7.metadata.json   one Iceberg metadata file
iceberg:CATALOG/NAMESPACE.TABLE                a table of a catalog in pyiceberg's configuration
nessie:CATALOG/NAMESPACE.TABLE@BRANCH          a table on a branch of a Nessie, `main` unless said

With a star for the table it is all tables of a folder or a namespace: s3://lake/sales/*, iceberg:CATALOG/NAMESPACE.*.
"""

import posixpath
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lakeshare_server.catalog.followed import IN_CATALOGS
from lakeshare_server.errors import BadRequest
from lakeshare_server.settings import StoreSettings
from lakeshare_server.stores import Stores, normalised
from lakeshare_server.tables.delta.log import LOG
from lakeshare_server.versions.iceberg_catalog import CatalogNamespace, CatalogTable, catalog_configuration
from lakeshare_server.versions.metadata_folder import FixedMetadata, MetadataFolder, is_metadata_file
from lakeshare_server.versions.metadata_source import MetadataSource
from lakeshare_server.versions.nessie_branch import NessieNamespace, NessieTable

IN_CATALOG = re.compile(
    r"(?P<kind>iceberg|nessie):(?P<catalog>[A-Za-z0-9_-]+)/(?P<table>[^/@\s.]+(?:\.[^/@\s.]+)+)(?:@(?P<branch>[^\s@]+))?"
)
SPELLINGS = (
    "Spell it iceberg:CATALOG/NAMESPACE.TABLE or nessie:CATALOG/NAMESPACE.TABLE@BRANCH, where CATALOG is one of "
    "pyiceberg's configuration."
)
MAIN = "main"
METADATA = "metadata"
# Folders that are looked into at a time.
READERS = 16


def spelt(location: str, settings: StoreSettings) -> str:
    """The location as it is kept: absolute, in our own spelling; nothing is read but pyiceberg's configuration.

    Raises:
        BadRequest: it is of no known form, or names a catalog that is not configured.
    """
    if not location.startswith(IN_CATALOGS):
        is_path = not re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", location)
        return normalised(
            str(Path(location).expanduser().absolute()) if is_path else location, settings.azure_account
        )
    found = IN_CATALOG.fullmatch(location)
    if found is None:
        raise BadRequest("LOCATION", location, SPELLINGS)
    if found["branch"] and found["kind"] != "nessie":
        raise BadRequest("LOCATION", location, f"Only Nessie has branches. {SPELLINGS}")
    catalog_configuration(found["catalog"])
    return location


def tables_at(location: str, stores: Stores, settings: StoreSettings) -> list[str]:
    """The tables that a location with a star for the table stands for; every other location is one table.

    Folders whose names begin with an underscore or a dot hold no tables of their own, as in Spark.

    Raises:
        BadRequest: it is of no known form, or names a catalog that is not configured.
        Unserveable, StoreError: the namespace or the folder is not there, or its store or catalog refuses us.
        Unavailable: the store or the catalog does not answer.
    """
    if not location.startswith(IN_CATALOGS):
        if not location.endswith("/*"):
            return [spelt(location, settings)]
        return _folders(spelt(location[:-2] or "/", settings), stores)
    before, star, branch = location.partition(".*")
    if not star or (branch and not branch.startswith("@")):
        return [spelt(location, settings)]
    # A table of any name has the form that is judged.
    spelt(f"{before}.t{branch}", settings)
    kind, _, path = before.partition(":")
    catalog, _, namespace = path.partition("/")
    levels = tuple(namespace.split("."))
    service = stores.services.of(str(catalog_service(f"{before}.t{branch}")))
    if kind == "nessie":
        names = NessieNamespace(catalog, levels, branch[1:] or MAIN, service).tables()
    else:
        names = CatalogNamespace(catalog, levels, settings, service).tables()
    return [f"{before}.{name}{branch}" for name in names]


def table_name_at(location: str) -> str:
    """The name of a table as its location has it, `schema.table`: the last two folders, or namespace and table."""
    found = IN_CATALOG.fullmatch(location)
    if found is not None:
        *levels, table = found["table"].split(".")
        return f"{'_'.join(levels)}.{table}"
    folder = posixpath.dirname(posixpath.dirname(location)) if is_metadata_file(location) else location
    above, _, name = folder.rstrip("/").rpartition("/")
    return f"{above.rpartition('/')[2]}.{name}"


def _folders(location: str, stores: Stores) -> list[str]:
    """The folders in a folder that hold a Delta log or Iceberg metadata."""
    root = location.rstrip("/")
    folders = [f"{root}/{name}" for name in stores.folders(location) if not name.startswith(("_", "."))]
    with ThreadPoolExecutor(READERS) as pool:
        held = list(pool.map(lambda folder: _holds_table(folder, stores), folders))
    return [folder for folder, is_table in zip(folders, held, strict=True) if is_table]


def _holds_table(folder: str, stores: Stores) -> bool:
    return any(next(iter(stores.list(f"{folder}/{name}")), None) for name in (LOG, METADATA))


def is_delta(location: str, stores: Stores) -> bool:
    """Whether a Delta log is there; a table that is Iceberg's as well (UniForm) is taken for what writes it."""
    if location.startswith(IN_CATALOGS) or is_metadata_file(location):
        return False
    return next(iter(stores.list(f"{location.rstrip('/')}/{LOG}")), None) is not None


def source_of(location: str, stores: Stores, settings: StoreSettings) -> MetadataSource:
    """Where the current metadata of the Iceberg table at a location is told.

    Raises:
        BadRequest: it is of no known form.
    """
    found = IN_CATALOG.fullmatch(location)
    if found is None:
        is_file = is_metadata_file(location)
        return FixedMetadata(stores, location) if is_file else MetadataFolder(stores, location)
    identifier = tuple(found["table"].split("."))
    service = stores.services.of(str(catalog_service(location)))
    if found["kind"] == "nessie":
        return NessieTable(found["catalog"], identifier, found["branch"] or MAIN, service)
    return CatalogTable(found["catalog"], identifier, settings, service)


def catalog_service(location: str) -> str | None:
    """The catalog of a location, by its name as a service; None where the location is in storage."""
    found = IN_CATALOG.fullmatch(location)
    return None if found is None else f"{found['kind']}:{found['catalog']}"
