"""What main holds, as the catalogs and independent readers show it: the judge of every publication test."""

from collections.abc import Iterable, Mapping

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.wap.delta import DeltaStaging, table_location
from lakeshare_pipelines.wap.iceberg import iceberg_tables
from lakeshare_pipelines.wap.staged import Lake


def main_state(lake: Lake, contract: SetContract) -> dict[str, object]:
    """Per table what identifies its state on main: Iceberg metadata and snapshot, or the Delta version."""
    if contract.tables[0].format == "iceberg":
        states = {table.name: iceberg_tables(lake).find(table.name, "main") for table in contract.tables}
        if lake.named_catalog is None:
            return states
        # In other catalogs a new branch is a new metadata file of the table.
        return {name: state and state.snapshot_id for name, state in states.items()}
    staging = DeltaStaging(lake, contract)
    return {table.name: next(staging.commits(table.name), (None,))[0] for table in contract.tables}


def rows_on_main(lake: Lake, contract: SetContract, short_name: str) -> list[tuple[object, ...]]:
    """The rows Spark reads from main, dates as text, sorted."""
    table = contract.table(short_name)
    if table.format == "iceberg":
        frame = lake.table(table.name)
    else:
        frame = lake.spark.read.format("delta").load(table_location(lake.settings, table))
    return _as_tuples(row.asDict() for row in frame.collect())


def rows_at_each_step(lake: Lake, contract: SetContract, short_name: str) -> list[tuple[object, ...]]:
    """The same rows for a test that reads after each of its steps: a Delta table is read by deltalake.

    Spark needs four jobs for each new version of a Delta log; a test has Spark read the last version.
    """
    table = contract.table(short_name)
    if table.format == "iceberg":
        return rows_on_main(lake, contract, short_name)
    columns = [column.name for column in table.columns]
    opened = lake.open_delta(table_location(lake.settings, table))
    assert opened is not None
    rows = opened.to_pyarrow_table().select(columns)
    return _as_tuples(rows.to_pylist())


def _as_tuples(rows: Iterable[Mapping[str, object]]) -> list[tuple[object, ...]]:
    return sorted(tuple(str(v) if name == "day" else v for name, v in row.items()) for row in rows)
