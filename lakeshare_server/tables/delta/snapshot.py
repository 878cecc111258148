"""A Delta table at one version, ready to be indexed."""

from lakeshare_server.errors import StoreMissing, TableFilesMissing, Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.stores import Stores
from lakeshare_server.tables.delta.features import delta_head, require_known
from lakeshare_server.tables.delta.files import snapshot_files
from lakeshare_server.tables.delta.log import LogListing, list_for_latest, list_log, require_published
from lakeshare_server.tables.delta.replay import NOT_AS_SPECIFIED, TableState, replay
from lakeshare_server.tables.locations import from_uri
from lakeshare_server.tables.snapshot import TableSnapshot


def read_delta(location: str, version: int | None = None, stores: Stores | None = None) -> TableSnapshot:
    """The table at a path, `file:` URL or store URL; `version` None means the latest.

    Raises:
        Unserveable: no such table or version, its log needs a feature this reader does not know, or the latest version
            is asked for and may not be in the log yet.
        StoreError: the store lacks a file of its log, or refuses it.
        Unavailable: the store does not answer.
    """
    stores = stores or Stores(ServerSettings())
    root = from_uri(location).rstrip("/")
    listing = _listing(stores, root, version)
    wanted = listing.latest if version is None else version
    if wanted > listing.latest:
        raise _no_such_version(root, wanted, f"its latest is {listing.latest}")
    try:
        snapshot = snapshot_of(root, _replayed(stores, listing, wanted))
    except TableFilesMissing as error:
        raise _no_such_version(root, wanted, error.what) from error
    if version is None and snapshot.head.is_catalog_managed:
        require_published(stores, root, wanted)
    return snapshot


def snapshot_of(root: str, state: TableState) -> TableSnapshot:
    """The snapshot of a replayed log.

    Raises:
        Unserveable, TableFilesMissing: as `read_delta` says.
    """
    try:
        require_known(state.protocol)
        head = delta_head(state.protocol, state.metadata, state.adds)
        files = snapshot_files(root, state.metadata, state.adds)
    except NOT_AS_SPECIFIED as error:
        raise TableFilesMissing(root, "the protocol or the metadata in its log is not whole") from error
    return TableSnapshot(format="delta", location=root, head=head, version=state.version, files=files)


def _replayed(stores: Stores, listing: LogListing, version: int) -> TableState:
    try:
        return replay(stores, listing, version)
    except TableFilesMissing:
        if not listing.since:
            raise
        # The checkpoint that the listing begins with cannot be read: what lies before it may tell the same.
        return replay(stores, list_log(stores, listing.root), version)


def _listing(stores: Stores, root: str, version: int | None) -> LogListing:
    try:
        listing = list_for_latest(stores, root) if version is None else list_log(stores, root)
        listing.latest  # noqa: B018  an empty log is no table
    except (TableFilesMissing, StoreMissing) as error:
        raise Unserveable(f"There is no Delta table at {root}.", "Check the table's location.") from error
    return listing


def _no_such_version(root: str, version: int, why: str) -> Unserveable:
    return Unserveable(
        f"The Delta table at {root} cannot be read at version {version}: {why}.",
        "Check that the version exists and that its log is whole.",
    )
