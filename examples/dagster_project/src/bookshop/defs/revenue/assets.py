"""A set by Python, and an asset of the shop that reads it."""

from pathlib import Path

import dagster as dg

from lakeshare_pipelines import LakeResource, published_set, table_key

FOLDER = Path(__file__).parent

revenue = published_set(
    FOLDER / "contract.yaml",
    upstream_contracts=[FOLDER.parent / "orders" / "contract.yaml"],
    group_name="sales",
    automation_condition=dg.AutomationCondition.eager(),
)


@dg.asset(deps=[table_key("revenue.books")], group_name="sales")
def bestsellers(context: dg.AssetExecutionContext, lakeshare: LakeResource) -> dg.MaterializeResult:
    """The three books that earned most, as a file."""
    books = lakeshare.table("revenue.books", context, is_materialized=True)
    best = books.to_arrow().sort_by([("revenue", "descending")]).slice(0, 3).to_pandas()
    Path("reports").mkdir(exist_ok=True)
    best.to_csv("reports/bestsellers.csv", index=False)
    return dg.MaterializeResult(metadata={"publication": books.version})
