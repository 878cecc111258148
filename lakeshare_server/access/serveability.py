"""Which clients can read a shared table from this server, and how: what its state allows, less what settings refuse.

The Delta Sharing verdicts are those of `tables.serveability` after the check of the stores that requests pass too; the
verdict on the Iceberg REST API is the outcome of loading the table there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lakeshare_server.access.directory import Folder, directory_refusal
from lakeshare_server.access.elsewhere import require_own_stores
from lakeshare_server.access.iceberg import IcebergTables
from lakeshare_server.access.iceberg_storage import FilesWay, files_way
from lakeshare_server.access.view import TableView
from lakeshare_server.catalog import Catalog, TableEntry
from lakeshare_server.catalog.listings import ShareEntry
from lakeshare_server.errors import LakeshareError, StoreError, Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.signing import LocalSigner, Signers
from lakeshare_server.stores import Place, Stores, place_of
from lakeshare_server.tables.index import IndexHeader
from lakeshare_server.tables.serveability import (
    CLIENTS,
    ICEBERG_REST_ID,
    Refusal,
    Verdict,
    is_read_by_iceberg_clients,
    nobody_is_served,
    only_iceberg_is_served,
    serveability,
)
from lakeshare_server.versions import Version, Versions, VersionsUntil


@dataclass(frozen=True)
class ServedTable:
    """The newest version of a shared table as this server serves it.

    `verdicts` has one for each client; `storage` is how Iceberg clients get at the files, None where they do not;
    `no_credentials` says why there are no credentials for the folder. `header` is None where there is no index.
    """

    version: Version
    verdicts: Mapping[str, Verdict]
    place: Place
    storage: FilesWay | None
    no_credentials: str | None
    header: IndexHeader | None

    @property
    def iceberg(self) -> Verdict:
        """The verdict on the Iceberg REST API."""
        return self.verdicts[ICEBERG_REST_ID]

    @property
    def clients(self) -> list[str]:
        """The ids of the clients that can read it."""
        return [id_ for id_, verdict in self.verdicts.items() if verdict.served_as is not None]


class TableServeability:
    """Judges shared tables as this server's requests would be answered; for many threads."""

    def __init__(self, iceberg: IcebergTables, signers: Signers, settings: ServerSettings) -> None:
        self._iceberg, self._signers, self._settings = iceberg, signers, settings

    @classmethod
    def of(cls, catalog: Catalog, settings: ServerSettings) -> "TableServeability":
        """One for a command: nothing is signed with its key."""
        stores = Stores(settings)
        signers = Signers(settings, LocalSigner(b"", settings.base_url()), stores)
        return cls(IcebergTables(catalog, stores), signers, settings)

    def judge(self, view: TableView) -> ServedTable:
        """How each client gets the newest version.

        Raises:
            NotFound: nothing was published yet.
            Unserveable, StoreError: its newest state cannot be found out.
            Unavailable: a store does not answer now.
        """
        version = view.latest()
        header: IndexHeader | None = None
        try:
            header = view.index(version).header
        except Unserveable as error:
            is_for_iceberg = is_read_by_iceberg_clients(error)
            verdicts = only_iceberg_is_served(error) if is_for_iceberg else nobody_is_served(error)
        else:
            verdicts = self._within_stores(view, header)
        by_id = {verdict.id: verdict for verdict in verdicts}
        folder: Folder | None = header
        storage: FilesWay | None = None
        if by_id[ICEBERG_REST_ID].served_as is not None:
            try:
                folder = self._iceberg.folder(view)
                storage = self._way(view, folder)
            except (Unserveable, StoreError) as error:
                by_id[ICEBERG_REST_ID] = _refused(by_id[ICEBERG_REST_ID], error)
        location = view.versions.location() if folder is None else folder.location
        no_credentials = None if folder is None else directory_refusal(view.entry, folder, self._signers)
        return ServedTable(
            version=version,
            verdicts=by_id,
            place=place_of(location, self._settings.azure_account),
            storage=storage,
            no_credentials=no_credentials,
            header=header,
        )

    def _within_stores(self, view: TableView, header: IndexHeader) -> list[Verdict]:
        """The verdicts of the state; nobody gets URLs of files outside the allowed locations."""
        verdicts = serveability(header.table_format, header.head)
        try:
            require_own_stores(view.entry.path, header.location, header.roots, self._settings)
        except Unserveable as error:
            sharing = {client.id for client in CLIENTS}
            return [_refused(one, error) if one.id in sharing else one for one in verdicts]
        return verdicts

    def _way(self, view: TableView, folder: Folder) -> FilesWay:
        """How Iceberg clients get at the files, once the table is loaded for them.

        Raises:
            Unserveable, StoreError: they do not, or the table cannot be loaded.
        """
        self._iceberg.load(view)
        way = files_way(view, folder, self._signers, self._settings)
        if way == "signed requests":
            own = place_of(folder.location, self._settings.azure_account).root
            others = sorted(
                {root for root in folder.roots if root != own} - {str(self._settings.vectors_dir)}
            )
            if others:
                raise Unserveable(
                    f"{view.entry.path} has files in {others[0] or 'the local file system'}, and Iceberg clients get "
                    f"signed requests for {own} only.",
                    "Copy the files into the table's own bucket, or query it by Delta Sharing.",
                )
        return way


def provider_view(entry: TableEntry, versions: Versions) -> TableView:
    """A shared table as a recipient without restrictions gets it."""
    found = versions.of(entry.lake_table)
    return TableView(entry, found if entry.publication is None else VersionsUntil(found, entry.publication))


def unshared(lake_table: str) -> TableEntry:
    """A table as it would be shared under its own name, by default."""
    schema, _, name = lake_table.rpartition(".")
    share = ShareEntry(0, "", "not shared", None)
    return TableEntry(0, "", name, schema, share, lake_table, None, history=True)


def _refused(verdict: Verdict, why: LakeshareError) -> Verdict:
    """The verdict with one more reason; requests are refused with those it had before."""
    refusal = Refusal(why.reason, why.fix, why.code) if isinstance(why, Unserveable) else Refusal(str(why))
    return replace(verdict, served_as=None, features=(), refused_for=(*verdict.refused_for, refusal))
