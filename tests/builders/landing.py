"""Small deliveries of any format, for a contract of one table with a column of every type."""

import csv
import gzip
import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pyarrow import orc

from lakeshare_pipelines.contracts import SetContract, load_contract
from lakeshare_pipelines.demo.processes import deliver
from lakeshare_pipelines.ingest import Delivery, find_delivery
from lakeshare_pipelines.settings import LakeSettings

COLUMNS = {
    "id": "int",
    "big": "bigint",
    "ratio": "double",
    "price": "decimal(9,2)",
    "is_open": "boolean",
    "born": "date",
    "seen": "timestamp",
    "name": "string",
    "seal": "binary",
}


def a_readings_contract(
    folder: Path,
    *,
    reading: Mapping[str, object] | None = None,
    columns: Sequence[Mapping[str, object]] | None = None,
    daily: bool = False,
    extras: Sequence[Mapping[str, object]] = (),
) -> SetContract:
    """The set `sensors` with the Delta table `sensors.readings`; `extras` are custom properties of the table."""
    properties: list[Any] = (
        [{"name": n, "physicalType": t} for n, t in COLUMNS.items()] if columns is None else [*columns]
    )
    given: list[Mapping[str, object]] = [{"property": "source", "value": "readings"}, *extras]
    if reading is not None:
        given.append({"property": "reading", "value": dict(reading)})
    document = {
        "apiVersion": "v3.1.0",
        "kind": "DataContract",
        "id": "sensors",
        "name": "sensors",
        "version": "1.0.0",
        "status": "active",
        "servers": [{"server": "lake", "type": "local", "path": "warehouse", "format": "delta"}],
        "schema": [{"name": "readings", "properties": properties, "customProperties": given}],
        "customProperties": [{"property": "partitioning", "value": "daily" if daily else "none"}],
    }
    if daily:
        properties[:0] = [{"name": "day", "physicalType": "date", "partitioned": True}]
        document["customProperties"] += [{"property": "firstPartition", "value": "2024-01-01"}]  # type: ignore[operator]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sensors.yaml"
    path.write_text(yaml.safe_dump(document))
    return load_contract(path)


def landed(
    folder: Path, contract: SetContract, files: Mapping[str, bytes | str], partition: str = "all"
) -> Delivery:
    """A complete delivery of these files, in a landing folder of its own."""
    settings = LakeSettings(_env_file=None, state_dir=folder)
    place = Path(settings.landing_root) / contract.name / partition
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (place / name).write_bytes(content.encode() if isinstance(content, str) else content)
    (place / "_SUCCESS").touch()
    return find_delivery(settings, contract, partition)


def csv_text(rows: Sequence[Mapping[str, object]], delimiter: str = ",") -> str:
    """Rows as CSV with a header; None is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def json_lines(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as JSON, one a line."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def parquet_bytes(columns: Mapping[str, Sequence[object]], **types: pa.DataType) -> bytes:
    """Columns as a Parquet file, of these types where they are given."""
    arrays = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
    out = io.BytesIO()
    pq.write_table(pa.table(arrays), out)
    return out.getvalue()


def orc_bytes(columns: Mapping[str, Sequence[object]], **types: pa.DataType) -> bytes:
    """Columns as an ORC file, of these types where they are given."""
    arrays = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
    out = io.BytesIO()
    orc.write_table(pa.table(arrays), out)
    return out.getvalue()


def zipped(text: str) -> bytes:
    """Text as gzip."""
    return gzip.compress(text.encode())


def with_other_columns(
    settings: LakeSettings, contract: SetContract, partition: str, *, rename: Mapping[str, str], drop: str
) -> Delivery:
    """Thirty rows of the sample data, with a column renamed and one left out."""
    delivery = deliver(settings, contract, partition=partition, rows=30)
    for path in (Path(file.location) for file in delivery.files):
        with gzip.open(path, "rt", newline="") as file:
            rows = list(csv.DictReader(file))
        out = io.StringIO()
        names = [name for name in rows[0] if name != drop]
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([rename.get(name, name) for name in names])
        writer.writerows([row[name] for name in names] for row in rows)
        path.write_bytes(gzip.compress(out.getvalue().encode(), mtime=0))
    return find_delivery(settings, contract, partition)


AVRO_TYPES = {
    "int": "int",
    "bigint": "long",
    "double": "double",
    "decimal(9,2)": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "boolean": "boolean",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "string": "string",
    "binary": "bytes",
}


def avro_bytes(
    rows: Sequence[Mapping[str, Any]], types: Mapping[str, Any] = COLUMNS, codec: str = "deflate"
) -> bytes:
    """Rows as an Avro file; `types` are those of a contract, or of Avro, by column."""
    fields = [
        {
            "name": name,
            "type": ["null", AVRO_TYPES.get(kind, kind) if isinstance(kind, str) else kind],
            "default": None,
        }
        for name, kind in types.items()
    ]
    return _avro_file({"type": "record", "name": "row", "fields": fields}, rows, codec)


def _avro_file(schema: Any, values: Sequence[Any], codec: str) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, schema, values, codec=codec)
    return out.getvalue()


AVRO_NUMBERS = _avro_file({"type": "array", "items": "int"}, [[1], [2]], "null")
"""An Avro file whose values are no records."""


AVRO_OR_NULL = _avro_file(["null", {"type": "record", "name": "r", "fields": []}], [{}, None], "null")
"""An Avro file whose values are records, or null."""


def _write_geometry() -> bytes:
    with duckdb.connect() as database, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "points.parquet")
        rows = "SELECT 'POINT(1 2)'::GEOMETRY AS id"
        database.execute(f"COPY ({rows}) TO '{path}' (FORMAT parquet, GEOPARQUET_VERSION 'V2')")
        return path.read_bytes()


GEOMETRY = _write_geometry()
"""A Parquet file with a geometry in its column `id`."""


def xml_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as XML, each an element `row`; None is left out."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<rows>"]
    for row in rows:
        given = {name: escape(str(value)) for name, value in row.items() if value is not None}
        lines.append(f"<row>{''.join(f'<{name}>{text}</{name}>' for name, text in given.items())}</row>")
    return "\n".join([*lines, "</rows>"])
