"""A file index with the statistics that a test states, by way of a real Delta log."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakeshare_server.protocol.requests import parse_json_predicate
from lakeshare_server.protocol.sql_predicate import parse_sql_predicates
from lakeshare_server.tables import FileIndex, open_index, read_delta, write_index
from lakeshare_server.tables.predicates import Predicate
from lakeshare_server.tables.pruning import evaluate
from tests.builders.pruning.tables import FEATURES, VECTOR

NODES = {
    "=": "equal",
    "<": "lessThan",
    "<=": "lessThanOrEqual",
    ">": "greaterThan",
    ">=": "greaterThanOrEqual",
}


def a_file(
    rows: int = 10, *, deleted: int = 0, nulls: Mapping[str, Any] | None = None, **bounds: Any
) -> dict[str, Any]:
    """An `add` action; a bound is a pair of what the log says is least and greatest, or one value for both."""
    pairs = {name: pair if isinstance(pair, tuple) else (pair, pair) for name, pair in bounds.items()}
    stats = {
        "numRecords": rows,
        "minValues": {name: low for name, (low, _) in pairs.items() if low is not None},
        "maxValues": {name: high for name, (_, high) in pairs.items() if high is not None},
        "nullCount": dict.fromkeys(pairs, 0) if nulls is None else nulls,
    }
    add = {
        "size": 1,
        "modificationTime": 1,
        "dataChange": True,
        "partitionValues": {},
        "stats": json.dumps(stats),
    }
    return add | ({"deletionVector": {**VECTOR, "cardinality": deleted}} if deleted else {})


def an_index(
    folder: Path,
    fields: Mapping[str, Any],
    files: Sequence[Mapping[str, Any]],
    partitions: Sequence[str] = (),
) -> FileIndex:
    """An index of these files; a field is a type, or a whole field of a schema."""
    schema = {"type": "struct", "fields": [_field(name, kind) for name, kind in fields.items()]}
    metadata = {"id": "t", "format": {"provider": "parquet", "options": {}}, "configuration": {}}
    metadata |= {"schemaString": json.dumps(schema), "partitionColumns": list(partitions)}
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": FEATURES,
        "writerFeatures": FEATURES,
    }
    adds = [{"add": {"path": f"{number:04}.parquet", **file}} for number, file in enumerate(files)]
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    actions = [{"protocol": protocol}, {"metaData": metadata}, *adds]
    (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
    return open_index(folder / "index", write_index(read_delta(str(folder)), folder / "index").digest)


def a_batch(folder: Path, *arguments: Any, **options: Any) -> pa.RecordBatch:
    """The one batch of `an_index`."""
    [batch] = an_index(folder, *arguments, **options).batches()
    return batch


def sql(text: str) -> Predicate:
    return parse_sql_predicates([text])


def json_of(node: Any) -> Predicate:
    return parse_json_predicate(json.dumps(node))


def compared(
    column: str, operator: str, value: str, kind: str, column_kind: str | None = None
) -> dict[str, Any]:
    """A comparison as JSON predicates write it."""
    sides = [
        {"op": "column", "name": column, "valueType": column_kind or kind},
        {"op": "literal", "value": value, "valueType": kind},
    ]
    return {"op": NODES[operator], "children": sides}


def null_test(column: str, kind: str) -> dict[str, Any]:
    return {"op": "isNull", "children": [{"op": "column", "name": column, "valueType": kind}]}


def kept(predicate: Predicate, batch: pa.RecordBatch) -> list[int]:
    """The places of the files that may hold a match."""
    return [place for place, may in enumerate(evaluate(predicate, batch).true.to_pylist()) if may]


def sure(predicate: Predicate, batch: pa.RecordBatch) -> list[int]:
    """The places of the files of which every row matches."""
    return [
        place
        for place, all_match in enumerate(evaluate(predicate, batch).surely_all.to_pylist())
        if all_match
    ]


def _field(name: str, kind: Any) -> dict[str, Any]:
    if isinstance(kind, dict):
        return {"name": name, "nullable": True, "metadata": {}, **kind}
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}
