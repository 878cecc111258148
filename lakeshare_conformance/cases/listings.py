"""Listings of shares, schemas and tables, whole and in pages."""

from collections.abc import Iterator, Mapping
from typing import Any

from lakeshare_conformance.case import (
    MUST,
    NAME,
    OPTIONAL,
    SHOULD,
    TEXT,
    TEXT_MAP,
    TEXTS,
    Fields,
    Group,
    Kind,
    NotApplicable,
    bounded_text,
    expect,
    expect_fields,
    one_of,
)
from lakeshare_conformance.targets import Server, Table, list_pages, make_path, parse_page

LISTINGS = Group("listings", "Shares, schemas and tables: what the listings say")

LONGEST_NAME = 255
MOST_PROPERTIES = 50
PROPERTIES = Kind(
    f"at most {MOST_PROPERTIES} texts of 1000 characters under keys of 255",
    lambda value: (
        TEXT_MAP.holds(value)
        and len(value) <= MOST_PROPERTIES
        and all(len(key) <= LONGEST_NAME and len(text) <= 1000 for key, text in value.items())
    ),
)
MODES = Kind(
    "a list of url and dir",
    lambda value: isinstance(value, list) and bool(value) and set(map(str, value)) <= {"url", "dir"},
)
OF_SHARE: Fields = {
    "id": NAME,
    "displayName": bounded_text(LONGEST_NAME),
    "comment": bounded_text(65_536),
    "properties": PROPERTIES,
}
OF_TABLE: Fields = {
    "id": NAME,
    "shareId": NAME,
    "location": NAME,
    "auxiliaryLocations": TEXTS,
    "accessModes": MODES,
}


@LISTINGS.on_server(MUST, "1.0", "1.1")
def listings_are_json(server: Server) -> None:
    """Listings are application/json with charset utf-8: an object with items, and nextPageToken if there are more."""
    for path in server.listings:
        response = server.client.ask("GET", path)
        response.object()
        kind = response.header("content-type").lower().replace(" ", "")
        expect(
            kind == "application/json;charset=utf-8",
            response.request,
            "application/json; charset=utf-8",
            kind,
        )


@LISTINGS.on_server(MUST, "1.2")
def shares_have_the_documented_fields(server: Server) -> None:
    """A share has a name; id, displayName, comment and properties are of their kinds and lengths."""
    for item in server.items("/shares"):
        expect_fields("an item of /shares", item, {"name": NAME}, OF_SHARE)


@LISTINGS.on_server(MUST, "1.3")
def schemas_name_themselves_and_their_share(server: Server) -> None:
    """A schema has a name and the name of its share."""
    for share in server.shares:
        path = f"{make_path(share)}/schemas"
        for item in server.items(path):
            expect_fields(f"an item of {path}", item, {"name": NAME, "share": NAME}, {})
            expect(item["share"].lower() == share.lower(), f"an item of {path}", f"share {share}", item)


@LISTINGS.on_server(MUST, "1.4")
def tables_have_the_documented_fields(server: Server) -> None:
    """A table has name, schema, share; ids, locations and accessModes are of their kinds; dir has location."""
    for where, item in _table_items(server):
        expect_fields(where, item, dict.fromkeys(("name", "schema", "share"), NAME), OF_TABLE)
        if "dir" in (item.get("accessModes") or []):
            expect(item.get("location") is not None, where, "a location, since accessModes has dir", item)


@LISTINGS.on_server(MUST, "1.0")
def names_are_made_of_allowed_characters(server: Server) -> None:
    """Names have at most 255 characters, none a space, a slash or a control; schemas and tables none with a dot."""
    for item in server.items("/shares"):
        _allowed("the name of a share", str(item.get("name")), "")
    for where, listed in _table_items(server):
        _allowed(f"{where}: the name of a schema", str(listed.get("schema")), ".")
        _allowed(f"{where}: the name of a table", str(listed.get("name")), ".")


@LISTINGS.on_server(SHOULD, "3")
def names_of_shares_have_no_dot(server: Server) -> None:
    """A share's name has no dot: the path share.schema.table, which clients take, could not be read."""
    for item in server.items("/shares"):
        expect("." not in str(item.get("name")), "the name of a share", "no dot", item)


@LISTINGS.on_server(MUST, "1.2")
def a_share_is_told_as_it_is_listed(server: Server) -> None:
    """Get Share answers the listed item, under the key share."""
    listed = {str(item.get("name")): item for item in server.items("/shares")}
    for share in server.shares:
        response = server.client.ask("GET", make_path(share))
        expect(
            response.object() == {"share": listed[share]},
            response.request,
            str(listed[share]),
            response.summary,
        )


@LISTINGS.on_server(MUST, "1.1", "1.4")
def all_tables_are_the_tables_of_all_schemas(server: Server) -> None:
    """all-tables lists exactly what the listings of the share's schemas list."""
    for share in server.shares:
        path = f"{make_path(share)}/all-tables"
        one_by_one = [
            item
            for schema in server.schemas(share)
            for item in server.items(f"{make_path(share, schema)}/tables")
        ]
        found = sorted(map(_place, server.items(path)))
        expect(
            found == sorted(map(_place, one_by_one)),
            path,
            f"the {len(one_by_one)} tables of its schemas",
            found,
        )


@LISTINGS.on_server(MUST, "1.2", "1.4")
def ids_are_unique_and_stay(server: Server) -> None:
    """Ids of shares are unique on the server, those of tables in their share; asked again, they are the same."""
    for share in server.shares:
        path = f"{make_path(share)}/all-tables"
        items = server.items(path)
        again = server.client.ask("GET", path).object().get("items") or []
        ids = [item["id"] for item in items if item.get("id") is not None]
        expect(len(ids) == len(set(ids)), path, "ids that are unique in the share", sorted(ids))
        of_item = {_place(item): (item.get("id"), item.get("shareId")) for item in items}
        for item in again:
            expect(
                (item.get("id"), item.get("shareId")) == of_item.get(_place(item)),
                path,
                "the same ids again",
                item,
            )
    shares = [item["id"] for item in server.items("/shares") if item.get("id") is not None]
    expect(len(shares) == len(set(shares)), "/shares", "ids that are unique", sorted(shares))


@LISTINGS.on_server(MUST, "1.0")
def names_are_read_in_any_case(server: Server) -> None:
    """Names in URLs are case-insensitive."""
    for share in server.shares:
        for schema in server.schemas(share):
            path = f"{make_path(share.swapcase(), schema.swapcase())}/tables"
            response = server.client.ask("GET", path)
            found = sorted(map(_place, response.object().get("items") or []))
            wanted = sorted(map(_place, server.items(f"{make_path(share, schema)}/tables")))
            expect(
                set(found) <= set(wanted) and bool(found) == bool(wanted),
                response.request,
                str(wanted),
                found,
            )


@LISTINGS.on_tables(MUST, "1.0", "1.5")
def names_of_tables_are_read_in_any_case(table: Table) -> None:
    """A table is found by its names in any case."""
    path = make_path(*(name.swapcase() for name in table.names))
    table.client.ask("GET", f"{path}/version").expect_status(200)


@LISTINGS.on_tables(MUST, "1.0", "6.2")
def names_are_percent_decoded_once(table: Table) -> None:
    """Names in URLs are percent-decoded, as Spark encodes them; but only once."""
    once = [_encoded(name) for name in table.names]
    path = "/shares/{}/schemas/{}/tables/{}/version"
    table.client.ask("GET", path.format(*once)).expect_status(200)
    twice = [name.replace("%", "%25") for name in once]
    table.client.ask("GET", path.format(*twice)).refusal(400, 404)


@LISTINGS.on_server(MUST, "1.0", "4")
def what_is_not_there_is_404(server: Server) -> None:
    """An unknown share, schema or table is 404, in JSON."""
    missing = "lakeshare_conformance_no_such_name"
    paths = [make_path(missing), f"{make_path(missing)}/schemas", f"{make_path(missing)}/all-tables"]
    for share in server.shares:
        paths.append(f"{make_path(share, missing)}/tables")
        paths += [f"{make_path(share, schema, missing)}/version" for schema in server.schemas(share)]
    for path in paths:
        server.client.ask("GET", path).refusal(404)


@LISTINGS.on_tables(MUST, "1.0", "4")
def a_table_is_found_in_its_own_place_only(table: Table) -> None:
    """A table asked for in another share or schema is 404 for each of its calls."""
    share, schema, name = table.names
    for path in (
        make_path(share, f"{schema}_", name),
        make_path(f"{share}_", schema, name),
        make_path(share, schema, f"{name}_"),
    ):
        table.client.ask("GET", f"{path}/version").refusal(404)
        table.client.ask("GET", f"{path}/metadata").refusal(404)
        table.client.ask("POST", f"{path}/query", body={}).refusal(404)
        table.client.ask("GET", f"{path}/changes", params={"startingVersion": 0}).refusal(404)


@LISTINGS.on_server(SHOULD, "4")
def what_is_not_there_is_told_by_its_code(server: Server) -> None:
    """The errorCode of a 404 is RESOURCE_DOES_NOT_EXIST."""
    response = server.client.ask("GET", make_path("lakeshare_conformance_no_such_name"))
    response.refusal(404)
    expect(
        b'"RESOURCE_DOES_NOT_EXIST"' in response.body,
        response.request,
        "RESOURCE_DOES_NOT_EXIST",
        response.summary,
    )


@LISTINGS.on_tables(OPTIONAL, "9")
def a_table_tells_its_format(table: Table) -> None:
    """OpenSharing's Get Table answers the table's names and its format: delta, iceberg, or both."""
    response = table.ask("GET")
    if response.status in (404, 405, 501):
        raise NotApplicable("the server does not know Get Table")
    item = response.object()
    formats = one_of("delta", "iceberg", "delta,iceberg", "iceberg,delta")
    required = {"name": NAME, "schema": NAME, "share": NAME, "format": formats}
    expect_fields(
        response.request, item | {"format": str(item.get("format", "")).replace(" ", "")}, required, {}
    )
    names = tuple(str(item[part]).lower() for part in ("share", "schema", "name"))
    expect(
        names == tuple(name.lower() for name in table.names),
        response.request,
        f"the names {table.name}",
        item,
    )
    expect_fields(response.request, item, {}, {"id": TEXT, "shareId": TEXT})


@LISTINGS.on_tables(SHOULD, "1.1")
def a_listed_table_can_be_read(table: Table) -> None:
    """What is listed can be read, in one response format at least."""
    table.version().expect_status(200)
    expect(bool(table.views), table.path, "metadata in parquet or delta format", "refusals of both")


def _table_items(server: Server) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for share in server.shares:
        paths = [
            f"{make_path(share)}/all-tables",
            *(f"{make_path(share, schema)}/tables" for schema in server.schemas(share)),
        ]
        for path in paths:
            for item in server.items(path):
                yield f"an item of {path}", item


def _allowed(where: str, name: str, forbidden: str) -> None:
    is_allowed = 0 < len(name) <= LONGEST_NAME and not any(
        sign in f" /{forbidden}" or ord(sign) < 0x20 or ord(sign) == 0x7F for sign in name
    )
    expect(is_allowed, where, f"1 to {LONGEST_NAME} characters, none of them forbidden", name)


def _encoded(name: str) -> str:
    return "".join(f"%{byte:02X}" for byte in name.encode())


def _place(item: Mapping[str, Any]) -> str:
    return ".".join(str(item.get(part)).lower() for part in ("share", "schema", "name"))


LISTING_PAGES = Group("listing-pages", "Listings in pages")


@LISTING_PAGES.on_server(MUST, "1.0")
def pages_of_one_give_every_item_once(server: Server) -> None:
    """With maxResults=1 every page holds at most one item, and all pages together the whole listing, each item once."""
    for path in server.listings:
        found = []
        for page in list_pages(server.client, path, maxResults=1):
            expect(len(page) <= 1, f"GET {path}?maxResults=1", "at most one item on a page", page)
            found += page
        expect(found == server.items(path), f"GET {path}?maxResults=1", "the listing, item by item", found)


@LISTING_PAGES.on_server(MUST, "1.0")
def a_page_of_none_is_allowed(server: Server) -> None:
    """maxResults=0 is answered with no items."""
    for path in server.listings:
        response = server.client.ask("GET", path, params={"maxResults": 0})
        items, _ = parse_page(response)
        expect(not items, response.request, "no items", items)


@LISTING_PAGES.on_server(MUST, "1.0")
def a_listing_ends(server: Server) -> None:
    """The tokens of a listing come to an end without maxResults too, and then it is empty or missing."""
    for path in server.listings:
        server.items(path)


@LISTING_PAGES.on_server(SHOULD, "1.0")
def a_token_goes_on_without_a_size(server: Server) -> None:
    """A token is good for a request without maxResults: it gives the rest."""
    path, token = _listing_with_a_token(server)
    response = server.client.ask("GET", path, params={"pageToken": token})
    items, _ = parse_page(response)
    expect(
        items == server.items(path)[1:][: len(items)] != [],
        response.request,
        "the items after the first",
        items,
    )


@LISTING_PAGES.on_server(MUST, "1.0")
def a_token_nobody_gave_is_400(server: Server) -> None:
    """A page token that the server did not give is 400."""
    for token in ("nonsense", "AAAA", "%", "é", "x" * 5000):
        response = server.client.ask("GET", "/shares", params={"pageToken": token, "maxResults": 1})
        response.refusal(400)


@LISTING_PAGES.on_server(SHOULD, "1.0")
def a_token_of_another_listing_is_400(server: Server) -> None:
    """A page token of one listing is refused by another one."""
    path, token = _listing_with_a_token(server)
    for other in server.listings:
        if other != path:
            server.client.ask("GET", other, params={"pageToken": token}).refusal(400)


@LISTING_PAGES.on_server(MUST, "1.0")
def sizes_that_are_none_are_400(server: Server) -> None:
    """maxResults is a whole number from 0 that fits 32 bits; anything else is 400."""
    for size in ("-1", "x", "1.5", str(2**40), "0x1"):
        server.client.ask("GET", "/shares", params={"maxResults": size}).refusal(400)


@LISTING_PAGES.on_server(SHOULD, "1.0")
def unknown_parameters_are_ignored(server: Server) -> None:
    """A parameter the server does not know changes nothing."""
    for path in server.listings:
        response = server.client.ask("GET", path, params={"lakeshareConformance": "1"})
        items, _ = parse_page(response)
        expect(items == server.items(path)[: len(items)], response.request, "the same listing", items)


def _listing_with_a_token(server: Server) -> tuple[str, str]:
    for path in server.listings:
        items, token = parse_page(server.client.ask("GET", path, params={"maxResults": 1}))
        if items and token:
            return path, token
    raise NotApplicable("no listing has two items")
