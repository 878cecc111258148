"""One table for Iceberg clients: its metadata, the way to its files, and what they report of their scans."""

from dataclasses import replace
from urllib.parse import quote

import orjson
from fastapi import Request, Response

from lakeshare_server.access.iceberg import LoadedTable
from lakeshare_server.access.iceberg_storage import (
    NOTHING,
    ClientStorage,
    client_storage,
    needs_no_storage,
    planning_config,
    vended_storage,
)
from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.bodies import json_object
from lakeshare_server.routes.context import AskedTable, asked_table, body_of
from lakeshare_server.routes.responses import json_response

JSON = "application/json; charset=utf-8"


async def load_table(request: Request) -> Response:
    by = await asked_table(request)
    table = await loaded(by)
    storage = NOTHING
    if not needs_no_storage(by.view, table):
        storage = await by.run(_storage, by, table)
        _note_credentials(by, table, storage)
    # The metadata is put in as it is kept: taking thousands of snapshots apart for each answer would cost more.
    planning = planning_config(by.view, table, by.parts.settings)
    told = _told(table, replace(storage, config={**planning, **storage.config}))
    around = orjson.dumps({"metadata-location": table.metadata_location, **told})
    return Response(around[:-1] + b',"metadata":' + table.metadata + b"}", media_type=JSON)


async def table_exists(request: Request) -> Response:
    await loaded(await asked_table(request))
    return Response(status_code=204)


async def load_credentials(request: Request) -> Response:
    by = await asked_table(request)
    table = await loaded(by)
    storage = await by.run(_vended, by, table)
    _note_credentials(by, table, storage)
    return json_response({"storage-credentials": _told(table, storage)["storage-credentials"]})


async def sign_request(request: Request) -> Response:
    by = await asked_table(request)
    table = await loaded(by)
    body = await body_of(request, by)
    return await by.run(_signed, by, table, body)


async def report_metrics(request: Request) -> Response:
    by = await asked_table(request)
    await loaded(by)
    # Nobody here reads what clients measure; the audit log has the request itself.
    json_object(await body_of(request, by))
    return Response(status_code=204)


async def loaded(by: AskedTable) -> LoadedTable:
    tables = by.parts.iceberg_tables
    table = tables.peek(by.view, by.generation)
    if table is None:
        table = await by.run(tables.load, by.view, by.generation)
    by.note.version = table.version
    return table


def _storage(by: AskedTable, table: LoadedTable) -> ClientStorage:
    entry = by.view.entry
    names = [quote(name, safe="") for name in (entry.share.name, entry.schema, entry.name)]
    sign_at = "v1/shares/{}/namespaces/{}/tables/{}/sign".format(*names)
    folder = by.parts.iceberg_tables.folder(by.view, by.generation)
    return client_storage(by.view, table, folder, by.parts.signers, by.parts.settings, sign_at)


def _vended(by: AskedTable, table: LoadedTable) -> ClientStorage:
    folder = by.parts.iceberg_tables.folder(by.view, by.generation)
    return vended_storage(by.view, table, folder, by.parts.signers, by.parts.settings)


def _note_credentials(by: AskedTable, table: LoadedTable, storage: ClientStorage) -> None:
    if storage.credentials is not None:
        by.note.details = {"vended": "storage-credentials", "location": table.location}


def _told(table: LoadedTable, storage: ClientStorage) -> dict[str, object]:
    told: dict[str, object] = {"config": dict(storage.config)}
    if storage.credentials is not None:
        told["storage-credentials"] = [{"prefix": table.location, "config": dict(storage.credentials)}]
    return told


def _signed(by: AskedTable, table: LoadedTable, body: bytes) -> Response:
    fields = json_object(body)
    method, uri = text_field(fields, "method"), text_field(fields, "uri")
    by.require_signing()
    signers = by.parts.signers
    location = signers.s3_read(table.location, method, uri)
    by.note.details = {"location": location}
    by.parts.signable_files.require(by.view, table, location)
    by.note.files = 1
    signed = signers.signed_read(location, method, _headers(fields))
    # A client may keep it for as long as S3 takes it: files of a publication never change.
    return json_response({"uri": signed.uri, "headers": signed.headers}, headers={"Cache-Control": "private"})


def text_field(fields: dict[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise BadRequest(name, value, "Give it as text, as the request to sign has it.")
    return value


def _headers(fields: dict[str, object]) -> dict[str, list[str]]:
    headers = fields.get("headers") or {}
    if isinstance(headers, dict) and all(
        isinstance(values, list) and all(isinstance(value, str) for value in values)
        for values in headers.values()
    ):
        return headers
    raise BadRequest("headers", headers, "Give an object of lists of texts.")
