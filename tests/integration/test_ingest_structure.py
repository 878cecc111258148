"""A column that is missing, unknown, renamed or of another type is a problem; reading goes on without it."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.functions import input_file_name

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.ingest.frame import TableFrame, read_delivery
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.stage import stage, staging_for
from lakeshare_pipelines.wap.staged import Lake
from tests.builders.landing import a_readings_contract, landed, parquet_bytes, with_other_columns
from tests.builders.sets import a_contract, a_delivery, an_order, orders

FLIGHTS, _ = load_contracts()
TWO_COLUMNS = [{"name": "id", "physicalType": "int"}, {"name": "name", "logicalType": "string"}]


def read(
    lake: Lake, tmp_path: Path, files: dict[str, str | bytes], columns: object = TWO_COLUMNS
) -> TableFrame:
    contract = a_readings_contract(tmp_path, columns=columns)  # type: ignore[arg-type]  # as YAML
    return read_delivery(lake.spark, contract, [landed(tmp_path, contract, files)])["sensors.readings"].read()


def details(table: TableFrame) -> list[str]:
    return [problem.detail for problem in table.problems]


FILES_OF_OTHER_STRUCTURES: dict[str, str | bytes] = {
    "readings-missing.csv": "id\n1\n",
    "readings-missing-too.csv": "id\n2\n",
    "readings-extra.csv": "id,name,colour\n3,c,red\n",
    "readings-renamed.csv": "id,names\n4,d\n",
    "readings-twice.csv": "id,name,name\n5,e,b\n",
    "readings-type.csv": "id,name\none,f\ntwo,g\n",
    "readings-type.parquet": parquet_bytes({"id": ["1", "2"], "name": ["h", "i"]}),
    "readings-keys.jsonl": '{"id": 6, "colour": "red"}\n{"id": 7, "size": 3}\n',
    "readings-no-header.csv": "1,a\n8,j\n",
}


def test_columns_that_do_not_fit_are_problems_of_their_files_and_left_empty(
    lake: Lake, tmp_path: Path
) -> None:
    table = read(lake, tmp_path, FILES_OF_OTHER_STRUCTURES)
    assert sorted(details(table)) == sorted(
        [
            # The same problem of several files is reported once.
            "column 'name' is missing in all/readings-keys.jsonl and 3 more files",
            "column 'colour' is not in the contract in all/readings-extra.csv and 1 more files",
            "column 'name' is missing (the file has 'names') in all/readings-renamed.csv",
            "column 'names' is not in the contract in all/readings-renamed.csv",
            "column 'name' is given twice in all/readings-twice.csv",
            "column 'id' is of another type than int in all/readings-type.csv",
            "column 'id' is string, not int, in all/readings-type.parquet",
            "column 'size' is not in the contract in all/readings-keys.jsonl",
            "column 'id' is missing in all/readings-no-header.csv",
            "none of the 2 columns is in the contract, the first line may not be a header, in "
            "all/readings-no-header.csv",
        ]
    )
    whole = [(1, None), (2, None), (3, "c"), (4, None), (5, "e"), (6, None), (7, None)]
    without_id = [(None, "f"), (None, "g"), (None, "h"), (None, "i"), (None, None)]
    rows = [tuple(row) for row in table.frame.collect()]
    assert sorted(rows, key=str) == sorted([*whole, *without_id], key=str)
    assert [(field.name, field.dataType.simpleString()) for field in table.frame.schema] == [
        ("id", "int"),
        ("name", "string"),
    ]


def test_a_type_that_spark_has_no_values_for_is_a_problem_too(lake: Lake, tmp_path: Path) -> None:
    content = parquet_bytes({"id": [[1], [2]], "name": ["a", "b"]}, id=pa.list_(pa.int32()))
    table = read(lake, tmp_path, {"readings.parquet": content})
    assert details(table) == ["column 'id' is array<int>, not int, in all/readings.parquet"]
    seal = {"name": "name", "physicalType": "binary"}
    texts = read(
        lake,
        tmp_path / "texts",
        {"readings.parquet": parquet_bytes({"id": [1], "name": ["YQ=="]})},
        [TWO_COLUMNS[0], seal],
    )
    assert details(texts) == ["column 'name' is string, not binary, in all/readings.parquet"]


def test_one_bad_value_is_a_bad_row_and_not_another_type(lake: Lake, tmp_path: Path) -> None:
    table = read(lake, tmp_path, {"readings.csv": "id,name\none,a\n"})
    assert (details(table), table.rejected_rows) == ([], 1)


def test_a_column_under_another_name_in_the_file_is_found(lake: Lake, tmp_path: Path) -> None:
    renamed = {**TWO_COLUMNS[0], "customProperties": [{"property": "source", "value": "Reading No."}]}
    table = read(lake, tmp_path, {"readings.csv": "name,Reading No.\na,1\n"}, [renamed, TWO_COLUMNS[1]])
    assert details(table) == []
    assert [tuple(row) for row in table.frame.collect()] == [(1, "a")]


def test_a_computed_column_that_is_no_sql_is_the_contracts_fault(lake: Lake, tmp_path: Path) -> None:
    computed = {"name": "half", "physicalType": "double", "transformLogic": "idd / 2"}
    with pytest.raises(ContractError, match=r"\.yaml:\d+: .*properties\[2\]\.transformLogic.*idd"):
        read(lake, tmp_path, {"readings.csv": "id,name\n1,a\n"}, [*TWO_COLUMNS, computed])


def test_days_with_renamed_columns_are_reported_once(lake: Lake, tmp_path: Path) -> None:
    settings = LakeSettings(_env_file=None, state_dir=tmp_path)
    deliveries = [
        with_other_columns(
            settings, FLIGHTS, f"2013-01-0{day}", rename={"carrier": "airline"}, drop="tailnum"
        )
        for day in range(1, 4)
    ]
    table = read_delivery(lake.spark, FLIGHTS, deliveries)["flights.departures"].read()
    where = "in 2013-01-01/departures.csv.gz and 2 more files"
    assert set(details(table)) == {
        f"column 'carrier' is missing {where}",
        f"column 'tailnum' is missing {where}",
        f"column 'airline' is not in the contract {where}",
    }
    assert table.frame.count() == 90


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_what_is_staged_is_what_was_read_also_where_rows_are_rejected_or_a_column_is_left_empty(
    lake: Lake, tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written once, and again without the column; the derived table reads the rows twice."""
    total = "SELECT day, count(*) AS orders, sum(amount) AS amount FROM {orders} GROUP BY day"
    joined = (
        "SELECT a.day, count(*) AS orders, sum(b.amount) AS amount "
        "FROM {orders} a JOIN {orders} b ON a.id = b.id GROUP BY a.day"
    )
    contract = a_contract(tmp_path, f"reread_{table_format}", table_format, **{total: joined})
    day, staging = "2024-01-01", staging_for(lake, contract)
    folder = a_delivery(lake.settings, contract, day, orders(day, 3))
    staged, files = [stage(lake, contract, [day], "good")], list[int]()
    monkeypatch.setattr("lakeshare_pipelines.wap.stage.LARGE_BYTES", 1)
    more = [an_order(day, 7, customer=""), an_order("no day", 8)]
    # Columns in another order make it a file of another structure.
    unfit = [dict(reversed(an_order(day, 9, amount="a lot").items()))] * 2
    for name, rows in {"orders-2": more, "orders-3": unfit}.items():
        a_delivery(lake.settings, contract, day, rows).joinpath("orders.csv").rename(folder / f"{name}.csv")
    a_delivery(lake.settings, contract, day, orders(day, 3))
    staged.append(stage(lake, contract, [day], "bad"))
    for each, count in zip(staged, (3, 6), strict=True):
        read, derived = (staging.rows_of_run(each, table) for table in contract.tables)
        [sums] = derived.collect()
        amounts = [row.amount for row in read.collect() if row.amount is not None]
        assert [table.rows for table in each.tables] == [count, 1]
        assert (read.count(), len(amounts)) == (count, min(count, 4))
        # The column that was left empty has the same key twice.
        assert (sums.orders, sums.amount) == (count + 2 * (count == 6), sum(amounts))
        files.append(read.select(input_file_name()).distinct().count())
    assert [(table.rejected, table.problems) for table in staged[1].tables] == [
        (1, ("column 'amount' is of another type than double in 2024-01-01/orders-3.csv",)),
        (0, ()),
    ]
    assert files[0] == 1 < files[1]
