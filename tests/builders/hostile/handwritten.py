"""Logs that no engine of today writes and the protocol allows: readers must take them as they are."""

import json
import uuid

import pyarrow as pa
import pyarrow.parquet as pq

from tests.builders.delta_log import Action
from tests.builders.hostile.place import Place, hostile

EMPTY_IS_NULL = "it takes the empty text for null, as the specification says"
PROTOCOL: Action = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "p", "type": "string", "nullable": True, "metadata": {"comment": "of \"quotes\" and ünïcode"}},
    ],
}  # fmt: skip


def metadata(name: str, *, partitioned: bool = True, **configuration: str) -> Action:
    """A metadata action for tables of `SCHEMA`."""
    told = {"id": str(uuid.uuid5(uuid.NAMESPACE_URL, name)), "format": {"provider": "parquet", "options": {}}}
    told |= {"schemaString": json.dumps(SCHEMA), "partitionColumns": ["p"] if partitioned else []}
    return {"metaData": told | {"configuration": configuration}}


def add(at: Place, path: str, number: int, partition: str | None, **more: object) -> Action:
    """Write a file of one row and the action that adds it."""
    file = at.location / path
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), file)
    told = {"path": path, "partitionValues": {"p": partition}, "size": file.stat().st_size}
    return {"add": told | {"modificationTime": 1700000000000 + number, "dataChange": True} | more}


def remove(path: str) -> Action:
    """The action that removes a file, with nothing more than the protocol asks for."""
    return {"remove": {"path": path, "dataChange": True}}


@hostile(versions=(1, 3), on_stores=True)
def odd_log(at: Place) -> None:
    """Unknown actions and fields, blank lines, no commitInfo, files that come back, odd statistics, short removes."""
    bounds = {"minValues": {"id": 4, "x": 1}, "maxValues": {"id": 4}, "nullCount": {}}
    at.commit(
        0,
        [
            PROTOCOL,
            metadata("odd_log"),
            add(at, "a.parquet", 1, "x y"),
            add(at, "sub/b.parquet", 2, None, stats=None, tags=None),
            add(at, "c.parquet", 3, "\u00fc%20", stats="", tags={"k": "v", "empty": None}),
            {"txn": {"appId": "app", "version": 7, "lastUpdated": 1}},
            {"ofTheFuture": {"what": [1, {"add": {"path": "nothing"}}]}},
        ],
    )
    at.commit(
        1, [remove("a.parquet"), add(at, "d.parquet", 4, "x y", stats=json.dumps(bounds), ofTheFuture={})]
    )
    # The same file again: one that was removed, and a live one that gets other statistics. The last word counts.
    counted = {"stats": '{"numRecords":1}', "dataChange": False}
    at.commit(2, [add(at, "a.parquet", 1, "x y"), add(at, "d.parquet", 4, "x y", **counted)])
    at.commit(3, [remove("sub/b.parquet"), {"commitInfo": {"timestamp": 1}}])
    log = at.location / "_delta_log"
    text = (log / f"{2:020}.json").read_text("utf-8")
    (log / f"{2:020}.json").write_text(text.replace("\n", "\n\n").rstrip("\n"), "utf-8")
    (log / f"{1:020}.json.tmp").write_text("{", "utf-8")
    (log / "notes.json").write_text("{", "utf-8")


@hostile(versions=(1,))
def metadata_changes(at: Place) -> None:
    """A name, a description and a comment with escapes; then everything of it replaced in a later commit."""
    told = metadata("metadata_changes", **{"a.b": 'c "d" ü\\n'})
    told["metaData"] |= {"name": 'na"me\t漢', "description": "de\nscription \\ \U0001f600", "createdTime": 1}
    at.commit(0, [PROTOCOL, told, add(at, "a.parquet", 1, "x")])
    later = metadata("metadata_changes", **{"delta.appendOnly": "true"})
    at.commit(1, [later, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}])


@hostile(versions=(0,), client_cannot={"parquet": EMPTY_IS_NULL, "delta": EMPTY_IS_NULL})
def empty_partition_texts(at: Place) -> None:
    """The empty text beside null as partition values of strings: Spark tells them apart."""
    files = [add(at, f"{number}.parquet", number, text) for number, text in enumerate(("", None, "x"))]
    at.commit(0, [PROTOCOL, metadata("empty_partition_texts"), *files])


@hostile(refused="a column has the type void")
def void_column(at: Place) -> None:
    """A column of a type that the kernels of clients do not parse."""
    at.sql("CREATE TABLE {t} (id INT, v VOID) USING delta", "INSERT INTO {t} VALUES (1, NULL)")
