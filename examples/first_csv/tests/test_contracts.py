"""The contracts load, and Dagster has an asset for each of their tables."""

from pathlib import Path

from definitions import defs
from lakeshare_pipelines.contracts import load_contracts


def test_contracts_load_and_their_tables_are_assets() -> None:
    contracts = load_contracts(Path("contracts"))
    assets = {key.to_user_string() for key in defs().get_repository_def().asset_graph.get_all_asset_keys()}
    assert {table.name.replace(".", "/") for contract in contracts for table in contract.tables} <= assets
