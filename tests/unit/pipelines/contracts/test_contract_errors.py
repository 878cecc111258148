"""A contract that is wrong is refused with file, place inside it and remedy, and with all its faults at once."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakeshare_pipelines.contracts import load_contract, load_contracts
from lakeshare_pipelines.contracts.document import find_line
from lakeshare_pipelines.errors import ContractError

SOUND: dict[str, Any] = {
    "apiVersion": "v3.1.0",
    "kind": "DataContract",
    "id": "orders",
    "name": "shop",
    "version": "1.0.0",
    "status": "active",
    "team": {"name": "lake"},
    "servers": [{"server": "lake", "type": "local", "path": "warehouse", "format": "iceberg"}],
    "schema": [
        {
            "name": "orders",
            "customProperties": [{"property": "source", "value": "orders"}],
            "quality": [],
            "properties": [
                {"name": "day", "logicalType": "date", "partitioned": True},
                {"name": "id", "logicalType": "integer", "physicalType": "int", "primaryKey": True},
                {"name": "amount", "logicalType": "number", "quality": []},
            ],
        },
        {
            "name": "totals",
            "customProperties": [
                {"property": "derive", "value": "SELECT day, sum(amount) a FROM {orders} GROUP BY day"}
            ],
            "properties": [{"name": "day", "logicalType": "date", "partitioned": True}],
        },
    ],
    "customProperties": [
        {"property": "partitioning", "value": "daily"},
        {"property": "firstPartition", "value": "2024-01-01"},
        {"property": "shares", "value": [{"share": "shop", "schema": "sales", "tables": ["orders"]}]},
    ],
}

Spoil = Callable[[dict[str, Any]], object]


def rule(expectation: str, **kwargs: Any) -> dict[str, Any]:
    return {
        "type": "custom",
        "engine": "greatExpectations",
        "implementation": {"type": expectation, "kwargs": kwargs},
    }


def column(number: int, table: int = 0, **changed: Any) -> Spoil:
    return lambda c: c["schema"][table]["properties"][number].update(changed)


def transform(name: str) -> Spoil:
    return column(0, customProperties=[{"property": "partitionTransform", "value": name}])


def reference(start: str | list[str], end: str | list[str]) -> Spoil:
    return lambda c: c["schema"][1].update(relationships=[{"from": start, "to": end}])


def of_amount(entry: dict[str, Any]) -> Spoil:
    return lambda c: c["schema"][0]["properties"][2]["quality"].append(entry)


def of_orders(entry: dict[str, Any]) -> Spoil:
    return lambda c: c["schema"][0]["quality"].append(entry)


def promised(value: object) -> Spoil:
    return lambda c: c["schema"][0]["customProperties"].append({"property": "serveableTo", "value": value})


def written(value: object, table: int = 0) -> Spoil:
    return lambda c: c["schema"][table]["customProperties"].append({"property": "write", "value": value})


def load(tmp_path: Path, spoil: Spoil | None = None) -> Any:
    contract = copy.deepcopy(SOUND)
    if spoil is not None:
        spoil(contract)
    path = tmp_path / "shop.yaml"
    path.write_text(yaml.safe_dump(contract, sort_keys=False))
    return load_contract(path)


def test_the_contract_that_the_others_are_made_from_is_sound(tmp_path: Path) -> None:
    assert [table.name for table in load(tmp_path).tables] == ["shop.orders", "shop.totals"]


FAULTS: dict[str, tuple[Spoil, str, str, str]] = {
    "unknown field": (
        column(1, requierd=True),
        "schema[0].properties[1].requierd", "unknown field 'requierd'", "Did you mean 'required'?",
    ),
    "missing field": (lambda c: c.pop("status"), "status", "is missing", "docs/reference/contract.md"),
    "unknown property": (
        lambda c: c["customProperties"].append({"property": "partitionning", "value": "daily"}),
        "customProperties[3].property", "unknown property 'partitionning'", "Did you mean 'partitioning'?",
    ),
    "wrong value": (
        column(1, logicalType="interger"),
        "schema[0].properties[1].logicalType", "cannot be 'interger'", "Did you mean 'integer'?",
    ),
    "wrong value of a property": (
        lambda c: c["customProperties"][0].update(value="dayly"),
        "customProperties[0].value.kind", "cannot be 'dayly'", "Did you mean 'daily'?",
    ),
    "text for a number": (
        lambda c: c["schema"][0]["customProperties"].append({"property": "maxQuarantinedFraction", "value": "some"}),
        "schema[0].customProperties[1].value", "cannot be 'some'", "number",
    ),
    "a warehouse that is no store": (
        lambda c: c["servers"][0].update(type="s3", location="hdfs://name/lake"),
        "servers[0].location", "'hdfs://name/lake' is not the location of a store", "s3://bucket/key",
    ),
    "a warehouse beside type local": (
        lambda c: c["servers"][0].update(location="s3://lake/sales"),
        "servers[0].location", "'s3://lake/sales' is not possible with type 'local'", "LAKESHARE_WAREHOUSE",
    ),
    "a warehouse in a folder": (
        lambda c: c["servers"][0].update(type="custom", location="/srv/lake"),
        "servers[0].location", "'/srv/lake' is not possible with type 'custom'", "LAKESHARE_WAREHOUSE",
    ),
    "a warehouse of another type": (
        lambda c: c["servers"][0].update(type="azure", location="s3://lake/sales"),
        "servers[0].type", "'azure' does not fit 's3://lake/sales'", "Give 's3'.",
    ),
    "an endpoint without a warehouse": (
        lambda c: c["servers"][0].update(type="s3", endpointUrl="http://store:9000"),
        "servers[0].endpointUrl", "'http://store:9000' has no location beside it", "s3://bucket/prefix",
    ),
    "maintenance that keeps nothing": (
        lambda c: c["customProperties"].append({"property": "maintenance", "value": {"keep": 0}}),
        "customProperties[3].value.keep.publications", "cannot be 0", "greater than or equal to 1",
    ),
    "no schedule of maintenance": (
        lambda c: c["customProperties"].append({"property": "maintenance", "value": {"schedule": "weekly"}}),
        "customProperties[3].value.schedule", "cannot be 'weekly'", "the five fields of cron",
    ),
    "compaction by an unknown column": (
        lambda c: c["schema"][0]["customProperties"].append(
            {"property": "maintenance", "value": {"compaction": {"sortBy": ["amountz"]}}}
        ),
        "schema[0].customProperties.maintenance", "'amountz'", "Did you mean 'amount'?",
    ),
    "illegal table name": (
        lambda c: c["schema"][0].update(name="my-orders"), "schema[0].name", "cannot be 'my-orders'", "letters, "),
    "unknown type": (
        column(1, physicalType="integr"),
        "schema[0].properties[1].physicalType", "type 'integr' cannot be used", "Did you mean 'int'?",
    ),
    "type against its logical type": (
        column(1, physicalType="string"),
        "schema[0].properties[1].physicalType", "contradicts logicalType 'integer'", "",
    ),
    "small integers in Iceberg": (
        column(1, physicalType="smallint"),
        "schema[0].properties[1].physicalType", "type 'smallint' cannot be used in a table of format iceberg", "int",
    ),
    "decimal too wide": (
        column(2, physicalType="decimal(40,2)"),
        "schema[0].properties[2].physicalType", "precision of 1 to 38", "",
    ),
    "column twice": (
        lambda c: c["schema"][0]["properties"].append({"name": "ID", "logicalType": "string"}),
        "schema[0].properties", "the column 'id' is given 2 times", "differ in more than case",
    ),
    "unknown expectation": (
        of_amount(rule("expect_column_values_to_be_betwen", min_value=0)),
        "schema[0].properties[2].quality[0].implementation.type",
        "unknown expectation 'expect_column_values_to_be_betwen'",
        "Did you mean 'expect_column_values_to_be_between'?",
    ),
    "unknown argument": (
        of_amount(rule("expect_column_values_to_be_between", min_valu=0, max_value=1)),
        "schema[0].properties[2].quality[0].implementation.kwargs.min_valu",
        "takes no argument 'min_valu'", "Did you mean 'min_value'?",
    ),
    "missing argument": (
        of_amount(rule("expect_column_values_to_be_in_set")),
        "schema[0].properties[2].quality[0].implementation.kwargs", "needs the argument 'value_set'", "a list",
    ),
    "none of the bounds": (
        of_amount(rule("expect_column_values_to_be_between")),
        "schema[0].properties[2].quality[0].implementation.kwargs", "needs min_value or max_value", "at least one",
    ),
    "argument out of range": (
        of_amount(rule("expect_column_values_to_not_be_null", mostly=1.5)),
        "schema[0].properties[2].quality[0].implementation.kwargs.mostly", "cannot be 1.5", "a number from 0 to 1",
    ),
    "rule about an unknown column": (
        of_orders(rule("expect_column_values_to_not_be_null", column="amout")),
        "schema[0].quality[0].implementation.kwargs.column", "shop.orders has no column 'amout'",
        "Did you mean 'amount'?",
    ),
    "rule of another engine": (
        of_orders({"type": "library", "name": "r", "severity": "error"}), "schema[0].quality[0]",
        "only rules of type custom", "greatExpectations",
    ),
    "rule in SQL without a name": (
        of_orders({"type": "sql", "query": "SELECT id FROM {orders}"}), "schema[0].quality[0]",
        "needs a name", "name of its check",
    ),
    "rule in SQL that changes a table": (
        of_orders({"type": "sql", "name": "r", "query": "DROP TABLE {orders}"}), "schema[0].quality[0].query",
        "needs a query", "begins with SELECT or WITH",
    ),
    "rule in SQL over an unknown table": (
        of_orders({"type": "sql", "name": "r", "query": "SELECT id FROM {ordres}"}), "schema[0].quality.r",
        "names an unknown table {ordres}", "Did you mean 'orders'?",
    ),
    "rule in SQL over no table": (
        of_orders({"type": "sql", "name": "r", "query": "SELECT 1"}), "schema[0].quality.r",
        "names no table of the set", "{name}",
    ),
    "rule in SQL with two bounds": (
        of_orders({"type": "sql", "name": "r", "query": "SELECT 1 FROM {orders}", "mustBe": 1, "mustNotBe": 2}),
        "schema[0].quality[0]", "it has mustBe and mustNotBe", "Keep one of them",
    ),
    "a column of no column": (
        of_orders({"type": "sql", "name": "r", "query": "SELECT {property} FROM {object}"}),
        "schema[0].quality[0].query", "the rule is one of a table", "Move the rule to the column",
    ),
    "bound of a rule of another type": (
        of_orders({"type": "text", "name": "r", "mustBe": 1}), "schema[0].quality[0].mustBe",
        "a rule of type text has no mustBe", "Write type: sql",
    ),
    "rule that is implied already": (
        of_orders(rule("expect_column_values_to_not_be_null", column="id")),
        "schema[0].quality[0]", "made by required, unique and primaryKey already", "`name` of its own",
    ),
    "illegal rule name": (
        of_orders({**rule("expect_table_row_count_to_be_between", min_value=1), "name": "at least one"}),
        "schema[0].quality[0].name", "cannot be 'at least one'", "letters, digits and _",
    ),
    "unknown severity": (
        of_orders({**rule("expect_table_row_count_to_be_between", min_value=1), "severity": "warn"}),
        "schema[0].quality[0].severity", "cannot be 'warn'", "Did you mean 'warning'?",
    ),
    "unknown transform": (
        transform("days"),
        "schema[0].properties[0]", "partitionTransform 'days' is not known for iceberg", "Did you mean 'day'?",
    ),
    "transform of the wrong type": (
        transform("hour"),
        "schema[0].properties[0]", "a column of type date cannot be partitioned by hour", "timestamp",
    ),
    "binary partition": (
        column(0, logicalType="string", physicalType="binary"),
        "schema[0].properties[0]", "a column of type binary cannot be partitioned by identity", "bigint",
    ),
    "transform in Delta": (
        lambda c: (
            c["servers"][0].update(format="delta"),
            transform("day")(c),
        ),
        "schema[0].properties[0]", "partitionTransform 'day' is not known for delta", "takes: identity",
    ),
    "daily without a day": (
        column(0, partitioned=False),
        "schema[0].properties", "orders is not partitioned by its day first", "type date",
    ),
    "daily without a first day": (
        lambda c: c["customProperties"].pop(1), "customProperties", "needs firstPartition", "2013-01-01"),
    "first day that is none": (
        lambda c: c["customProperties"][1].update(value="2024-02-30"),
        "customProperties", "firstPartition cannot be '2024-02-30'", "2013-01-01",
    ),
    "neither source nor derive": (
        lambda c: c["schema"][0].pop("customProperties"),
        "schema[0].customProperties", "neither source nor derive nor view", "file stem",
    ),
    "unknown table in derive": (
        lambda c: c["schema"][1]["customProperties"][0].update(value="SELECT * FROM {order}"),
        "schema[1].customProperties", "unknown table {order}", "Did you mean 'orders'?",
    ),
    "braces in derive": (
        lambda c: c["schema"][1]["customProperties"][0].update(value="SELECT '{' FROM {orders}"),
        "schema[1]", "derive: ", "twice",
    ),
    "derive in a circle": (
        lambda c: c["schema"][0].update(customProperties=[{"property": "derive", "value": "SELECT * FROM {totals}"}]),
        "schema", "in a circle: ", "Break the circle",
    ),
    "reference to an unknown table": (
        reference("totals.day", "order.day"),
        "schema[1].relationships", "the set has no table 'order'", "Did you mean 'orders'?",
    ),
    "reference to an unknown column": (
        reference("totals.day", "orders.dya"),
        "schema[1].relationships", "orders has no column 'dya'", "Did you mean 'day'?",
    ),
    "reference of unequal length": (
        reference(["totals.day"], ["orders.day", "orders.id"]),
        "schema[1].relationships[0]", "`to` is orders.day, orders.id", "as many columns",
    ),
    "unknown lineage": (
        column(0, table=1, transformSourceObjects=["orders.dya"]),
        "schema[1].properties[0].transformSourceObjects", "unknown column 'orders.dya'", "table.column",
    ),
    "share of an unknown table": (
        lambda c: c["customProperties"][2]["value"][0].update(tables=["order"]),
        "customProperties[2].value[0].tables[0]", "no table 'order'", "Did you mean 'orders'?",
    ),
    "share entry twice": (
        lambda c: c["customProperties"][2]["value"][0].update(tables=["orders", {"table": "totals", "name": "ORDERS"}]),
        "customProperties", "shop.sales.orders is given 2 times", "another name",
    ),
    "unknown client": (
        promised(["python-parket"]),
        "schema[0].customProperties", "serveableTo: orders cannot be promised to 'python-parket'",
        "Known for iceberg tables are: python-parquet, python-delta, spark, iceberg-rest.",
    ),
    "a client that no state of a table decides": (
        promised(["directory"]),
        "schema[0].customProperties", "orders cannot be promised to 'directory'", "allowed by hand",
    ),
    "a client that reads another format": (
        lambda c: (c["servers"][0].update(format="delta"), promised(["iceberg-rest"])(c)),
        "schema[0].customProperties", "orders cannot be promised to 'iceberg-rest'",
        "Known for delta tables are: python-parquet, python-delta, spark.",
    ),
    "promised to nobody": (
        promised([]), "schema[0].customProperties[1].value.clients", "cannot be a list", "at least 1 item",
    ),
    "promised without clients": (
        promised({"severity": "warning"}), "schema[0].customProperties[1].value.clients", "is missing", "Add it",
    ),
    "unknown word of a promise": (
        promised({"clients": ["spark"], "rewrites": False}),
        "schema[0].customProperties[1].value.rewrites", "unknown field 'rewrites'", "Did you mean 'rewrite'?",
    ),
    "unknown severity of a promise": (
        promised({"clients": ["spark"], "severity": "block"}),
        "schema[0].customProperties[1].value.severity", "cannot be 'block'", "Use 'error' or 'warning'",
    ),
    "unknown write mode": (
        written("upsert"), "schema[0].customProperties[1].value.mode", "cannot be 'upsert'", "merge",
    ),
    "unknown field of a write mode": (
        written({"mode": "merge", "order": "day"}),
        "schema[0].customProperties[1].value.order", "unknown field 'order'", "",
    ),
    "merge without a key": (
        lambda c: (column(1, primaryKey=False)(c), written("merge")(c)),
        "schema[0].customProperties.write.mode", "merge needs a primary key", "primaryKey",
    ),
    "merge by an unknown sequence": (
        written({"mode": "merge", "sequence": "amuont"}),
        "schema[0].customProperties.write.sequence", "orders has no column 'amuont'", "Did you mean 'amount'?",
    ),
    "merge by its own key": (
        written({"mode": "merge", "sequence": "id"}),
        "schema[0].customProperties.write.sequence", "'id' is part of the key", "that is not",
    ),
    "append with a sequence": (
        written({"mode": "append", "sequence": "day"}),
        "schema[0].customProperties.write.sequence", "append uses no sequence", "merge or scd2",
    ),
    "replaced with a delete condition": (
        written({"mode": "replace", "deleteWhen": "amount < 0"}),
        "schema[0].customProperties.write.deleteWhen", "replace uses no deleteWhen", "merge or scd2",
    ),
    "delete condition over other tables": (
        written({"mode": "merge", "deleteWhen": "id IN (SELECT id FROM gone)"}),
        "schema[0].customProperties.write.deleteWhen", "deleteWhen cannot ask other tables", "columns of orders",
    ),
    "delete condition that changes by itself": (
        written({"mode": "merge", "deleteWhen": "day < current_date()"}),
        "schema[0].customProperties.write.deleteWhen", "calls current_date", "columns of the row",
    ),
    "versions without a sequence": (
        written("scd2"), "schema[0].customProperties.write", "scd2 needs a sequence", "date or timestamp",
    ),
    "versions by a number": (
        written({"mode": "scd2", "sequence": "amount"}),
        "schema[0].customProperties.write.sequence", "order versions by 'amount', of type double", "date or timestamp",
    ),
    "a column that versions have": (
        lambda c: (column(2, name="valid_to")(c), written({"mode": "scd2", "sequence": "day"})(c)),
        "schema[0].properties", "the column 'valid_to' is given 2 times", "differ",
    ),
    "a derived table that is merged": (
        lambda c: (column(0, table=1, primaryKey=True)(c), written("merge", table=1)(c)),
        "schema[1].customProperties.write", "merge needs deliveries, and totals is computed", "replace",
    ),
    "a derived table by day of one that is not": (
        written("append"), "schema[1].customProperties.write", "orders is not written by days", "write: replace",
    ),
    "owner that Dagster refuses": (
        lambda c: c.update(team={"members": [{"username": "the lake team", "role": "owner"}]}),
        "team.members[0].username", "neither person nor team", "e-mail",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_with_file_place_and_remedy(tmp_path: Path, name: str) -> None:
    spoil, place, problem, hint = FAULTS[name]
    with pytest.raises(ContractError) as caught:
        load(tmp_path, spoil)
    errors = [caught.value, *caught.value.also]
    fitting = [error for error in errors if error.field == place and problem in error.problem]
    assert fitting, [str(error) for error in errors]
    assert hint in fitting[0].hint
    assert str(tmp_path / "shop.yaml") in str(caught.value)


def test_all_faults_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    def spoil(contract: dict[str, Any]) -> None:
        of_amount(rule("expect_nothing"))(contract)
        contract["schema"][1]["customProperties"][0]["value"] = "SELECT * FROM {order}"
        contract["customProperties"].append({"property": "colour", "value": "blue"})

    with pytest.raises(ContractError) as caught:
        load(tmp_path, spoil)
    assert len(caught.value.also) == 2
    assert str(caught.value).count(str(tmp_path / "shop.yaml")) == 3


def test_a_property_of_another_tool_is_left_alone(tmp_path: Path) -> None:
    load(tmp_path, lambda c: c["customProperties"].append({"property": "acme.costCentre", "value": 7}))


def test_a_property_of_ours_is_no_field_of_its_element(tmp_path: Path) -> None:
    for name in ("derive", "customProperties.derive", "isWanted", "derive_"):
        with pytest.raises(ContractError) as caught:
            load(tmp_path, lambda c, name=name: c["schema"][0].update({name: "SELECT 1"}))  # type: ignore[misc]
        assert name in str(caught.value)


def test_faults_of_a_property_and_of_the_element_with_it_are_found(tmp_path: Path) -> None:
    """Two values for a property, both wrong, a wrong field, and a property of each table: each has its line."""

    def spoil(c: dict[str, Any]) -> None:
        c["customProperties"] += [
            {"property": "schedule", "value": "soon"},
            {"property": "schedule", "value": 5},
        ]
        of_orders({"type": "sql", "name": "r", "query": "SELECT 1"})(c)

    with pytest.raises(ContractError) as caught:
        load(tmp_path, spoil)
    errors = [caught.value, *caught.value.also]
    twice, value = "customProperties[4].property", "customProperties[3].value"
    assert [error.field for error in errors] == [twice, value, "schema[0].quality.r"]
    assert len({error.line for error in errors}) == 3
    column(1, requierd=True)(contract := copy.deepcopy(SOUND))
    promised("spark")(contract)
    written("merged", table=1)(contract)
    spoil(contract)
    with pytest.raises(ContractError) as caught:
        load(tmp_path, lambda c: c.update(contract))
    fields = {error.field for error in (caught.value, *caught.value.also)}
    of_tables = {"schema[0].customProperties[1].value", "schema[1].customProperties[1].value.mode"}
    assert fields == {value, "schema[0].properties[1].requierd", *of_tables}


def test_fields_of_the_standard_that_nothing_uses_are_left_alone(tmp_path: Path) -> None:
    load(
        tmp_path,
        lambda c: c.update(tenant="acme", slaProperties=[{"property": "latency", "value": 4}], tags=["a"]),
    )


def test_the_team_of_standard_version_3_0_is_read_too(tmp_path: Path) -> None:
    members = [
        {"username": "ann@example.com", "role": "Owner"},
        {"username": "bob@example.com", "role": "steward"},
    ]
    assert load(tmp_path, lambda c: c.update(team=members)).owners == ("ann@example.com",)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (b"id: x\nname: {a: b: c}\n", 2, "did not find expected"),
        (b"name: a\nname: b\n", 2, "'name' is given twice, first in line 1"),
        (b"- a\n- b\n", 1, "is not a mapping"),
        (b"id: x\nname: caf\xe9\n", 2, "cannot be read"),
        (b"", 1, "is not a mapping"),
        (b"id: x\nno: 1\n", 2, "the key 'no' is no text to YAML"),
    ],
)
def test_what_is_no_yaml_mapping_is_refused_with_its_place(
    tmp_path: Path, text: bytes, line: int, problem: str
) -> None:
    path = tmp_path / "shop.yaml"
    path.write_bytes(text)
    with pytest.raises(ContractError) as caught:
        load_contract(path)
    assert str(caught.value).startswith(f"{path}:{line}: the file: ")
    assert problem in caught.value.problem


def test_a_file_or_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    for load_it, path in (
        (load_contract, tmp_path / "no.yaml"),
        (load_contracts, tmp_path / "no"),
        (load_contracts, tmp_path),
    ):
        with pytest.raises(ContractError, match=str(path)):
            load_it(path)


@pytest.mark.parametrize(
    ("changed", "claim"), [({}, "set 'shop'"), ({"name": "stall"}, "share entry 'shop.sales.orders'")]
)
def test_two_files_cannot_claim_the_same_name(tmp_path: Path, changed: dict[str, str], claim: str) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(SOUND))
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(SOUND | changed))
    with pytest.raises(ContractError, match=r"a\.yaml's already") as caught:
        load_contracts(tmp_path)
    assert claim in caught.value.problem
    assert (
        caught.value.line
        == (tmp_path / "b.yaml").read_text().splitlines().index(f"name: {(SOUND | changed)['name']}") + 1
    )


def test_a_place_in_a_loaded_contract_has_its_line_while_the_file_is_the_same(tmp_path: Path) -> None:
    contract = load(tmp_path)
    lines = contract.path.read_text().splitlines()
    where = ("schema", "totals", "properties", "day", "logicalType")
    assert find_line(contract, *where) == len(lines) - lines[::-1].index("    logicalType: date")
    contract.path.write_text("id: another\n")
    assert find_line(contract, *where) is None
    contract.path.unlink()
    assert find_line(contract, *where) is None


def test_a_table_with_versions_has_their_columns_and_a_key_of_its_own(tmp_path: Path) -> None:
    def spoil(c: dict[str, Any]) -> None:
        written({"mode": "scd2", "sequence": "day", "deleteWhen": " amount < 0 "})(c)
        column(0, partitioned=False)(c)
        written("replace", table=1)(c)

    contract = load(tmp_path, spoil)
    orders = contract.table("orders")
    assert orders.write.delete_when == "amount < 0"
    assert [column.name for column in orders.columns[3:]] == ["valid_from", "valid_to", "is_current"]
    assert [column.type for column in orders.columns[3:]] == ["date", "date", "boolean"]
    assert (orders.merge_key, orders.primary_key) == (("id",), ("id", "valid_from"))
    assert "expect_compound_columns_to_be_unique__id_valid_from" in {rule.name for rule in orders.rules}
    assert not contract.is_by_partition(orders)
    assert [contract.is_replaced(table) for table in contract.tables] == [False, True]
