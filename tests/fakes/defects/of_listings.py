"""Defects of authentication, listings, versions, credentials and refusals.

Each mapping has a defect for every case of its group; `FURTHER` has those of cases that hold several rules.
"""

import json
from collections.abc import Callable, Mapping

from tests.fakes.defects.tools import (
    CAPABILITIES,
    CHANGES,
    LISTING,
    METADATA,
    QUERY,
    SCHEMA_TABLES,
    TABLE,
    VERSION,
    Defect,
    Json,
    Named,
    answer,
    anything,
    asked,
    at,
    body,
    content,
    drop,
    given,
    header,
    items,
    page,
    put,
)
from tests.fakes.model_answers import EXPIRED_TOKEN
from tests.fakes.model_requests import Reply, Request

CREDENTIALS = f"{TABLE}/temporary-table-credentials"
WRONG = "lakeshare-conformance-no-such-token"


def _token(request: Request) -> str:
    return request.headers.get("authorization", "")


def _encoded(request: Request) -> bool:
    return "%" in request.path


def _other_case(request: Request) -> bool:
    return request.path.split("/")[2].isupper()


def _more(found: Json) -> None:
    found["items"] = found["items"] * 2


def _other_page(request: Request, reply: Reply) -> None:
    """A listing whose tokens never end."""
    if request.path == "/shares/alpha/schemas" and reply.status == 200:
        found = json.loads(reply.body)
        reply.body = json.dumps({**found, "nextPageToken": "again"}).encode()
    if request.path == "/shares/alpha/schemas" and request.params.get("pageToken") == "again":
        reply.status, reply.body = 200, b'{"items": [], "nextPageToken": "again"}'


def _without_shares_of_all_tables(found: Json) -> None:
    found["items"] = found["items"][1:]


def _credentials(edit: Callable[[Json], object]) -> Defect:
    return at(CREDENTIALS, page(lambda found: edit(found["credentials"])))


def _page_all(request: Request) -> bool:
    return request.params.get("maxResults") == "0"


AUTHENTICATION: Mapping[str, Defect] = {
    "the-token-of-the-profile-is-let-in": at("/shares", answer(401)),
    "no-token-is-refused": at("/shares", answer(200), when=lambda request: not _token(request)),
    "a-wrong-token-is-refused": at("/shares", answer(200), when=lambda request: WRONG in _token(request)),
    "a-token-under-another-scheme-is-refused": at(
        "/shares", answer(200), when=lambda request: _token(request).startswith("Basic")
    ),
    "refusals-are-json": at(".*", anything(lambda _: b"no"), when=lambda request: WRONG in _token(request)),
    "a-refusal-does-not-repeat-the-token": at(
        "/shares", anything(lambda text: text + WRONG.encode()), when=lambda request: WRONG in _token(request)
    ),
    "every-listing-wants-a-token": at(
        SCHEMA_TABLES, answer(200), when=lambda request: WRONG in _token(request)
    ),
    "every-call-about-a-table-wants-a-token": at(
        CHANGES, answer(200), when=lambda request: WRONG in _token(request)
    ),
}
OTHER_PROFILES: Mapping[str, Defect] = {
    "what-others-see-does-not-exist": at(".*/secret(/.*)?", answer(403)),
    "an-expired-token-is-refused": at(
        VERSION, answer(200), when=lambda request: EXPIRED_TOKEN in _token(request)
    ),
}
LISTINGS: Mapping[str, Defect] = {
    "listings-are-json": at(LISTING, header("Content-Type", "application/json")),
    "shares-have-the-documented-fields": at("/shares", items(put(comment="x" * 70_000))),
    "schemas-name-themselves-and-their-share": at("/shares/[^/]+/schemas", items(drop("share"))),
    "tables-have-the-documented-fields": at(SCHEMA_TABLES, items(drop("location"))),
    "names-are-made-of-allowed-characters": at("/shares/[^/]+/all-tables", items(put(name="a.b"))),
    "names-of-shares-have-no-dot": at("/shares", page(lambda found: found["items"].append({"name": "a.b"}))),
    "a-share-is-returned-as-it-is-listed": at("/shares/[^/]+", page(lambda found: found["share"].pop("id"))),
    "all-tables-are-the-tables-of-all-schemas": at(
        "/shares/[^/]+/all-tables", page(_without_shares_of_all_tables)
    ),
    "ids-are-unique-and-stay": at("/shares/[^/]+/all-tables", items(put(id="same"))),
    "names-are-read-in-any-case": at(SCHEMA_TABLES, answer(404), when=_other_case),
    "names-of-tables-are-read-in-any-case": at(VERSION, answer(404), when=_other_case),
    "names-are-percent-decoded-once": at(VERSION, answer(404), when=_encoded),
    "what-is-not-there-is-404": at("/shares/lakeshare_[a-z_]+/schemas", answer(500)),
    "a-table-is-found-in-its-own-place-only": at(f"{TABLE}_/changes", answer(400)),
    "what-is-not-there-has-its-error-code": at(
        ".*", anything(lambda text: text.replace(b"RESOURCE_DOES_NOT_EXIST", b"GONE"))
    ),
    "a-table-has-a-format": at(TABLE, page(put(format="parquet"))),
    "a-listed-table-can-be-read": at(METADATA, answer(404)),
}
LISTING_PAGES: Mapping[str, Defect] = {
    "pages-of-one-give-every-item-once": at(LISTING, page(_more), when=asked("maxResults")),
    "a-page-of-none-is-allowed": at(LISTING, answer(400), when=_page_all),
    "a-listing-ends": _other_page,
    "a-token-goes-on-without-a-size": at(
        LISTING, answer(400), when=lambda request: set(request.params) == {"pageToken"}
    ),
    "an-unknown-token-is-400": at("/shares", answer(500), when=asked("pageToken")),
    "a-token-of-another-listing-is-400": at(LISTING, answer(200), when=asked("pageToken")),
    "sizes-that-are-none-are-400": at(
        "/shares", answer(500), when=lambda request: request.params.get("maxResults") == "1.5"
    ),
    "unknown-parameters-are-ignored": at(LISTING, answer(400), when=asked("lakeshareConformance")),
}
VERSIONS: Mapping[str, Defect] = {
    "the-version-is-a-header": at(VERSION, header("Delta-Table-Version", None)),
    "head-of-a-table-returns-its-version": at(TABLE, header("Delta-Table-Version", "99"), method="HEAD"),
    "all-calls-return-one-version": at(QUERY, header("Delta-Table-Version", "99")),
    "the-first-version-since-a-time-is-found": at(
        VERSION, header("Delta-Table-Version", "6"), when=asked("startingTimestamp")
    ),
    "a-time-after-all-versions-is-400": at(
        VERSION, answer(500), when=lambda request: "2999" in request.params.get("startingTimestamp", "")
    ),
    "a-time-that-is-none-is-400": at(
        VERSION, answer(200), when=lambda request: request.params.get("startingTimestamp") == "yesterday"
    ),
    "a-time-may-have-an-offset-and-fractions": at(
        VERSION, answer(400), when=lambda request: "-08:00" in request.params.get("startingTimestamp", "")
    ),
    "a-date-alone-is-400": at(
        VERSION, answer(200), when=lambda request: request.params.get("startingTimestamp") == "2022-01-01"
    ),
}
CREDENTIAL: Mapping[str, Defect] = {
    "credentials-are-given-as-documented-or-refused": at(
        CREDENTIALS, page(lambda found: found["credentials"].pop("expirationTime"))
    ),
    "credentials-for-other-places-are-refused": at(CREDENTIALS, answer(500), when=asked("location")),
}
BAD_REQUESTS: Mapping[str, Defect] = {
    "long-headers-are-no-fault-of-the-server": at(
        "/shares", answer(500), when=lambda request: len(request.headers.get(CAPABILITIES, "")) > 8_000
    ),
    "bodies-that-are-no-object-are-400": at(
        QUERY, answer(500), when=lambda request: request.body.startswith(b"[")
    ),
    "fields-of-other-types-are-400": at(
        QUERY, answer(500), when=lambda request: isinstance(body(request).get("startingVersion"), dict)
    ),
    "only-one-of-version-time-and-window": at(
        QUERY, answer(200), when=lambda request: {"timestamp", "startingVersion"} <= set(body(request))
    ),
    "strange-names-are-no-fault-of-the-server": at(".*%00.*", answer(500)),
    "strange-parameters-are-no-fault-of-the-server": at(
        METADATA, answer(500), when=lambda request: len(request.params.get("version", "")) > 300
    ),
    "what-is-no-endpoint-is-404-or-405": at("/lakeshare", answer(200)),
    "refusals-contain-no-secrets": at(
        QUERY,
        anything(
            lambda text: text.replace(b'"message": "', b'"message": "Traceback (most recent call last) ')
        ),
    ),
}
FURTHER: tuple[Named, ...] = (
    (
        "authentication.a-wrong-token-is-refused",
        at("/shares", answer(404), when=lambda r: WRONG in str(r.headers)),
    ),
    (
        "authentication.refusals-are-json",
        at("/shares", header("x", "y"), lambda reply: reply.headers.update({"Content-Type": "text/plain"})),
    ),
    ("listings.listings-are-json", at("/shares", content(lambda _: b"[]"))),
    ("listings.shares-have-the-documented-fields", at("/shares", items(drop("name")))),
    (
        "listings.shares-have-the-documented-fields",
        at("/shares", items(put(properties={str(n): "" for n in range(51)}))),
    ),
    ("listings.shares-have-the-documented-fields", at("/shares", items(put(displayName="x" * 256)))),
    (
        "listings.schemas-name-themselves-and-their-share",
        at("/shares/[^/]+/schemas", items(put(share="other"))),
    ),
    ("listings.tables-have-the-documented-fields", at(SCHEMA_TABLES, items(put(accessModes=["file"])))),
    ("listings.tables-have-the-documented-fields", at(SCHEMA_TABLES, items(put(auxiliaryLocations="x")))),
    ("listings.tables-have-the-documented-fields", at("/shares/[^/]+/all-tables", items(drop("schema")))),
    ("listings.names-are-made-of-allowed-characters", at("/shares/[^/]+/all-tables", items(put(name="a b")))),
    ("listings.names-are-made-of-allowed-characters", at("/shares", items(put(name="x" * 256)))),
    ("listings.names-are-percent-decoded-once", at(".*%25.*", answer(200))),
    ("listings.a-table-has-a-format", at(TABLE, page(put(name="other")))),
    ("listings.ids-are-unique-and-stay", at("/shares", items(put(id="same")))),
    (
        "listing-pages.pages-of-one-give-every-item-once",
        at(LISTING, page(put(nextPageToken="")), when=asked("maxResults")),
    ),
    (
        "listing-pages.a-page-of-none-is-allowed",
        at(LISTING, page(put(items=[{"name": "x"}])), when=_page_all),
    ),
    ("listing-pages.an-unknown-token-is-400", at("/shares", answer(200), when=asked("pageToken"))),
    ("versions.the-version-is-a-header", at(VERSION, header("Delta-Table-Version", "v1"))),
    ("versions.the-version-is-a-header", at(VERSION, content(lambda _: b"{}"))),
    ("versions.all-calls-return-one-version", at(METADATA, header("Delta-Table-Version", None))),
    (
        "credentials.credentials-are-given-as-documented-or-refused",
        _credentials(put(gcpOauthToken={"oauthToken": "x"})),
    ),
    (
        "credentials.credentials-are-given-as-documented-or-refused",
        _credentials(put(expirationTime=1_700_000_000)),
    ),
    (
        "credentials.credentials-are-given-as-documented-or-refused",
        _credentials(put(awsTempCredentials={"accessKeyId": "x"})),
    ),
    (
        "credentials.credentials-are-given-as-documented-or-refused",
        at(CREDENTIALS, content(lambda text: text.replace(b", ", b",\n"))),
    ),
    ("credentials.credentials-are-given-as-documented-or-refused", at(CREDENTIALS, answer(400))),
    (
        "credentials.credentials-are-given-as-documented-or-refused",
        at(SCHEMA_TABLES, items(drop("accessModes"))),
    ),
    ("credentials.credentials-for-other-places-are-refused", at(CREDENTIALS, answer(200))),
    (
        "bad-requests.bodies-that-are-no-object-are-400",
        at(QUERY, answer(200), when=lambda r: r.body == b"null"),
    ),
    (
        "bad-requests.fields-of-other-types-are-400",
        at(QUERY, answer(200), when=given("predicateHints", "a = 1")),
    ),
    ("bad-requests.strange-names-are-no-fault-of-the-server", at("/shares/a+", answer(414), answer(500))),
    (
        "bad-requests.strange-parameters-are-no-fault-of-the-server",
        at(CHANGES, answer(500), when=lambda r: len(r.params.get("startingVersion", "")) > 300),
    ),
    (
        "bad-requests.strange-parameters-are-no-fault-of-the-server",
        at(METADATA, answer(200), when=asked("timestamp")),
    ),
)
