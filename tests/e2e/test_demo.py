"""The demo tells the truth: it ends 0 only with every row count right, and a second start goes on from the first."""

import delta_sharing
import pandas as pd
import pytest

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.demo import reader
from lakeshare_pipelines.wap.delta import table_location
from lakeshare_pipelines.wap.lake import with_spark

pytestmark = pytest.mark.xdist_group("demo")

TABLES = {
    f"{entry.share}.{entry.schema}.{entry.name}": contract.table(entry.table)
    for contract in load_contracts()
    for entry in contract.shares
}


def test_the_demo_ends_with_every_row_count_right(demo):
    assert demo.first.code == 0, demo.first.text
    assert "every row count is right" in demo.first.text
    assert "stopped by  flights/departures: expect_column_values_to_not_be_null__carrier" in demo.first.text
    assert "saw only publication 0" in demo.first.text


def test_a_second_start_starts_no_run_and_is_right_again(demo):
    again = demo.lakeshare("demo", "--once")

    assert again.code == 0, again.text
    assert "every row count is right" in again.text
    assert "flights write" not in again.text


def test_the_demo_refuses_a_lake_it_did_not_make(demo, tmp_path):
    (tmp_path / "precious.db").write_text("")
    elsewhere = type(demo)(
        demo.settings, {**demo.environment, "LAKESHARE_STATE_DIR": str(tmp_path)}, demo.first
    )

    for arguments in (["demo", "--once"], ["demo", "--clean"]):
        refused = elsewhere.lakeshare(*arguments)
        assert refused.code == 1
        assert "LAKESHARE_STATE_DIR" in refused.text
    assert [path.name for path in tmp_path.iterdir()] == ["precious.db"]


def test_the_recipient_sees_the_tables_of_both_sets(served):
    assert reader.tables(served) == sorted(TABLES)


@pytest.fixture(scope="module")
def spark_rows(demo):
    """What Spark reads from main, as pandas, per table."""
    with with_spark(demo.settings) as lake:
        yield {name: _from_main(lake, table).toPandas() for name, table in TABLES.items()}


@pytest.mark.parametrize("name", TABLES)
def test_the_client_reads_what_spark_reads_row_for_row(served, spark_rows, name):
    through_us = delta_sharing.load_as_pandas(f"{served}#{name}")
    directly = spark_rows[name]

    assert len(through_us) == len(directly) > 0
    pd.testing.assert_frame_equal(_ordered(through_us), _ordered(directly), check_dtype=False)


def _from_main(lake, table):
    if table.format == "iceberg":
        return lake.table(table.name)
    return lake.spark.read.format("delta").load(str(table_location(lake.settings, table)))


def _ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """One spelling of equal values, sorted by every column: dates as text, instants in UTC, no categories."""
    frame = frame[sorted(frame.columns)].copy()
    for name in frame.columns:
        if isinstance(frame[name].dtype, pd.DatetimeTZDtype):
            frame[name] = frame[name].dt.tz_convert("UTC").dt.tz_localize(None)
        elif frame[name].dtype == object:
            frame[name] = frame[name].map(lambda value: None if value is None else str(value))
    return frame.sort_values(list(frame.columns), na_position="first").reset_index(drop=True)
