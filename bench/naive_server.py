"""A sharing server as most are written, honest and short: what `make bench-server` sets ours beside.

`python -m bench.naive_server --port 0 --table LOCATION …` shares Delta tables as `naive.default.<folder>` to whoever
has the token `naive`. Each request opens its table; URLs are signed one by one, for a bucket that need not exist.
"""

import argparse
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import uvicorn
from botocore.config import Config
from deltalake import DeltaTable
from fastapi import Depends, FastAPI, Header, HTTPException, Response
from fastapi.responses import StreamingResponse

locations: dict[str, str] = {}
s3 = boto3.client(
    "s3", region_name="eu-central-1", aws_access_key_id="dummy", aws_secret_access_key="dummy",
    config=Config(signature_version="s3v4"),
)  # fmt: skip


def authenticate(authorization: str = Header("")) -> None:
    if authorization != "Bearer naive":
        raise HTTPException(401, "unknown token")


app = FastAPI(dependencies=[Depends(authenticate)])


@app.get("/shares")
def shares() -> dict[str, Any]:
    return {"items": [{"name": "naive"}]}


@app.get("/shares/naive/schemas")
def schemas() -> dict[str, Any]:
    return {"items": [{"name": "default", "share": "naive"}]}


@app.get("/shares/naive/all-tables")
@app.get("/shares/naive/schemas/default/tables")
def tables() -> dict[str, Any]:
    return {"items": [{"name": name, "schema": "default", "share": "naive"} for name in locations]}


@app.get("/shares/naive/schemas/default/tables/{table}/version")
def version(table: str) -> Response:
    return Response(headers={"Delta-Table-Version": str(open_table(table).version())})


@app.get("/shares/naive/schemas/default/tables/{table}/metadata")
def metadata(table: str) -> Response:
    delta = open_table(table)
    return ndjson(delta, head_lines(delta))


@app.post("/shares/naive/schemas/default/tables/{table}/query")
def query(table: str, body: dict[str, Any]) -> Response:
    delta = open_table(table, body.get("version"))
    return ndjson(delta, query_lines(delta, Path(locations[table]).name, body.get("jsonPredicateHints")))


def open_table(table: str, version: int | None = None) -> DeltaTable:
    if table not in locations:
        raise HTTPException(404, f"no table {table}")
    return DeltaTable(locations[table], version=version)


def ndjson(delta: DeltaTable, lines: Iterator[str]) -> Response:
    headers = {"Delta-Table-Version": str(delta.version())}
    return StreamingResponse(lines, headers=headers, media_type="application/x-ndjson; charset=utf-8")


def head_lines(delta: DeltaTable) -> Iterator[str]:
    yield json.dumps({"protocol": {"minReaderVersion": 1}}) + "\n"
    about = {
        "id": str(delta.metadata().id), "format": {"provider": "parquet"},
        "schemaString": delta.schema().to_json(), "partitionColumns": delta.metadata().partition_columns,
    }  # fmt: skip
    yield json.dumps({"metaData": about}) + "\n"


def query_lines(delta: DeltaTable, prefix: str, hint: str | None) -> Iterator[str]:
    yield from head_lines(delta)
    wanted = json.loads(hint) if hint else None
    for add in pa.table(delta.get_add_actions()).to_pylist():
        if wanted is None or may_match(wanted, add):
            yield file_line(prefix, add)


def file_line(prefix: str, add: dict[str, Any]) -> str:
    named = {"Bucket": "naive-bucket", "Key": f"{prefix}/{add['path']}"}
    stats = {
        "numRecords": add.get("num_records"), "minValues": add.get("min"), "maxValues": add.get("max"),
        "nullCount": add.get("null_count"),
    }  # fmt: skip
    file = {
        "url": s3.generate_presigned_url("get_object", Params=named, ExpiresIn=3600), "id": add["path"],
        "partitionValues": {name: str(value) for name, value in (add.get("partition") or {}).items()},
        "size": add["size_bytes"], "stats": json.dumps(stats, default=str),
    }  # fmt: skip
    return json.dumps({"file": file}) + "\n"


def may_match(hint: dict[str, Any], add: dict[str, Any]) -> bool:
    if hint["op"] == "and":
        return all(may_match(part, add) for part in hint["children"])
    if hint["op"] not in ("equal", "lessThan", "greaterThanOrEqual"):
        return True
    name, value = hint["children"][0]["name"], hint["children"][1]["value"]
    if name in (add.get("partition") or {}):
        return hint["op"] != "equal" or str(add["partition"][name]) == value
    low, high = (add.get("min") or {}).get(name), (add.get("max") or {}).get(name)
    if not isinstance(low, int) or not isinstance(high, int):
        return True
    below, above = hint["op"] != "greaterThanOrEqual", hint["op"] != "lessThan"
    return (not below or low <= int(value)) and (not above or high >= int(value))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--port", type=int, default=8080)
    arguments.add_argument("--table", nargs="+", required=True)
    asked = arguments.parse_args()
    locations.update({Path(location).name: location for location in asked.table})
    with socket.create_server(("127.0.0.1", asked.port)) as listening:
        print(f"ready http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
