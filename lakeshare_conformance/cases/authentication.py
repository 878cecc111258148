"""The profile, and who is let in."""

import base64
from datetime import UTC, datetime, timedelta

from lakeshare_conformance.case import (
    MUST,
    NAME,
    SHOULD,
    TEXT,
    expect,
    expect_fields,
    on_server,
    on_tables,
    one_of,
)
from lakeshare_conformance.client import Answer
from lakeshare_conformance.ground import Server, Table, at

WRONG_TOKEN = "lakeshare-conformance-no-such-token"  # noqa: S105 - it is wrong on purpose
UNAUTHENTICATED = (401, 403)
# What a server answers, with a good token too, for a call that it does not have.
NOT_OFFERED = (404, 405, 501)


@on_server(MUST, "0.12", "3")
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


@on_server(MUST, "1.0")
def the_token_of_the_profile_is_let_in(server: Server) -> None:
    """The profile's token is let in."""
    server.client.ask("GET", "/shares").expect_status(200)


@on_server(MUST, "1.0")
def no_token_is_refused(server: Server) -> None:
    """A request without a token is 401."""
    server.client.ask("GET", "/shares", authorization=None).expect_status(401)


@on_server(MUST, "1.0")
def a_wrong_token_is_refused(server: Server) -> None:
    """A token that the server did not give is 401 (or 403)."""
    _as_stranger(server, "/shares").expect_status(*UNAUTHENTICATED)


@on_server(SHOULD, "1.0")
def a_token_under_another_scheme_is_refused(server: Server) -> None:
    """The token counts as a bearer token only, not with the scheme Basic, and not bare."""
    token = server.profile.bearer_token
    packed = base64.b64encode(f"{token}:{token}".encode()).decode()
    for value in (f"Basic {packed}", token, "Bearer"):
        answer = server.client.ask("GET", "/shares", authorization=value)
        told = "the scheme Basic" if " " in value else "a scheme or a token alone"
        expect(answer.status in UNAUTHENTICATED, f"{answer.asked} with {told}", "401 or 403", answer.summary)


@on_server(MUST, "1.0", "4")
def refusals_are_json(server: Server) -> None:
    """A 401 is JSON with errorCode and message, like every error."""
    server.client.ask("GET", "/shares", authorization=None).refusal(401)
    _as_stranger(server, "/shares").refusal(*UNAUTHENTICATED)


@on_server(SHOULD, "1.0")
def a_refusal_does_not_repeat_the_token(server: Server) -> None:
    """What is refused is not repeated in the refusal: logs and screens keep such messages."""
    answer = _as_stranger(server, "/shares")
    text = answer.body.decode("utf-8", "replace") + str(answer.headers)
    expect(WRONG_TOKEN not in text, answer.asked, "a refusal without the token", answer.summary)


@on_server(MUST, "1.0", "1.1")
def every_listing_wants_a_token(server: Server) -> None:
    """Shares, schemas and tables are listed to nobody without a valid token."""
    for path in (*server.listings, *(at(share) for share in server.shares)):
        answer = _as_stranger(server, path)
        if answer.status not in UNAUTHENTICATED and server.client.ask("GET", path).status not in NOT_OFFERED:
            answer.expect_status(*UNAUTHENTICATED)


@on_tables(MUST, "1.0", "1.1")
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
        answer = table.ask(method, below, body=body, authorization=f"Bearer {WRONG_TOKEN}")
        if answer.status in UNAUTHENTICATED or table.ask(method, below, body=body).status in NOT_OFFERED:
            continue
        where = f"{answer.asked} with a wrong token"
        expect(answer.status in UNAUTHENTICATED, where, "status 401 or 403", answer.summary)


def _as_stranger(server: Server, path: str) -> Answer:
    return server.client.ask("GET", path, authorization=f"Bearer {WRONG_TOKEN}")
