"""Shares, schemas and tables: what a recipient was granted, page by page."""

from typing import Any

from fastapi import APIRouter, Response

from lakeshare_server.access.directory import access_of
from lakeshare_server.catalog import Listings, ShareEntry, TableEntry
from lakeshare_server.routes.context import READING, Asked, AskedDep
from lakeshare_server.routes.pools import LISTINGS
from lakeshare_server.routes.responses import json_response

router = APIRouter()


@router.api_route("/shares", methods=READING, name="list_shares")
def list_shares(by: AskedDep) -> Response:
    listings = Listings(by.parts.catalog, by.reader.id)
    shares, token = by.parts.pager.page(by.reader.id, "shares", by.page, listings.shares)
    return _items([_share(share) for share in shares], token)


@router.api_route("/shares/{share}", methods=READING, name="get_share")
def get_share(by: AskedDep, share: str) -> Response:
    return json_response({"share": _share(Listings(by.parts.catalog, by.reader.id).share(share))})


@router.api_route("/shares/{share}/schemas", methods=READING, name="list_schemas")
def list_schemas(by: AskedDep, share: str) -> Response:
    listings = Listings(by.parts.catalog, by.reader.id)
    schemas, token = by.parts.pager.page(
        by.reader.id,
        f"schemas/{share.lower()}",
        by.page,
        lambda after, limit: listings.schemas(share, after, limit),
    )
    return _items([{"name": schema.name, "share": schema.share.name} for schema in schemas], token)


@router.api_route("/shares/{share}/schemas/{schema}/tables", methods=READING, name="list_tables")
async def list_tables(by: AskedDep, share: str, schema: str) -> Response:
    return await by.parts.pools.run(LISTINGS, _tables, by, share, schema)


@router.api_route("/shares/{share}/all-tables", methods=READING, name="list_all_tables")
async def list_all_tables(by: AskedDep, share: str) -> Response:
    return await by.parts.pools.run(LISTINGS, _tables, by, share, None)


def _tables(by: Asked, share: str, schema: str | None) -> Response:
    listings = Listings(by.parts.catalog, by.reader.id)
    of = "all" if schema is None else f"schema/{schema.lower()}"
    tables, token = by.parts.pager.page(
        by.reader.id,
        f"tables/{share.lower()}/{of}",
        by.page,
        lambda after, limit: listings.tables(share, schema, after, limit),
    )
    return _items([table_item(by, table) for table in tables], token)


def _items(items: list[dict[str, Any]], token: str | None) -> Response:
    return json_response({"items": items, "nextPageToken": token} if token else {"items": items})


def _share(share: ShareEntry) -> dict[str, Any]:
    said = {
        "name": share.name,
        "id": share.id,
        "displayName": share.display_name,
        "comment": share.comment,
        "properties": share.properties,
    }
    return {key: value for key, value in said.items() if value}


def table_item(by: Asked, table: TableEntry) -> dict[str, Any]:
    """A table as listings show it."""
    said = {
        "name": table.name,
        "schema": table.schema,
        "share": table.share.name,
        "shareId": table.share.id,
        "id": table.id,
    }
    if not table.directory_access:
        return said
    view = by.parts.views.table(by.reader, table.share.name, table.schema, table.name, by.generation)
    return {**said, **access_of(view, by.parts.signers).as_fields()}
