"""The texts of refused contracts: each field with a wrong type, a wrong value and an unknown name, as a snapshot."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.contracts import SetContract, load_contracts
from lakeshare_pipelines.contracts.document import get_document
from lakeshare_pipelines.errors import ContractError
from lakeshare_server.yaml_documents import FORMS
from tests.builders.snapshots import check_snapshot
from tests.unit.pipelines.contracts import test_contract_errors as errors
from tests.unit.pipelines.contracts import test_contract_inputs as inputs
from tests.unit.pipelines.contracts import test_contract_views as views

Case = tuple[str, Callable[[Path], object]]

# A path inside the contract of test_contract_errors.py, and the value that it gets.
WRONG_VALUES: tuple[tuple[str, Any], ...] = (
    ("apiVersion", 3.1),
    ("apiVersion", "v2.2.0"),
    ("kind", "Contract"),
    ("id", 1),
    ("name", "a b"),
    ("name", None),
    ("version", 1.0),
    ("status", True),
    ("schema", []),
    ("schema", "orders"),
    ("schema.0", "orders"),
    ("description", "Orders"),
    ("description.purpose", 5),
    ("description.usages", "x"),
    ("domain", 7),
    ("team", "lake"),
    ("team.name", 3),
    ("team.member", []),
    ("team.members", [{"username": ""}]),
    ("team.members", [{"usename": "ann"}]),
    ("team", [{"username": "ann", "roles": "owner"}]),
    ("servers", []),
    ("servers.1", {"server": "other", "type": "s3", "format": "delta"}),
    ("servers.0.server", 1),
    ("servers.0.type", None),
    ("servers.0.format", "hudi"),
    ("servers.0.location", 5),
    ("servers.0.url", "s3://lake"),
    ("customProperties", {"partitioning": "daily"}),
    ("customProperties.0", {"property": "partitioning"}),
    ("customProperties.0", {"property": 1, "value": 2}),
    ("customProperties.0.values", 1),
    ("colour", "red"),
    ("schema.0.name", 5),
    ("schema.0.logicalType", "table"),
    ("schema.0.physicalName", "orders"),
    ("schema.0.physicalType", "materialized view"),
    ("schema.0.description", ["a"]),
    ("schema.0.tags", "a"),
    ("schema.0.tags", [1]),
    ("schema.0.columns", []),
    ("schema.0.properties", {"day": "date"}),
    ("schema.0.properties.0", "day"),
    ("schema.0.relationships", [{"from": 5, "to": "totals.day"}]),
    ("schema.0.relationships", [{"from": "orders.day"}]),
    ("schema.0.relationships", [{"from": "orders.day", "to": ["totals.day"]}]),
    ("schema.0.relationships", [{"from": "orders.day", "to": "totals.day", "type": "foreign"}]),
    ("schema.0.relationships", [{"from": "orders.dya", "to": "totals.day", "severty": "error"}]),
    ("schema.0.quality", [{"name": "r"}]),
    ("schema.0.quality", [{"type": "custom", "engine": 1}]),
    ("schema.0.quality", [{"type": "custom", "engine": "greatExpectations"}]),
    ("schema.0.quality", [{"type": "custom", "engine": "greatExpectations", "implementation": "expect"}]),
    ("schema.0.quality", [{"type": "custom", "implementation": {"type": "x", "args": {}}}]),
    ("schema.0.quality", [{"type": "text", "description": 5}]),
    ("schema.0.quality", [{"type": "text", "mustBee": 5}]),
    ("schema.0.quality", [{"type": "sql", "name": "r", "query": "SELECT 1", "mustBeBetween": [1]}]),
    ("schema.0.quality", [{"type": "sql", "name": "r", "query": "SELECT '{' FROM {orders}", "mustBe": 0}]),
    ("schema.0.quality", [{"type": "sql", "name": "r", "query": "SELECT id FROM {order}", "mustBe": 0}]),
    (
        "schema.0.quality",
        [{"type": "sql", "name": "r", "query": "SELECT {property} FROM {orders}", "mustBe": 0}],
    ),
    ("schema.0.quality", [{"type": "sql", "name": "r", "mustBe": 0}]),
    ("schema.0.properties.1.name", "order id"),
    ("schema.0.properties.1.logicalType", 5),
    ("schema.0.properties.1.physicalType", 5),
    ("schema.0.properties.1.required", "yes"),
    ("schema.0.properties.1.unique", 1),
    ("schema.0.properties.1.primaryKey", "true"),
    ("schema.0.properties.1.primaryKeyPosition", "1"),
    ("schema.0.properties.1.partitioned", None),
    ("schema.0.properties.1.partitionKeyPosition", 1.5),
    ("schema.0.properties.1.classification", 1),
    ("schema.0.properties.1.transformLogic", 1),
    ("schema.0.properties.1.transformSourceObjects", "orders.id"),
    ("schema.0.properties.1.transformSourceObjects", ["nothing.id"]),
    ("schema.0.properties.1.relationships", [{"to": ["totals.day"]}]),
    ("schema.0.properties.1.relationships", [{"to": "totals.dya"}]),
    ("schema.0.properties.1.relationships", [{"from": "a", "to": "totals.day"}]),
    ("schema.0.properties.1.nullable", False),
    ("schema.0.properties.1", {"name": "id"}),
    ("schema.0.properties.1", {"name": "id", "logicalType": "string", "physicalType": "int"}),
    *(
        ("schema.0.properties.1", {"name": "id", "physicalType": kind})
        for kind in (
            *(
                "struct<>",
                "array",
                "map<int,string>",
                "struct<a:int,A:int>",
                "array<smallint>",
                "struct<a:blob>",
            ),
            *("array<int", "array<int>>", "struct<a>", "array<" * 11 + "int" + ">" * 11),
        )
    ),
    ("schema.0.properties.1", {"name": "id", "logicalType": "object"}),
    ("schema.0.properties.1", {"name": "id", "logicalType": "array", "physicalType": "struct<a:int>"}),
    ("schema.0.properties.1", {"name": "id", "physicalType": "struct<a:int>", "unique": True}),
    *(
        ("schema.0.properties.1", {"name": "id", "logicalType": "object"} | parts)
        for parts in (
            {"properties": [{"name": "a"}]},
            {"properties": [{"name": "a", "physicalType": "blob"}]},
            {"properties": [{"name": "a", "logicalType": "string", "required": True}]},
            {"properties": [{"name": "a b", "logicalType": "string"}]},
            {"items": {"logicalType": "date", "customProperties": [{"property": "source", "value": "b"}]}},
            {"properties": [{"name": "a", "logicalType": "array", "items": {"unique": True}}]},
            {"properties": [{"name": "a", "logicalType": "string"}], "items": {"logicalType": "string"}},
            {"properties": [{"name": "a", "logicalType": "string"}], "physicalType": "struct<a:string>"},
            {"items": {"logicalType": "string"}},
        )
    ),
    ("schema.0.properties.0", {"name": "day", "physicalType": "array<date>", "partitioned": True}),
    ("schema.1.properties.0.transformLogic", "day + 1"),
    ("customProperties.1.value", "soon"),
    ("customProperties.0.value", "hourly"),
)

# The element that gets a custom property, the property, and its value.
WRONG_PROPERTIES: tuple[tuple[str, str, Any], ...] = (
    ("", "firstPartition", "2024-01-02"),
    ("", "maintenance", {"compaction": False, "keep": None}),
    ("", "snowflake", "LAKE.SHOP"),
    ("", "snowflake", [{"database": "LAKE", "schema": "S P", "tables": ["orders"]}]),
    ("", "snowflake", [{"database": "LAKE", "schema": "SHOP", "tables": ["ordres"]}]),
    ("", "snowflake", [{"database": "LAKE", "tables": []}]),
    ("", "snowflake", [{"database": "LAKE", "schema": "SHOP", "tables": ["orders"], "stage": "x"}]),
    ("", "maintenance", "weekly"),
    ("", "maintenance", {"keeps": 3}),
    ("", "maintenance", {"keep": {"days": "7"}}),
    ("", "maintenance", {"keep": {"weeks": 1}}),
    ("", "maintenance", {"compaction": True}),
    ("", "maintenance", {"compaction": {"targetMb": 0}}),
    ("", "maintenance", {"compaction": {"targetMB": 64}}),
    ("", "maintenance", {"compaction": {"sortBy": "amount"}}),
    ("", "retire", {"table": "orders_v1"}),
    ("", "retire", [{"table": "orders_v1", "date": "31.1.2030"}]),
    ("", "retire", [{"table": "orders", "date": "2030-01-31"}]),
    ("", "retire", [{"table": "old", "date": "2030-01-31", "successor": "order"}]),
    ("", "retire", [{"table": "old", "date": "2030-01-31"}, {"table": "old", "date": "2030-02-28"}]),
    ("", "colour", "red"),
    ("schema.0", "source", "orders"),
    ("schema.0", "derive", 5),
    ("schema.0", "derive", "SELECT 1"),
    ("schema.1", "source", "a/b"),
    ("schema.1", "source", ""),
    ("schema.0", "view", "orders"),
    ("schema.0", "view", {"of": "totals", "columns": "day"}),
    ("schema.0", "view", {"of": "totals", "columns": ["a b"], "where": ""}),
    ("schema.0", "view", {"of": 1, "columns": ["day", 2]}),
    ("schema.0", "view", {"of": "totals", "columns": ["day"], "perRecipient": {"value": "id"}}),
    ("schema.0", "view", {"of": "totals", "columns": ["day"], "perRecipient": {"column": "id", "values": "x"}}),
    ("schema.0", "location", 5),
    ("schema.0", "location", "s3://lake/orders"),
    ("schema.0", "allowEmpty", "yes"),
    ("schema.0", "allowSchemaChanges", "yes"),
    ("schema.0", "maxQuarantinedFraction", 1.5),
    ("schema.0", "drift", 0.5),
    ("schema.0", "drift", {"maxShrinkFraction": -0.1}),
    ("schema.0", "drift", {"maxGrowthFraction": "half"}),
    ("schema.0", "drift", {"max_shrink_fraction": 0.1}),
    ("schema.0", "drift", {"severity": "errors"}),
    ("schema.0", "reading", []),
    ("schema.0", "reading", {"nullValues": "NULL"}),
    ("schema.0", "reading", {"nullValues": ["NULL", 0]}),
    ("schema.0", "reading", {"delimiter": "||"}),
    ("schema.0", "reading", {"rowTag": "<order>"}),
    ("schema.0", "reading", {"delimiter": ""}),
    ("schema.0", "reading", {"multiline": "true"}),
    ("schema.0", "reading", {"separator": ";"}),
    ("schema.0", "serveableTo", "spark"),
    ("schema.0", "serveableTo", {"clients": ["spark", 1]}),
    ("schema.0", "serveableTo", {"clients": ["spark"], "rewrite": "no"}),
    ("schema.0", "maintenance", {"schedule": "0 4 * * 0"}),
    ("schema.0.properties.1", "source", ""),
    ("schema.0.properties.1", "source", 5),
    ("schema.0.properties.1", "partitionTransform", 5),
    ("schema.0.properties.1", "partitionTransfrom", "day"),
)  # fmt: skip


# The table `t` of the set `gold`, beside the sets raw (daily), names and above, which reads gold.
WRONG_INPUTS: tuple[dict[str, Any], ...] = (
    {"transform": "lake.gold:make", "inputs": ["above.t"]},
    {"transform": "lake.gold:make", "inputs": ["raw.tt"]},
    {"transform": "make", "inputs": ["raw.t"]},
    {"source": "gold", "inputs": ["raw.t"]},
    {"transform": "lake.gold:make", "inputs": ["t", "raw.t"]},
    {"transform": "lake.gold:make"},
    {"derive": "SELECT * FROM {t}", "inputs": ["raw.t"]},
    {"daily": True, "transform": "lake.gold:make", "inputs": ["names.t"]},
    {"daily": {"kind": "daily", "timeZone": "Europe/Berlin"}, "transform": "a:b", "inputs": ["raw.t"]},
)


def set_value(contract: dict[str, Any], path: str, value: object) -> None:
    """Sets the value at a dotted path; a list grows by an index behind its end."""
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    holder: Any = contract
    for step in steps:
        holder = holder[step] if isinstance(step, int) else holder.setdefault(step, {})
    if isinstance(last, int) and last == len(holder):
        holder.append(value)
    else:
        holder[last] = value


def add_property(contract: dict[str, Any], path: str, name: str, value: object) -> None:
    """Adds a custom property to the element at a path."""
    element: Any = contract
    for step in path.split(".") if path else ():
        element = element[int(step) if step.isdigit() else step]
    element.setdefault("customProperties", []).append({"property": name, "value": value})


def load_bytes(content: bytes, folder: Path) -> object:
    path = folder / "shop.yaml"
    path.write_bytes(content)
    return load_contracts(folder)


def load_sets(folder: Path, gold: dict[str, Any]) -> object:
    inputs.write(folder, "raw", daily=True, source="raw")
    inputs.write(folder, "names", source="names")
    inputs.write(folder, "above", transform="lake.gold:make", inputs=["gold.t"])
    inputs.write(folder, "gold", **gold)
    return load_contracts(folder)


def load_twice(folder: Path) -> object:
    path = inputs.write(folder, "raw", source="raw")
    path.with_name("same.yaml").write_bytes(path.read_bytes())
    return load_contracts(folder)


def list_cases() -> Iterator[Case]:
    for name, (change, *_) in errors.FAULTS.items():
        yield name, partial(errors.load, spoil=change)
    for name, (text, *_) in views.FAULTS.items():
        yield f"view {name}", partial(views.a_set, view=text, **views.MORE.get(name, {}))
    for path, value in WRONG_VALUES:
        yield f"{path} = {value!r}", partial(errors.load, spoil=partial(set_value, path=path, value=value))
    for path, name, value in WRONG_PROPERTIES:
        change = partial(add_property, path=path, name=name, value=value)
        yield f"{path} {name}: {value!r}".lstrip(), partial(errors.load, spoil=change)
    for content in (
        b"",
        b"- a\n",
        b"name: caf\xe9\n",
        b"name: a\nname: b\n",
        b"name: [",
        b"name: {a: b: c}\n",
    ):
        yield f"the bytes {content!r}", partial(load_bytes, content)
    for gold in WRONG_INPUTS:
        yield f"gold.t: {gold}", partial(load_sets, gold=gold)
    yield "two files of one set", load_twice
    yield "no file", load_contracts
    yield "no folder", lambda folder: load_contracts(folder / "none")


def test_refusals(tmp_path: Path) -> None:
    lines = []
    for number, (name, load) in enumerate(list_cases()):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            load(folder)
        except ContractError as error:
            text = str(error).replace(f"{folder}/", "").replace(str(folder), "<folder>")
            lines += [f"# {name}", text, ""]
        else:
            raise AssertionError(f"accepted: {name}")
    # A regular expression is no remedy.
    assert not [line for line in lines if "match pattern" in line]
    check_snapshot("yaml/contract_refusals.txt", "\n".join(lines))


def list_patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        schema = list(schema.values())
    for part in schema if isinstance(schema, list) else ():
        yield from list_patterns(part)


def test_every_pattern_of_a_document_has_a_form() -> None:
    schemas = [get_document(SetContract).model_json_schema(), Backup.model_json_schema()]
    # Dates are parsed; their pattern is for readers of the schema.
    assert set(list_patterns(schemas)) - set(FORMS) == {r"^\d{4}-\d{2}-\d{2}$"}


def test_digests_of_the_shipped_contracts() -> None:
    """Publications record them, so an equal content must keep its digest."""
    assert {contract.name: contract.digest for contract in load_contracts()} == {
        "flights": "010795c0e52808e3534315928c32b5b758739f8652de590a59ad58eea8894ce9",
        "reference": "b913f19d3780c0f5e62f8ea9109a1e705c5b13490bf50eb12df9ec2416dfe51f",
    }
