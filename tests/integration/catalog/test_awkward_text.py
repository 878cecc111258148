"""Text that a database cannot hold is looked up in vain and written down readably, never a fault of the server."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from lakeshare_server.catalog import (
    AuditEvent,
    AuditLog,
    Catalog,
    FollowedTables,
    Ledger,
    Listings,
    SharedTable,
    share_table,
)
from lakeshare_server.catalog.audit import verify
from lakeshare_server.catalog.audit.log import MAX_TEXT_CHARS
from lakeshare_server.errors import NotFound
from tests.builders.events import newest_requests
from tests.builders.publications import a_publication
from tests.builders.recipients import Recipients

AWKWARD = [
    "\x00",
    "a\x00b",
    "\ud800",
    "a\udfff",
    "x" * 9000,
    "漢字",
    "\U0001f600",
    "'; DROP TABLE shares; --",
    "%",
    "\u200b",
]


def test_awkward_names_are_not_found(catalog: Catalog, subtests: pytest.Subtests) -> None:
    share_table(catalog, "s", SharedTable("a", "x", "lake.x"))
    recipients = Recipients(catalog)
    bob, _ = recipients.add("bob", ["s"])
    listings = Listings(catalog, bob.id)
    for text in AWKWARD:
        with subtests.test(text=ascii(text[:20])):
            for look, *arguments in (
                (listings.share, text),
                (listings.schemas, text, 0, 10),
                (listings.tables, "s", text, 0, 10),
                (listings.table, text, "a", "x"),
                (listings.table, "s", text, "x"),
                (listings.table, "s", "a", text),
                (Listings(catalog, text).share, "s"),
                (recipients.revoke, text),
                (FollowedTables(catalog).remove, text),
            ):
                with pytest.raises(NotFound):
                    look(*arguments)
            assert Ledger(catalog).latest(text) is None
            assert FollowedTables(catalog).get(text) is None
            if text.isprintable() and text.isascii():
                assert recipients.by_token(text) is None


def test_awkward_text_is_written_to_the_audit_log_readably(
    catalog: Catalog, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for number, text in enumerate(AWKWARD):
        with subtests.test(text=ascii(text[:20])):
            log = AuditLog(catalog, tmp_path / str(number))
            log.record(
                AuditEvent(
                    at=datetime.now(UTC),
                    recipient="bob",
                    action="query_table",
                    object_name=text,
                    status=404,
                    error_code=None,
                    version=None,
                    files=None,
                    request_id="r",
                    ip=None,
                    user_agent=text,
                    elapsed_ms=1,
                    details={text: [text]},
                )
            )
            log.close()
            [row] = newest_requests(log.catalog, 1)
            readable = text.translate({0: "\ufffd", 0xD800: "\ufffd", 0xDFFF: "\ufffd"})[:MAX_TEXT_CHARS]
            assert row.object_name == row.user_agent == readable
            assert row.details == {readable: [readable]}
            assert verify(catalog).is_sound


def test_awkward_text_of_a_publication_comes_back(catalog: Catalog) -> None:
    new = a_publication(
        location="/a b/%20/ü#?",
        schema_string='{"x":"\U0001f600"}',
        verdicts={"note": "a\x00b", "list": [None, 1.5]},
    )
    [published] = Ledger(catalog).append([new])
    assert Ledger(catalog).latest("lake.flights") == published
    assert (published.location, published.schema_string) == (new.location, new.schema_string)
    assert published.verdicts == new.verdicts
