"""Inputs are resolved when contracts load: unknown ones, cycles and sets that nothing starts are refused."""

from pathlib import Path

import pytest
import yaml

from lakeshare_pipelines.contracts import SetContract, load_contract, load_contracts
from lakeshare_pipelines.contracts.model import Input, describe
from lakeshare_pipelines.demo.processes import deliver
from lakeshare_pipelines.errors import ContractError, DeliveryError
from lakeshare_pipelines.settings import LakeSettings

DAY = {"name": "day", "logicalType": "date", "partitioned": True}


def write(folder: Path, name: str, *, daily: object = False, **properties: object) -> Path:
    """A set with the table `t`; `daily` is true or its partitioning, `properties` are customProperties of the table."""
    table = {
        "name": "t",
        "customProperties": [{"property": key, "value": value} for key, value in properties.items()],
        "properties": [DAY, {"name": "n", "logicalType": "integer"}],
    }
    kind = "daily" if daily is True else daily
    extras = {"partitioning": kind, "firstPartition": "2024-01-01"} if daily else {}
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


def test_the_column_lineage_of_a_derived_column_may_name_an_input(tmp_path):
    path = write(tmp_path, "gold", derive="SELECT * FROM {raw}", inputs=["bronze.raw"])
    document = yaml.safe_load(path.read_text())
    document["schema"][0]["properties"][1]["transformSourceObjects"] = ["bronze.raw.n"]
    path.write_text(yaml.safe_dump(document))

    assert load_contract(path).tables[0].column("n").lineage == ("bronze.raw.n",)


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
