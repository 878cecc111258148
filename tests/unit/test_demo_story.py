"""A second start of the demo does what is missing, and nothing again."""

from pathlib import Path

import pytest

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.demo.story import are_shares_applied
from lakeshare_pipelines.share.shares import apply
from lakeshare_server.catalog import Catalog, open_catalog

CONTRACTS = load_contracts()


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return open_catalog(f"sqlite:///{tmp_path / 'lakeshare.db'}")


@pytest.mark.parametrize("stopped_after", [0, 1])
def test_shares_are_applied_again_after_a_start_that_did_not_come_to_all(catalog, stopped_after):
    apply(catalog, CONTRACTS[:stopped_after])

    assert not are_shares_applied(catalog, CONTRACTS)


def test_shares_that_are_what_the_contracts_say_are_left_alone(catalog):
    apply(catalog, CONTRACTS)

    assert are_shares_applied(catalog, CONTRACTS)


def test_shares_that_no_contract_declares_any_more_are_not_left(catalog):
    apply(catalog, CONTRACTS)

    assert not are_shares_applied(catalog, CONTRACTS[:1])
