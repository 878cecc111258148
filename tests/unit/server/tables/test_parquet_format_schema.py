"""The schema of the parquet format keeps what changes how a client compares or casts, and no other metadata."""

import json
from pathlib import Path
from typing import Any

import pytest

from lakeshare_server.tables.snapshot import parquet_format_schema
from tests.builders.sharing import FLIGHTS, a_provider, a_server, lines
from tests.builders.written_log import WrittenLog, metadata, protocol

KEPT: dict[str, dict[str, Any]] = {
    "comment": {"comment": "of a column"},
    "char": {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"},
    "varchar": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(4)"},
    "collation": {"__COLLATIONS": {"c": "spark.UTF8_LCASE"}},
}
# They matter to writers, or to readers of the delta format, which get the whole schema.
DROPPED: dict[str, dict[str, Any]] = {
    "identity": {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.highWaterMark": 9},
    "generated": {"delta.generationExpression": "year(day)"},
    "default": {"CURRENT_DEFAULT": "'x'", "EXISTS_DEFAULT": "'x'"},
    "invariant": {"delta.invariants": '{"expression":{"expression":"c > 0"}}'},
    "mapping": {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"},
    "the provider's own": {"owner": "a@b.c", "pii": True},
}


def a_column(metadata: dict[str, Any], kind: Any = "string") -> dict[str, Any]:
    return {"name": "c", "type": kind, "nullable": True, "metadata": metadata}


def sent(column: dict[str, Any]) -> dict[str, Any]:
    schema = json.loads(parquet_format_schema(json.dumps({"type": "struct", "fields": [column]})))
    found: dict[str, Any] = schema["fields"][0]
    return found


@pytest.mark.parametrize("name", KEPT)
def test_what_changes_comparisons_is_kept(name: str) -> None:
    for column in (
        a_column(KEPT[name]),
        a_column(KEPT[name], {"type": "array", "elementType": "string", "containsNull": True}),
    ):
        assert sent(column) == column
    inner = {"type": "struct", "fields": [a_column(KEPT[name])]}
    assert sent(a_column({}, inner)) == a_column({}, inner)


@pytest.mark.parametrize("name", DROPPED)
def test_what_changes_none_is_not_told(name: str) -> None:
    assert sent(a_column(DROPPED[name])) == a_column({})
    assert sent(a_column({**DROPPED[name], **KEPT["char"]})) == a_column(KEPT["char"])


def test_recipients_get_the_length_of_a_char_column_in_both_formats(tmp_path: Path) -> None:
    provider = a_provider(tmp_path)
    log = WrittenLog(tmp_path / "table")
    schema = {
        "type": "struct",
        "fields": [a_column(KEPT["char"]), {**a_column(KEPT["varchar"]), "name": "v"}],
    }
    log.commit(protocol(), metadata(partitions=(), schema=schema))
    provider.follow("lake.flights", log.location)
    provider.share("lake.flights")
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        told = [
            lines(answer)[1]["metaData"]
            for answer in (
                client.get(f"{FLIGHTS}/metadata"),
                client.post(f"{FLIGHTS}/query", json={}),
                client.post(f"{FLIGHTS}/query", json={"startingVersion": 0}),
                client.get(f"{FLIGHTS}/changes", params={"startingVersion": 0}),
                client.get(
                    f"{FLIGHTS}/metadata", headers={"delta-sharing-capabilities": "responseformat=delta"}
                ),
            )
        ]
    for metadata_line in told:
        head = metadata_line.get("deltaMetadata", metadata_line)
        assert json.loads(head["schemaString"])["fields"] == schema["fields"]
