"""Opening an Iceberg table that tells of a store's objects: by its place, or by its name in a catalog."""

import re
from typing import TYPE_CHECKING

from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.backup.stores.address import FOLDER
from lakeshare_pipelines.errors import BackupError

if TYPE_CHECKING:
    from pyiceberg.table import Table

METADATA = ".metadata.json"


def open_table(address: StoreAddress, told: str) -> "Table":
    """A table told as its folder, its metadata.json, or catalog.namespace.table.

    `address` says how the store is reached. A catalog is one of pyiceberg's own configuration.

    Raises:
        BackupError: it cannot be opened.
    """
    from pyiceberg.catalog import load_catalog
    from pyiceberg.table import StaticTable

    try:
        if told.startswith(("/", "s3://")):
            return StaticTable.from_metadata(_metadata_location(address, told), _reading(address))
        catalog, _, table = told.partition(".")
        return load_catalog(catalog).load_table(table)
    except BackupError:
        raise
    except Exception as error:
        # pyiceberg lets errors of a catalog's client, of Arrow and of its parsers through: any of them means this.
        raise BackupError(
            told,
            f"the table cannot be opened: {error}",
            "Name its folder, its metadata.json, or catalog.namespace.table of a catalog that pyiceberg's "
            "configuration has.",
        ) from error


def has_zone(table: "Table", name: str) -> bool:
    """Whether a column is a moment of UTC (timestamptz) rather than a time without a zone."""
    return "tz" in str(table.schema().find_type(name))


def _metadata_location(address: StoreAddress, told: str) -> str:
    if told.endswith(METADATA):
        return told
    place = address.model_copy(update={"url": told})
    store = open_store(place if place.kind == FOLDER else place.at(place.bucket))
    found = [one for one in store.list(f"{place.prefix}metadata/") if one.key.endswith(METADATA)]
    if not found:
        raise BackupError(told, "no metadata of an Iceberg table is there", "Name the folder of a table.")
    return store.address.location(max(found, key=lambda one: (_number(one.key), one.last_modified)).key)


def _number(key: str) -> int:
    """Of 00012-….metadata.json and v12.metadata.json."""
    number = re.match(r"v?(\d+)", key.rpartition("/")[2])
    return int(number[1]) if number else -1


def _reading(address: StoreAddress) -> dict[str, str]:
    """What pyiceberg is told to read a store as boto3 does."""
    if address.kind == FOLDER:
        return {}
    import boto3

    session = boto3.Session(profile_name=address.profile, region_name=address.region)
    told = {"s3.endpoint": address.endpoint, "s3.region": session.region_name}
    if (credentials := session.get_credentials()) is not None:
        keys = credentials.get_frozen_credentials()
        told |= {
            "s3.access-key-id": keys.access_key,
            "s3.secret-access-key": keys.secret_key,
            "s3.session-token": keys.token,
        }
    return {name: value for name, value in told.items() if value is not None}
