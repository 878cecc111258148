"""A recipient's token is shown once, works until it ends, is rotated or revoked, and is nowhere in the database."""

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakeshare_server.access.profile import write_profile
from lakeshare_server.catalog import Catalog, DeclaredShare, Reader, Recipients, apply_shares, open_catalog
from lakeshare_server.errors import BadRequest, NotFound


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = open_catalog(f"sqlite:///{tmp_path / 'lakeshare.db'}")
    apply_shares(catalog, [DeclaredShare("Flights", ()), DeclaredShare("reference", ())])
    return catalog


@pytest.fixture
def recipients(catalog: Catalog) -> Recipients:
    return Recipients(catalog)


def test_a_token_leads_to_its_recipient(recipients: Recipients) -> None:
    bob, token = recipients.add("bob", ["flights", "reference", "FLIGHTS"], comment="tests")
    assert (bob.name, bob.shares, bob.comment) == ("bob", ("Flights", "reference"), "tests")
    assert recipients.by_token(token) == Reader(bob.id, "bob")
    assert recipients.by_token(token + "x") is None


def test_the_database_does_not_hold_the_token(recipients: Recipients, tmp_path: Path) -> None:
    _, token = recipients.add("bob", ["flights"])
    recipients.catalog.close()
    assert all(token.encode() not in file.read_bytes() for file in tmp_path.iterdir())


def test_an_ended_token_works_no_more(recipients: Recipients) -> None:
    _, ended = recipients.add("bob", ["flights"], expires_at=datetime.now(UTC) - timedelta(seconds=1))
    _, valid = recipients.add("eve", ["flights"], expires_at=datetime.now(UTC) + timedelta(hours=1))
    assert recipients.by_token(ended) is None
    assert recipients.by_token(valid) is not None


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


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a.b", "x" * 256, "BOB"])
def test_a_name_that_is_taken_or_unusable_is_refused(recipients: Recipients, name: str) -> None:
    recipients.add("bob", ["flights"])
    with pytest.raises(BadRequest, match="recipient"):
        recipients.add(name, ["flights"])


@pytest.mark.parametrize("verb", ["rotate", "revoke"])
def test_who_does_not_exist_is_not_found(recipients: Recipients, verb: str) -> None:
    with pytest.raises(NotFound, match="'eve'"):
        getattr(recipients, verb)("eve")


def test_an_end_without_a_zone_is_refused(recipients: Recipients) -> None:
    with pytest.raises(BadRequest, match="expires_at"):
        recipients.add("bob", ["flights"], expires_at=datetime(2030, 1, 1))  # noqa: DTZ001  # the point of it


def test_a_profile_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "bob.share"
    write_profile(path, "http://host/delta-sharing", "secret", datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC))
    write_profile(path, "http://host/delta-sharing", "newer", datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert json.loads(path.read_text()) == {
        "shareCredentialsVersion": 1,
        "endpoint": "http://host/delta-sharing",
        "bearerToken": "newer",
        "expirationTime": "2030-01-02T03:04:05.000000Z",
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]
