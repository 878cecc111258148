"""The forms that Avro allows and few writers use: arrays in several blocks, unions in any order, fields without ids."""

import json
from typing import Any

import pytest

from lakeshare_server.tables.iceberg.avro import AvroBlocks, AvroError, Entries, unpack_longs

STATUS = {"name": "status", "type": "int", "field-id": 0}


def pairs(value: Any) -> dict[str, Any]:
    members = [{"name": "key", "type": "int"}, {"name": "value", "type": value}]
    return {"type": "array", "items": {"type": "record", "name": "r", "fields": members}}


def entries_of(fields: list[dict[str, Any]], content: bytes, count: int = 1) -> Entries:
    schema = json.dumps({"type": "record", "name": "manifest_entry", "fields": fields}).encode()
    entries = Entries()
    entries.read(AvroBlocks(schema, {}, [(count, content)]), 0)
    return entries


def test_an_array_in_several_blocks_is_one_array() -> None:
    """Avro spec, "Arrays": a block with a negative count says its size in bytes too"""
    fields = [{"name": "null_value_counts", "type": pairs("long"), "field-id": 110}, STATUS]
    one, two = bytes([2, 2, 4]), bytes([3, 10, 4, 0x80, 0x01, 6, 10])
    entries = entries_of(fields, one + two + bytes([0, 2]))
    [packed] = entries.columns["null_counts"]
    assert (unpack_longs(packed), entries.columns["status"]) == ([1, 2, 2, 64, 3, 5], [1])


@pytest.mark.parametrize("blocks", [bytes([1, 4, 2, 8, 0]), bytes([2, 2, 8, 0]), bytes([0])])
def test_arrays_that_nobody_asks_for_are_passed_over(blocks: bytes) -> None:
    fields = [{"name": "column_sizes", "type": ["null", pairs("long")], "field-id": 108}, STATUS]
    assert entries_of(fields, b"\x02" + blocks + b"\x04").columns["status"] == [2]


def test_bounds_come_in_several_blocks_with_ids_and_values_of_any_length() -> None:
    fields = [{"name": "lower_bounds", "type": ["null", pairs("bytes")], "field-id": 125}, STATUS]
    long_value = bytes(range(100))
    content = (
        b"\x02" + b"\x02" + b"\x06\x02a" + b"\x02" + b"\x80\x10" + b"\xc8\x01" + long_value + b"\x00\x02"
    )
    entries = entries_of(fields, content)
    assert entries.lower == {3: [b"a"], 1024: [long_value]}


def test_unions_may_have_null_last_or_more_types() -> None:
    fields = [
        {"name": "snapshot_id", "type": ["long", "null"], "field-id": 1},
        {"name": "other", "type": ["long", "null", "string"], "field-id": 9000},
        STATUS,
    ]
    entries = entries_of(fields, bytes([0, 14, 4, 4]) + b"ab" + bytes([2]) + bytes([2, 0, 8, 0]), count=2)
    assert (entries.columns["snapshot_id"], entries.columns["status"]) == ([7, None], [1, 0])


def test_every_type_that_nobody_asks_for_is_passed_over() -> None:
    inner = {
        "type": "record",
        "name": "n",
        "fields": [{"name": "a", "type": "double"}, {"name": "b", "type": "boolean"}],
    }
    kinds: list[tuple[Any, bytes]] = [
        (inner, bytes(9)),
        ({"type": "fixed", "name": "f", "size": 3}, bytes(3)),
        ({"type": "map", "values": "string"}, bytes([2, 2]) + b"k" + bytes([4]) + b"vv" + bytes([0])),
        ({"type": "array", "items": "string"}, bytes([4, 2]) + b"a" + bytes([2]) + b"b" + bytes([0])),
        ({"type": "enum", "name": "e", "symbols": ["x"]}, bytes([0])),
        ("float", bytes(4)),
        ("null", b""),
    ]
    for kind, content in kinds:
        fields = [{"name": "other", "type": kind, "field-id": 9000}, STATUS]
        assert entries_of(fields, content + b"\x02").columns["status"] == [1], kind


def test_a_named_type_is_written_once_and_named_after_that() -> None:
    """Avro spec, "Names": as writers do for two partition fields of one decimal type, or of UUIDs"""
    amount = {"type": "fixed", "name": "decimal_10_2", "size": 5, "logicalType": "decimal", "precision": 10}
    members = [
        {"name": "net", "type": ["null", amount], "field-id": 1000},
        {"name": "gross", "type": ["null", "decimal_10_2"], "field-id": 1001},
    ]
    partition = {"type": "record", "name": "r102", "fields": members}
    data_file = [{"name": "partition", "type": partition, "field-id": 102}]
    of_files = {"type": "record", "name": "r2", "fields": data_file}
    fields = [{"name": "data_file", "type": of_files, "field-id": 2}, STATUS]
    content = b"\x02" + bytes([0, 0, 0, 0, 1]) + b"\x02" + bytes([0, 0, 0, 0, 2]) + b"\x02"
    entries = entries_of(fields, content)
    assert entries.partition == {(0, 1000): [bytes([0, 0, 0, 0, 1])], (0, 1001): [bytes([0, 0, 0, 0, 2])]}
    assert set(entries.partition_kinds.values()) == {"fixed"}


@pytest.mark.parametrize("other", ["f", "org.made.f"])
def test_names_are_found_in_the_namespace_around_them(other: str) -> None:
    fixed = {"type": "fixed", "name": "f", "size": 3}
    members = [{"name": "a", "type": fixed}, {"name": "b", "type": {"type": "array", "items": other}}]
    inner = {"type": "record", "name": "n", "namespace": "org.made", "fields": members}
    fields = [{"name": "other", "type": inner, "field-id": 9000}, STATUS]
    assert entries_of(fields, bytes(3) + b"\x02abc\x00" + b"\x02").columns["status"] == [1]


def test_a_type_in_itself_or_nowhere_is_an_error_and_so_is_a_record_that_is_named_again() -> None:
    members = [{"name": "next", "type": ["null", "n"]}]
    empty = {"type": "record", "name": "n", "fields": []}
    twice = {
        "type": "record",
        "name": "m",
        "fields": [{"name": "a", "type": empty}, {"name": "b", "type": "n"}],
    }
    for kind in ({"type": "record", "name": "n", "fields": members}, "nowhere", twice):
        with pytest.raises(AvroError, match=r"its schema has the type (n|nowhere)"):
            entries_of([{"name": "other", "type": kind, "field-id": 9000}, STATUS], b"\x00\x02")


def test_fields_without_ids_are_known_by_their_names() -> None:
    entries = entries_of(
        [{"name": "status", "type": "int"}, {"name": "file_path", "type": "string"}], b"\x02\x02a"
    )
    assert (entries.columns["status"], entries.columns["path"]) == ([1], [b"a"])


@pytest.mark.parametrize("content", [b"", b"\x80", b"\x02\x02", b"\x02\x01", b"\x02\x04a"])
def test_an_entry_that_is_not_whole_is_an_error(content: bytes) -> None:
    with pytest.raises(AvroError):
        entries_of([STATUS, {"name": "file_path", "type": "string", "field-id": 100}], content)


@pytest.mark.parametrize(
    "schema", [b"", b"[]", b'"int"', b'{"type": "record"}', b'{"fields": [{"type": "int"}]}']
)
def test_a_schema_that_is_none_of_a_manifest_is_an_error(schema: bytes) -> None:
    with pytest.raises(AvroError):
        Entries().read(AvroBlocks(schema, {}, [(1, b"\x02")]), 0)
