"""From files of every format the frame is typed exactly as in the contract and holds every value."""

import datetime as dt
import io
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.ingest.compression import find_codec, remove_codec_suffix
from lakeshare_pipelines.ingest.frame import TableFrame, read_delivery
from lakeshare_pipelines.wap.staged import Lake
from tests.builders.landing import (
    COLUMNS,
    a_readings_contract,
    avro_bytes,
    csv_text,
    json_lines,
    landed,
    orc_bytes,
    parquet_bytes,
    xml_text,
)

TEXTS = {
    "id": "7",
    "big": "-9000000000",
    "ratio": "1.5e-3",
    "price": "12.30",
    "is_open": "true",
    "born": "2024-02-29",
    "seen": "2024-02-29T12:30:00.123456Z",
    "name": 'Ann "A" O\'Neil, jr',
    "seal": "AP8KZQ==",
}
VALUES = {
    "id": 7,
    "big": -9_000_000_000,
    "ratio": 0.0015,
    "price": Decimal("12.30"),
    "is_open": True,
    "born": dt.date(2024, 2, 29),
    "seen": dt.datetime(2024, 2, 29, 12, 30, 0, 123456, dt.UTC),
    "name": 'Ann "A" O\'Neil, jr',
    "seal": b"\x00\xff\ne",
}
EMPTY = dict.fromkeys(COLUMNS)
REST = COLUMNS.keys() - {"id", "name"}
JSON = {**TEXTS, "id": 7, "big": -9_000_000_000, "ratio": 0.0015, "price": 12.30, "is_open": True}


def read(lake: Lake, tmp_path: Path, contract: SetContract, **files: bytes | str) -> TableFrame:
    """Read files given as name__ending=content."""
    named = {name.replace("__", "."): content for name, content in files.items()}
    delivered = read_delivery(lake.spark, contract, [landed(tmp_path, contract, named)])["sensors.readings"]
    table = delivered.read()
    assert sum(group.rows for group in delivered.groups) == table.rows + table.rejected_rows
    return table


def values_of(table: TableFrame) -> list[dict[str, object]]:
    rows = [row.asDict() for row in table.frame.collect()]
    for row in rows:
        if row["seen"] is not None:
            row["seen"] = row["seen"].astimezone(dt.UTC)
    return sorted(rows, key=lambda row: (row["id"] is None, row["id"]))


def content(kind: str, number: int) -> bytes | str:
    """A row with `number` as its id and an empty row, in a format."""
    texts, values = {**TEXTS, "id": str(number)}, {**VALUES, "id": number}
    match remove_codec_suffix(kind):
        case "csv":
            text = csv_text([texts, EMPTY])
        case "turned.csv":
            text = csv_text([dict(reversed(texts.items())), EMPTY])
        case "jsonl":
            text = json_lines([{**JSON, "id": number}, {"id": None} if kind.endswith(".gz") else EMPTY])
        case "xml":
            text = xml_text([texts, EMPTY])
        case "avro":
            return avro_bytes([values, EMPTY])
        case _:
            columns = {name: [value, None] for name, value in values.items()}
            types = {"id": pa.int32(), "price": pa.decimal128(9, 2)}
            if kind == "orc":
                return orc_bytes(columns, seen=pa.timestamp("us"), **types)
            return parquet_bytes(columns, **types)
    codec = find_codec(kind)
    return text if codec is None else codec.pack(text.encode())


def test_every_type_is_read_from_files_of_every_format_and_column_order_into_one_frame(
    lake: Lake, tmp_path: Path
) -> None:
    kinds = ["csv", "turned.csv", "csv.gz", "csv.bz2", "csv.deflate", "jsonl", "jsonl.gz", "jsonl.zst"]
    kinds += ["parquet", "orc", "avro", "xml", "xml.zst"]
    files = {
        f"readings-{number}__{kind.removeprefix('turned.').replace('.', '__')}": content(kind, number)
        for number, kind in enumerate(kinds)
    }
    table = read(lake, tmp_path, a_readings_contract(tmp_path, reading={"rowTag": "row"}), **files)
    assert {field.name: field.dataType.simpleString() for field in table.frame.schema} == COLUMNS
    filled = [{**VALUES, "id": number} for number in range(len(kinds))]
    assert values_of(table) == [*filled, *[EMPTY] * len(kinds)]
    assert (table.rejected, table.problems, table.rejected_rows) == (None, (), 0)


def test_what_the_contract_calls_empty_is_null(lake: Lake, tmp_path: Path) -> None:
    contract = a_readings_contract(tmp_path, reading={"nullValues": ["", "NA"]})
    table = read(lake, tmp_path, contract, readings__csv=csv_text([dict.fromkeys(COLUMNS, "NA")]))
    assert values_of(table) == [EMPTY]


def test_another_delimiter_and_fields_over_several_lines_are_read_when_the_contract_says_so(
    lake: Lake, tmp_path: Path
) -> None:
    contract = a_readings_contract(tmp_path, reading={"delimiter": ";", "multiline": True})
    text = csv_text([{**TEXTS, "name": "two\nlines; one field"}, {**TEXTS, "id": "x"}], delimiter=";")
    table = read(lake, tmp_path, contract, readings__csv=text)
    assert values_of(table) == [{**VALUES, "name": "two\nlines; one field"}]
    assert table.rejected is not None
    assert [(row.line, row.reason) for row in table.rejected.collect()] == [(3, "id: 'x' is not int")]
    windows = landed(tmp_path, contract, {"readings.csv": text.replace("\n", "\r\n")})
    again = read_delivery(lake.spark, contract, [windows])["sensors.readings"].read()
    assert values_of(again) == [{**VALUES, "name": "two\nlines; one field"}]


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_data(lake: Lake, tmp_path: Path) -> None:
    text = "\ufeff" + csv_text([TEXTS]).replace("\n", "\r\n")
    assert values_of(read(lake, tmp_path, a_readings_contract(tmp_path), readings__csv=text)) == [VALUES]


def test_parquet_of_pandas_spark_and_impala_is_read_with_nanoseconds_empty_columns_and_binary_texts(
    lake: Lake, tmp_path: Path
) -> None:
    """Spark writes times as INT96 by default; pandas gives a column without values the type null."""
    frame = pd.DataFrame(
        {
            **{name: [value] for name, value in VALUES.items()},
            "id": [7.0],
            "seen": pd.to_datetime([VALUES["seen"]]),
        }
    )
    assert frame["seen"].dt.unit == "ns"
    empty = {**VALUES, "id": 8, "name": None, "price": None}
    of_spark = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([empty]), of_spark, use_deprecated_int96_timestamps=True)
    of_impala = parquet_bytes(
        {"id": [9, 10], "name": ["Zoë".encode(), b"\xff"]} | dict.fromkeys(REST, [None] * 2)
    )
    files = {
        f"readings-{n}__parquet": each
        for n, each in enumerate((frame.to_parquet(), of_spark.getvalue(), of_impala))
    }
    table = read(lake, tmp_path, a_readings_contract(tmp_path), **files)
    assert values_of(table) == [VALUES, empty, {**EMPTY, "id": 9, "name": "Zoë"}]
    assert table.problems == ()
    assert table.rejected is not None
    [row] = table.rejected.collect()
    assert (row.line, row.reason) == (2, "name: '\ufffd' is not string")
    assert '"name":"/w=="' in row.raw


def test_a_wrong_value_of_an_orc_file_is_rejected_with_its_row(lake: Lake, tmp_path: Path) -> None:
    contract = a_readings_contract(tmp_path)
    columns = {name: [value, value, None] for name, value in VALUES.items()} | {"id": [7, 1 << 40, None]}
    found = read(lake, tmp_path, contract, readings__orc=orc_bytes(columns, seen=pa.timestamp("us")))
    assert found.problems == ()
    assert found.rejected is not None
    [row] = found.rejected.collect()
    assert (row["file"], row["line"]) == ("all/readings.orc", 2)
    assert "id" in row["reason"]
    assert str(1 << 40) in row["raw"]


def test_a_header_alone_is_a_table_without_rows(lake: Lake, tmp_path: Path) -> None:
    table = read(lake, tmp_path, a_readings_contract(tmp_path), readings__csv=",".join(COLUMNS) + "\n")
    assert (values_of(table), table.problems, table.rejected) == ([], (), None)


def test_where_tables_may_be_empty_files_of_every_format_but_xml_may_have_no_rows(
    lake: Lake, tmp_path: Path
) -> None:
    contract = a_readings_contract(tmp_path, extras=[{"property": "allowEmpty", "value": True}])
    nothing: dict[str, list[object]] = {name: [] for name in COLUMNS}
    types = {"id": pa.int32(), "price": pa.decimal128(9, 2), "seen": pa.timestamp("us"), "born": pa.date32()}
    types |= {"big": pa.int64(), "ratio": pa.float64(), "is_open": pa.bool_()}
    types |= {"name": pa.string(), "seal": pa.binary()}
    files = {
        "parquet": parquet_bytes(nothing, **types | {"seen": pa.timestamp("us", "UTC")}),
        "orc": orc_bytes(nothing, **types),
        "avro": avro_bytes([]),
        "csv": ",".join(COLUMNS) + "\n",
        "jsonl": "\n",
    }
    named = {f"readings-{number}__{kind}": each for number, (kind, each) in enumerate(files.items())}
    table = read(lake, tmp_path, contract, **named)
    assert (values_of(table), table.problems, table.rejected) == ([], (), None)
    documents = a_readings_contract(tmp_path, reading={"multiline": True})
    table = read(lake, tmp_path / "documents", documents, readings__json="[]")
    assert (values_of(table), table.problems, table.rejected) == ([], (), None)


def test_a_landing_folder_may_have_any_name(lake: Lake, tmp_path: Path) -> None:
    contract = a_readings_contract(tmp_path)
    table = read(
        lake, tmp_path / "la[n]d {x} 50%" / "env=a", contract, **{"readings-day 1__csv": csv_text([TEXTS])}
    )
    assert values_of(table) == [VALUES]
