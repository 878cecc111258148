"""Access and listings: credentials, other recipients, shares, schemas and tables, requests that cannot be served."""

import base64
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import combinations
from typing import Any

from lakeshare_conformance import wire
from lakeshare_conformance.case import Group, NotApplicable, expect, require
from lakeshare_conformance.client import NOON, Client, Response
from lakeshare_conformance.targets import Server, Table, View, list_pages, make_path, parse_page

WRONG_TOKEN = "lakeshare-conformance-no-such-token"  # noqa: S105 - it is wrong on purpose
WRONG = f"Bearer {WRONG_TOKEN}"
MISSING = "lakeshare_conformance_no_such_name"
UNAUTHENTICATED = (401, 403)
# The statuses of a call that the server does not have, with a valid token too.
NOT_OFFERED = (404, 405, 501)
CREDENTIALS_PATH = "/temporary-table-credentials"
READ_CALLS = ("GET /version", "GET /metadata", "POST /query", "GET /changes?startingVersion=0")
TABLE_CALLS = (*READ_CALLS, f"POST {CREDENTIALS_PATH}")


class Authentication(Group):
    """The profile, and who is let in."""

    def the_profile_is_of_version_1(self, server: Server) -> None:
        """must §0.12, §3: The profile is of version 1, and says in ISO-8601 when its token ends, if it does."""
        profile = wire.parse(wire.ProfileFile, server.profile.fields, "the profile", is_secret=True)
        ends = profile.expiration_time
        is_fit = ends is None or ends > datetime.now(UTC) - timedelta(days=1)
        expect(is_fit, "the profile, field expirationTime", "a time to come", str(ends))

    def the_token_of_the_profile_is_let_in(self, server: Server) -> None:
        """must §1.0: The profile's token is let in."""
        server.client.get("/shares").expect_status(200)

    def no_token_is_refused(self, server: Server) -> None:
        """must §1.0: A request without a token is 401."""
        server.ask_as(None).expect_status(401)

    def a_wrong_token_is_refused(self, server: Server) -> None:
        """must §1.0: A token that the server did not give is 401 (or 403)."""
        server.ask_as(WRONG).expect_status(*UNAUTHENTICATED)

    def a_token_under_another_scheme_is_refused(self, server: Server) -> None:
        """should §1.0: The token counts as a bearer token only, not with the scheme Basic, and not bare."""
        token = server.profile.bearer_token
        packed = base64.b64encode(f"{token}:{token}".encode()).decode()
        for value, what in ((f"Basic {packed}", "Basic"), (token, "no scheme"), ("Bearer", "no token")):
            response = server.ask_as(value)
            is_refused = response.status in UNAUTHENTICATED
            expect(is_refused, f"{response.where} with {what}", "401 or 403", response.summary)

    def refusals_are_json(self, server: Server) -> None:
        """must §1.0, §4: A 401 is JSON with errorCode and message, like every error."""
        server.ask_as(None).refusal(401)
        server.ask_as(WRONG).refusal(*UNAUTHENTICATED)

    def a_refusal_does_not_repeat_the_token(self, server: Server) -> None:
        """should §1.0: What is refused is not repeated in the refusal: logs and screens keep such messages."""
        response = server.ask_as(WRONG)
        text = response.body.decode("utf-8", "replace") + str(response.headers)
        response.expect(WRONG_TOKEN not in text, "a refusal without the token", response.summary)

    def every_listing_wants_a_token(self, server: Server) -> None:
        """must §1.0, §1.1: Shares, schemas and tables are listed only with a valid token."""
        for path in (*server.listings, *map(make_path, server.shares)):
            _expect_token_wanted(partial(server.client.ask, "GET", path))

    def every_call_about_a_table_wants_a_token(self, table: Table) -> None:
        """must §1.0, §1.1: A table's version, metadata, files, changes and credentials are given only with a
        valid token."""
        for call in (*TABLE_CALLS, "HEAD "):
            _expect_token_wanted(partial(_call, table, call))


def _expect_token_wanted(ask: Callable[..., Response]) -> None:
    response = ask(authorization=WRONG)
    if response.status not in UNAUTHENTICATED and ask().status not in NOT_OFFERED:
        response.expect_status(*UNAUTHENTICATED)


def _call(table: Table, call: str, **options: Any) -> Response:
    method, below = call.split(" ")
    return table.ask(method, below, body={} if method == "POST" else None, **options)


class OtherProfiles(Group):
    """What one recipient cannot see of another, and a token that has expired; tried with `--foreign` and
    `--expired`."""

    MAX_TABLES = 5

    def what_others_see_does_not_exist(self, server: Server) -> None:
        """must §1.0, §4: A share or table that only another recipient sees is 404, with the errorCode of a name
        that never existed."""
        tables = self._find_hidden_tables(server)
        for table in tables:
            share, schema, name = table.names
            unknown = Table(server, (share, schema, f"{name}_lakeshare_conformance"))
            for call in TABLE_CALLS:
                hidden, missing = (_call(target, call) for target in (table, unknown))
                missing.expect(missing.status < 500, "a refusal by 4xx", missing.summary)
                if missing.status == 404:
                    wanted = missing.refusal(404).error_code
                    hidden.expect_equal(
                        hidden.refusal(404).error_code, wanted, "the errorCode of an unknown name,"
                    )
        for share in {table.names[0] for table in tables} - set(server.shares):
            for below in ("", "/schemas", "/all-tables"):
                response = server.client.get(f"/shares/{share}{below}")
                if response.status not in (405, 501):
                    response.refusal(404)

    def an_expired_token_is_refused(self, server: Server) -> None:
        """must §1.0, §4: A token that has expired is 401 (or 403), in JSON, for listings and tables."""
        expired = require(server.expired, "no profile with an expired token was given (--expired)")
        with Client(expired) as client:
            for path in server.listings:
                client.get(path).refusal(*UNAUTHENTICATED)
            for table in list(server.tables())[: self.MAX_TABLES]:
                client.get(f"{table.path}/version").refusal(*UNAUTHENTICATED)
                client.ask("POST", f"{table.path}/query", body={}).refusal(*UNAUTHENTICATED)

    def _find_hidden_tables(self, server: Server) -> list[Table]:
        """Tables that the other recipient lists and this one does not; `NotApplicable` without."""
        foreign_profile = require(server.foreign, "no profile of another recipient was given (--foreign)")
        own = {table.name.lower() for table in Server(server.client, server.profile).tables()}
        with Client(foreign_profile) as client:
            foreign = list(Server(client, foreign_profile).tables())
        hidden = [Table(server, table.names) for table in foreign if table.name.lower() not in own]
        require(hidden, "the other recipient (--foreign) sees no table that this one does not")
        return hidden[: self.MAX_TABLES]


class Listings(Group):
    """Shares, schemas and tables: what the listings say."""

    def listings_are_json(self, server: Server) -> None:
        """must §1.0, §1.1: Listings are application/json with charset utf-8: an object with items, and
        nextPageToken if there are more."""
        for _, response, _ in server.ask_listings():
            response.expect_media_type("application/json")

    def shares_have_the_documented_fields(self, server: Server) -> None:
        """must §1.2: A share has a name; its other documented fields are of their kinds and lengths."""
        for item in server.items("/shares"):
            wire.parse(wire.Share, item, "an item of /shares")

    def schemas_name_themselves_and_their_share(self, server: Server) -> None:
        """must §1.3: A schema has a name and the name of its share."""
        for share in server.shares:
            where = f"an item of {make_path(share)}/schemas"
            for item in server.items(f"{make_path(share)}/schemas"):
                schema = wire.parse(wire.Schema, item, where)
                expect(schema.share.lower() == share.lower(), where, f"share {share}", item)

    def tables_have_the_documented_fields(self, server: Server) -> None:
        """must §1.4: A table has name, schema, share; ids, locations and accessModes are of their kinds; dir
        has location."""
        for where, item in self._table_items(server):
            wire.parse(wire.ListedTable, item, where)

    def names_are_made_of_allowed_characters(self, server: Server) -> None:
        """must §1.0: Names have at most 255 characters, none a space, a slash or a control; schemas and tables
        none with a dot."""
        for where, name, forbidden in self._list_names(server):
            is_fit = re.fullmatch(rf"[^{forbidden}\x00-\x1f\x7f]{{1,{wire.MAX_NAME}}}", name)
            expect(is_fit, where, f"1 to {wire.MAX_NAME} characters, none of them forbidden", name)

    def names_of_shares_have_no_dot(self, server: Server) -> None:
        """should §3: A share's name has no dot: the path share.schema.table, which clients take, could not be read."""
        for item in server.items("/shares"):
            expect("." not in str(item.get("name")), "the name of a share", "no dot", item)

    def a_share_is_returned_as_it_is_listed(self, server: Server) -> None:
        """must §1.2: Get Share answers the listed item, under the key share."""
        listed = {str(item.get("name")): item for item in server.items("/shares")}
        for share in server.shares:
            response = server.client.get(make_path(share))
            is_same = response.object() == {"share": listed[share]}
            response.expect(is_same, str(listed[share]), response.summary)

    def all_tables_are_the_tables_of_all_schemas(self, server: Server) -> None:
        """must §1.1, §1.4: all-tables lists exactly what the listings of the share's schemas list."""
        for share in server.shares:
            path = f"{make_path(share)}/all-tables"
            by_schema = (
                server.items(f"{make_path(share, schema)}/tables") for schema in server.schemas(share)
            )
            wanted = sorted(_key(item) for items in by_schema for item in items)
            found = sorted(map(_key, server.items(path)))
            expect(found == wanted, path, f"the {len(wanted)} tables of its schemas", found)

    def ids_are_unique_and_stay(self, server: Server) -> None:
        """must §1.2, §1.4: Ids of shares are unique on the server, those of tables in their share; asked again,
        they are the same."""
        for path in ("/shares", *(f"{make_path(share)}/all-tables" for share in server.shares)):
            items = server.items(path)
            ids = [item["id"] for item in items if item.get("id") is not None]
            expect(len(ids) == len(set(ids)), path, "ids that are unique", sorted(ids))
            known = {_key(item): (item.get("id"), item.get("shareId")) for item in items}
            for item in parse_page(server.client.get(path)).items:
                is_same = (item.get("id"), item.get("shareId")) == known.get(_key(item))
                expect(is_same, path, "the same ids again", item)

    def names_are_read_in_any_case(self, server: Server) -> None:
        """must §1.0: Names in URLs are case-insensitive."""
        for share in server.shares:
            for schema in server.schemas(share):
                response = server.client.get(f"{make_path(share.swapcase(), schema.swapcase())}/tables")
                found = set(map(_key, parse_page(response).items))
                wanted = set(map(_key, server.items(f"{make_path(share, schema)}/tables")))
                is_same = found <= wanted and bool(found) == bool(wanted)
                response.expect(is_same, str(sorted(wanted)), sorted(found))

    def names_of_tables_are_read_in_any_case(self, table: Table) -> None:
        """must §1.0, §1.5: A table is found by its names in any case."""
        path = make_path(*(name.swapcase() for name in table.names))
        table.client.get(f"{path}/version").expect_status(200)

    def names_are_percent_decoded_once(self, table: Table) -> None:
        """must §1.0, §6.2: Names in URLs are percent-decoded, as Spark encodes them; but only once."""
        once = ["".join(f"%{byte:02X}" for byte in name.encode()) for name in table.names]
        path = "/shares/{}/schemas/{}/tables/{}/version"
        table.client.get(path.format(*once)).expect_status(200)
        table.client.get(path.format(*once).replace("%", "%25")).refusal(400, 404)

    def what_is_not_there_is_404(self, server: Server) -> None:
        """must §1.0, §4: An unknown share, schema or table is 404, in JSON."""
        paths = [f"{make_path(MISSING)}{below}" for below in ("", "/schemas", "/all-tables")]
        for share in server.shares:
            paths.append(f"{make_path(share, MISSING)}/tables")
            paths += [f"{make_path(share, schema, MISSING)}/version" for schema in server.schemas(share)]
        for path in paths:
            server.client.get(path).refusal(404)

    def a_table_is_found_in_its_own_place_only(self, table: Table) -> None:
        """must §1.0, §4: A table asked for in another share or schema is 404 for each of its calls."""
        share, schema, name = table.names
        for names in ((share, f"{schema}_", name), (f"{share}_", schema, name), (share, schema, f"{name}_")):
            for call in READ_CALLS:
                _call(Table(table.server, names), call).refusal(404)

    def what_is_not_there_has_its_error_code(self, server: Server) -> None:
        """should §4: The errorCode of a 404 is RESOURCE_DOES_NOT_EXIST."""
        response = server.client.get(make_path(MISSING))
        response.expect_equal(response.refusal(404).error_code, "RESOURCE_DOES_NOT_EXIST")

    def a_table_has_a_format(self, table: Table) -> None:
        """optional §9: OpenSharing's Get Table answers the table's names and its format: delta, iceberg, or both."""
        response = table.ask("GET")
        require(response.status not in NOT_OFFERED, "the server does not know Get Table")
        key = wire.parse(wire.DescribedTable, response.object(), response.where).key
        response.expect(key == table.name.lower(), f"the names {table.name}", key)

    def a_listed_table_can_be_read(self, table: Table) -> None:
        """should §1.1: What is listed can be read, in one response format at least."""
        table.version().expect_status(200)
        expect(table.views, table.path, "metadata in parquet or delta format", "refusals of both")

    def _list_names(self, server: Server) -> Iterator[tuple[str, str, str]]:
        """The names of shares, schemas and tables: the place, the name, and the signs that it must not have."""
        for item in server.items("/shares"):
            yield "the name of a share", str(item.get("name")), " /"
        for where, item in self._table_items(server):
            yield f"{where}: the name of a schema", str(item.get("schema")), " /."
            yield f"{where}: the name of a table", str(item.get("name")), " /."

    def _table_items(self, server: Server) -> Iterator[tuple[str, dict[str, Any]]]:
        """The items of all listings of tables, each with its place."""
        for path in server.table_listings:
            for item in server.items(path):
                yield f"an item of {path}", item


def _key(item: Mapping[str, Any]) -> str:
    return ".".join(str(item.get(part)).lower() for part in ("share", "schema", "name"))


class ListingPages(Group):
    """Listings in pages."""

    def pages_of_one_give_every_item_once(self, server: Server) -> None:
        """must §1.0: With maxResults=1 every page holds at most one item, and all pages together the whole
        listing, each item once."""
        for path in server.listings:
            where, found = f"GET {path}?maxResults=1", []
            for page in list_pages(server.client, path, maxResults=1):
                expect(len(page) <= 1, where, "at most one item on a page", page)
                found += page
            expect(found == server.items(path), where, "the listing, item by item", found)

    def a_page_of_none_is_allowed(self, server: Server) -> None:
        """must §1.0: maxResults=0 is answered with no items."""
        for _, response, items in server.ask_listings(maxResults=0):
            response.expect(not items, "no items", items)

    def a_listing_ends(self, server: Server) -> None:
        """must §1.0: The tokens of a listing come to an end without maxResults too, and then it is empty or missing."""
        for path in server.listings:
            server.items(path)

    def a_token_goes_on_without_a_size(self, server: Server) -> None:
        """should §1.0: A token is good for a request without maxResults: it gives the rest."""
        path, token = self._find_page_token(server)
        response = server.client.get(path, pageToken=token)
        items = parse_page(response).items
        is_rest = items == server.items(path)[1:][: len(items)] != []
        response.expect(is_rest, "the items after the first", items)

    def an_unknown_token_is_400(self, server: Server) -> None:
        """must §1.0: A page token that the server did not give is 400."""
        for token in ("nonsense", "AAAA", "%", "é", "x" * 5000):
            server.client.get("/shares", pageToken=token, maxResults=1).refusal(400)

    def a_token_of_another_listing_is_400(self, server: Server) -> None:
        """should §1.0: A page token of one listing is refused by another one."""
        path, token = self._find_page_token(server)
        for other in server.listings:
            if other != path:
                server.client.get(other, pageToken=token).refusal(400)

    def sizes_that_are_none_are_400(self, server: Server) -> None:
        """must §1.0: maxResults is a whole number from 0 that fits 32 bits; anything else is 400."""
        for size in ("-1", "x", "1.5", str(2**40), "0x1"):
            server.client.get("/shares", maxResults=size).refusal(400)

    def unknown_parameters_are_ignored(self, server: Server) -> None:
        """should §1.0: A parameter the server does not know changes nothing."""
        for path, response, items in server.ask_listings(lakeshareConformance="1"):
            response.expect(items == server.items(path)[: len(items)], "the same listing", items)

    def _find_page_token(self, server: Server) -> tuple[str, str]:
        """A listing of two pages and the token of its second one; `NotApplicable` without."""
        for path in server.listings:
            page = parse_page(server.client.get(path, maxResults=1))
            if page.items and page.next_page_token:
                return path, page.next_page_token
        raise NotApplicable("no listing has two items")


class Credentials(Group):
    """Temporary credentials for a table's directory."""

    def credentials_are_given_as_documented_or_refused(self, table: Table) -> None:
        """must §1.10, §1.4: A table listed with access mode dir gives credentials of one store; any other
        refuses by 4xx, in JSON."""
        response = table.ask("POST", CREDENTIALS_PATH, body={})
        items = table.server.items(f"{make_path(*table.names[:2])}/tables")
        own = [item for item in items if _key(item) == table.name.lower()]
        if not any("dir" in (item.get("accessModes") or []) for item in own):
            response.expect(response.status != 200, "a refusal: accessModes lists no dir", "credentials")
            response.refusal()
            return
        given = wire.parse(wire.CredentialsResult, response.object(), response.where, is_secret=True)
        ends_ms = given.credentials.expiration_time
        response.expect(ends_ms > time.time() * 1000, "an expirationTime to come, in milliseconds", ends_ms)
        lines = [line for line in response.body.split(b"\n") if line.strip()]
        response.expect(len(lines) == 1, "one line", len(lines))

    def credentials_for_other_places_are_refused(self, table: Table) -> None:
        """must §1.10, §0.19: A location outside of the table, and a body that is no JSON object, are 4xx."""
        locations = ("s3://lakeshare-conformance-elsewhere/x", "/", 1)
        for body in (*({"location": location} for location in locations), b"{", b"[]"):
            table.ask("POST", CREDENTIALS_PATH, body=body).refusal()


TRACES = (b"Traceback (most recent", b'File "/', b"\tat java.", b"\tat org.", b"goroutine ", b"panicked at")
LONG_HEADER_BYTES = 60_000
QUERY_PATH = "/shares/x/schemas/y/tables/z/query"
STRANGE_NAMES = ["%00", "%ff%fe", "%2e%2e", "%2e%2e%2f%2e%2e%2fetc", "%0a", "'%22%3B--", "%C3%28", "*", "%"]
NO_OBJECTS = (b"{", b"[]", b'"x"', b"null", b"1", b"\xff\xfe", b"<query/>", b"[" * 20_000)
WRONG_FIELDS: dict[str, list[object]] = {
    "version": ["x", 1.5, [1], True, 10**23 - 1, -1],
    "timestamp": [1, "yesterday"],
    "startingVersion": [{}, -1],
    "limitHint": ["ten"],
    "predicateHints": ["a = 1", [1]],
    "jsonPredicateHints": [{"op": "and"}],
}
STRANGE_QUERIES = (
    "version?startingTimestamp=%ff%00",
    "version?startingTimestamp=" + "9" * 5000,
    "version?startingTimestamp=99999-01-01T00:00:00Z",
    "metadata?version=" + "9" * 400,
    "metadata?version=%00",
    "metadata?timestamp=%C3%28",
    "changes?startingVersion=" + "9" * 400,
    "changes?startingVersion=0&endingVersion=%ff",
    "changes?startingTimestamp=0000-00-00T00:00:00Z",
)


class BadRequests(Group):
    """Requests that make no sense: always a 4xx with a reason, never a fault of the server."""

    def bodies_that_are_no_object_are_400(self, view: View) -> None:
        """must §1.7, §0.19: A query whose body is not a JSON object is 400, in JSON."""
        view.refuse(*NO_OBJECTS)

    def fields_of_other_types_are_400(self, view: View) -> None:
        """must §1.7, §0.19: A field whose value is of another type is 400, in JSON."""
        for name, values in WRONG_FIELDS.items():
            view.refuse(*({name: value} for value in values))

    def only_one_of_version_time_and_window(self, view: View) -> None:
        """must §1.7, §0.19: More than one of version, timestamp and startingVersion is 400."""
        fields = {"version": 0, "timestamp": NOON, "startingVersion": 0}
        view.refuse(*map(dict, combinations(fields.items(), 2)))

    def strange_names_are_no_fault_of_the_server(self, server: Server) -> None:
        """must §1.0, §0.19: Names with NUL, broken UTF-8, dots, slashes or thousands of characters are 4xx in
        every place."""
        for name in (*STRANGE_NAMES, "a" * 5000):
            share = f"/shares/{name}"
            for path in (share, f"{share}/schemas", f"{share}/schemas/{name}/tables/{name}/version"):
                server.client.get(path).expect_refusal()

    def strange_parameters_are_no_fault_of_the_server(self, table: Table) -> None:
        """must §1.0, §0.19: Parameters with broken UTF-8, NUL, enormous numbers or thousands of characters are 4xx."""
        for query in STRANGE_QUERIES:
            table.ask("GET", f"/{query}").expect_refusal()

    def long_headers_are_no_fault_of_the_server(self, server: Server) -> None:
        """must §1.0, §0.19: Headers of 60 kB, in one header or in many, are answered or refused by 4xx, never
        by 5xx."""
        many = {f"x-lakeshare-conformance-{number}": "x" * 500 for number in range(LONG_HEADER_BYTES // 500)}
        for headers in ({"delta-sharing-capabilities": "x" * LONG_HEADER_BYTES}, many):
            response = server.client.ask("GET", "/shares", headers=headers)
            response.expect(response.status < 500, "an answer, or a refusal by 4xx", response.summary)

    def what_is_no_endpoint_is_404_or_405(self, server: Server) -> None:
        """should §1.0, §1.1: A path or a method that the protocol does not have is 404 or 405, in JSON."""
        for request in ("GET /lakeshare", "DELETE /shares", "PUT /shares/x", f"GET {QUERY_PATH}"):
            server.client.ask(*request.split()).refusal(404, 405)

    def refusals_contain_no_secrets(self, view: View) -> None:
        """should §1.0, §4: A refusal has no stack trace."""
        bodies: tuple[Any, ...] = (b"{", {"version": view.table.latest + 1000}, {"jsonPredicateHints": 1})
        responses = [view.client.get(make_path(MISSING)), view.ask_changes({}), *map(view.ask, bodies)]
        for response in responses:
            found = [trace.decode() for trace in TRACES if trace in response.body]
            response.expect(not found, "a refusal without a stack trace", found)
