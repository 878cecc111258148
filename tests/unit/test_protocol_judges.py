"""The judges that servers are held against in other tests refuse what they are made to refuse, and name the rule."""

import copy
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

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

SOON_MS = int(time.time() * 1000) + 3_600_000
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
    ("parquet", at(2, "file", "expirationTimestamp", value=SOON_MS - 3_000_000), "§2.7"),
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
