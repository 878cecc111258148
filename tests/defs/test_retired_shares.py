"""Shares are applied after each publication, and daily while a contract retires a table: its last day just ends."""

import datetime as dt
from pathlib import Path

import dagster as dg
import pytest

from lakeshare_pipelines.defs.share import CATALOG, share_catalog
from tests.builders.sets import a_contract

EVENING = dt.datetime(2024, 1, 1, 23, 50, tzinfo=dt.UTC)
RETIRE = "  - {property: retire, value: [{table: old_orders, date: 2024-01-01}]}"


@pytest.mark.parametrize(("more", "is_requested"), [(RETIRE, True), ("", False)], ids=["retired", "none"])
def test_the_end_of_a_day_applies_the_shares(tmp_path: Path, more: str, is_requested: bool) -> None:
    contract = a_contract(tmp_path, "shop", "delta", more)
    definitions = dg.Definitions(assets=[share_catalog([contract])], resources={"lakeshare": object()})
    instance, selection = dg.DagsterInstance.ephemeral(), dg.AssetSelection.assets(CATALOG)
    # All tables have been published, and the shares were applied since.
    for entry in contract.shares:
        instance.report_runless_asset_event(dg.AssetMaterialization(entry.table.split(".")))
    instance.report_runless_asset_event(dg.AssetMaterialization(CATALOG))

    results, cursor = [], None
    for minutes in (0, 10, 20):
        at = EVENING + dt.timedelta(minutes=minutes)
        found = dg.evaluate_automation_conditions(
            definitions, instance, selection, evaluation_time=at, cursor=cursor
        )
        cursor = found.cursor
        results.append(found.total_requested)

    assert results[1:] == [0, int(is_requested)]
