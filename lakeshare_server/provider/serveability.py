"""Which clients can read a shared table from this server, and how: the table's state, and the server's settings.

The Delta Sharing verdicts are those of `tables.serveability` after the check of allowed locations; the verdict on the
Iceberg REST API is the outcome of loading the table through it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lakeshare_server.access.allowed_locations import require_own_stores
from lakeshare_server.access.table_access import TableView, TableViews, directory_refusal
from lakeshare_server.catalog import Catalog, Credentials, SharedTable
from lakeshare_server.errors import BadRequest, LakeshareError, StoreError, Unauthenticated, Unserveable
from lakeshare_server.iceberg_rest.tables import FileAccess, IcebergTables, choose_file_access
from lakeshare_server.protocol.requests import parse_query
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import ParsedLocation, Signers, parse_location
from lakeshare_server.tables.index import FileIndex, IndexHeader, TableFolder
from lakeshare_server.tables.predicates import Predicate, Unknown, conjuncts
from lakeshare_server.tables.pruning import explain, explained_files
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
from lakeshare_server.versions import Version, Versions

PREDICATE_FIELDS = ("predicateHints", "jsonPredicateHints")


@dataclass(frozen=True)
class ServedTable:
    """The newest version of a shared table as this server serves it.

    `verdicts` are by client id; `storage` is how Iceberg clients read the files, None where they cannot;
    `no_credentials` is the reason why there are no credentials for the folder; `header` is None without an index.
    """

    version: Version
    verdicts: Mapping[str, Verdict]
    place: ParsedLocation
    storage: FileAccess | None
    no_credentials: str | None
    header: IndexHeader | None

    @property
    def iceberg(self) -> Verdict:
        return self.verdicts[ICEBERG_REST_ID]

    @property
    def clients(self) -> list[str]:
        return [id_ for id_, verdict in self.verdicts.items() if verdict.served_as is not None]


class TableServeability:
    """Judges shared tables by the rules of this server's requests; for many threads."""

    def __init__(self, iceberg: IcebergTables, signers: Signers, settings: ServerSettings) -> None:
        self._iceberg, self._signers, self._settings = iceberg, signers, settings

    def judge(self, view: TableView) -> ServedTable:
        """How each client gets the newest version; raises `NotFound`, `Unserveable` or `StoreError` without one."""
        version = view.latest()
        header: IndexHeader | None = None
        try:
            header = view.index(version).header
        except Unserveable as error:
            is_for_iceberg = is_read_by_iceberg_clients(error)
            verdicts = refuse_sharing_clients(error) if is_for_iceberg else refuse_all_clients(error)
        else:
            verdicts = self._judge_state(view, header)
        by_id = {verdict.id: verdict for verdict in verdicts}
        folder: TableFolder | None = header
        storage: FileAccess | None = None
        if by_id[ICEBERG_REST_ID].served_as is not None:
            try:
                folder = self._iceberg.folder(view)
                storage = self._choose_access(view, folder)
            except (Unserveable, StoreError) as error:
                by_id[ICEBERG_REST_ID] = _refuse(by_id[ICEBERG_REST_ID], error)
        location = view.versions.location() if folder is None else folder.location
        place = parse_location(location, self._settings.azure_account)
        no_credentials = None if folder is None else directory_refusal(view.entry, folder, self._signers)
        return ServedTable(version, by_id, place, storage, no_credentials, header)

    def _judge_state(self, view: TableView, header: IndexHeader) -> list[Verdict]:
        """The verdicts on the state; Delta Sharing serves no files outside the allowed locations."""
        verdicts = judge_serveability(header.table_format, header.head)
        try:
            require_own_stores(view.entry.path, header.location, header.roots, self._settings)
        except Unserveable as error:
            sharing = {client.id for client in CLIENTS}
            return [_refuse(verdict, error) if verdict.id in sharing else verdict for verdict in verdicts]
        return verdicts

    def _choose_access(self, view: TableView, folder: TableFolder) -> FileAccess:
        """How Iceberg clients read the files; raises `Unserveable` or `StoreError` if they cannot."""
        self._iceberg.load(view)
        access = choose_file_access(view, folder, self._signers, self._settings)
        if access == "signed requests":
            own = parse_location(folder.location, self._settings.azure_account).root
            others = sorted({*folder.roots} - {own, str(self._settings.vectors_dir)})
            if others:
                raise Unserveable(
                    f"{view.entry.path} has files in {others[0] or 'the local file system'}, and Iceberg clients get "
                    f"signed requests for {own} only.",
                    "Copy the files into the table's own bucket, or query it by Delta Sharing.",
                )
        return access


def provider_view(entry: SharedTable, versions: Versions) -> TableView:
    """A shared table for a recipient without restrictions."""
    of_table = versions.of(entry.table, entry.publication)
    return TableView(entry, of_table, services=of_table.services())


def make_unshared_entry(lake_table: str) -> SharedTable:
    """The entry of a table that is not shared, with the defaults of sharing it."""
    schema, _, name = lake_table.rpartition(".")
    return SharedTable(schema, name, lake_table, share="not shared")


def _refuse(verdict: Verdict, why: LakeshareError) -> Verdict:
    """The verdict with one more reason, after the reasons that requests are refused with."""
    refusal = Refusal(why.reason, why.fix, why.code) if isinstance(why, Unserveable) else Refusal(str(why))
    return replace(verdict, served_as=None, features=(), refused_for=(*verdict.refused_for, refusal))


@dataclass(frozen=True)
class QueryExplanation:
    """A recipient's query on a version of a table, and which files it reads."""

    table: str
    recipient: str
    version: int
    index: FileIndex
    predicate: Predicate
    limit: int | None

    def lines(self) -> Iterator[str]:
        summary = explain(self.index, self.predicate, self.limit)
        rows = f"at most {summary.rows} rows" if not summary.uncounted else f"{summary.rows} rows and more"
        yield (
            f"{self.table}, version {self.version}, as {self.recipient} reads it: "
            f"{summary.kept} of {summary.files} files are kept, {rows}; {summary.dropped} are left out"
        )
        yield "DROPS\tPART\tREMARK"
        for part in summary.parts:
            yield f"{part.drops}\t{part.text}\t{part.remark or ''}"
        if self.limit is not None:
            yield f"{summary.beyond_limit}\tLIMIT {self.limit}\tafter what the parts above leave"

    def file_lines(self) -> Iterator[str]:
        """One line for each file: kept or dropped, rows, path, and the reason."""
        yield "FILE\tROWS\tPATH\tWHY"
        for file in explained_files(self.index, self.predicate, self.limit):
            rows = "unknown" if file.rows is None else file.rows
            yield f"{'kept' if file.is_kept else 'dropped'}\t{rows}\t{file.path}\t{file.reason}"


def parse_profile_table(text: str) -> tuple[Path, tuple[str, str, str]]:
    """The profile and the names in `PROFILE#share.schema.table`; raises `BadRequest` for anything else."""
    profile, _, name = text.rpartition("#")
    names = name.split(".")
    if not profile or len(names) != 3 or not all(names):
        raise BadRequest("TABLE", text, "Give PROFILE#share.schema.table, like bob.share#sales.lake.orders.")
    return Path(profile).expanduser(), (names[0], names[1], names[2])


def explain_query(
    catalog: Catalog, views: TableViews, profile: Path, names: tuple[str, str, str], fields: Mapping[str, Any]
) -> QueryExplanation:
    """Which files of the table with the names of its share, schema and itself a query with these fields reads.

    Raises:
        BadRequest: the profile or a field cannot be used.
        Unauthenticated: the profile's token is not valid on this server.
        NotFound: the recipient has no such table.
    """
    access = Credentials(catalog).by_token(_read_token(profile))
    if access is None:
        raise Unauthenticated(
            f"The token in {profile} is unknown, expired or revoked in this server's catalog. Run this where the "
            "server runs, with its LAKESHARE_STATE_DIR, and with a profile it wrote."
        )
    reader = access.reader
    view = views.table(reader, *names)
    request = parse_query(fields)
    predicate, given = request.predicate, [name for name in PREDICATE_FIELDS if fields.get(name)]
    # The server reads an unknown predicate as "all rows", which explains nothing.
    if given and all(isinstance(part, Unknown) for part in conjuncts(predicate)):
        hint = "Nothing of it is understood. Compare columns with constants, like day >= '2024-03-01'."
        raise BadRequest(" and ".join(given), [fields[name] for name in given], hint)
    version = view.requested_version(request)
    index = view.index(version)
    return QueryExplanation(".".join(names), reader.name, version.number, index, predicate, request.limit)


def _read_token(profile: Path) -> str:
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
