"""A second start of the demo does what is missing, and nothing again."""

import json
from pathlib import Path

import pytest

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.demo.story import RECIPIENT, are_shares_applied, write_recipient_profile
from lakeshare_pipelines.share.shares import apply_declared_shares
from lakeshare_server.catalog import Catalog
from lakeshare_server.catalog.sharing import editing
from tests.builders.database_schema import open_migrated
from tests.builders.recipients import Recipients, expire_token

CONTRACTS = load_contracts()


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return open_migrated(f"sqlite:///{tmp_path / 'lakeshare.db'}")


@pytest.mark.parametrize("stopped_after", [0, 1])
def test_shares_are_applied_again_after_a_start_that_did_not_come_to_all(catalog, stopped_after):
    apply_declared_shares(catalog, CONTRACTS[:stopped_after])

    assert not are_shares_applied(catalog, CONTRACTS)


def test_shares_that_are_what_the_contracts_say_are_left_alone(catalog):
    apply_declared_shares(catalog, CONTRACTS)

    assert are_shares_applied(catalog, CONTRACTS)


def test_shares_that_no_contract_declares_any_more_are_not_left(catalog):
    apply_declared_shares(catalog, CONTRACTS)

    assert not are_shares_applied(catalog, CONTRACTS[:1])


@pytest.fixture
def profile(catalog, tmp_path) -> Path:
    """The profile an earlier demo handed out."""
    apply_declared_shares(catalog, CONTRACTS)
    path = tmp_path / "demo.share"
    hand_out(catalog, path)
    return path


def hand_out(catalog: Catalog, path: Path, port: int = 8765) -> None:
    shares = sorted({entry.share for contract in CONTRACTS for entry in contract.shares})
    write_recipient_profile(catalog, shares, path, f"http://127.0.0.1:{port}")


def token_in(path: Path) -> str:
    return json.loads(path.read_text())["bearerToken"]


def test_the_recipient_keeps_its_token_when_the_server_moves(catalog, profile):
    before = token_in(profile)

    hand_out(catalog, profile, port=4711)

    assert token_in(profile) == before
    assert json.loads(profile.read_text())["endpoint"] == "http://127.0.0.1:4711/delta-sharing"
    assert Recipients(catalog).by_token(before).name == RECIPIENT


def rotated(catalog: Catalog, path: Path) -> None:
    Recipients(catalog).rotate(RECIPIENT)


def expired(catalog: Catalog, path: Path) -> None:
    _, token = Recipients(catalog).rotate(RECIPIENT)
    with editing(catalog, "tests") as edit:
        expire_token(edit, token)
    path.write_text(json.dumps({"bearerToken": token}))


def of_somebody_else(catalog: Catalog, path: Path) -> None:
    _, token = Recipients(catalog).add("bob", [])
    path.write_text(json.dumps({"bearerToken": token}))


def lost(catalog: Catalog, path: Path) -> None:
    path.unlink()


def damaged(catalog: Catalog, path: Path) -> None:
    path.write_text(path.read_text()[:40])


@pytest.mark.parametrize("spoil", [rotated, expired, of_somebody_else, lost, damaged])
def test_a_token_that_is_no_longer_the_recipients_is_replaced(catalog, profile, spoil):
    before = token_in(profile)
    spoil(catalog, profile)

    hand_out(catalog, profile)

    assert token_in(profile) != before
    assert Recipients(catalog).by_token(token_in(profile)).name == RECIPIENT
