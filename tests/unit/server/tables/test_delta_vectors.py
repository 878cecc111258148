"""Where deletion vectors are, by what a log says of them: Delta's PROTOCOL.md, "Deletion Vector Descriptor Schema"."""

import base64
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.tables.delta.files import (
    from_actions,
    require_whole,
    vector_id,
    vector_ids,
    vector_paths,
)
from lakeshare_server.tables.lines import ALPHABET, decode_z85, encode_z85
from tests.builders import deletion_vector

ROOT = "s3://bucket/a table"
# The specification's own example of a relative vector, with its prefix.
SPECIFIED = "ab^-aqEH.-t@S}K{vb[*k^"
SPECIFIED_UUID = "d2c639aa-8816-431a-aaf6-d3fe2512ff61"


def a_vector(storage: str, described: str, **different: Any) -> dict[str, Any]:
    return {
        "storageType": storage,
        "pathOrInlineDv": described,
        "sizeInBytes": 4,
        "cardinality": 1,
        **different,
    }


def adds(*vectors: dict[str, Any] | None) -> pa.Table:
    return from_actions([{"path": "p", "size": 1, "deletionVector": vector} for vector in vectors], [])


def paths(*vectors: dict[str, Any] | None, root: str = ROOT) -> list[str | None]:
    found: list[str | None] = vector_paths(root, adds(*vectors)).to_pylist()
    return found


def test_a_relative_vector_is_named_by_the_specifications_example() -> None:
    """protocol §2.3: `u` is a random prefix and a UUID in Z85, below the table's root."""
    beside = f"{ROOT}/ab/deletion_vector_{SPECIFIED_UUID}.bin"
    assert paths(a_vector("u", SPECIFIED, offset=4)) == [beside]
    assert paths(a_vector("u", SPECIFIED[2:])) == [f"{ROOT}/deletion_vector_{SPECIFIED_UUID}.bin"]
    assert paths(a_vector("u", SPECIFIED), root="/lake/t/") == [
        f"/lake/t/ab/deletion_vector_{SPECIFIED_UUID}.bin"
    ]


def test_a_prefix_of_dots_leads_where_it_says() -> None:
    """The specification bounds the prefix by nothing: what leads out of the table is told apart by its path."""
    name = f"deletion_vector_{SPECIFIED_UUID}.bin"
    for prefix, folder in (("../../other/x", "/other/x"), ("./a//b/", "/lake/t/a/b"), ("..", "/lake")):
        assert paths(a_vector("u", prefix + SPECIFIED[2:]), root="/lake/t") == [f"{folder}/{name}"]


def test_an_absolute_vector_stays_where_it_is() -> None:
    """protocol §2.3: `p`, also beside files that have none or another kind."""
    elsewhere = "s3://other/deletion_vector_x.bin"
    assert paths(None, a_vector("p", elsewhere), a_vector("i", "wi5b="), a_vector("u", SPECIFIED)) == [
        None,
        elsewhere,
        None,
        f"{ROOT}/ab/deletion_vector_{SPECIFIED_UUID}.bin",
    ]
    assert paths(a_vector("p", "file:///x/a%20b.bin")) == ["/x/a b.bin"]


def test_files_without_vectors_and_no_files_have_no_places() -> None:
    assert paths(None, None) == [None, None]
    assert paths() == []


BROKEN = {
    "an unknown kind": a_vector("x", "y"),
    "a short name": a_vector("u", "abc"),
    "no name": a_vector("u", ""),
    "a character that is none": a_vector("u", "ab" + "~" * 20),
    "a number too large": a_vector("u", "#" * 20),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_descriptor_of_no_known_place_is_refused(case: str) -> None:
    with pytest.raises(TableFilesMissing, match="table files missing: a deletion vector "):
        paths(BROKEN[case])


@pytest.mark.parametrize("missing", ["sizeInBytes", "cardinality"])
def test_a_descriptor_without_what_clients_need_is_refused(missing: str) -> None:
    vector = a_vector("i", "wi5b=")
    require_whole(ROOT, adds(None, vector))
    del vector[missing]
    with pytest.raises(
        TableFilesMissing, match="the description of a deletion vector in its log is not whole"
    ):
        require_whole(ROOT, adds(None, vector))


@given(st.binary(max_size=40).map(lambda content: content + bytes(-len(content) % 4)))
def test_z85_is_what_others_make_of_it(content: bytes) -> None:
    """Against the tests' own encoder, and Python's base 85, which has the same digits in another order."""
    assert encode_z85(content) == deletion_vector.to_z85(content)
    assert decode_z85(deletion_vector.to_z85(content)) == content
    other = base64.b85encode(content).decode().translate(str.maketrans(PYTHONS, ALPHABET))
    assert decode_z85(other) == content


PYTHONS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def test_z85_reads_its_own_specifications_example() -> None:
    """ZeroMQ RFC 32."""
    assert decode_z85("HelloWorld") == bytes.fromhex("864FD26FB559F75B")


@given(st.uuids(), st.text("abcxyz", max_size=3))
def test_every_uuid_comes_back(name: uuid.UUID, prefix: str) -> None:
    described = prefix + deletion_vector.to_z85(name.bytes)
    [found] = paths(a_vector("u", described), root="/t")
    assert found == f"/t/{deletion_vector.relative_path(described)}"
    assert str(name) in found


VECTORS = [None, a_vector("i", "wi5b="), a_vector("u", SPECIFIED), a_vector("u", SPECIFIED, offset=0)]
VECTORS += [a_vector("u", SPECIFIED, offset=34), a_vector("p", "s3://b/x.bin", offset=34)]


def test_ids_of_vectors_are_kind_and_place_and_offset() -> None:
    """The same by column and one by one, and different for each (file, offset)."""
    expected = [None, "iwi5b=", f"u{SPECIFIED}", f"u{SPECIFIED}@0", f"u{SPECIFIED}@34", "ps3://b/x.bin@34"]
    assert [vector_id(vector) for vector in VECTORS] == expected
    assert vector_ids(adds(*VECTORS)).to_pylist() == expected
