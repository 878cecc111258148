"""The judges that servers are held against in other tests refuse what they are made to refuse, and name the rule."""

import copy
import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest

from tests.builders.canonical import Rows, canonical, same_frame
from tests.builders.deletion_vector import (
    from_z85,
    inline_descriptor,
    inline_positions,
    positions,
    relative_path,
    serialized,
    stored,
    stored_positions,
    to_z85,
)
from tests.builders.protocol_lines import Format, parse_body
from tests.builders.protocol_reader import Answer, ProtocolReader, fetch, joined

# Of when tests are collected; they may run hours later.
NOW_MS = int(time.time() * 1000)
SOON_MS = NOW_MS + 86_400_000
SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "p", "type": "string", "nullable": True, "metadata": {"comment": "kept"}},
    ],
}
METADATA = {
    "id": "t",
    "format": {"provider": "parquet"},
    "schemaString": json.dumps(SCHEMA),
    "partitionColumns": ["p"],
    "configuration": {},
}
URL = "http://h/x?X-Amz-Signature=1"
PARQUET = [
    {"protocol": {"minReaderVersion": 1}},
    {"metaData": METADATA | {"size": 9, "numFiles": 1}},
    {
        "file": {
            "url": URL,
            "id": "a",
            "partitionValues": {"p": None},
            "size": 9,
            "expirationTimestamp": SOON_MS,
        }
    },
    {"endStreamAction": {"minUrlExpirationTimestamp": SOON_MS}},
]
VECTOR = {"storageType": "p", "pathOrInlineDv": URL, "offset": 1, "sizeInBytes": 3, "cardinality": 1}
ADD = {"path": URL, "partitionValues": {"p": "x"}, "size": 9, "modificationTime": 1, "dataChange": True}
DELTA = [
    {
        "protocol": {
            "deltaProtocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["deletionVectors"],
                "writerFeatures": ["deletionVectors", "rowTracking"],
            }
        }
    },
    {"metaData": {"deltaMetadata": METADATA, "size": 9, "numFiles": 1}},
    {
        "file": {
            "id": "a",
            "deletionVectorFileId": "v",
            "deltaSingleAction": {"add": ADD | {"deletionVector": VECTOR}},
        }
    },
]  # fmt: skip
ANSWERS: dict[Format, list[dict[str, Any]]] = {"parquet": PARQUET, "delta": DELTA}


def parsed(fmt: Format, lines: list[dict[str, Any]]) -> object:
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return parse_body(content, fmt, frozenset({"deletionVectors"}))


@pytest.mark.parametrize("fmt", ANSWERS)
def test_a_right_answer_passes(fmt: Format) -> None:
    parsed(fmt, ANSWERS[fmt])


def at(*keys: Any, value: Any) -> Callable[[Any], None]:
    """Set what lies under these keys; `...` as the value takes it away."""

    def change(lines: Any) -> None:
        for key in keys[:-1]:
            lines = lines[key]
        if value is ...:
            del lines[keys[-1]]
        else:
            lines[keys[-1]] = value

    return change


ACTION = (2, "file", "deltaSingleAction", "add")
BROKEN: list[tuple[Format, Callable[[Any], None], str]] = [
    ("parquet", lambda lines: lines.reverse(), "§"),
    ("parquet", lambda lines: lines.insert(2, lines.pop()), "§1.13"),
    ("parquet", at(0, value={"metaData": {}}), "§2: line 1"),
    ("parquet", at(0, "protocol", "minReaderVersion", value=2), "§2.1"),
    ("parquet", at(1, "metaData", "size", value=...), "§0.4"),
    ("parquet", at(1, "metaData", "numFiles", value="1"), "§0.4"),
    ("parquet", at(1, "metaData", "partitionColumns", value=["q"]), "§2.1"),
    ("parquet", at(1, "metaData", "configuration", value={"delta.x": "y"}), "§2.1"),
    (
        "parquet",
        at(1, "metaData", "schemaString", value=json.dumps(SCHEMA).replace("long", "timestamp_ntz")),
        "§2.1",
    ),
    ("parquet", at(1, "metaData", "schemaString", value=json.dumps(SCHEMA).replace("comment", "delta.x")), "§2.1"),
    ("parquet", at(2, "file", "url", value="file:///x"), "§0.3"),
    ("parquet", at(2, "file", "url", value="http://h/x?signature=1"), "§0.2"),
    ("parquet", at(2, "file", "id", value=""), "§2"),
    ("parquet", at(2, "file", "partitionValues", value={}), "§2.1"),
    ("parquet", at(2, "file", "partitionValues", value={"p": 1}), "§2.1"),
    ("parquet", at(2, "file", "expirationTimestamp", value=NOW_MS + 60_000), "§2.7"),
    ("parquet", lambda lines: lines.insert(2, copy.deepcopy(lines[2])), "§2.6"),
    ("parquet", at(2, value={"add": PARQUET[2]["file"]}), "§2.1/§6.2"),
    ("parquet", at(2, value={"file": {}, "more": {}}), "§2: a line holds"),
    ("parquet", at(2, value={"novelty": {}}), "§2.1: an unknown line"),
    ("parquet", at(3, "endStreamAction", value={"errorMessage": "x"}), "§1.13"),
    ("delta", at(0, "protocol", "deltaProtocol", "readerFeatures", value=...), "§2.4"),
    ("delta", at(0, "protocol", "deltaProtocol", "readerFeatures", value=["v2Checkpoint"]), "§2.4"),
    ("delta", at(0, "protocol", "deltaProtocol", "writerFeatures", value=[]), "§2.4"),
    (
        "delta",
        lambda lines: [
            lines[0]["protocol"]["deltaProtocol"][kind].append("variantType")
            for kind in ("readerFeatures", "writerFeatures")
        ],
        "§2.5",
    ),
    ("delta", at(2, "file", "deltaSingleAction", value={"cdf": ADD}), "§2.2"),
    ("delta", at(*ACTION, "modificationTime", value=...), "§2.2"),
    ("delta", at(*ACTION, "deletionVector", "storageType", value="u"), "§0.5"),
    ("delta", at(*ACTION, "deletionVector", "maxRowIndex", value=1), "§2.3"),
    ("delta", at(2, "file", "deletionVectorFileId", value=...), "§0.5"),
    ("delta", at(1, "metaData", "deltaMetadata", "configuration", value={"delta.enableRowTracking": "true"}), "§0.18"),
]  # fmt: skip


@pytest.mark.parametrize(("fmt", "change", "rule"), BROKEN)
def test_a_broken_rule_is_named(fmt: Format, change: Callable[[Any], None], rule: str) -> None:
    lines = copy.deepcopy(ANSWERS[fmt])
    change(lines)
    with pytest.raises(AssertionError, match=f"^{rule}"):
        parsed(fmt, lines)


def test_an_answer_that_was_cut_is_no_answer() -> None:
    content = b"\n".join(json.dumps(line).encode() for line in PARQUET)
    with pytest.raises(AssertionError, match="the last line does not end"):
        parse_body(content, "parquet", frozenset())


def test_z85_is_the_one_of_zeromq() -> None:
    """The vector of its specification (rfc.zeromq.org/spec/32)."""
    assert to_z85(bytes.fromhex("864FD26FB559F75B")) == "HelloWorld"
    assert from_z85("HelloWorld").hex().upper() == "864FD26FB559F75B"


def test_a_relative_vector_names_its_file() -> None:
    """The vector of Delta's protocol, section "Derived Fields" of deletion vectors."""
    name = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert relative_path("ab^-aqEH.-t@S}K{vb[*k^") == f"ab/{name}"


ROWS = {
    "none": [],
    "an array": [0, 7, 65535],
    "a bitset": list(range(0, 60000, 3)),
    "beyond 32 bits": [1, 1 << 33, (1 << 33) + 70000],
    "many containers": [block << 16 for block in range(9)],
}


@pytest.mark.parametrize("case", ROWS)
def test_a_vector_comes_back_as_it_went(case: str) -> None:
    rows = ROWS[case]
    assert positions(serialized(rows)).tolist() == rows
    assert inline_positions(inline_descriptor(rows)).tolist() == rows


def test_runs_are_read() -> None:
    """Two runs, 3 to 5 and 10, as any Roaring library writes them."""
    runs = np.array([3, 2, 10, 0], "<u2").tobytes()
    bitmap = (12347).to_bytes(4, "little") + b"\x01" + np.array([0, 3], "<u2").tobytes() + b"\x02\x00" + runs
    head = serialized([])[:4] + (1).to_bytes(8, "little") + bytes(4)
    assert positions(head + bitmap).tolist() == [3, 4, 5, 10]


def test_several_vectors_share_a_file_and_damage_shows() -> None:
    file, places = stored([[1, 2], [5], range(100)])
    assert [stored_positions(place, file).tolist() for place in places] == [[1, 2], [5], list(range(100))]
    broken = bytearray(file)
    broken[places[1]["offset"] + 10] ^= 1
    with pytest.raises(AssertionError, match="checksum"):
        stored_positions(places[1], bytes(broken))
    with pytest.raises(AssertionError, match="begins with 1"):
        stored_positions(places[0], b"P" + file[1:])
    with pytest.raises(AssertionError, match="rows are deleted"):
        stored_positions(places[0] | {"cardinality": 3}, file)


def an_answer(*files: dict[str, Any], version: int = 3) -> Answer:
    """A parquet answer with these file lines."""
    lines = [PARQUET[0], PARQUET[1], *({"file": PARQUET[2]["file"] | file} for file in files), PARQUET[3]]
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return Answer(version, parse_body(content, "parquet", frozenset()))


def test_pages_are_one_answer_only_when_nothing_differs() -> None:
    """Protocol §0.10 and §1.7."""
    first, second = an_answer({"id": "a"}), an_answer({"id": "b"})
    assert joined([first, second], 1).ids == ["a", "b"]
    other_head = replace(second, body=replace(second.body, head=replace(second.head, raw=(b"", b""))))
    for pages, rule in (
        ([first, other_head], "§0.10: head"),
        ([first, replace(second, version=4)], "§0.10: the version"),
        ([first, first], "§1.7: files on two pages"),
        ([an_answer({"id": "a"}, {"id": "b"})], "§1.7: 2 files"),
    ):
        with pytest.raises(AssertionError, match=rule):
            joined(pages, 1)


CONTENT = b"0123456789"
WRONG_STORES: dict[str, Callable[[httpx.Request], httpx.Response]] = {
    "§10: 403": lambda request: httpx.Response(403),
    "§6.2: 10 bytes": lambda request: httpx.Response(200, content=CONTENT),
    "§0.6: 200": lambda request: httpx.Response(200, content=CONTENT),
}


@pytest.mark.parametrize(("rule", "size"), [("§10: 403", 10), ("§6.2: 10 bytes", 9), ("§0.6: 200", 10)])
def test_bytes_that_spark_would_not_take_are_refused(rule: str, size: int) -> None:
    transport = httpx.MockTransport(WRONG_STORES[rule])
    with httpx.Client(transport=transport) as client, pytest.raises(AssertionError, match=rule):
        fetch(client, "http://store/file", size)


def reader_of(*replies: httpx.Response) -> ProtocolReader:
    """A reader whose server gives these replies, one after the other."""
    waiting = list(replies)
    client = httpx.Client(base_url="http://h", transport=httpx.MockTransport(lambda request: waiting.pop(0)))
    return ProtocolReader(client, "a.b.c", "parquet", client)


RIGHT = {
    "Content-Type": "application/x-ndjson; charset=utf-8",
    "delta-sharing-capabilities": "responseformat=parquet",
    "Delta-Table-Version": "3",
}
WHOLE = b"".join(json.dumps(line).encode() + b"\n" for line in PARQUET[:3])
WRONG_HEADERS = [
    ({"Content-Type": "application/json"}, "§1.0: content type"),
    ({"delta-sharing-capabilities": "responseformat=delta"}, "§1.11"),
    ({"Delta-Table-Version": None}, "§0.7"),
]


def test_a_right_reply_is_taken() -> None:
    assert reader_of(httpx.Response(200, headers=RIGHT, content=WHOLE)).snapshot().ids == ["a"]


@pytest.mark.parametrize(("changed", "rule"), WRONG_HEADERS)
def test_a_reply_with_wrong_headers_is_refused(changed: dict[str, str | None], rule: str) -> None:
    headers = {name: value for name, value in (RIGHT | changed).items() if value is not None}
    with pytest.raises(AssertionError, match=rule):
        reader_of(httpx.Response(200, headers=headers, content=WHOLE)).snapshot()


def test_an_end_that_was_not_asked_for_is_refused() -> None:
    """Protocol §0.1."""
    ended = WHOLE + json.dumps(PARQUET[3]).encode() + b"\n"
    with pytest.raises(AssertionError, match=r"§0\.1"):
        reader_of(httpx.Response(200, headers=RIGHT, content=ended)).snapshot()
    with pytest.raises(AssertionError, match=r"§0\.1"):
        reader_of(httpx.Response(200, headers=RIGHT, content=WHOLE)).pages(5)


def test_totals_that_are_not_those_of_the_lines_are_refused() -> None:
    """Protocol §2.1."""
    short = b"".join(json.dumps(line).encode() + b"\n" for line in PARQUET[:2])
    with pytest.raises(AssertionError, match=r"§2\.1: numFiles and size"):
        reader_of(httpx.Response(200, headers=RIGHT, content=short)).snapshot()


def test_a_failed_async_query_has_to_be_an_error() -> None:
    """Protocol §0.8: a failure that is told in a line is polled for ever."""
    failed = json.dumps({"queryStatus": {"queryId": "q", "status": "failed"}}).encode() + b"\n"
    headers = RIGHT | {"delta-sharing-capabilities": "responseformat=parquet;asyncquery=true"}
    with pytest.raises(AssertionError, match=r"§0\.8"):
        reader_of(httpx.Response(200, headers=headers, content=failed)).submitted()


KINDS: list[tuple[Any, Any, Any]] = [
    (float("nan"), "double", "nan"),
    (float("nan"), "long", None),
    (float("-inf"), "float", "-inf"),
    (0.1, "float", 0.10000000149011612),
    ("1.5", "decimal(10,3)", "1.500"),
    (pd.NaT, "timestamp", None),
    (np.datetime64("NaT", "us"), "timestamp", None),
    (pd.Timestamp("2020-01-01 01:00", tz="Europe/Berlin"), "timestamp", "2020-01-01T00:00:00.000000Z"),
    (date(2020, 1, 1), "timestamp_ntz", "2020-01-01T00:00:00.000000"),
    (b"a", "binary", "61"),
    ([("b", 1), ("a", None)], {"type": "map", "keyType": "string", "valueType": "long"}, [["a", None], ["b", 1]]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind", "told"), KINDS)
def test_a_value_has_one_form_whoever_read_it(value: Any, kind: Any, told: Any) -> None:
    assert canonical(value, kind) == told


def test_a_frame_that_differs_in_one_value_is_told() -> None:
    rows = Rows.of([("n", "long"), ("x", "double")], [[1, 0.5], [None, float("nan")]])
    same_frame(pd.DataFrame({"n": [1, None], "x": [0.5, None]}), rows)
    with pytest.raises(AssertionError, match="1 rows missing"):
        same_frame(pd.DataFrame({"n": [2, None], "x": [0.5, None]}), rows)
    with pytest.raises(AssertionError, match="not \\['n', 'x'\\]"):
        same_frame(pd.DataFrame({"x": [0.5, None], "n": [1, None]}), rows)
