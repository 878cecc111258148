"""Metadata is put together from named parts: what the format does not need, or will bring one day, stays."""

import json
from copy import deepcopy
from typing import Any

import pytest

from lakeshare_server.errors import Unserveable
from lakeshare_server.iceberg_rest.metadata import field_ids, published_metadata
from lakeshare_server.versions import PinnedSnapshot, Version

POINT = {
    "type": "struct",
    "fields": [
        {"id": 5, "name": "x", "required": False, "type": "double"},
        {
            "id": 6,
            "name": "tags",
            "required": False,
            "type": {"type": "list", "element-id": 7, "element": "string", "element-required": False},
        },
    ],
}
FIRST = {
    "schema-id": 0,
    "type": "struct",
    "fields": [{"id": 1, "name": "day", "required": True, "type": "date"}],
}
LATER = {
    **FIRST,
    "schema-id": 1,
    "fields": [*FIRST["fields"], {"id": 2, "name": "at", "required": False, "type": POINT}],
}
SPECS = [
    {"spec-id": 0, "fields": []},
    {"spec-id": 1, "fields": [{"source-id": 1, "field-id": 1000, "transform": "day", "name": "day_day"}]},
]


def a_snapshot(number: int, **more: Any) -> dict[str, Any]:
    return {
        "snapshot-id": number, "sequence-number": number, "timestamp-ms": 1000 + number, "schema-id": 0,
        "manifest-list": f"s3://lake/t/metadata/snap-{number}.avro", "parent-snapshot-id": number - 1,
        "summary": {"operation": "append", "added-records": "3"}, **more,
    }  # fmt: skip


def metadata(*snapshots: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "format-version": 2, "table-uuid": "u", "location": "s3://lake/t", "last-sequence-number": 99,
        "last-updated-ms": 5, "last-column-id": 7, "last-partition-id": 1000, "schemas": [FIRST, LATER],
        "current-schema-id": 0, "partition-specs": SPECS, "default-spec-id": 1, "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}], "current-snapshot-id": snapshots[-1]["snapshot-id"],
        "snapshots": list(snapshots), **more,
    }  # fmt: skip


def pins(*numbers: int, files: str = "m") -> list[PinnedSnapshot]:
    return [
        PinnedSnapshot(Version(place, 2000 + place), files[min(place, len(files) - 1)], number)
        for place, number in enumerate(numbers)
    ]


def told(files: dict[str, Any], asked: list[PinnedSnapshot], specs: set[int] | None = None) -> dict[str, Any]:
    before = deepcopy(files)
    made = published_metadata(asked, files.get, lambda _: {1} if specs is None else specs)
    assert files == before
    return made


def test_what_is_not_named_stays() -> None:
    hidden = {"unheard-of": "secret", "encryption-keys": ["secret"], "statistics": [{"at": "secret"}]}
    snapshot = a_snapshot(2, **{"key-of-tomorrow": "secret"})
    snapshot["summary"] |= {"spark.app.id": "secret", "added-files-size": "secret", "total-records": "9"}
    made = told({"m": metadata(snapshot, **hidden)}, pins(2))
    assert "secret" not in json.dumps(made)
    assert made["snapshots"][0]["summary"] == {
        "operation": "append",
        "added-records": "3",
        "total-records": "9",
    }
    assert made["last-sequence-number"] == 2
    assert made["last-updated-ms"] == 2000


def test_schemas_and_specs_are_those_that_readers_need() -> None:
    made = told({"m": metadata(a_snapshot(2))}, pins(2), {0})
    assert (made["schemas"], made["partition-specs"], made["default-spec-id"]) == ([FIRST], SPECS[:1], 0)
    newer = metadata(a_snapshot(1), a_snapshot(2, **{"schema-id": 1}), **{"current-schema-id": 1})
    assert told({"m": newer}, pins(1))["current-schema-id"] == 0
    assert told({"m": newer}, pins(1, 2))["schemas"] == [FIRST, LATER]


def test_names_of_files_without_ids_are_told_for_the_columns_that_readers_get() -> None:
    names = [
        {"field-id": 1, "names": ["day"]},
        {"field-id": 2, "names": ["at"], "fields": [{"field-id": 5, "names": ["x"]}]},
    ]
    properties = {
        "schema.name-mapping.default": json.dumps(names),
        "write.format.default": "parquet",
        "owner": "me",
    }
    made = told({"m": metadata(a_snapshot(2), properties=properties)}, pins(2))["properties"]
    assert json.loads(made.pop("schema.name-mapping.default")) == names[:1]
    assert made == {"write.format.default": "parquet"}
    assert field_ids([LATER]) == {1, 2, 5, 6, 7}


def test_a_parent_is_told_when_it_is_published_only() -> None:
    files = {"m": metadata(a_snapshot(1), a_snapshot(2), a_snapshot(3))}
    parents = [one.get("parent-snapshot-id") for one in told(files, pins(1, 3))["snapshots"]]
    assert parents == [None, None]
    parents = [one.get("parent-snapshot-id") for one in told(files, pins(2, 3))["snapshots"]]
    assert parents == [None, 2]


def test_earlier_snapshots_come_from_their_own_files_unless_these_contradict_the_newest() -> None:
    newest, older = metadata(a_snapshot(3)), metadata(a_snapshot(1))
    cases: list[tuple[Any, list[int]]] = [
        (older, [1, 3]),
        (None, [3]),
        ({**older, "table-uuid": "another"}, [3]),
        ({**older, "schemas": [{**LATER, "schema-id": 0}]}, [3]),
        ({**older, "partition-specs": [{**SPECS[1], "spec-id": 0}]}, [3]),
    ]
    for found, expected in cases:
        made = told({"o": found, "n": newest}, pins(1, 3, files="on"))
        assert [one["snapshot-id"] for one in made["snapshots"]] == expected
        assert [one["snapshot-id"] for one in made["snapshot-log"]] == expected


def test_sorting_by_a_column_that_nobody_gets_is_not_told() -> None:
    order = {"order-id": 1, "fields": [{"source-id": 5, "transform": "identity", "direction": "asc"}]}
    made = told(
        {"m": metadata(a_snapshot(2), **{"sort-orders": [order], "default-sort-order-id": 1})}, pins(2)
    )
    assert (made["sort-orders"], made["default-sort-order-id"]) == ([{"order-id": 0, "fields": []}], 0)


def test_the_oldest_and_the_newest_format_have_what_they_demand() -> None:
    old = metadata(a_snapshot(2), **{"format-version": 1})
    for name in ("schemas", "partition-specs", "current-schema-id", "default-spec-id", "sort-orders"):
        del old[name]
    made = told({"m": {**old, "schema": FIRST, "partition-spec": SPECS[1]["fields"]}}, pins(2))
    assert (made["schema"]["fields"], made["partition-spec"]) == (FIRST["fields"], SPECS[1]["fields"])
    assert "last-sequence-number" not in made
    rows = {"first-row-id": 10, "added-rows": 5}
    newest = metadata(a_snapshot(1, **rows), a_snapshot(2), **{"format-version": 3, "next-row-id": 40})
    assert told({"m": newest}, pins(1, 2))["next-row-id"] == 15


def test_without_its_own_metadata_the_newest_publication_is_refused() -> None:
    encrypted = metadata(a_snapshot(2, **{"key-id": "k"}))
    for files in ({}, {"m": metadata(a_snapshot(1))}, {"m": encrypted}):
        with pytest.raises(Unserveable, match="Provider:"):
            told(files, pins(2))
