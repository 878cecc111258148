"""A column that is missing, unknown, renamed or of another type is a problem; reading goes on without it."""

from pathlib import Path

import pyarrow as pa
import pytest

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.ingest.frame import TableFrame, read_delivery
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import Lake
from tests.builders.landing import a_readings_contract, landed, parquet_bytes, with_other_columns

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
    with pytest.raises(ContractError, match=r"properties\[2\]\.transformLogic.*idd"):
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
