"""Files outside of a table's own store: a log may name any file, and whoever writes the log is not the operator.

Bytes are read, and URLs signed, with the server's own rights. So a table gets at files of its own store, and of those
that the operator names; never from a store at the server's disk. The own store of a table on that disk is the folder
that holds the table's folder: the disk has other things on it.
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
from lakeshare_server.protocol.tokens import TokenSealer
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import ParsedLocation, parse_location
from lakeshare_server.storage.locations import LOCAL

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
# SQLite keeps files beside its database.
BESIDE_DATABASE = ("", "-wal", "-shm", "-journal")
SECRETS = ".env"
# pyiceberg's own configuration, with credentials of catalogs.
CATALOGS = ".pyiceberg.yaml"


def require_own_stores(table: str, location: str, roots: Collection[str], settings: ServerSettings) -> None:
    """Refuse to sign for a table whose files are in stores that are not its own.

    Deletion vectors that this server made are the table's, wherever that is: they are named by their content.

    Raises:
        Unserveable: names the store or the folder, and how the operator allows it.
    """
    own = parse_location(location)
    also = (parse_location(place, settings.azure_account) for place in settings.files_also_in.split())
    allowed = [_store_of(own), *also]
    for root in sorted(set(roots) - {str(settings.vectors_dir)}):
        try:
            place = parse_location(root or (location if own.kind == LOCAL else "/"))
        except BadRequest as error:
            reason = f"{table} names files in {root}: {error}"
            raise Unserveable(reason, "Provider: copy them.", places=[root]) from error
        on_our_disk = place.kind == LOCAL and own.kind != LOCAL
        if on_our_disk or not any(_holds(one, place) for one in allowed):
            raise _refusal(table, place, may_be_allowed=not on_our_disk)


def is_local(root: str) -> bool:
    """Whether a root of an index is of the server's own disk: a folder, or nothing for the table's own location."""
    return root.startswith("/") or not root


def local_folders(location: str, roots: Collection[str]) -> list[str]:
    """The folders of the server's own disk that files of a table are in, by the roots of an index; its own first."""
    place = parse_location(location)
    own = [place.key] if place.kind == LOCAL else []
    return [*own, *sorted(root for root in roots if root and is_local(root))]


def is_servable(place: Path, folder: str, settings: ServerSettings) -> bool:
    """Whether a local file, whose links are resolved, may be read as one of a table's files below `folder`.

    It lies there, or where the operator lets any table have files; it is none of the server's own.
    """
    if is_server_file(place, settings):
        return False
    also = (parse_location(one, settings.azure_account) for one in settings.files_also_in.split())
    allowed = [folder, *(one.key for one in also if one.kind == LOCAL)]
    return any(place.is_relative_to(os.path.realpath(one)) for one in allowed)


def is_server_file(place: Path, settings: ServerSettings) -> bool:
    """Whether a local file, whose links are resolved, is one of the server's own: its keys, catalog, logs, settings."""
    if place.name == CATALOGS:
        return True
    if place.name.startswith(SECRETS) and place.parent == Path.cwd():
        return True
    return any(
        place.is_relative_to(own_place)
        for own_place in _server_paths(settings.state_dir, settings.catalog_url)
    )


def _store_of(table: ParsedLocation) -> ParsedLocation:
    """The store of a table: of a local one the folder around it, unless that is the whole disk."""
    if table.kind != LOCAL:
        return table
    folder = _folder(table).rstrip("/")
    return ParsedLocation(LOCAL, "", folder if folder.count("/") == 1 else posixpath.dirname(folder))


def _holds(store: ParsedLocation, place: ParsedLocation) -> bool:
    return store.root == place.root and (store.kind != LOCAL or _folder(place).startswith(_folder(store)))


def _folder(place: ParsedLocation) -> str:
    """A local folder in one spelling, with a slash at its end."""
    return posixpath.normpath("/" + place.key.lstrip("/")).rstrip("/") + "/"


def _refusal(table: str, place: ParsedLocation, *, may_be_allowed: bool) -> Unserveable:
    where = f"{place.key} on the server's own disk" if place.kind == LOCAL else place.root
    remedy = f", or allow the store with LAKESHARE_FILES_ALSO_IN={place.root or place.key}"
    return Unserveable(
        f"{table} names files in {where}, which is not the store it is in itself.",
        f"Provider: copy them{remedy if may_be_allowed else ''}.",
        places=[place.location],
    )


@lru_cache(maxsize=1)
def _server_paths(state_dir: Path, catalog_url: str) -> list[Path]:
    """Resolved once: every file that is read is compared with them."""
    found = [state_dir / name for name in SERVER_FILES]
    homes = (os.environ.get(name, "") for name in ("PYICEBERG_HOME", "HOME"))
    configured = (Path(folder) / CATALOGS for folder in (*homes, ""))
    # They may be links to where secrets are kept.
    found += [secret for secret in (Path(SECRETS), *configured) if secret.exists()]
    for database in (state_dir / "lakeshare.db", database_file(catalog_url)):
        if database is not None:
            found += [database.with_name(database.name + ending) for ending in BESIDE_DATABASE]
    return [place.resolve() for place in found]


PURPOSE = "file ticket v1"
ID_BYTES, TERMS_BYTES = 16, 8
NO_CREDENTIAL = bytes(ID_BYTES)
# Recipients, with the tables that they read, between two writes to the catalog.
MAX_CACHED_TICKETS = 1 << 15
TICKET_ENDED = (
    "The URL has ended, as has the access that it was issued for. Query the table again for fresh URLs."
)


@dataclass(frozen=True)
class FileTicket:
    """What a ticket holds; `credential_id` is None where an administrator looked in the recipient's place."""

    recipient_id: str
    table_id: str
    credential_id: str | None
    terms: bytes
    folder: str


@dataclass(frozen=True)
class _KnownTicket:
    """What the catalog has for a ticket, until a time or a write ends it."""

    recipient: str
    terms: bytes
    ends_at: datetime | None

    def is_over(self) -> bool:
        return self.ends_at is not None and self.ends_at <= datetime.now(UTC)


class FileTickets:
    """Issues tickets and checks them; safe from any thread."""

    def __init__(self, key: bytes, catalog: Catalog, views: TableViews) -> None:
        self._seals = TokenSealer(key, PURPOSE)
        self._catalog, self._views = catalog, views
        self._credentials = Credentials(catalog)
        self._held = GenerationCache[_KnownTicket | None](
            catalog, MAX_CACHED_TICKETS, lambda held: held is None or held.is_over()
        )

    def issue(self, reader: Reader, credential_id: str | None, view: TableView, folder: str) -> str:
        """A ticket for the files of a table below a folder."""
        credential = NO_CREDENTIAL if credential_id is None else UUID(credential_id).bytes
        ids = UUID(reader.id).bytes + UUID(view.entry.id).bytes + credential
        return self._seals.seal_bytes(ids + _access_terms(view) + folder.encode("utf-8", "surrogateescape"))

    def require(self, text: str) -> tuple[str, FileTicket]:
        """The recipient of a ticket by name, and what the ticket holds.

        Raises:
            Denied: it is none of ours, or its recipient may not read the table any more, or not on the same terms.
            Unavailable: the catalog does not answer.
        """
        ticket = self._opened(text)
        key = ticket.recipient_id, ticket.table_id, ticket.credential_id
        known = self._held.get(key, lambda: self._look_up(ticket))
        if known is None or known.terms != ticket.terms:
            raise Denied(TICKET_ENDED)
        return known.recipient, ticket

    def _opened(self, text: str) -> FileTicket:
        content = self._seals.open_bytes(text)
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
        return _KnownTicket(reader.name, _access_terms(view), min(ends, default=None))


def _access_terms(view: TableView) -> bytes:
    """What tells the terms on which a table is read from all others: the table behind it, its history, its rows."""
    entry = view.entry
    terms = repr((entry.lake_table, entry.history, entry.start_version, view.restriction))
    return hashlib.sha256(terms.encode("utf-8", "surrogatepass")).digest()[:TERMS_BYTES]
