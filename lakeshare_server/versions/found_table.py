"""The table at a place that somebody wants to follow: which it is, and that at least one API can serve it."""

from lakeshare_server.catalog import IcebergIdentity
from lakeshare_server.errors import TableFilesMissing, Unserveable
from lakeshare_server.settings import StateSettings
from lakeshare_server.stores import Stores
from lakeshare_server.tables import read_delta, read_iceberg
from lakeshare_server.tables.serveability import is_read_by_iceberg_clients
from lakeshare_server.versions.followed_place import is_delta, source_of
from lakeshare_server.versions.metadata_source import MetadataSource, Pointer
from lakeshare_server.versions.snapshot_numbers import identity_of
from lakeshare_server.versions.table_history import read_history


def found_at(location: str, stores: Stores, settings: StateSettings) -> IcebergIdentity | None:
    """Read a table once, before anybody follows it; None of a Delta table.

    Raises:
        Unserveable: there is no table, it lies elsewhere, or no API can serve its newest state.
        BadRequest: its catalog is not configured.
        StoreError: a file of it is gone, or the store refuses it.
        Unavailable: the store or the catalog does not answer.
    """
    if is_delta(location, stores):
        read_delta(location, stores=stores)
        return None
    source = source_of(location, stores, settings)
    history = read_history(stores, _current(source, location))
    identity = identity_of(history, stores, source.root)
    state = history.current
    try:
        read_iceberg(state.metadata_location, state.snapshot_id, settings.vectors_dir, stores)
    except Unserveable as error:
        if not is_read_by_iceberg_clients(error):
            raise
    return identity


def _current(source: MetadataSource, location: str) -> Pointer:
    try:
        return source.current(None)
    except TableFilesMissing as error:
        raise Unserveable(
            f"There is no Delta table at {location}, and no Iceberg table.",
            "Give the folder above _delta_log or metadata, or a table of a catalog: iceberg:CATALOG/NAMESPACE.TABLE.",
        ) from error
