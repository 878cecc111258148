"""Nested columns of a contract are read from JSON, CSV, Avro and Parquet; what does not fit rejects its row."""

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import delta_sharing
import numpy as np
import pyarrow as pa
import pytest

from lakeshare_pipelines.contracts import SetContract, load_contract
from lakeshare_pipelines.ingest.compression import CODECS
from lakeshare_pipelines.ingest.frame import TableFrame, read_delivery
from lakeshare_pipelines.share.publication import publish_or_replay
from lakeshare_pipelines.share.shares import apply_declared_shares
from lakeshare_pipelines.spark.rows import find_other_fields
from lakeshare_pipelines.wap.audit import audit_and_save
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Catalog
from lakeshare_server.settings import ServerSettings
from tests.builders.landing import (
    a_readings_contract,
    avro_bytes,
    csv_text,
    json_lines,
    landed,
    orc_bytes,
    parquet_bytes,
)
from tests.builders.recipients import Recipients
from tests.builders.sharing import Provider, a_server

TYPES = {
    "id": "int",
    "items": "array<struct<skuId:string,qty:int,price:decimal(9,2)>>",
    "tags": "map<string,double>",
    "place": "struct<city:string,at:struct<day:date>>",
}
ITEMS = [{"skuId": "a", "qty": 2, "price": 1.5}, {"skuId": "b", "qty": None, "price": None}]
ROW = {"items": ITEMS, "tags": {"x": 1.5}, "place": {"city": "Ulm", "at": {"day": "2024-02-29"}}}
GOOD = json.loads(json.dumps(ROW))
ARROW_ITEMS = pa.list_(pa.struct({"skuId": pa.string(), "qty": pa.int64(), "price": pa.decimal128(5, 1)}))
AVRO_ITEM = {
    "type": "record", "name": "item",
    "fields": [
        {"name": "qty", "type": ["null", "long"]}, {"name": "skuId", "type": "string"},
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}]},
    ],
}  # fmt: skip


def a_nested_contract(folder: Path, **options: object) -> SetContract:
    columns = [{"name": name, "physicalType": kind} for name, kind in TYPES.items()]
    return a_readings_contract(folder, columns=columns, **options)  # type: ignore[arg-type]


def read(lake: Lake, folder: Path, files: dict[str, str | bytes], **options: object) -> TableFrame:
    contract = a_nested_contract(folder, **options)
    return read_delivery(lake.spark, contract, [landed(folder, contract, files)])["sensors.readings"].read()


def values_of(table: TableFrame) -> dict[int, dict[str, object]]:
    """The rows by id, as JSON without what is null."""
    assert {each.name: each.dataType.simpleString() for each in table.frame.schema} == TYPES
    rows = [json.loads(row[0]) for row in table.frame.selectExpr("to_json(struct(*))").collect()]
    return {row.pop("id"): row for row in rows}


def test_nested_values_are_read_from_every_format_with_types(lake: Lake, tmp_path: Path) -> None:
    items = [{**item, "price": None if item["price"] is None else Decimal("1.5")} for item in ITEMS]
    columns = {"id": [3], "items": [items], "tags": [[("x", 1.5)]], "place": [{"city": "Ulm"}]}
    arrow = {"items": ARROW_ITEMS, "tags": pa.map_(pa.string(), pa.float32())}
    avro = {
        "id": "int",
        "items": {"type": "array", "items": AVRO_ITEM},
        "tags": {"type": "map", "values": "double"},
    }
    place = {"type": "record", "name": "place", "fields": [{"name": "city", "type": "string"}]}
    texts = {name: value if name == "id" else json.dumps(value) for name, value in {"id": 2, **ROW}.items()}
    files: dict[str, str | bytes] = {
        "readings-1.jsonl": json_lines([{"id": 1, **ROW}, {"id": 10, "items": [], "place": None}]),
        "readings-2.csv.zst": CODECS[".zst"].pack(csv_text([texts]).encode()),
        "readings-3.parquet": parquet_bytes(columns, **arrow),
        "readings-4.avro": avro_bytes(
            [{"id": 4, "items": items, "tags": {"x": 1.5}, "place": {"city": "Ulm"}}],
            {**avro, "place": place},
        ),
        "readings-5.orc": orc_bytes({**columns, "id": [5]}, **arrow),
    }
    table = read(lake, tmp_path, files)
    found = values_of(table)
    items_found = [{"skuId": "a", "qty": 2, "price": 1.5}, {"skuId": "b"}]
    whole = {"items": items_found, "tags": {"x": 1.5}, "place": {"city": "Ulm", "at": {"day": "2024-02-29"}}}
    short = {**whole, "place": {"city": "Ulm"}}
    assert found == {1: whole, 2: whole, 3: short, 4: short, 5: short, 10: {"items": []}}
    assert (table.problems, table.rejected_rows) == ((), 0)


def test_nested_values_that_do_not_fit_are_rejected_and_unknown_fields_are_problems(
    lake: Lake, tmp_path: Path
) -> None:
    bad = {
        2: {"items": [{"skuId": "a", "qty": 1.5}]},
        3: {"items": {"skuId": "a"}},
        4: {"items": [5]},
        5: {"tags": {"x": "many"}},
        6: {"place": {"at": []}},
        7: {"place": {"at": {"day": "2024-02-30"}}},
        8: {"place": "Ulm"},
    }
    good = {1: GOOD, 9: {"items": [{"skuId": "", "qty": ""}, None], "tags": {}}}
    lines = json_lines([{"id": number, **row} for number, row in sorted({**bad, **good}.items())])
    parquet = parquet_bytes({"id": [11, 12], "items": [[{"skuId": "a", "qty": 1 << 40}], None]})
    deep = json.loads('{"k":' * 12 + "1" + "}" * 12)
    other = json_lines(
        [{"id": 13, "items": [{"skuId": "a", "colour": "red"}], "place": {"at": {"hour": 5, "Hour": deep}}}]
    )
    wrong = pa.list_(pa.struct({"skuId": pa.float64(), "size": pa.int64()}))
    columns = {"id": [14], "items": [[{"skuId": 1.5, "size": 2}]], "place": ["Ulm"]}
    typed = parquet_bytes(columns, items=wrong)
    files = {"readings-1.jsonl": lines, "readings-2.parquet": parquet, "readings-3.jsonl": other}
    table = read(lake, tmp_path, {**files, "readings-4.parquet": typed})
    assert table.rejected is not None
    rejected = {json.loads(row.raw)["id"]: row for row in table.rejected.collect()}
    assert set(rejected) == {*bad, 11}
    assert rejected[2].reason.startswith(
        'items: \'[{"qty":1.5,"skuId":"a"}]\' is not array<struct<skuId:string,'
    )
    assert rejected[8].reason == f"place: 'Ulm' is not {TYPES['place']}"
    found = values_of(table)
    assert found[9] == {"items": [{}, None], "tags": {}}
    assert set(found) == {1, 9, 12, 13, 14}
    details = [problem.detail for problem in table.problems]
    for expected in (
        "column 'items.colour' is not in the contract in all/readings-1.jsonl and 1 more files",
        "column 'place.at.hour' is not in the contract in all/readings-1.jsonl and 1 more files",
        "column 'place.at.Hour' is not in the contract in all/readings-1.jsonl and 1 more files",
        f"column 'items' is array<struct<skuId:double,size:bigint>>, not {TYPES['items']}, in all/readings-4.parquet",
        f"column 'place' is string, not {TYPES['place']}, in all/readings-4.parquet",
    ):
        assert expected in details, details


def test_fields_in_another_order_are_found_before_a_cast_by_position(lake: Lake) -> None:
    place = "named_struct('at', named_struct('day', date'2024-01-01'), 'CITY', 'Ulm')"
    frame = lake.spark.sql(
        f"SELECT array(named_struct('SKUID', 'a', 'qty', 1L, 'price', 1)) AS items, {place} AS place"
    )
    assert find_other_fields(frame, {name: TYPES[name] for name in ("items", "place")}) == [
        f"place is struct<at:struct<day:date>,CITY:string>, not {TYPES['place']}"
    ]


CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: SET
name: SET
version: 1.0.0
status: active
servers: [{server: lake, type: local, format: FORMAT}]
schema:
  - name: orders
    customProperties:
      - {property: source, value: orders}
      - {property: reading, value: {multiline: true}}
      - {property: write, value: WRITE}
      - {property: maxQuarantinedFraction, value: 0.5}
      - {property: serveableTo, value: [python-parquet, spark]}
    quality:
      - type: sql
        name: skus_are_filled
        query: SELECT id FROM {orders} WHERE exists(items, item -> item.skuId IS NULL)
    properties:
      - {name: id, logicalType: integer, physicalType: int, primaryKey: true, primaryKeyPosition: 1}
      - {name: items, logicalType: array, physicalType: "array<struct<skuId:string,qty:int>>", required: true}
      - {name: place, logicalType: object, physicalType: "struct<city:string,at:struct<day:date>,crest:binary>"}
      - {name: seal, logicalType: string, physicalType: binary, unique: true, primaryKey: true, primaryKeyPosition: 2}
      - {name: city, logicalType: string, transformLogic: place.city}
MOREcustomProperties:
  - {property: shares, value: [{share: SET, schema: shop, tables: [TABLES]}]}
"""
MORE = """\
  - name: lines
    customProperties:
      - property: derive
        value: "SELECT id, item, map('qty', item.qty) AS counts FROM (SELECT id, explode(items) AS item FROM {orders})"
    properties:
      - {name: id, logicalType: integer, physicalType: int}
      - {name: item, logicalType: object, physicalType: "struct<skuId:string,qty:int>"}
      - {name: counts, logicalType: object, physicalType: "map<string,int>"}
  - name: in_ulm
    physicalType: view
    customProperties:
      - {property: view, value: {of: orders, columns: [id, items, place], where: "place.city = 'Ulm'"}}
"""
IN_ULM = {**ROW["place"], "crest": "AP8="}  # type: ignore[dict-item]
ROWS: list[dict[str, Any]] = [
    {"id": 1, "items": [{"skuId": "a", "qty": 2}, {"skuId": "b"}], "place": IN_ULM, "seal": "AP8KZQ=="},
    {"id": 2, "items": [{"skuId": "c", "qty": 7}], "place": {"city": "Bonn"}, "seal": "/w=="},
    {"id": 3, "items": [{"skuId": "d", "qty": "many"}], "seal": "Yw=="},
    {"id": 4, "items": [], "place": None, "seal": "AA=="},
    {"id": 5, "items": [], "seal": "no base64!"},
]
SEALS = {1: b"\x00\xff\ne", 2: b"\xff", 4: b"\x00"}


@pytest.mark.parametrize(("table_format", "write"), [("iceberg", "merge"), ("delta", "replace")])
def test_recipients_read_nested_and_binary_columns_as_they_were_delivered(
    lake: Lake, catalog: Catalog, tmp_path: Path, table_format: str, write: str
) -> None:
    name = f"nested_{table_format}"
    path = tmp_path / f"{name}.yaml"
    is_replaced = write == "replace"
    text = CONTRACT.replace("MORE", MORE if is_replaced else "").replace("WRITE", write)
    tables = ["orders", "lines", "in_ulm"] if is_replaced else ["orders"]
    path.write_text(
        text.replace("TABLES", ", ".join(tables)).replace("SET", name).replace("FORMAT", table_format)
    )
    contract = load_contract(path)
    folder = Path(lake.settings.landing_root) / name / "all"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "orders.json").write_text(json.dumps(ROWS, indent=1))
    (folder / "_SUCCESS").touch()
    staged = stage(lake, contract, ["all"], str(uuid4()))
    verdicts = audit_and_save(lake, contract, staged)
    assert [verdict.reason for verdict in verdicts.failed] == []
    assert staged.tables[0].rejected == 2
    publish_or_replay(lake, catalog, contract, staged, verdicts)
    apply_declared_shares(catalog, [contract])
    _, token = Recipients(catalog).add(f"{name}-reader", (name,))
    server = ServerSettings(
        _env_file=None, state_dir=lake.settings.state_dir, database_url=lake.settings.catalog_url, port=0
    )
    with a_server(Provider(server, catalog)) as running:
        profile = running.profile(token)
        found = {
            table: delta_sharing.load_as_pandas(f"{profile}#{name}.shop.{table}", version=None)
            for table in tables
        }
        hinted = running.client(token).post(
            f"/shares/{name}/schemas/shop/tables/orders/query",
            json={"jsonPredicateHints": json.dumps(EQUAL_TO_9)},
        )
    rows = {row["id"]: to_plain(row) for row in found["orders"].to_dict("records")}
    assert {number: row.pop("seal") for number, row in rows.items()} == SEALS
    assert rows[1]["place"].pop("crest") == b"\x00\xff"
    given = {
        row["id"]: {name: part for name, part in to_plain(row).items() if name != "seal"} for row in ROWS
    }
    assert rows == {
        1: {**given[1], "place": to_plain(ROW["place"]), "city": "Ulm"},
        2: {**given[2], "city": "Bonn"},
        4: given[4],
    }
    if is_replaced:
        lines = [to_plain(line) for line in found["lines"].to_dict("records") if line["id"] == 2]
        assert lines == [{"id": 2, "item": {"skuId": "c", "qty": 7}, "counts": [["qty", 7]]}]
        assert (len(found["lines"]), list(found["in_ulm"]["id"])) == (3, [1])
    schema = json.loads(json.loads(hinted.text.splitlines()[1])["metaData"]["schemaString"])
    types = [field["type"] for field in schema["fields"]]
    assert [kind if isinstance(kind, str) else kind["type"] for kind in types] == [
        "integer", "array", "struct", "binary", "string",
    ]  # fmt: skip
    # No file has an id of 9: statistics of the other columns do not hide those of a simple one.
    assert len(hinted.text.splitlines()) == 2


EQUAL_TO_9 = {
    "op": "equal",
    "children": [
        {"op": "column", "name": "id", "valueType": "int"},
        {"op": "literal", "value": "9", "valueType": "int"},
    ],
}


def to_plain(value: Any) -> Any:
    """A value without its null parts, with lists and texts in place of arrays and days."""
    if isinstance(value, dict):
        return {name: to_plain(part) for name, part in value.items() if part is not None}
    if isinstance(value, list | tuple | np.ndarray):
        return [to_plain(part) for part in value]
    return value.isoformat() if isinstance(value, dt.date) else value
