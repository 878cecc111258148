"""Tickets in the URLs of our own byte endpoint: to whom files of which folder were handed out, and under which terms.

A ticket is sealed into the URL, so that nothing has to be kept for it. It is held against the catalog whenever the URL
is used: whatever ends or changes the access of the recipient ends its URLs.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from lakeshare_server.access.view import TableView, Views
from lakeshare_server.catalog import Catalog, Credentials, GenerationCache, Reader
from lakeshare_server.errors import Denied, NotFound
from lakeshare_server.protocol.seals import Seals

PURPOSE = "file ticket v1"
ID_BYTES, TERMS_BYTES = 16, 8
NO_CREDENTIAL = bytes(ID_BYTES)
# Recipients, with the tables that they read, between two writes to the catalog.
KEPT = 1 << 15
ENDED = "The URL has ended, as has the access that it was issued for. Query the table again for fresh URLs."


@dataclass(frozen=True)
class FileTicket:
    """What a ticket holds; `credential_id` is None where an administrator looked in the recipient's place."""

    recipient_id: str
    table_id: str
    credential_id: str | None
    terms: bytes
    folder: str


@dataclass(frozen=True)
class _Held:
    """What the catalog has for a ticket, until a time or a write ends it."""

    recipient: str
    terms: bytes
    ends_at: datetime | None

    def is_over(self) -> bool:
        return self.ends_at is not None and self.ends_at <= datetime.now(UTC)


class FileTickets:
    """Issues tickets and checks them; safe from any thread."""

    def __init__(self, key: bytes, catalog: Catalog, views: Views) -> None:
        self._seals = Seals(key, PURPOSE)
        self._catalog, self._views = catalog, views
        self._credentials = Credentials(catalog)
        self._held = GenerationCache[_Held | None](catalog, KEPT, lambda held: held is None or held.is_over())

    def issue(self, reader: Reader, credential_id: str | None, view: TableView, folder: str) -> str:
        """A ticket for the files of a table below a folder."""
        credential = NO_CREDENTIAL if credential_id is None else UUID(credential_id).bytes
        ids = UUID(reader.id).bytes + UUID(view.entry.id).bytes + credential
        return self._seals.sealed_bytes(ids + _terms(view) + folder.encode("utf-8", "surrogateescape"))

    def require(self, text: str) -> tuple[str, FileTicket]:
        """The recipient of a ticket by name, and what the ticket holds.

        Raises:
            Denied: it is none of ours, or its recipient may not read the table any more, or not on the same terms.
            Unavailable: the catalog does not answer.
        """
        ticket = self._opened(text)
        key = ticket.recipient_id, ticket.table_id, ticket.credential_id
        held = self._held.get(key, lambda: self._look_up(ticket))
        if held is None or held.terms != ticket.terms:
            raise Denied(ENDED)
        return held.recipient, ticket

    def _opened(self, text: str) -> FileTicket:
        content = self._seals.opened_bytes(text)
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

    def _look_up(self, ticket: FileTicket) -> _Held | None:
        reader = self._credentials.holder(ticket.recipient_id, ticket.credential_id)
        if reader is None:
            return None
        try:
            view = self._views.table_of_id(reader, ticket.table_id)
        except NotFound:
            return None
        ends = [end for end in (reader.expires_at, view.valid_until) if end is not None]
        return _Held(reader.name, _terms(view), min(ends, default=None))


def _terms(view: TableView) -> bytes:
    """What tells the terms on which a table is read from all others: the table behind it, its history, its rows."""
    entry = view.entry
    terms = repr((entry.lake_table, entry.history, entry.start_version, view.restriction))
    return hashlib.sha256(terms.encode("utf-8", "surrogatepass")).digest()[:TERMS_BYTES]
