"""A recipient's token is shown once, works until it ends, is rotated or revoked, and is nowhere in the database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from lakeshare_server.catalog import Catalog, DeclaredShare, Reader, apply_shares
from lakeshare_server.catalog.models import Base
from lakeshare_server.catalog.sharing import editing
from lakeshare_server.errors import BadRequest, CatalogConflict, NotFound
from tests.builders.recipients import Recipients, expire_token


@pytest.fixture
def recipients(catalog: Catalog) -> Recipients:
    apply_shares(catalog, [DeclaredShare("Flights", ()), DeclaredShare("reference", ())])
    return Recipients(catalog)


def test_a_token_leads_to_its_recipient(recipients: Recipients) -> None:
    bob, token = recipients.add("bob", ["flights", "reference", "FLIGHTS"], comment="tests")
    assert (bob.name, bob.shares, bob.comment) == ("bob", ("Flights", "reference"), "tests")
    assert recipients.by_token(token) == Reader(bob.id, "bob")
    assert recipients.by_token(token + "x") is None


def test_the_database_does_not_hold_the_token(recipients: Recipients) -> None:
    _, token = recipients.add("bob", ["flights"])
    with recipients.catalog.reading() as session:
        held = [str(session.execute(select(table)).all()) for table in Base.metadata.tables.values()]
    assert any("bob" in rows for rows in held)
    assert not any(token in rows for rows in held)


def test_an_ended_token_works_no_more(recipients: Recipients) -> None:
    _, ended = recipients.add("bob", ["flights"])
    with editing(recipients.catalog, "tests") as edit:
        expire_token(edit, ended)
    _, valid = recipients.add("eve", ["flights"], expires_at=datetime.now(UTC) + timedelta(hours=1))
    assert recipients.by_token(ended) is None
    reader = recipients.by_token(valid)
    assert reader is not None
    assert reader.is_valid()
    assert not replace(reader, expires_at=datetime.now(UTC)).is_valid()


def test_rotating_ends_the_old_token_at_once(recipients: Recipients) -> None:
    _, old = recipients.add("bob", ["flights"])
    bob, new = recipients.rotate("Bob")
    assert recipients.by_token(old) is None
    assert recipients.by_token(new) == Reader(bob.id, "bob")


def test_revoking_ends_all_access_and_keeps_the_name(recipients: Recipients) -> None:
    _, token = recipients.add("bob", ["flights"])
    assert recipients.revoke("bob").revoked_at is not None
    assert recipients.by_token(token) is None
    assert [recipient.name for recipient in recipients.list()] == ["bob"]
    with pytest.raises(BadRequest, match="revoked"):
        recipients.rotate("bob")


def test_an_unknown_share_is_named_and_nobody_is_added(recipients: Recipients) -> None:
    with pytest.raises(NotFound, match="nothing"):
        recipients.add("bob", ["flights", "nothing"])
    assert recipients.list() == []


def test_a_name_that_is_taken_or_unusable_is_refused(
    recipients: Recipients, subtests: pytest.Subtests
) -> None:
    recipients.add("bob", ["flights"])
    for name in ("", "a b", "a/b", "a.b", "x" * 256, "BOB"):
        with subtests.test(name=name), pytest.raises((BadRequest, CatalogConflict), match="recipient"):
            recipients.add(name, ["flights"])


def test_who_does_not_exist_is_not_found(recipients: Recipients) -> None:
    for operation in (recipients.rotate, recipients.revoke):
        with pytest.raises(NotFound, match="'eve'"):
            operation("eve")


def test_an_end_without_a_zone_is_refused(recipients: Recipients) -> None:
    with pytest.raises(BadRequest, match="expires_at"):
        recipients.add("bob", ["flights"], expires_at=datetime(2030, 1, 1))  # noqa: DTZ001  # the point of it
