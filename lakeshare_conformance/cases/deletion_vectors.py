"""Deletion vectors, and the bytes they are made of."""

import struct
import zlib
from typing import Any

from lakeshare_conformance.case import (
    COUNT,
    DELTA,
    MUST,
    NAME,
    SHOULD,
    URL,
    Broken,
    NothingToTry,
    expect,
    expect_fields,
    expect_kind,
    on_views,
    one_of,
)
from lakeshare_conformance.ground import View
from lakeshare_conformance.reply import Action, Reply
from lakeshare_conformance.rows import MAGIC, cardinality, unpack_inline

INLINE, ABSOLUTE = "i", "p"
MOST_VECTORS = 10
FORMAT_VERSION = 1


@on_views(MUST, "0.5", "2.3", formats=(DELTA,))
def vectors_have_the_documented_fields(view: View) -> None:
    """A deletion vector is stored as p with a URL, or as i, with pathOrInlineDv, sizeInBytes and cardinality."""
    for action, vector in _vectors(view.snapshot):
        kinds = {
            "storageType": one_of(ABSOLUTE, INLINE),
            "pathOrInlineDv": NAME,
            "sizeInBytes": COUNT,
            "cardinality": COUNT,
        }
        expect_fields(f"{action.where}, deletionVector", vector, kinds, {"offset": COUNT})
        if vector["storageType"] == ABSOLUTE:
            expect_kind(f"{action.where}, pathOrInlineDv", URL, vector["pathOrInlineDv"])


@on_views(MUST, "0.5", "2.3", formats=(DELTA,))
def stored_vectors_have_an_id(view: View) -> None:
    """Every vector that is not inline has a deletionVectorFileId of its own, the same when asked again."""
    stored = {
        action.id: action for action, vector in _vectors(view.snapshot) if vector["storageType"] != INLINE
    }
    if not stored:
        raise NothingToTry("no deletion vector is stored in a file")
    ids = {}
    for action in stored.values():
        expect_fields(action.where, action.outer, {"deletionVectorFileId": NAME}, {})
        ids[action.id] = action.outer["deletionVectorFileId"]
    expect(
        len(set(ids.values())) == len(ids), view.snapshot.where, "an id for each vector", sorted(ids.values())
    )
    for action, _ in _vectors(Reply(view.ask({}))):
        if action.id in ids:
            again = action.outer.get("deletionVectorFileId")
            expect(
                again == ids[action.id], action.where, f"deletionVectorFileId {ids[action.id]} again", again
            )


@on_views(MUST, "2.3", formats=(DELTA,))
def vectors_can_be_read(view: View) -> None:
    """The bytes of a vector are Delta's: format version 1, length, magic number and checksum; as many rows as told."""
    for action, vector in _vectors(view.snapshot)[:MOST_VECTORS]:
        where = f"{action.where}, deletionVector"
        content = _inline(where, vector) if vector["storageType"] == INLINE else _stored(view, where, vector)
        magic = content[:4]
        expect(magic == MAGIC, where, f"the magic number {MAGIC.hex()}", magic.hex())
        found = cardinality(content)
        expect(found == vector["cardinality"], where, f"{vector['cardinality']} deleted rows", found)


@on_views(SHOULD, "2.3", formats=(DELTA,))
def vectors_delete_no_more_than_there_is(view: View) -> None:
    """A vector's cardinality is at most the number of rows of its file."""
    for action, vector in _vectors(view.snapshot):
        rows = (action.stats or {}).get("numRecords")
        is_fit = not isinstance(rows, int) or vector["cardinality"] <= rows
        expect(is_fit, action.where, f"at most {rows} deleted rows", vector["cardinality"])


@on_views(SHOULD, "0.14", "2.5", formats=(DELTA,))
def tables_with_features_are_paged_and_streamed(view: View) -> None:
    """Tables with deletion vectors or mapped columns are answered in pages, and in windows where history is shared."""
    is_mapped = view.snapshot.is_mapped
    if not is_mapped and not any(action.vector for action in view.snapshot.actions):
        raise NothingToTry("no table has deletion vectors or mapped columns")
    view.ask({"maxFiles": 1}).expect_status(200)
    try:
        versions = view.versions
    except NothingToTry:
        return
    view.ask({"startingVersion": versions[-1]}).expect_status(200)


def _vectors(reply: Reply) -> list[tuple[Action, dict[str, Any]]]:
    found = [(action, action.vector) for action in reply.actions if action.vector is not None]
    if not found:
        raise NothingToTry("no table has deletion vectors")
    return found


def _inline(where: str, vector: dict[str, Any]) -> bytes:
    try:
        content = unpack_inline(vector["pathOrInlineDv"])
    except ValueError as error:
        raise Broken(where, "pathOrInlineDv in Z85", vector["pathOrInlineDv"]) from error
    size = vector["sizeInBytes"]
    expect(len(content) >= size, where, f"{size} bytes", len(content))
    return content[:size]


def _stored(view: View, where: str, vector: dict[str, Any]) -> bytes:
    offset, size = int(vector.get("offset") or 0), int(vector["sizeInBytes"])
    answer = view.table.client.fetch(vector["pathOrInlineDv"]).expect_status(200)
    expect(
        answer.body[:1] == bytes([FORMAT_VERSION]), answer.asked, "format version 1", answer.body[:1].hex()
    )
    framed = answer.body[offset : offset + size + 8]
    expect(len(framed) == size + 8, answer.asked, f"{size + 8} bytes from {offset}", len(framed))
    told, content, checksum = framed[:4], framed[4:-4], framed[-4:]
    expect(struct.unpack(">I", told)[0] == size, where, f"the length {size} at {offset}", told.hex())
    wanted = struct.pack(">I", zlib.crc32(content))
    expect(checksum == wanted, where, f"the checksum {wanted.hex()}", checksum.hex())
    return content
