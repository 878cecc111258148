"""Who may read what: credentials, other recipients, temporary credentials, requests that cannot be served."""

import base64
import time
from datetime import UTC, datetime, timedelta

from lakeshare_conformance.case import (
    COUNT,
    MUST,
    NAME,
    OBJECT,
    SHOULD,
    TEXT,
    Group,
    NotApplicable,
    expect,
    expect_fields,
    one_of,
)
from lakeshare_conformance.client import Client, Response
from lakeshare_conformance.targets import Server, Table, View, make_path

AUTHENTICATION = Group("authentication", "The profile, and who is let in")

WRONG_TOKEN = "lakeshare-conformance-no-such-token"  # noqa: S105 - it is wrong on purpose
UNAUTHENTICATED = (401, 403)
# What a server answers, with a good token too, for a call that it does not have.
NOT_OFFERED = (404, 405, 501)


@AUTHENTICATION.on_server(MUST, "0.12", "3")
def the_profile_is_of_version_1(server: Server) -> None:
    """The profile is of version 1, and says in ISO-8601 when its token ends, if it does."""
    fields = {"shareCredentialsVersion": one_of(1), "endpoint": NAME, "bearerToken": NAME}
    expect_fields(
        "the profile", server.profile.fields | {"bearerToken": "…"}, fields, {"expirationTime": TEXT}
    )
    ends = server.profile.fields.get("expirationTime")
    if ends is not None:
        try:
            moment = datetime.fromisoformat(ends)
        except ValueError:
            moment = None
        expect(
            moment is not None and moment.tzinfo is not None,
            "the profile, field expirationTime",
            "a time in ISO-8601 with a zone",
            ends,
        )
        expect(
            moment is None or moment > datetime.now(UTC) - timedelta(days=1),
            "the profile, field expirationTime",
            "a time to come",
            ends,
        )


@AUTHENTICATION.on_server(MUST, "1.0")
def the_token_of_the_profile_is_let_in(server: Server) -> None:
    """The profile's token is let in."""
    server.client.ask("GET", "/shares").expect_status(200)


@AUTHENTICATION.on_server(MUST, "1.0")
def no_token_is_refused(server: Server) -> None:
    """A request without a token is 401."""
    server.client.ask("GET", "/shares", authorization=None).expect_status(401)


@AUTHENTICATION.on_server(MUST, "1.0")
def a_wrong_token_is_refused(server: Server) -> None:
    """A token that the server did not give is 401 (or 403)."""
    _as_stranger(server, "/shares").expect_status(*UNAUTHENTICATED)


@AUTHENTICATION.on_server(SHOULD, "1.0")
def a_token_under_another_scheme_is_refused(server: Server) -> None:
    """The token counts as a bearer token only, not with the scheme Basic, and not bare."""
    token = server.profile.bearer_token
    packed = base64.b64encode(f"{token}:{token}".encode()).decode()
    for value in (f"Basic {packed}", token, "Bearer"):
        response = server.client.ask("GET", "/shares", authorization=value)
        reported = "the scheme Basic" if " " in value else "a scheme or a token alone"
        expect(
            response.status in UNAUTHENTICATED,
            f"{response.request} with {reported}",
            "401 or 403",
            response.summary,
        )


@AUTHENTICATION.on_server(MUST, "1.0", "4")
def refusals_are_json(server: Server) -> None:
    """A 401 is JSON with errorCode and message, like every error."""
    server.client.ask("GET", "/shares", authorization=None).refusal(401)
    _as_stranger(server, "/shares").refusal(*UNAUTHENTICATED)


@AUTHENTICATION.on_server(SHOULD, "1.0")
def a_refusal_does_not_repeat_the_token(server: Server) -> None:
    """What is refused is not repeated in the refusal: logs and screens keep such messages."""
    response = _as_stranger(server, "/shares")
    text = response.body.decode("utf-8", "replace") + str(response.headers)
    expect(WRONG_TOKEN not in text, response.request, "a refusal without the token", response.summary)


@AUTHENTICATION.on_server(MUST, "1.0", "1.1")
def every_listing_wants_a_token(server: Server) -> None:
    """Shares, schemas and tables are listed to nobody without a valid token."""
    for path in (*server.listings, *(make_path(share) for share in server.shares)):
        response = _as_stranger(server, path)
        if (
            response.status not in UNAUTHENTICATED
            and server.client.ask("GET", path).status not in NOT_OFFERED
        ):
            response.expect_status(*UNAUTHENTICATED)


@AUTHENTICATION.on_tables(MUST, "1.0", "1.1")
def every_call_about_a_table_wants_a_token(table: Table) -> None:
    """A table's version, metadata, files, changes and credentials go to nobody without a valid token."""
    for method, below in (
        ("GET", "/version"),
        ("GET", "/metadata"),
        ("POST", "/query"),
        ("GET", "/changes?startingVersion=0"),
        ("POST", "/temporary-table-credentials"),
        ("HEAD", ""),
    ):
        body: dict[str, object] | None = {} if method == "POST" else None
        response = table.ask(method, below, body=body, authorization=f"Bearer {WRONG_TOKEN}")
        if response.status in UNAUTHENTICATED or table.ask(method, below, body=body).status in NOT_OFFERED:
            continue
        where = f"{response.request} with a wrong token"
        expect(response.status in UNAUTHENTICATED, where, "status 401 or 403", response.summary)


def _as_stranger(server: Server, path: str) -> Response:
    return server.client.ask("GET", path, authorization=f"Bearer {WRONG_TOKEN}")


OTHER_PROFILES = Group(
    "other-profiles",
    "What one recipient cannot see of another, and a token that has expired; tried with `--foreign` and `--expired`",
)

MOST_TABLES = 5
CALLS = (
    ("GET", "/version"),
    ("GET", "/metadata"),
    ("POST", "/query"),
    ("GET", "/changes?startingVersion=0"),
    ("POST", "/temporary-table-credentials"),
)


@OTHER_PROFILES.on_server(MUST, "1.0", "4")
def what_others_see_does_not_exist(server: Server) -> None:
    """A share or table that only another recipient sees is 404, with the errorCode of a name that never existed."""
    tables = _hidden_tables(server)
    for table in tables:
        share, schema, name = table.names
        unknown = Table(server, share, schema, f"{name}_lakeshare_conformance")
        for method, below in CALLS:
            body: dict[str, object] | None = {} if method == "POST" else None
            hidden, missing = (one.ask(method, below, body=body) for one in (table, unknown))
            expect(missing.status < 500, missing.request, "404, or another refusal by 4xx", missing.summary)
            if missing.status == 404:
                hidden.refusal(404)
                expect(
                    _error_code(hidden) == _error_code(missing),
                    hidden.request,
                    f"the errorCode of a name that never was, {_error_code(missing)}",
                    _error_code(hidden),
                )
    for share in {table.names[0] for table in tables} - set(server.shares):
        for below in ("", "/schemas", "/all-tables"):
            response = server.client.ask("GET", f"/shares/{share}{below}")
            if response.status not in (405, 501):
                response.refusal(404)


@OTHER_PROFILES.on_server(MUST, "1.0", "4")
def an_expired_token_is_refused(server: Server) -> None:
    """A token that has expired is 401 (or 403), in JSON, for listings and tables."""
    if server.expired is None:
        raise NotApplicable("no profile with an expired token was given (--expired)")
    with Client(server.expired) as client:
        for path in server.listings:
            client.ask("GET", path).refusal(401, 403)
        for table in list(server.tables())[:MOST_TABLES]:
            client.ask("GET", f"{table.path}/version").refusal(401, 403)
            client.ask("POST", f"{table.path}/query", body={}).refusal(401, 403)


def _hidden_tables(server: Server) -> list[Table]:
    """Tables that the other recipient lists and this one does not.

    Raises:
        NothingToTry: no other profile was given, or there is no such table.
    """
    if server.foreign is None:
        raise NotApplicable("no profile of another recipient was given (--foreign)")
    own = {_key(table) for table in Server(server.client, server.profile).tables()}
    with Client(server.foreign) as client:
        foreign = list(Server(client, server.foreign).tables())
    hidden = [Table(server, *table.names) for table in foreign if _key(table) not in own]
    if not hidden:
        raise NotApplicable("the other recipient (--foreign) sees no table that this one does not")
    return hidden[:MOST_TABLES]


def _key(table: Table) -> tuple[str, ...]:
    return tuple(name.lower() for name in table.names)


def _error_code(response: Response) -> object:
    return response.json_object().get("errorCode")


CREDENTIALS = Group("credentials", "Temporary credentials for a table's directory")

PATH = "/temporary-table-credentials"
KINDS = {
    "awsTempCredentials": ("accessKeyId", "secretAccessKey", "sessionToken"),
    "azureUserDelegationSas": ("sasToken",),
    "gcpOauthToken": ("oauthToken",),
}


@CREDENTIALS.on_tables(MUST, "1.10", "1.4")
def credentials_are_given_as_documented_or_refused(table: Table) -> None:
    """A table listed with access mode dir gives credentials of one store; any other refuses by 4xx, in JSON."""
    response = table.ask("POST", PATH, body={})
    if response.status != 200:
        expect(
            not _is_offered(table),
            response.request,
            "credentials, since accessModes lists dir",
            response.summary,
        )
        response.refusal()
        return
    expect(
        _is_offered(table), response.request, "a refusal, since accessModes does not list dir", "credentials"
    )
    given = response.object().get("credentials")
    where = f"{response.request}, credentials"
    if not isinstance(given, dict):
        given = {}
    expect_fields(where, given, {"location": NAME, "expirationTime": COUNT}, {})
    kinds = [kind for kind in KINDS if given.get(kind) is not None]
    expect(len(kinds) == 1, where, f"one of {', '.join(KINDS)}", kinds)
    expect_fields(where, given, {kinds[0]: OBJECT}, {})
    # Secrets are not shown, whatever is wrong with them.
    named = {
        name: "…" if isinstance(value, str) and value else None for name, value in given[kinds[0]].items()
    }
    expect_fields(where, named, dict.fromkeys(KINDS[kinds[0]], NAME), {})
    left_s = given["expirationTime"] / 1000 - time.time()
    expect(left_s > 0, where, "an expirationTime to come, in milliseconds", given["expirationTime"])
    lines = [line for line in response.body.split(b"\n") if line.strip()]
    expect(len(lines) == 1, response.request, "one line", len(lines))


@CREDENTIALS.on_tables(MUST, "1.10", "0.19")
def credentials_for_other_places_are_refused(table: Table) -> None:
    """A location outside of the table, and a body that is no JSON object, are 4xx."""
    for body in (
        {"location": "s3://lakeshare-conformance-elsewhere/x"},
        {"location": "/"},
        {"location": 1},
        b"{",
        b"[]",
    ):
        table.ask("POST", PATH, body=body).refusal()


def _is_offered(table: Table) -> bool:
    share, schema, name = table.names
    for item in table.server.items(f"{make_path(share, schema)}/tables"):
        if str(item.get("name")).lower() == name.lower():
            return "dir" in (item.get("accessModes") or [])
    return False


BAD_REQUESTS = Group(
    "bad-requests", "Requests that make no sense: always a 4xx with a reason, never a fault of the server"
)

TRACES = (b"Traceback (most recent", b'File "/', b"\tat java.", b"\tat org.", b"goroutine ", b"panicked at")
LONG_HEADER_BYTES = 60_000
NAMES = (
    "%00",
    "%ff%fe",
    "a" * 5000,
    "%2e%2e",
    "%2e%2e%2f%2e%2e%2fetc",
    "%0a",
    "'%22%3B--",
    "%C3%28",
    "*",
    "%",
)


@BAD_REQUESTS.on_views(MUST, "1.7", "0.19")
def bodies_that_are_no_object_are_400(view: View) -> None:
    """A query whose body is not a JSON object is 400, in JSON."""
    for body in (b"{", b"[]", b'"x"', b"null", b"1", b"\xff\xfe", b"<query/>", b"[" * 20_000):
        view.ask(body).refusal(400)


@BAD_REQUESTS.on_views(MUST, "1.7", "0.19")
def fields_of_other_types_are_400(view: View) -> None:
    """A field whose value is of another type is 400, in JSON."""
    for body in (
        b'{"version": "x"}',
        b'{"version": 1.5}',
        b'{"version": [1]}',
        b'{"version": true}',
        b'{"version": 99999999999999999999999}',
        b'{"version": -1}',
        b'{"timestamp": 1}',
        b'{"timestamp": "yesterday"}',
        b'{"startingVersion": {}}',
        b'{"startingVersion": -1}',
        b'{"limitHint": "ten"}',
        b'{"predicateHints": "a = 1"}',
        b'{"predicateHints": [1]}',
        b'{"jsonPredicateHints": {"op": "and"}}',
    ):
        view.ask(body).refusal(400)


@BAD_REQUESTS.on_views(MUST, "1.7", "0.19")
def only_one_of_version_time_and_window(view: View) -> None:
    """More than one of version, timestamp and startingVersion is 400."""
    noon = "2022-01-01T12:00:00Z"
    for body in (
        {"version": 0, "timestamp": noon},
        {"version": 0, "startingVersion": 0},
        {"timestamp": noon, "startingVersion": 0},
    ):
        view.ask(body).refusal(400)


@BAD_REQUESTS.on_server(MUST, "1.0", "0.19")
def strange_names_are_no_fault_of_the_server(server: Server) -> None:
    """Names with NUL, broken UTF-8, dots, slashes or thousands of characters are 4xx in every place."""
    for name in NAMES:
        for path in (
            f"/shares/{name}",
            f"/shares/{name}/schemas",
            f"/shares/{name}/schemas/{name}/tables/{name}/version",
        ):
            response = server.client.ask("GET", path)
            expect(400 <= response.status < 500, response.request, "a refusal by 4xx", response.summary)


@BAD_REQUESTS.on_tables(MUST, "1.0", "0.19")
def strange_parameters_are_no_fault_of_the_server(table: Table) -> None:
    """Parameters with broken UTF-8, NUL, enormous numbers or thousands of characters are 4xx."""
    for query in (
        "version?startingTimestamp=%ff%00",
        "version?startingTimestamp=" + "9" * 5000,
        "version?startingTimestamp=99999-01-01T00:00:00Z",
        "metadata?version=" + "9" * 400,
        "metadata?version=%00",
        "metadata?timestamp=%C3%28",
        "changes?startingVersion=" + "9" * 400,
        "changes?startingVersion=0&endingVersion=%ff",
        "changes?startingTimestamp=0000-00-00T00:00:00Z",
    ):
        _refused(table.ask("GET", f"/{query}"))


@BAD_REQUESTS.on_server(MUST, "1.0", "0.19")
def long_headers_are_no_fault_of_the_server(server: Server) -> None:
    """Headers of 60 kB, in one header or in many, are answered or refused by 4xx, never by 5xx."""
    for headers in (
        {"delta-sharing-capabilities": "x" * LONG_HEADER_BYTES},
        {f"x-lakeshare-conformance-{number}": "x" * 500 for number in range(LONG_HEADER_BYTES // 500)},
    ):
        response = server.client.ask("GET", "/shares", headers=headers)
        expect(response.status < 500, response.request, "an answer, or a refusal by 4xx", response.summary)


@BAD_REQUESTS.on_server(SHOULD, "1.0", "1.1")
def what_is_no_endpoint_is_404_or_405(server: Server) -> None:
    """A path or a method that the protocol does not have is 404 or 405, in JSON."""
    for method, path in (
        ("GET", "/lakeshare"),
        ("DELETE", "/shares"),
        ("PUT", "/shares/x"),
        ("GET", "/shares/x/schemas/y/tables/z/query"),
    ):
        server.client.ask(method, path).refusal(404, 405)


@BAD_REQUESTS.on_views(SHOULD, "1.0", "4")
def refusals_tell_no_secrets(view: View) -> None:
    """A refusal has no stack trace."""
    answers = (
        view.table.client.ask("GET", make_path("lakeshare_conformance_no_such_name")),
        view.ask(b"{"),
        view.ask({"version": view.table.latest + 1000}),
        view.ask({"jsonPredicateHints": 1}),
        view.ask_changes({}),
    )
    for response in answers:
        found = [trace.decode() for trace in TRACES if trace in response.body]
        expect(not found, response.request, "a refusal without a stack trace", found)


def _refused(response: Response) -> None:
    expect(400 <= response.status < 500, response.request, "a refusal by 4xx", response.summary)
