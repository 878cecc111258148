"""A row that does not parse is set aside with file, line and reason, and no other row with it."""

from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from lakeshare_pipelines.ingest.compression import CODECS
from lakeshare_pipelines.ingest.draft import draft_contract
from lakeshare_pipelines.ingest.frame import TableFrame, read_delivery
from lakeshare_pipelines.ingest.profile import read_files
from lakeshare_pipelines.wap.staged import Lake
from tests.builders.landing import COLUMNS, a_readings_contract, csv_text, landed, parquet_bytes

ONE = {"id": "1", "name": "a"}
TWO_COLUMNS = [{"name": "id", "physicalType": "int"}, {"name": "name", "logicalType": "string"}]


def rejected_rows(table: TableFrame) -> list[tuple[str, int, str, str]]:
    """File, line, reason and text of the rejected rows, by file and line."""
    if table.rejected is None:
        return []
    return sorted((row.file, row.line, row.reason, row.raw) for row in table.rejected.collect())


def read_csv(lake: Lake, tmp_path: Path, text: str, **reading: object) -> TableFrame:
    contract = a_readings_contract(tmp_path, columns=TWO_COLUMNS, reading=reading)
    delivery = landed(tmp_path, contract, {"readings.csv": text})
    delivered = read_delivery(lake.spark, contract, [delivery])["sensors.readings"]
    table = delivered.read()
    assert sum(group.rows for group in delivered.groups) == table.rows + table.rejected_rows
    return table


def test_bad_rows_are_rejected_with_their_line_and_the_good_ones_are_kept(lake: Lake, tmp_path: Path) -> None:
    text = 'id,name\n1,a\nx,b\n\n3\n4,d,e\n5,"f\n6,"g, h"\nid,name\n' + "," * 30_000 + "\n"
    table = read_csv(lake, tmp_path, text)
    assert [tuple(row) for row in table.frame.orderBy("id").collect()] == [(1, "a"), (6, "g, h")]
    fields = "the row has not the 2 fields of the header"
    assert rejected_rows(table) == [
        ("all/readings.csv", 3, "id: 'x' is not int", "x,b"),
        ("all/readings.csv", 5, fields, "3"),
        ("all/readings.csv", 6, fields, "4,d,e"),
        ("all/readings.csv", 7, "a quote is not closed", '5,"f'),
        ("all/readings.csv", 9, "id: 'id' is not int", "id,name"),
        ("all/readings.csv", 10, fields, "," * 4_000),
    ]
    assert table.rejected_rows == 6


def test_lines_of_many_files_are_counted_in_each(lake: Lake, tmp_path: Path) -> None:
    contract = a_readings_contract(tmp_path, columns=TWO_COLUMNS)
    good = "".join(f"{number},n\n" for number in range(50))
    files = {f"readings-{at}.csv": f"id,name\n{good}bad,row\n{good * at}" for at in range(4)}
    table = read_delivery(lake.spark, contract, [landed(tmp_path, contract, files)])[
        "sensors.readings"
    ].read()
    assert [(file, line) for file, line, _, _ in rejected_rows(table)] == [
        (f"all/readings-{at}.csv", 52) for at in range(4)
    ]
    assert table.frame.count() == 50 * (4 + 0 + 1 + 2 + 3)


def test_lines_are_right_in_a_file_that_many_tasks_read(lake: Lake, tmp_path: Path) -> None:
    before = lake.spark.conf.get("spark.sql.files.maxPartitionBytes")
    lake.spark.conf.set("spark.sql.files.maxPartitionBytes", "4096")
    try:
        lines = [f"{number},{'n' * 90}" for number in range(2, 1000)]
        lines[400] = "bad,row"
        table = read_csv(lake, tmp_path, "\n".join(["id,name", *lines]) + "\n")
        assert rejected_rows(table) == [("all/readings.csv", 402, "id: 'bad' is not int", "bad,row")]
        assert table.frame.count() == 997
    finally:
        lake.spark.conf.set("spark.sql.files.maxPartitionBytes", str(before))


REFUSED = {
    "id": ["1.5", "2147483648", "1e3", "0x10", "1 2", "true"],
    "big": ["9223372036854775808"],
    "ratio": ["1d", "0x1p3", "1e400", "1,5", "one"],
    "price": ["12.345", "123456789.00", "1d"],
    "is_open": ["maybe", "2"],
    "born": [
        "2024-02-30",
        "2024",
        "2024-01",
        "2024-01-01 junk",
        "01/02/2024",
        "2024-01-01T00:00:00",
        "0000-01-01",
    ],
    "seen": [
        "12:30",
        "2024",
        "2024-01",
        "2024-01-01 25:00:00",
        "2024-01-01 junk",
        "yesterday",
        "9999-12-31 23:59:59-01:00",
    ],
}
TAKEN = {
    "id": {"517.0": 517, " 3 ": 3, "+4": 4, "-0": 0},
    "ratio": {"-1.5E3": -1500.0, ".5": 0.5, "5.": 5.0, "Infinity": float("inf")},
    "price": {"12.3": 12.3, "-0.05": -0.05, "1.230": 1.23},
    "born": {"2024-1-5": "2024-01-05", "0001-01-01": "0001-01-01", "9999-12-31": "9999-12-31"},
    "seen": {"2024-01-05": "2024-01-05 00:00:00", "2024-01-05 01:00:00+01:00": "2024-01-05 00:00:00"},
}


def test_values_that_would_be_bent_to_fit_are_refused_and_those_that_fit_without_loss_are_taken(
    lake: Lake, tmp_path: Path
) -> None:
    """Each text in a row of its own, for all types of column in one file."""
    contract = a_readings_contract(tmp_path)
    good = {
        "id": "1",
        "ratio": "1",
        "price": "1",
        "big": "1",
        "is_open": "true",
        "born": "2024-01-01",
        "seen": "2024-01-01",
    }
    refused = [(column, text) for column, texts in REFUSED.items() for text in texts]
    taken = [(column, text, value) for column, texts in TAKEN.items() for text, value in texts.items()]
    empty = dict.fromkeys(COLUMNS)
    rows = [
        {**empty, **good},
        *({**empty, column: text} for column, text in refused),
        *({**empty, "name": str(at), column: text} for at, (column, text, _) in enumerate(taken)),
    ]
    table = read_delivery(
        lake.spark, contract, [landed(tmp_path, contract, {"readings.csv": csv_text(rows)})]
    )["sensors.readings"].read()
    assert [(line, reason) for _, line, reason, _ in rejected_rows(table)] == [
        (at + 3, f"{column}: '{text}' is not {COLUMNS[column]}") for at, (column, text) in enumerate(refused)
    ]
    texts = [f"cast({column} as string) as {column}" for column in COLUMNS]
    found = {row.name: row for row in table.frame.where("name IS NOT NULL").selectExpr(*texts).collect()}
    for at, (column, text, value) in enumerate(taken):
        assert type(value)(found[str(at)][column]) == value, (column, text)


def test_json_that_is_not_one_object_a_line_is_set_aside(lake: Lake, tmp_path: Path) -> None:
    contract = a_readings_contract(tmp_path, columns=TWO_COLUMNS)
    bad = ['[{"id": 2}]', '{"id": 3', '{"id": 4}{"id": 5}', '{"id": 6},', "7", "null", "text"]
    text = (
        "\n".join(['{"id": 1, "name": "a"}', *bad, '{"id": {"deep": 8}}', '{"id": 9, "name": null}']) + "\n"
    )
    table = read_delivery(lake.spark, contract, [landed(tmp_path, contract, {"readings.jsonl": text})])[
        "sensors.readings"
    ].read()
    assert sorted(row.id for row in table.frame.collect()) == [1, 9]
    assert rejected_rows(table) == [
        *[
            ("all/readings.jsonl", at + 2, "the line is not one JSON object", line)
            for at, line in enumerate(bad)
        ],
        ("all/readings.jsonl", 9, "id: '{\"deep\":8}' is not int", '{"id": {"deep": 8}}'),
    ]


def test_parquet_values_that_do_not_fit_are_set_aside_by_row(lake: Lake, tmp_path: Path) -> None:
    types = {"id": "int", "big": "bigint", "ratio": "float", "born": "date"}
    columns = [{"name": name, "physicalType": kind} for name, kind in types.items()]
    contract = a_readings_contract(tmp_path, columns=columns)
    floats = {
        "id": [1, 2**31, 3, 4, 6],
        "big": [1.0, 1.0, 2.0**63, 1.0, 1.0],
        "ratio": [0.5, 0.5, 0.5, 1e39, 0.5],
    }
    largest = {"id": [2.0**31, 5.0], "big": [Decimal(2**63 - 1)] * 2, "ratio": [0.5, 0.5]}
    days = {"born": [0, 0, 0, 0, 2_932_897]}  # the last one is 10000-01-01
    files = {
        "readings-1.parquet": parquet_bytes(floats | days, born=pa.date32()),
        "readings-2.parquet": parquet_bytes(largest | {"born": [0, 0]}, id=pa.float32(), born=pa.date32()),
    }
    (tmp_path / "first.parquet").write_bytes(files["readings-1.parquet"])
    drafted = draft_contract(read_files(lake.spark, [str(tmp_path / "first.parquet")]))
    assert [column.type for column in drafted.columns] == ["bigint", "double", "double", "date"]
    table = read_delivery(lake.spark, contract, [landed(tmp_path, contract, files)])[
        "sensors.readings"
    ].read()
    found = sorted(tuple(row) for row in table.frame.drop("born").collect())
    assert found == [(1, 1, 0.5), (5, 2**63 - 1, 0.5)]
    assert [(line, reason) for _, line, reason, _ in rejected_rows(table)] == [
        (2, "id: '2147483648' is not int"),
        (3, "big: '9.223372036854776E18' is not bigint"),
        (4, "ratio: '1.0E39' is not float"),
        (5, "born: '+10000-01-01' is not date"),
        (1, "id: '2.14748365E9' is not int"),
    ]


def test_a_row_of_another_day_is_set_aside(lake: Lake, tmp_path: Path) -> None:
    contract = a_readings_contract(tmp_path, columns=TWO_COLUMNS, daily=True)
    text = "day,id,name\n2024-01-01,1,a\n2024-01-02,2,b\n,3,c\n"
    delivery = landed(tmp_path, contract, {"readings.csv": text}, "2024-01-01")
    table = read_delivery(lake.spark, contract, [delivery])["sensors.readings"].read()
    assert [row.id for row in table.frame.collect()] == [1]
    assert [(line, reason) for _, line, reason, _ in rejected_rows(table)] == [
        (3, "day is '2024-01-02', the delivery is of 2024-01-01"),
        (4, "day is empty: the row belongs to no day"),
    ]


def test_a_personal_value_is_not_in_the_reason(lake: Lake, tmp_path: Path) -> None:
    columns = [{"name": "id", "physicalType": "int", "classification": "pii"}, TWO_COLUMNS[1]]
    contract = a_readings_contract(tmp_path, columns=columns)
    delivery = landed(tmp_path, contract, {"readings.csv": "id,name\n1,a\n555-1234,b\n"})
    table = read_delivery(lake.spark, contract, [delivery])["sensors.readings"].read()
    assert [reason for _, _, reason, _ in rejected_rows(table)] == ["id: '(hidden)' is not int"]


def test_rows_of_xml_that_do_not_fit_are_set_aside_by_their_number(lake: Lake, tmp_path: Path) -> None:
    columns = [
        {**TWO_COLUMNS[0], "customProperties": [{"property": "source", "value": "_id"}]},
        TWO_COLUMNS[1],
    ]
    contract = a_readings_contract(tmp_path, columns=columns, reading={"rowTag": "row"})
    rows = [
        '<row id="1"><name>a &amp; b</name></row><!-- <row id="9"/> -->',
        '<row id="x"><name>c</name></row>',
        '<row id="3"><name>d</name><name>e</name></row>',
        '<row id="4"><name><![CDATA[<row>]]></name></row>',
        '<row id="5"/><row><name><b>f</b></name></row>',
    ]
    files = {"readings.xml": f"<all><rows>{''.join(rows)}</rows></all>", "readings-2.xml": "<rows/>"}
    table = read_delivery(lake.spark, contract, [landed(tmp_path, contract, files)])[
        "sensors.readings"
    ].read()
    found = [(1, "a & b"), (4, "<row>"), (5, None), (None, "<b>f</b>")]
    assert sorted(map(tuple, table.frame.collect()), key=str) == sorted(found, key=str)
    assert [(file, line, reason) for file, line, reason, _ in rejected_rows(table)] == [
        ("all/readings.xml", 2, "id: 'x' is not int"),
        ("all/readings.xml", 3, "name is given 2 times"),
    ]
    assert '"d","e"' in rejected_rows(table)[1][3]
    assert table.problems == ()


def test_records_of_json_documents_are_numbered_and_set_aside_by_themselves(
    lake: Lake, tmp_path: Path
) -> None:
    contract = a_readings_contract(tmp_path, reading={"multiline": True})
    array = (
        '\ufeff[\n {"id": 1,\n  "price": 1.10, "big": 9007199254740993,\n  "name": "[a]"},\n'
        ' 7, {"id": "x"}, null,\n {"id": 2, "name": {"b": 1.50}} ]\n'
    )
    files: dict[str, str | bytes] = {
        "readings.json": array,
        "readings-2.json.zst": CODECS[".zst"].pack(b'{"id": 3,\n"colour": "red"}'),
        "readings-3.json": "[]",
    }
    table = read_delivery(lake.spark, contract, [landed(tmp_path, contract, files)])[
        "sensors.readings"
    ].read()
    found = sorted(
        tuple(row) for row in table.frame.selectExpr("id", "string(price)", "big", "name").collect()
    )
    assert found == [
        (1, "1.10", 9007199254740993, "[a]"),
        (2, None, None, '{"b":1.5}'),
        (3, None, None, None),
    ]
    assert rejected_rows(table) == [
        ("all/readings.json", 2, "the record is not one JSON object", "7"),
        ("all/readings.json", 3, "id: 'x' is not int", '{"id":"x"}'),
        ("all/readings.json", 4, "the record is not one JSON object", "null"),
    ]
    [problem] = [each.detail for each in table.problems if "colour" in each.detail]
    assert problem.startswith("column 'colour' is not in the contract in all/readings")


def test_decimals_keep_all_their_digits_or_are_set_aside(lake: Lake, tmp_path: Path) -> None:
    """As JSON numbers, too, which Spark reads as doubles where it is to give their text; of 38 digits, none is lost."""
    columns = [
        {"name": "whole", "physicalType": "decimal(38,0)"},
        {"name": "small", "physicalType": "decimal(38,25)"},
        {"name": "prices", "physicalType": "array<decimal(30,12)>"},
    ]
    whole, small = "12345678901234567890123456789012345678", "1234567890.1234567890123456789012345"
    price = "1234567890123456.123456789012"
    good = f'{{"whole": {whole}, "small": {small}, "prices": [{price}, "{price}", null]}}'
    long = f'{{"small": {small}6}}'
    twice = '{"whole": 1, "whole": 2, "prices": []}'
    expected = [
        (Decimal(2), None, []),
        (Decimal(whole), Decimal(small), [Decimal(price), Decimal(price), None]),
    ]
    refused = f"small: '{small}6' is not decimal(38,25)"
    lines = (f"{whole};{small};[{price},{price},null]", f";{small}6;", "2;;[]")
    deliveries: list[tuple[str, str | bytes, dict[str, object]]] = [
        ("readings.jsonl", f"{good}\n{long}\n{twice}\n", {}),
        ("readings.json", f"[{good}, {long}, {twice}]", {"multiline": True}),
        ("readings.csv", "\n".join(("whole;small;prices", *lines)) + "\n", {"delimiter": ";"}),
    ]
    for number, (name, content, reading) in enumerate(deliveries):
        contract = a_readings_contract(tmp_path / str(number), columns=columns, reading=reading)
        delivery = landed(tmp_path / str(number), contract, {name: content})
        table = read_delivery(lake.spark, contract, [delivery])["sensors.readings"].read()
        assert [tuple(row) for row in table.frame.orderBy("whole").collect()] == expected, name
        assert [reason for _, _, reason, _ in rejected_rows(table)] == [refused], name
    content = parquet_bytes(
        {"whole": [Decimal(whole), None], "small": [Decimal(small), Decimal(f"{small}6")]}
    )
    delivery = landed(tmp_path / "typed", contract, {"readings.parquet": content})
    typed = read_delivery(lake.spark, contract, [delivery])["sensors.readings"].read()
    assert [tuple(row) for row in typed.frame.collect()] == [(Decimal(whole), Decimal(small), None)]
    assert len(rejected_rows(typed)) == 1
