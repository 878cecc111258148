"""What main holds, as Spark and the catalogs themselves say: the judge of every publication test."""

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.wap.delta import DeltaStaging, table_location
from lakeshare_pipelines.wap.staged import Lake


def main_state(lake: Lake, contract: SetContract) -> dict[str, object]:
    """Per table what identifies its state on main: Iceberg content, or the Delta version."""
    if contract.tables[0].format == "iceberg":
        return {table.name: lake.nessie().content(table.name, "main") for table in contract.tables}
    staging = DeltaStaging(lake, contract)
    return {table.name: next(staging.commits(table.name), (None,))[0] for table in contract.tables}


def rows_on_main(lake: Lake, contract: SetContract, short_name: str) -> list[tuple[object, ...]]:
    """The rows Spark reads from main, dates as text, sorted."""
    table = contract.table(short_name)
    if table.format == "iceberg":
        frame = lake.table(table.name)
    else:
        frame = lake.spark.read.format("delta").load(str(table_location(lake.settings, table)))
    rows = (
        tuple(str(value) if name == "day" else value for name, value in row.asDict().items())
        for row in frame.collect()
    )
    return sorted(rows)
