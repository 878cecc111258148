"""What the LOCATION of a followed table may be, and what is found there.

s3://lake/sales/orders                         a folder: of a Delta table, else of an Iceberg table
s3://lake/sales/orders/metadata/v7.metadata.json   one Iceberg metadata file
iceberg:CATALOG/NAMESPACE.TABLE                a table of a catalog in pyiceberg's configuration
nessie:CATALOG/NAMESPACE.TABLE@BRANCH          a table on a branch of a Nessie, `main` unless said
"""

import re
from pathlib import Path

from lakeshare_server.errors import BadRequest
from lakeshare_server.settings import StoreSettings
from lakeshare_server.stores import Stores, normalised
from lakeshare_server.tables.delta.log import LOG
from lakeshare_server.versions.iceberg_catalog import CatalogTable, catalog_configuration
from lakeshare_server.versions.metadata_folder import FixedMetadata, MetadataFolder, is_metadata_file
from lakeshare_server.versions.metadata_source import MetadataSource
from lakeshare_server.versions.nessie_branch import NessieTable

CATALOGS = ("iceberg:", "nessie:")
IN_CATALOG = re.compile(
    r"(?P<kind>iceberg|nessie):(?P<catalog>[A-Za-z0-9_-]+)/(?P<table>[^/@\s.]+(?:\.[^/@\s.]+)+)(?:@(?P<branch>[^\s@]+))?"
)
SPELLINGS = (
    "Spell it iceberg:CATALOG/NAMESPACE.TABLE or nessie:CATALOG/NAMESPACE.TABLE@BRANCH, where CATALOG is one of "
    "pyiceberg's configuration."
)
MAIN = "main"


def spelt(location: str, settings: StoreSettings) -> str:
    """The location as it is kept: absolute, in our own spelling; nothing is read but pyiceberg's configuration.

    Raises:
        BadRequest: it is of no known form, or names a catalog that is not configured.
    """
    if not location.startswith(CATALOGS):
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


def is_delta(location: str, stores: Stores) -> bool:
    """Whether a Delta log is there; a table that is Iceberg's as well (UniForm) is taken for what writes it."""
    if location.startswith(CATALOGS) or is_metadata_file(location):
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
