"""The locations from which files may be served, and the tickets in URLs of local files.

A table's log may name any file, and is not written by the operator. Files are read and URLs signed only for the
table's own store and those that the operator allows, never for local files of a remote table. The own store of a local
table is the folder around the table's folder.
"""

import hashlib
import os
import posixpath
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from uuid import UUID

from lakeshare_server.access.table_access import TableView, TableViews
from lakeshare_server.catalog import Catalog, Credentials, GenerationCache, Reader
from lakeshare_server.catalog.database import database_file
from lakeshare_server.errors import BadRequest, Denied, NotFound, Unserveable
from lakeshare_server.locations import LOCAL
from lakeshare_server.protocol.tokens import TokenSealer
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import ParsedLocation, parse_location

SERVER_FILES = (
    "signing.key",
    "first-admin.key",
    "lakeshare.db",
    "audit",
    "index",
    "logs",
    "nessie",
    "runs",
    "dagster_home",
    "demo.share",
)
MAX_CACHED_ROOTS = 4096  # tables, each with its own roots or a folder of them
DATABASE_SUFFIXES = ("", "-wal", "-shm", "-journal")  # the files of an SQLite database
SECRETS = ".env"
CATALOGS = ".pyiceberg.yaml"  # pyiceberg's configuration, with credentials of catalogs


def require_own_stores(table: str, location: str, roots: Collection[str], settings: ServerSettings) -> None:
    """Raises Unserveable, with the remedy, if a table has files outside its own store and the allowed stores.

    The server's own folder of deletion vectors is allowed: their names are digests of their content.
    """
    places = tuple(sorted(set(roots) - {str(settings.vectors_dir)}))
    _require_own_stores(table, location, places, settings.files_also_in, settings.azure_account)


# Each query asks for the roots of its index.
@lru_cache(MAX_CACHED_ROOTS)
def _require_own_stores(
    table: str, location: str, roots: tuple[str, ...], also_in: str, azure_account: str | None
) -> None:
    own = parse_location(location)
    stores = [_own_store(own), *(parse_location(allowed, azure_account) for allowed in also_in.split())]
    for root in roots:
        try:
            parsed = parse_location(root or (location if own.kind == LOCAL else "/"))
        except BadRequest as error:
            reason = f"{table} names files in {root}: {error}"
            raise Unserveable(reason, "Provider: copy them.", places=[root]) from error
        is_on_server_disk = parsed.kind == LOCAL and own.kind != LOCAL
        is_own = any(
            store.root == parsed.root and (store.kind != LOCAL or _folder(parsed).startswith(_folder(store)))
            for store in stores
        )
        if is_on_server_disk or not is_own:
            where = f"{parsed.key} on the server's own disk" if parsed.kind == LOCAL else parsed.root
            remedy = f", or allow the store with LAKESHARE_FILES_ALSO_IN={parsed.root or parsed.key}"
            raise Unserveable(
                f"{table} names files in {where}, which is not the store it is in itself.",
                f"Provider: copy them{'' if is_on_server_disk else remedy}.",
                places=[parsed.location],
            )


def is_local(root: str) -> bool:
    """Whether a root of an index is a local folder; an empty root is the table's own location."""
    return root.startswith("/") or not root


def local_folders(location: str, roots: Collection[str]) -> list[str]:
    """The local folders with files of a table, the table's own first; `roots` are those of its index."""
    parsed = parse_location(location)
    own = [parsed.key] if parsed.kind == LOCAL else []
    return [*own, *sorted(root for root in roots if root and is_local(root))]


def is_servable(path: Path, folder: str, settings: ServerSettings) -> bool:
    """Whether a local file, with links resolved, is in the table's folder or an allowed one, and not a server file."""
    server_paths = _server_paths(settings.state_dir, settings.catalog_url)
    is_secret = path.name.startswith(SECRETS) and path.parent == Path.cwd()
    if path.name == CATALOGS or is_secret or any(path.is_relative_to(own) for own in server_paths):
        return False
    also = (parse_location(allowed, settings.azure_account) for allowed in settings.files_also_in.split())
    folders = [folder, *(parsed.key for parsed in also if parsed.kind == LOCAL)]
    return any(path.is_relative_to(os.path.realpath(allowed)) for allowed in folders)


def _own_store(table: ParsedLocation) -> ParsedLocation:
    """For a local table the folder around its own, unless that is the root; else its store."""
    if table.kind != LOCAL:
        return table
    folder = _folder(table).rstrip("/")
    return ParsedLocation(LOCAL, "", folder if folder.count("/") == 1 else posixpath.dirname(folder))


def _folder(parsed: ParsedLocation) -> str:
    return posixpath.normpath("/" + parsed.key.lstrip("/")).rstrip("/") + "/"


@lru_cache(maxsize=1)
def _server_paths(state_dir: Path, catalog_url: str) -> list[Path]:
    paths = [state_dir / name for name in SERVER_FILES]
    homes = (os.environ.get(name, "") for name in ("PYICEBERG_HOME", "HOME"))
    configured = (Path(folder) / CATALOGS for folder in (*homes, ""))
    # These may be links to the secrets.
    paths += [secret for secret in (Path(SECRETS), *configured) if secret.exists()]
    for database in (state_dir / "lakeshare.db", database_file(catalog_url)):
        if database is not None:
            paths += [database.with_name(database.name + suffix) for suffix in DATABASE_SUFFIXES]
    return [path.resolve() for path in paths]


PURPOSE = "file ticket v1"
ID_BYTES, TERMS_BYTES = 16, 8
NO_CREDENTIAL = bytes(ID_BYTES)
NEVER = datetime.max.replace(tzinfo=UTC)
MAX_CACHED_TICKETS = 1 << 15  # recipients times tables, between two writes to the catalog
TICKET_ENDED = (
    "The URL has ended, as has the access that it was issued for. Query the table again for fresh URLs."
)


@dataclass(frozen=True)
class FileTicket:
    """The content of a ticket; `credential_id` is None for an administrator who impersonates the recipient."""

    recipient_id: str
    table_id: str
    credential_id: str | None
    terms: bytes
    folder: str


@dataclass(frozen=True)
class _KnownTicket:
    recipient: str
    terms: bytes
    ends_at: datetime


class FileTickets:
    def __init__(self, key: bytes, catalog: Catalog, views: TableViews) -> None:
        self._sealer = TokenSealer(key, PURPOSE)
        self._views = views
        self._credentials = Credentials(catalog)
        self._known = GenerationCache[_KnownTicket | None](
            catalog, MAX_CACHED_TICKETS, lambda known: known is None or known.ends_at <= datetime.now(UTC)
        )

    def issue(self, reader: Reader, credential_id: str | None, view: TableView, folder: str) -> str:
        credential = NO_CREDENTIAL if credential_id is None else UUID(credential_id).bytes
        ids = UUID(reader.id).bytes + UUID(view.entry.id).bytes + credential
        return self._sealer.seal_bytes(ids + _access_terms(view) + folder.encode("utf-8", "surrogateescape"))

    def require(self, text: str) -> tuple[str, FileTicket]:
        """A ticket's recipient by name, and its content. Raises Denied if it is invalid or access has changed."""
        ticket = self._open(text)
        key = ticket.recipient_id, ticket.table_id, ticket.credential_id
        known = self._known.get(key, lambda: self._look_up(ticket))
        if known is None or known.terms != ticket.terms:
            raise Denied(TICKET_ENDED)
        return known.recipient, ticket

    def _open(self, text: str) -> FileTicket:
        content = self._sealer.open_bytes(text)
        if content is None:
            raise Denied("The URL is not signed. Query the table for signed URLs.")
        recipient, table, credential = (
            content[at : at + ID_BYTES] for at in range(0, 3 * ID_BYTES, ID_BYTES)
        )
        terms, folder = content[3 * ID_BYTES :][:TERMS_BYTES], content[3 * ID_BYTES + TERMS_BYTES :]
        return FileTicket(
            recipient_id=str(UUID(bytes=recipient)),
            table_id=str(UUID(bytes=table)),
            credential_id=None if credential == NO_CREDENTIAL else str(UUID(bytes=credential)),
            terms=terms,
            folder=folder.decode("utf-8", "surrogateescape"),
        )

    def _look_up(self, ticket: FileTicket) -> _KnownTicket | None:
        reader = self._credentials.holder(ticket.recipient_id, ticket.credential_id)
        if reader is None:
            return None
        try:
            view = self._views.table_of_id(reader, ticket.table_id)
        except NotFound:
            return None
        ends = [end for end in (reader.expires_at, view.valid_until) if end is not None]
        return _KnownTicket(reader.name, _access_terms(view), min(ends, default=NEVER))


def _access_terms(view: TableView) -> bytes:
    return hashlib.sha256(repr(view.terms).encode("utf-8", "surrogatepass")).digest()[:TERMS_BYTES]
