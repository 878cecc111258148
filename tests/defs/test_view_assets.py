"""A view is an asset of its set like its tables: published with them, with the columns it comes from."""

from pathlib import Path

import dagster as dg

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.defs.share import share_catalog
from lakeshare_pipelines.defs.wap import table_key, wap_set
from tests.builders.sets import a_contract

VIEW = """\
  - name: open_orders
    physicalName: shop.open_orders
    description: Orders worth telling.
    customProperties:
      - property: view
        value: {of: orders, columns: [day, amount], perRecipient: {column: party, value: customer}}
"""
TOP = "customProperties:\n  - {property: partitioning"


def test_a_view_is_published_by_the_asset_of_its_set(tmp_path: Path) -> None:
    shared = "tables: [orders, totals]"
    more = {TOP: VIEW + TOP, shared: shared.replace("orders", "open_orders")}
    contract = a_contract(tmp_path, "shop", "iceberg", **more)
    asset, key = wap_set(contract), table_key("shop.open_orders")

    assert asset.keys == {table_key(table.name) for table in contract.tables}
    spec = asset.specs_by_key[key]
    assert (spec.description, spec.kinds) == ("Orders worth telling.", {"spark", "iceberg", "view"})
    assert ("selection", key) in {(check.name, check.asset_key) for check in asset.check_specs}
    lineage = spec.metadata["dagster/column_lineage"]
    lineage = getattr(lineage, "value", lineage)
    sources = {name: [dep.column_name for dep in deps] for name, deps in lineage.deps_by_column.items()}
    assert sources == {"day": ["day"], "amount": ["amount"], "party": ["customer"]}
    assert {dep.asset_key for deps in lineage.deps_by_column.values() for dep in deps} == {
        table_key("shop.orders")
    }
    assert table_key("shop.open_orders") in share_catalog([contract]).dependency_keys
    assert isinstance(asset, dg.AssetsDefinition)
    assert load_contracts(tmp_path) == (contract,)
