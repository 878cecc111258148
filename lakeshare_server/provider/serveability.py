"""Which clients can read a shared table from this server, and how: what its state allows, less what settings refuse.

The Delta Sharing verdicts are those of `tables.serveability` after the check of the stores that requests pass too; the
verdict on the Iceberg REST API is the outcome of loading the table there.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lakeshare_server.access.allowed_locations import require_own_stores
from lakeshare_server.access.table_access import TableFolder, TableView, TableViews, directory_refusal
from lakeshare_server.catalog import Catalog, Reader, Recipients, TableEntry
from lakeshare_server.catalog.listings import ShareEntry
from lakeshare_server.errors import BadRequest, LakeshareError, StoreError, Unauthenticated, Unserveable
from lakeshare_server.iceberg_rest.tables import FileAccess, IcebergTables, choose_file_access
from lakeshare_server.protocol.requests import parse_query
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import LocalSigner, ParsedLocation, Signers, Stores, parse_location
from lakeshare_server.tables.index import FileIndex, IndexHeader
from lakeshare_server.tables.predicates import Predicate, Unknown, conjuncts
from lakeshare_server.tables.pruning import Explanation, explain, explained_files
from lakeshare_server.tables.serveability import (
    CLIENTS,
    ICEBERG_REST_ID,
    Refusal,
    Verdict,
    is_read_by_iceberg_clients,
    judge_serveability,
    refuse_all_clients,
    refuse_sharing_clients,
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
    place: ParsedLocation
    storage: FileAccess | None
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
            verdicts = refuse_sharing_clients(error) if is_for_iceberg else refuse_all_clients(error)
        else:
            verdicts = self._within_stores(view, header)
        by_id = {verdict.id: verdict for verdict in verdicts}
        folder: TableFolder | None = header
        storage: FileAccess | None = None
        if by_id[ICEBERG_REST_ID].served_as is not None:
            try:
                folder = self._iceberg.folder(view)
                storage = self._way(view, folder)
            except (Unserveable, StoreError) as error:
                by_id[ICEBERG_REST_ID] = _refuse(by_id[ICEBERG_REST_ID], error)
        location = view.versions.location() if folder is None else folder.location
        no_credentials = None if folder is None else directory_refusal(view.entry, folder, self._signers)
        return ServedTable(
            version=version,
            verdicts=by_id,
            place=parse_location(location, self._settings.azure_account),
            storage=storage,
            no_credentials=no_credentials,
            header=header,
        )

    def _within_stores(self, view: TableView, header: IndexHeader) -> list[Verdict]:
        """The verdicts of the state; nobody gets URLs of files outside the allowed locations."""
        verdicts = judge_serveability(header.table_format, header.head)
        try:
            require_own_stores(view.entry.path, header.location, header.roots, self._settings)
        except Unserveable as error:
            sharing = {client.id for client in CLIENTS}
            return [_refuse(verdict, error) if verdict.id in sharing else verdict for verdict in verdicts]
        return verdicts

    def _way(self, view: TableView, folder: TableFolder) -> FileAccess:
        """How Iceberg clients get at the files, once the table is loaded for them.

        Raises:
            Unserveable, StoreError: they do not, or the table cannot be loaded.
        """
        self._iceberg.load(view)
        way = choose_file_access(view, folder, self._signers, self._settings)
        if way == "signed requests":
            own = parse_location(folder.location, self._settings.azure_account).root
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


def make_unshared_entry(lake_table: str) -> TableEntry:
    """A table as it would be shared under its own name, by default."""
    schema, _, name = lake_table.rpartition(".")
    share = ShareEntry(0, "", "not shared", None)
    return TableEntry(0, "", name, schema, share, lake_table, None, history=True)


def _refuse(verdict: Verdict, why: LakeshareError) -> Verdict:
    """The verdict with one more reason; requests are refused with those it had before."""
    refusal = Refusal(why.reason, why.fix, why.code) if isinstance(why, Unserveable) else Refusal(str(why))
    return replace(verdict, served_as=None, features=(), refused_for=(*verdict.refused_for, refusal))


@dataclass(frozen=True)
class ProfileTable:
    """A table as clients write it: `PROFILE#share.schema.table`."""

    profile: Path
    share: str
    schema: str
    table: str

    @property
    def name(self) -> str:
        """Share, schema and table."""
        return f"{self.share}.{self.schema}.{self.table}"


@dataclass(frozen=True)
class QueryExplanation:
    """What is asked of which version by whom, and what comes of it."""

    table: str
    recipient: str
    version: int
    index: FileIndex
    predicate: Predicate
    limit: int | None

    def summary(self) -> Explanation:
        """What each part of the predicate does."""
        return explain(self.index, self.predicate, self.limit)

    def lines(self) -> Iterator[str]:
        """The summary for people."""
        found = self.summary()
        rows = f"at most {found.rows} rows" if not found.uncounted else f"{found.rows} rows and more"
        yield (
            f"{self.table}, version {self.version}, as {self.recipient} reads it: "
            f"{found.kept} of {found.files} files are kept, {rows}; {found.dropped} are left out"
        )
        yield "DROPS\tPART\tREMARK"
        for part in found.parts:
            yield f"{part.drops}\t{part.text}\t{part.remark or ''}"
        if self.limit is not None:
            yield f"{found.beyond_limit}\tLIMIT {self.limit}\tafter what the parts above leave"

    def file_lines(self) -> Iterator[str]:
        """One line for each file: what became of it, its rows, its path, and why."""
        yield "FILE\tROWS\tPATH\tWHY"
        for file in explained_files(self.index, self.predicate, self.limit):
            rows = "unknown" if file.rows is None else file.rows
            yield f"{'kept' if file.is_kept else 'dropped'}\t{rows}\t{file.path}\t{file.reason}"


def parse_profile_table(text: str) -> ProfileTable:
    """The table of `PROFILE#share.schema.table`.

    Raises:
        BadRequest: it does not look like that.
    """
    profile, _, name = text.rpartition("#")
    names = name.split(".")
    if not profile or len(names) != 3 or not all(names):
        raise BadRequest("TABLE", text, "Give PROFILE#share.schema.table, like bob.share#sales.lake.orders.")
    return ProfileTable(Path(profile).expanduser(), *names)


def explain_query(
    catalog: Catalog, views: TableViews, asked: ProfileTable, fields: Mapping[str, Any]
) -> QueryExplanation:
    """What a query with these fields would get from the table.

    Raises:
        BadRequest: the profile or a field cannot be used.
        Unauthenticated: the profile's token is nobody's here.
        NotFound: the recipient has no such table.
    """
    reader = _reader(catalog, asked.profile)
    view = views.table(reader, asked.share, asked.schema, asked.table)
    request = parse_query(fields)
    _require_understood(request.predicate, fields)
    version = view.requested_version(request)
    return QueryExplanation(
        asked.name, reader.name, version.number, view.index(version), request.predicate, request.limit
    )


def _reader(catalog: Catalog, profile: Path) -> Reader:
    found = Recipients(catalog).by_token(_token(profile))
    if found is None:
        raise Unauthenticated(
            f"The token in {profile} is unknown, expired or revoked in this server's catalog. Run this where the "
            "server runs, with its LAKESHARE_STATE_DIR, and with a profile it wrote."
        )
    return found


def _token(profile: Path) -> str:
    try:
        fields = json.loads(profile.read_text("utf-8"))
    except (OSError, ValueError) as error:
        hint = f"Give the path of a profile file ({type(error).__name__})."
        raise BadRequest("PROFILE", str(profile), hint) from error
    if not isinstance(fields, dict) or fields.get("shareCredentialsVersion") != 1:
        raise BadRequest("PROFILE", str(profile), "Give a profile with shareCredentialsVersion 1.")
    token = fields.get("bearerToken")
    if not isinstance(token, str) or not token:
        raise BadRequest("PROFILE", str(profile), "Give a profile with a bearerToken.")
    return token


def _require_understood(predicate: Predicate, fields: Mapping[str, Any]) -> None:
    """A server takes what it does not understand for "everything"; whoever asks why wants to be told."""
    given = [name for name in ("predicateHints", "jsonPredicateHints") if fields.get(name)]
    if given and all(isinstance(part, Unknown) for part in conjuncts(predicate)):
        hint = "Nothing of it is understood. Compare columns with constants, like day >= '2024-03-01'."
        raise BadRequest(" and ".join(given), [fields[name] for name in given], hint)
