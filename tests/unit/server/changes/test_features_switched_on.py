"""A range in which features are switched on has one protocol that covers all of it, or the protocol's history."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import delta_sharing
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders.deletion_vector import inline_descriptor
from tests.builders.hostile.served import quietly
from tests.builders.sharing import Provider, Running, a_provider, a_server, lines
from tests.builders.written_log import FEED, SCHEMA, Action, WrittenLog, add, metadata, protocol, remove

ALL = "deletionvectors,columnmapping,timestampntz,typewidening,varianttype"
DELTA = {"delta-sharing-capabilities": f"responseformat=delta;readerfeatures={ALL}"}
LEGACY = protocol(1, 4)
MAPPED = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}


def a_mapped_schema() -> Action:
    """The schema with physical names as they are after an upgrade: those of the columns."""
    fields = [
        {
            **one,
            "metadata": {"delta.columnMapping.id": place, "delta.columnMapping.physicalName": one["name"]},
        }
        for place, one in enumerate(SCHEMA["fields"], 1)
    ]
    return {**SCHEMA, "fields": fields}


def named(*features: str) -> Action:
    """A protocol of table features with those that a feed needs, and these."""
    readers = ("deletionVectors", "columnMapping", "timestampNtz", "typeWidening")
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": [feature for feature in features if feature in readers],
            "writerFeatures": ["changeDataFeed", "appendOnly", "invariants", *features],
        }
    }


IN_USE = {
    "delta.enableDeletionVectors": "deletionVectors",
    "delta.enableRowTracking": "rowTracking",
    "delta.enableChangeDataFeed": "changeDataFeed",
    "delta.enableTypeWidening": "typeWidening",
    "delta.columnMapping.mode": "columnMapping",
    "delta.enableIcebergCompatV2": "icebergCompatV2",
}
"""What delta-spark wants to find in a protocol of table features when the metadata has the property."""
# name: the protocol before, the protocol after, the properties after
SWITCHED: dict[str, tuple[Action, Action, dict[str, str]]] = {
    "deletion vectors": (LEGACY, named("deletionVectors"), {"delta.enableDeletionVectors": "true"}),
    "mapping, legacy": (LEGACY, protocol(2, 5), MAPPED),
    "mapping": (LEGACY, named("columnMapping"), MAPPED),
    "mapping of reader 2": (
        LEGACY,
        {
            "protocol": {
                "minReaderVersion": 2,
                "minWriterVersion": 7,
                "writerFeatures": ["changeDataFeed", "columnMapping", "icebergCompatV2"],
            }
        },
        {**MAPPED, "delta.enableIcebergCompatV2": "true"},
    ),
    "vectors behind mapping": (
        protocol(2, 5),
        named("columnMapping", "deletionVectors"),
        {**MAPPED, "delta.enableDeletionVectors": "true"},
    ),
    "type widening": (LEGACY, named("typeWidening"), {"delta.enableTypeWidening": "true"}),
    "row tracking": (LEGACY, named("rowTracking", "domainMetadata"), {"delta.enableRowTracking": "true"}),
}


def switched_table(folder: Path, name: str) -> WrittenLog:
    """Rows, then the switch, then a delete of the second row and more rows."""
    before, after, properties = SWITCHED[name]
    log = WrittenLog(folder)
    was_mapped = before == protocol(2, 5)
    configuration = {**FEED, **(MAPPED if was_mapped else {})}
    schema = a_mapped_schema() if was_mapped else SCHEMA
    log.commit(before, metadata(configuration, partitions=(), schema=schema))
    file = folder / "1.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3], "p": ["a", "b", "c"]}), file)
    told = {"partitionValues": {}, "size": file.stat().st_size, "stats": '{"numRecords":3}'}
    tracked = (
        {"baseRowId": 0, "defaultRowCommitVersion": 1} if "delta.enableRowTracking" in properties else {}
    )
    log.commit(add(file.name, **told, **tracked))
    is_mapped = "delta.columnMapping.mode" in properties
    schema = a_mapped_schema() if is_mapped else SCHEMA
    log.commit(after, metadata({**FEED, **properties}, partitions=(), schema=schema))
    if "delta.enableDeletionVectors" in properties:
        vector = {"deletionVector": inline_descriptor([1])}
        log.commit(remove(file.name, partitionValues={}, size=told["size"]), add(file.name, **told, **vector))
    else:
        log.commit(remove(file.name, partitionValues={}, size=told["size"], **tracked))
    return log


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    folder = tmp_path_factory.mktemp("switched")
    provider = a_provider(folder)
    tables = {name: f"lake.{name.replace(' ', '_').replace(',', '')}" for name in SWITCHED}
    for name, table in tables.items():
        provider.follow(table, switched_table(folder / table, name).location, 3600.0)
    provider.share(*tables.values(), share="s")
    return provider


@pytest.fixture(scope="module")
def running(provider: Provider) -> Iterator[Running]:
    with a_server(provider) as server:
        yield server


@pytest.fixture(scope="module")
def token(provider: Provider) -> str:
    return provider.recipient(shares=("s",))


@pytest.fixture(scope="module")
def client(running: Running, token: str) -> Iterator[httpx.Client]:
    with running.client(token) as opened:
        yield opened


def table_of(name: str) -> str:
    return f"/shares/s/schemas/lake/tables/{name.replace(' ', '_').replace(',', '')}"


def asked(client: httpx.Client, name: str, kind: str, **more: Any) -> list[Action]:
    """The lines of the changes from the first version on."""
    if kind == "query":
        answer = client.post(f"{table_of(name)}/query", json={"startingVersion": 0, **more}, headers=DELTA)
    else:
        params = {"startingVersion": 0, **{key: str(value) for key, value in more.items()}}
        answer = client.get(f"{table_of(name)}/changes", params=params, headers=DELTA)
    assert answer.status_code == 200, answer.text
    return lines(answer)


ASKED = [("query", {}), ("changes", {}), ("changes", {"includeHistoricalMetadata": True})]


@pytest.mark.parametrize(("kind", "more"), ASKED)
@pytest.mark.parametrize("name", SWITCHED)
def test_one_protocol_covers_the_range(
    client: httpx.Client, name: str, kind: str, more: dict[str, Any]
) -> None:
    found = asked(client, name, kind, **more)
    told = [one["protocol"]["deltaProtocol"] for one in found if "protocol" in one]
    [announced] = told
    used = {
        IN_USE[key]
        for one in found
        if "metaData" in one
        for key, value in one["metaData"]["deltaMetadata"]["configuration"].items()
        if key in IN_USE and value != "false"
    }
    assert used >= {IN_USE[key] for key in SWITCHED[name][2] if key in IN_USE}
    if announced["minWriterVersion"] == 7:
        assert used <= set(announced["writerFeatures"])
    else:
        assert announced["minWriterVersion"] >= 5
    readers = used & {"deletionVectors", "columnMapping", "typeWidening"}
    if announced["minReaderVersion"] == 3:
        assert readers <= set(announced["readerFeatures"]) <= set(announced["writerFeatures"])
    else:
        assert announced["minReaderVersion"] >= (2 if "columnMapping" in readers else 1)
        assert readers <= {"columnMapping"}


@pytest.mark.parametrize("kind", ["query", "changes"])
@pytest.mark.parametrize("name", SWITCHED)
def test_the_history_of_the_protocol_is_told_as_it_was(client: httpx.Client, name: str, kind: str) -> None:
    history = {"includeHistoricalProtocol": True, "includeHistoricalMetadata": True}
    found = [one["protocol"] for one in asked(client, name, kind, **history) if "protocol" in one]
    assert [one["version"] for one in found] == [0, 2]
    before, after, _ = SWITCHED[name]
    for told, logged in zip(found, (before, after), strict=True):
        for key, value in logged["protocol"].items():
            if isinstance(value, list):
                assert set(told["deltaProtocol"][key]) == set(value)
            else:
                assert told["deltaProtocol"][key] == value


def test_the_official_client_reads_a_range_in_which_vectors_are_switched_on(
    running: Running, token: str
) -> None:
    url = f"{running.profile(token)}#s.lake.deletion_vectors"
    frame = quietly(
        delta_sharing.load_table_changes_as_pandas, url, starting_version=0, use_delta_format=True
    )
    found = sorted(zip(frame["_commit_version"], frame["id"], frame["_change_type"], strict=True))
    assert found == [(1, 1, "insert"), (1, 2, "insert"), (1, 3, "insert"), (3, 2, "delete")]


@pytest.mark.parametrize(("kind", "more"), ASKED)
def test_parquet_is_refused_for_the_whole_range(
    client: httpx.Client, kind: str, more: dict[str, Any]
) -> None:
    table = table_of("deletion vectors")
    if kind == "query":
        answer = client.post(f"{table}/query", json={"startingVersion": 0, **more})
    else:
        params = {"startingVersion": 0, **{key: str(value) for key, value in more.items()}}
        answer = client.get(f"{table}/changes", params=params)
    assert answer.status_code == 400
    assert "deletionvectors" in json.dumps(answer.json())
