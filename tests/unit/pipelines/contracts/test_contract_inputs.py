"""Inputs are resolved when contracts load: unknown ones, cycles and sets that nothing starts are refused."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from lakeshare_pipelines.contracts import SetContract, load_contract, load_contracts
from lakeshare_pipelines.contracts.model import Input, describe
from lakeshare_pipelines.demo.processes import deliver
from lakeshare_pipelines.errors import ContractError, DeliveryError
from lakeshare_pipelines.settings import LakeSettings

DAY = {"name": "day", "logicalType": "date", "partitioned": True}


def write(folder: Path, name: str, *, daily: bool = False, **properties: object) -> Path:
    """A set with the table `t`, daily or not; `properties` are customProperties of the table."""
    table = {
        "name": "t",
        "customProperties": [{"property": key, "value": value} for key, value in properties.items()],
        "properties": [DAY, {"name": "n", "logicalType": "integer"}],
    }
    extras = {"partitioning": "daily", "firstPartition": "2024-01-01"} if daily else {}
    document = {
        "apiVersion": "v3.1.0",
        "kind": "DataContract",
        "id": name,
        "name": name,
        "version": "1.0.0",
        "status": "active",
        "servers": [{"server": "lake", "type": "local", "format": "iceberg"}],
        "schema": [table],
        "customProperties": [{"property": key, "value": value} for key, value in extras.items()],
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def load(folder: Path) -> dict[str, SetContract]:
    return {contract.name: contract for contract in load_contracts(folder)}


def test_inputs_of_the_set_order_its_tables_and_others_have_their_days(tmp_path):
    write(tmp_path, "raw", daily=True, source="raw")
    write(tmp_path, "names", source="names")
    write(tmp_path, "gold", daily=True, transform="lake.gold:make", inputs=["raw.t", "names.t"])
    write(tmp_path, "sums", derive="SELECT * FROM {t2}", inputs=["raw.t"])
    path = tmp_path / "sums.yaml"
    document = yaml.safe_load(path.read_text())
    document["schema"][0]["customProperties"][0]["value"] = "SELECT * FROM {u}"
    document["schema"][0]["customProperties"][1]["value"] = ["u"]
    properties = [{"property": "transform", "value": "a:b"}, {"property": "inputs", "value": ["raw.t"]}]
    document["schema"].append({**document["schema"][0], "name": "u", "customProperties": properties})
    path.write_text(yaml.safe_dump(document))

    sets = load(tmp_path)

    assert sets["gold"].inputs == (Input("raw.t", "day", "date", sets["raw"].partitioning), Input("names.t"))
    assert not sets["gold"].takes_deliveries
    assert "  is made  daily, from 2024-01-01\n" in describe(sets["gold"])
    with pytest.raises(DeliveryError, match=r"set takes no deliveries\. Deliver what it is made of: raw\.t"):
        deliver(LakeSettings(_env_file=None, state_dir=tmp_path), sets["gold"], partition="2024-01-02")
    assert [(t.name, t.depends_on, t.inputs) for t in sets["sums"].tables] == [
        ("sums.u", (), (Input("raw.t"),)),
        ("sums.t", ("sums.u",), ()),
    ]


FAULTS: dict[str, tuple[dict[str, object], Sequence[str]]] = {
    "a cycle": (
        {"transform": "lake.gold:make", "inputs": ["above.t"]},
        ("inputs: sets read each other in a circle: above → gold → above", "Remove one of these inputs"),
    ),
    "an unknown table": (
        {"transform": "lake.gold:make", "inputs": ["raw.tt"]},
        ("t.inputs: no contract has the table 'raw.tt'", "Did you mean 'raw.t'?"),
    ),
    "no path of a function": (
        {"transform": "make", "inputs": ["raw.t"]},
        ("schema[0].customProperties", "'make'"),
    ),
    "inputs of a delivered table": ({"source": "gold", "inputs": ["raw.t"]}, ("its source cannot read",)),
    "itself": (
        {"transform": "lake.gold:make", "inputs": ["t", "raw.t"]},
        ("tables derive from each other in a circle: t → t",),
    ),
    "nothing that starts it": ({"transform": "lake.gold:make"}, ("neither deliveries nor inputs",)),
    "two tables of one name": (
        {"derive": "SELECT * FROM {t}", "inputs": ["raw.t"]},
        ("{t} in derive is raw.t and another table", "Read them in a transform"),
    ),
    "no days": (
        {"daily": True, "transform": "lake.gold:make", "inputs": ["names.t"]},
        ("none of them is daily", "Add a table of a daily set"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_inputs_that_cannot_be_read_are_refused(tmp_path, fault):
    given, messages = FAULTS[fault]
    write(tmp_path, "raw", daily=True, source="raw")
    write(tmp_path, "names", source="names")
    write(tmp_path, "above", transform="lake.gold:make", inputs=["gold.t"])
    daily = bool(given.get("daily"))
    write(tmp_path, "gold", daily=daily, **{key: value for key, value in given.items() if key != "daily"})

    with pytest.raises(ContractError) as refused:
        load(tmp_path)

    for message in messages:
        assert message in str(refused.value)


def test_the_column_lineage_of_a_derived_column_may_name_an_input(tmp_path):
    path = write(tmp_path, "gold", derive="SELECT * FROM {raw}", inputs=["bronze.raw"])
    document = yaml.safe_load(path.read_text())
    document["schema"][0]["properties"][1]["transformSourceObjects"] = ["bronze.raw.n"]
    path.write_text(yaml.safe_dump(document))

    assert load_contract(path).tables[0].column("n").lineage == ("bronze.raw.n",)


def test_times_of_another_zone_are_refused(tmp_path):
    write(tmp_path, "raw", daily=True, source="raw")
    path = write(tmp_path, "gold", daily=True, transform="lake.gold:make", inputs=["raw.t"])
    document = yaml.safe_load(path.read_text())
    for entry in document["customProperties"]:
        if entry["property"] == "partitioning":
            entry["value"] = {"kind": "daily", "timeZone": "Europe/Berlin"}
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(
        ContractError, match=r"raw\.t has partitions in UTC, the set has them in Europe/Berlin"
    ):
        load(tmp_path)


def test_a_retired_input_is_refused_with_its_successor(tmp_path):
    path = write(tmp_path, "raw", daily=True, source="raw")
    write(tmp_path, "gold", daily=True, transform="lake.gold:make", inputs=["raw.old"])
    document = yaml.safe_load(path.read_text())
    retired = {"table": "old", "date": "2999-01-31", "successor": "t"}
    document["customProperties"].append({"property": "retire", "value": [retired]})
    path.write_text(yaml.safe_dump(document))

    with pytest.raises(ContractError, match=r"Set raw 1\.0\.0 retires it\. Read raw\.t instead\."):
        load(tmp_path)
    assert "retires raw.old, shared until 2999-01-31, then raw.t" in describe(load_contract(path))
