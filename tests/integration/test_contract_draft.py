"""A drafted contract loads, and the sample it was made from passes its audit; files of any format, with odd values."""

import bz2
import datetime as dt
import gzip
import json
from decimal import Decimal
from pathlib import Path

import duckdb
import pandas as pd
import pytest

from lakeshare_pipelines.contracts import SetContract, load_contract
from lakeshare_pipelines.errors import SampleError
from lakeshare_pipelines.ingest import profile
from lakeshare_pipelines.ingest.delivery import name_files
from lakeshare_pipelines.ingest.draft import draft_contract, render
from lakeshare_pipelines.ingest.landing import open_landing
from lakeshare_pipelines.ingest.profile import from_frame, read_files, read_sql
from lakeshare_pipelines.wap.audit import audit_files, open_trial_lake
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Lake
from tests.builders.landing import AVRO_NUMBERS, avro_bytes, orc_bytes, parquet_bytes, xml_text

ROWS = 120
DAY = dt.date(2024, 2, 29)
TYPES = {
    "Order ID": "int",
    "customer": "string",
    "E-Mail": "string",
    "amount": "decimal(10,2)",
    "ratio": "double",
    "Größe": "string",
    "day": "date",
    "at": "timestamp",
    "paid": "boolean",
    "plz": "string",
    "empty": "string",
    "mixed": "string",
    "big": "bigint",
    "价格": "string",
}
NAMES = {"Order ID": "order_id", "E-Mail": "e_mail", "Größe": "grosse", "价格": "column_14"}


def a_row(number: int) -> dict[str, object]:
    """A row of an order; what is None is empty."""
    return {
        "Order ID": number + 1,
        "customer": f"c{number % 50}",
        "E-Mail": f"a{number}@example.org",
        "amount": Decimal(number) / 4 if number % 7 else None,
        "ratio": number / 7000 if number else 1.5e-7,
        "Größe": ("S", "M", "L")[number % 3],
        "day": DAY + dt.timedelta(days=number // 60),
        "at": dt.datetime(2024, 2, 29, number % 24, 30, 0, 123456, dt.UTC),
        "paid": number % 2 == 0,
        "plz": f"0{1000 + number}",
        "empty": None,
        "mixed": ("1", "2024-01-01", "x y", "2.5")[number % 4],
        "big": 10**12 + number,
        "价格": '€5 "net", ok' if number % 2 else None,
    }


def text_of(value: object) -> str:
    if isinstance(value, Decimal):
        return f"{value:.2f}"
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)


def write_csv(folder: Path) -> Path:
    """Semicolons, NA for an empty amount, and a row that is cut off."""
    path = folder / "orders.csv"

    def cell(name: str, value: object) -> str:
        text = ("NA" if name == "amount" else "") if value is None else text_of(value)
        return '"' + text.replace('"', '""') + '"' if '"' in text or ";" in text else text

    lines = [";".join(cell(name, value) for name, value in a_row(n).items()) for n in range(ROWS)]
    path.write_text("\n".join([";".join(TYPES), *lines, "1;cut"]) + "\n")
    return path


def write_json(folder: Path) -> Path:
    """Numbers and booleans as such, keys left out for what is empty, compressed."""
    path = folder / "orders.jsonl.gz"

    def value_of(value: object) -> object:
        if isinstance(value, Decimal):
            return float(value)
        return text_of(value) if isinstance(value, dt.date) else value

    rows = [{k: value_of(v) for k, v in a_row(n).items() if not n or v is not None} for n in range(ROWS)]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def write_parquet(folder: Path) -> Path:
    """As pandas writes it: timestamps in nanoseconds, and no type for what is always empty."""
    path = folder / "orders.parquet"
    frame = pd.DataFrame([a_row(n) for n in range(ROWS)])
    frame["Order ID"] = frame["Order ID"].astype("int32")
    frame.to_parquet(path, index=False)
    return path


def write_xml(folder: Path) -> Path:
    """Rows within another element, elements left out for what is empty."""
    path = folder / "orders.xml.bz2"
    rows = [
        {NAMES.get(k, k): None if v is None else text_of(v) for k, v in a_row(n).items()} for n in range(ROWS)
    ]
    path.write_bytes(bz2.compress(f"<export>{xml_text(rows).partition('?>')[2]}</export>".encode()))
    return path


def write_avro(folder: Path) -> Path:
    path = folder / "orders.avro"
    types = {name: kind.replace("10,2", "9,2") for name, kind in TYPES.items()}
    names = {name: NAMES.get(name, name) for name in types}
    rows = [{names[name]: value for name, value in a_row(n).items()} for n in range(ROWS)]
    path.write_bytes(avro_bytes(rows, {names[name]: kind for name, kind in types.items()}))
    return path


@pytest.fixture(scope="module")
def drafted(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str, SetContract]]:
    """For each format the file, the draft's text, and the contract that it loads as."""
    made = {}
    for write in (write_csv, write_json, write_parquet, write_xml, write_avro):
        folder = tmp_path_factory.mktemp("sample")
        path = write(folder)
        text = render(draft_contract(read_files(lake.spark, [str(path)]), share="partners"))
        (folder / "orders.yaml").write_text(text)
        made[path.suffixes[0]] = path, text, load_contract(folder / "orders.yaml")
    return made


def test_the_sample_passes_the_audit_of_its_draft(
    lake: Lake, drafted: dict[str, tuple[Path, str, SetContract]], subtests: pytest.Subtests
) -> None:
    for suffix, (path, text, contract) in drafted.items():
        if suffix == ".avro":  # as Parquet, with types of its own
            continue
        with subtests.test(suffix), open_trial_lake(lake.settings, contract, lake.spark) as trial:
            if suffix in (".csv", ".parquet"):
                staged, verdicts = audit_files(trial, contract, [path], "all")
                assert [verdict.reason for verdict in verdicts.failed] == [], text
            else:  # with the rules of the CSV
                open_landing(trial.settings).replace(contract.name, "all", name_files(contract, [path]))
                staged = stage(trial, contract, ["all"], "trial")
            [table] = staged.tables
            assert (table.rows, table.rejected, table.problems) == (ROWS, suffix == ".csv", ())
            state = trial.settings.state_dir
        assert not state.exists()


def test_types_keys_and_personal_data_are_found_in_every_format(
    drafted: dict[str, tuple[Path, str, SetContract]], subtests: pytest.Subtests
) -> None:
    for suffix, (_, text, contract) in drafted.items():
        [table] = contract.tables
        types = {column.name: column.type for column in table.columns}
        # Parquet and Avro have types of their own.
        differs = {".parquet": {"amount": "decimal(4,2)"}, ".avro": {"amount": "decimal(9,2)"}}
        expected = TYPES | differs.get(suffix, {})
        if suffix == ".xml":  # a column that is always empty has no element
            del expected["empty"]
        with subtests.test(suffix):
            assert types == {NAMES.get(name, name): kind for name, kind in expected.items()}, text
            if suffix != ".xml":  # in the order in which elements are seen first
                assert list(types) == [NAMES.get(name, name) for name in expected]
            assert table.primary_key == ("order_id",)
            assert [column.name for column in table.columns if column.pii] == ["e_mail"]
            optional = {column.name for column in table.columns if not column.required}
            assert optional == {"amount", "empty", "column_14"} & types.keys()
            assert {rule.severity for rule in table.rules if "between" in rule.name} == {"warning"}
            sizes = next(rule for rule in table.rules if rule.name.endswith("in_set__grosse"))
            assert (sizes.kwargs["value_set"], sizes.severity) == (["L", "M", "S"], "warning")
            assert "a1@example.org" not in text
    assert drafted[".xml"][2].tables[0].reading.row_tag == "row"
    reading = drafted[".csv"][2].tables[0].reading
    assert (reading.delimiter, reading.null_values) == (";", ("", "NA"))
    assert drafted[".csv"][2].shares[0].key == "partners.orders.orders"


def test_each_guess_has_its_reason_in_a_comment(drafted: dict[str, tuple[Path, str, SetContract]]) -> None:
    text = drafted[".csv"][1]
    for reason in (
        "# primary key: order_id is unique in the sample",
        "# not partitioned: by day there would be about 60 rows a day, in small files.",
        "# nullValues: NA stand between values of another type",
        "# delimiter: ';' divides the lines",
        "# maxQuarantinedFraction: 1 rows of the sample are broken",
        "# type decimal(10,2): at most 2 digits after the point and 2 before it",
        "# may be empty: 18 of 120 values are",
        "# required: none of 120 values is empty",
        "# type string: digits with leading zeros",
        "# type string: texts and values of type date and decimal and int are mixed",
        "# every value is empty, so that its type is not known",
        "# classification pii: its name",
        "# source: 'Größe' is no name that a contract can have",
        "# set of values: 3 in 120 rows",
        "# range: 0.25 to 29.5 were seen, the limits leave room",
    ):
        assert reason in text, reason


def test_a_key_of_two_columns_is_found_in_a_query_and_nested_columns_are_kept(
    lake: Lake, tmp_path: Path
) -> None:
    rows = lake.spark.range(200).selectExpr(
        "date_add(date'2024-01-01', cast(id % 2 as int)) AS day",
        "cast(id div 2 as int) AS station_id",
        "named_struct('Id', id, 'at', array(timestamp_ntz'2024-01-01 00:00:00')) AS `my nested`",
        "encode('a', 'utf-8') AS name",
        "unhex(concat('00', hex(id))) AS raw",
        "map(id, 1) AS by_id",
    )
    drafted = draft_contract(from_frame(rows, "a query", "query", "query"))
    assert [column.name for column in drafted.columns if column.is_key] == ["day", "station_id"]
    text = render(drafted)
    assert "# type string: every value of the binary column is text" in text
    assert "# left out: by_id is map<bigint,int>, which a contract cannot have" in text
    (tmp_path / "query.yaml").write_text(text)
    [table] = load_contract(tmp_path / "query.yaml").tables
    assert {column.name: column.type for column in table.columns[2:4]} == {"name": "string", "raw": "binary"}
    assert table.columns[-1].type == "struct<Id:bigint,at:array<timestamp>>"
    assert table.columns[-1].source == "my nested"


def test_documents_of_json_are_found(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('\ufeff[{"id": 1, "name": "a"},\n {"id": 2}]\n')
    (tmp_path / "a-2.json").write_text('{\n  "id": 3,\n  "size": 5\n}')
    for names, columns, rows in (
        (["a.json", "a-2.json"], ("id", "name", "size"), 3),
        (["a-2.json"], ("id", "size"), 1),
    ):
        sample = read_files(lake.spark, [str(tmp_path / name) for name in names])
        assert (sample.columns, sample.frame.count(), sample.reading.multiline) == (columns, rows, True)


def test_objects_and_arrays_of_json_are_nested_columns(lake: Lake, tmp_path: Path) -> None:
    rows = [
        {
            "id": 1,
            "at": {"city": "Bern", "geo": {"lat": 46.9, "n": 1}},
            "tags": [],
            "mixed": [1],
            "free": "[a",
        },
        {
            "id": 2,
            "at": {"city": None, "geo": {"lat": 4, "n": 5_000_000_000}},
            "tags": ["x"],
            "mixed": {"a": 1},
        },
        {"id": 3, "at": None, "empty": {}, "kinds": [1, "a"], "odd": {"a b": 1}},
    ]
    file = tmp_path / "places.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sample = read_files(lake.spark, [str(file)])
    assert sample.nested == {
        "at": "struct<city:string,geo:struct<lat:double,n:bigint>>",
        "tags": "array<string>",
    }
    # Of several kinds, without fields, or with names that a contract cannot have: their texts are kept.
    assert sample.columns == ("id", "mixed", "free", "empty", "kinds", "odd")
    alone = tmp_path / "alone.jsonl"
    alone.write_text('{"a": [1, 2.5], "deep": ' + "[" * 12 + "]" * 12 + ', "cased": {"b": 1, "B": 2}}\n')
    (tmp_path / "alone.yaml").write_text(render(draft_contract(read_files(lake.spark, [str(alone)]))))
    [table] = load_contract(tmp_path / "alone.yaml").tables
    types = {column.name: column.type for column in table.columns}
    assert types == {"a": "array<double>", "deep": "array<" * 10 + "string" + ">" * 10, "cased": "string"}


@pytest.mark.parametrize(
    ("text", "rows", "is_multiline"),
    [
        ('id,note\r1,"a\rb"\r2,c\r', 2, True),  # lines that end with CR, as on old Macs
        ('id,note\n1,a\n2,"b\nc"\n', 2, True),  # in the last row only
        (
            'id,note\n1,a\u2028b\n2,"c\n',
            2,
            False,
        ),  # neither: other line ends, and a quote that is never closed
    ],
)
def test_line_breaks_within_fields_are_found(
    lake: Lake, tmp_path: Path, text: str, rows: int, is_multiline: bool
) -> None:
    (tmp_path / "notes.csv").write_text(text, newline="")
    sample = read_files(lake.spark, [str(tmp_path / "notes.csv")])
    assert (sample.reading.multiline, sample.frame.count()) == (is_multiline, rows)


def test_lines_with_an_unclosed_quote_are_allowed_for(lake: Lake, tmp_path: Path) -> None:
    lines = ["id,what", *(f'{number},{number}" pipe' for number in range(3)), *["9,pipe"] * 97]
    (tmp_path / "pipes.tsv").write_text("\n".join(lines).replace(",", "\t"))
    drafted = draft_contract(read_files(lake.spark, [str(tmp_path / "pipes.tsv")]))
    assert drafted.reading == {"delimiter": "\t"}
    assert drafted.max_quarantined_fraction == pytest.approx(0.06, abs=0.002)


def test_what_only_later_rows_show_counts(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "MIN_HEAD_ROWS", 20)
    monkeypatch.setattr(profile, "HEAD_ROWS", 20)
    monkeypatch.setattr(profile, "COLUMNS_PER_PASS", 5)
    reported: list[str] = []
    early = {
        "id": "1",
        "a": "1",
        "b": "",
        "c": "5",
        "d": "5",
        "e": "2024-01-01",
        "f": "x",
        "g": "",
        "h": "true",
    }
    late = {
        "id": "1",
        "a": "1.25",
        "b": "70000000000",
        "c": "many",
        "d": "NA",
        "e": "2024-01-01T10:00",
        "f": " x",
    }
    late |= {"g": "2024-02-30", "h": ""}
    lines = [",".join(early), *[",".join(early.values())] * 30, *[",".join(late.values())] * 2]
    (tmp_path / "late.csv").write_text("\n".join(lines))
    drafted = draft_contract(read_files(lake.spark, [str(tmp_path / "late.csv")]), report=reported.append)
    # Again after `NA` was found.
    assert reported == ["reading late.csv …", *["5 of 9 columns"] * 2]
    types = ["int", "decimal(10,2)", "bigint", "string", "int", "timestamp", "string", "string", "boolean"]
    assert [column.type for column in drafted.columns] == types
    assert [column.name for column in drafted.columns if not column.required] == ["b", "d", "g", "h"]
    assert drafted.reading == {"nullValues": ["", "NA"]}
    assert [rule for column in drafted.columns for rule in column.rules if column.name == "f"] == []
    assert [column.name for column in drafted.columns if column.is_key] == []


def test_what_no_contract_can_be_drafted_from_is_named(lake: Lake, tmp_path: Path) -> None:
    duckdb.sql(
        f"COPY (SELECT uuid() AS u, INTERVAL 1 DAY AS i, TIME '1:00' AS t) TO '{tmp_path / 'q.parquet'}'"
    )
    cases = {
        "a.csv": ("id,id\n1,2\n", "the column 'id' is given twice"),
        "b.csv": ("id,\n1,2\n", "column 2 has no name in the header"),
        "c.csv": ("", "holds nothing"),
        "d.jsonl": ("[1]\n", "holds no JSON object on a line, and is no document"),
        "o.json": ('{\n"id": 1\n}\n{\n"id": 2\n}\n', "`jq -c .`"),
        "e.parquet": ("x", "is no sound Parquet file"),
        "f.xlsx": ("x", "is of no known format"),
        "j.csv.lz4": ("x", r"is compressed with LZ4, which is not read.*\.gz, \.bz2, \.zst"),
        "k.xml": ("<rows><row><id>1</id></row>", "is no sound XML: no element found"),
        "l.xml": ('<!DOCTYPE r [<!ENTITY a "b">]><r><row/></r>', "has a document type"),
        "m.xml": ("<rows/>", "has no element below its outermost one"),
        "n.avro": ("x", "is no sound Avro file"),
        "t.avro": (AVRO_NUMBERS, "has values that are no records"),
        "u.avro": (avro_bytes([{"id": {"id": None}}], {"id": "row"}), "has the type 'row' within itself"),
        "g.csv.gz": ("x", "cannot be read: Not a gzipped file"),
        "o.xml": ("<rows><row/><row/></rows>", "the elements <row> have no values"),
        "p.csv": (b"id\ncaf\xe9\n", "is not UTF-8: byte 6.*LATIN1"),
        "v.csv": (b"\x1f\x8b\x08", "is not UTF-8: byte 1.*ends with .gz"),
        "w.jsonl": ('{"id": 1}'.encode("utf-16-le"), "has a zero byte.*iconv -f UTF-16"),
        "x.csv": ("\n\nid\n1\n", "has no names in its first line. Begin it with a header"),
        "q.parquet": (
            (tmp_path / "q.parquet").read_bytes(),
            r"cannot read: u \(UUID\), i \(INTERVAL\), t \(TIME\)",
        ),
        "r.orc": (orc_bytes({"id": [1], "ID": [1]}), "The column `id` already exists"),
        "y.orc": (
            orc_bytes({"id": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]}),
            "timestamps with a time zone, which Spark cannot read: id",
        ),
        "s.jsonl": ('{"id": [1], "ID": [1]}\n', "Ambiguous reference to the field `id`"),
        "z.csv": ("id,text\n1," + "x" * 200_000, "is no CSV: field larger than field limit"),
    }
    for name, (content, reason) in cases.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(SampleError, match=reason):
            read_files(lake.spark, [str(tmp_path / name)])
    with pytest.raises(SampleError, match=r"its files are of 2 formats\. Draft"):
        read_files(lake.spark, [str(tmp_path / "a.csv"), str(tmp_path / "d.jsonl")])
    (tmp_path / "folder").mkdir()
    with pytest.raises(SampleError, match=r"the folder holds no file"):
        read_files(lake.spark, [str(tmp_path / "folder")])
    with pytest.raises(SampleError, match=r"has no column of a type that a contract can have"):
        from_frame(lake.spark.sql("select interval 1 day as length"), "a query", "a", "a")
    with pytest.raises(SampleError, match=r"Reference `id` is ambiguous"):
        read_sql(lambda: lake.spark.sql("select 1 as id, 2 as ID"), "a query", "a")
    with pytest.raises(SampleError, match=r"there is no such file"):
        read_files(lake.spark, [str(tmp_path / "none.csv")])
    (tmp_path / "h.csv").write_text("id\n1\n")
    (tmp_path / "i.csv").write_text("no\n1\n")
    (tmp_path / "sound.parquet").write_bytes(parquet_bytes({"id": [1]}))
    with pytest.raises(SampleError, match=r"e\.parquet: is no sound Parquet file"):
        read_files(lake.spark, [str(tmp_path / name) for name in ("sound.parquet", "e.parquet")])
    with pytest.raises(SampleError, match=r"i\.csv: has other columns than h\.csv"):
        read_files(lake.spark, [str(tmp_path / "h.csv"), str(tmp_path / "i.csv")])
