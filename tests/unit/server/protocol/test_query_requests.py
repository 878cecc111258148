"""What a table query, a metadata call and a version call may ask, and the words in which the rest is refused.

Protocol §1.5, §1.6 and §1.7: upstream's tests assert the fragments, so each stands in a message of ours.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from lakeshare_server.catalog import SharedTable, share_table
from lakeshare_server.protocol.requests import format_iso, parse_query
from lakeshare_server.protocol.tokens import Page, Pin, TableTokens, TokenHolder
from lakeshare_server.storage import load_key
from lakeshare_server.tables.pruning import evaluate
from tests.builders import plain_http
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows
from tests.builders.sharing import FLIGHTS, Provider, Running, a_provider, a_server, files, lines

ROOT = "/shares/flights/schemas/lake/tables"
CLOSED = "/shares/closed/schemas/lake/tables/flights"
RECENT = "/shares/recent/schemas/lake/tables/flights"
ASYNC = {"delta-sharing-capabilities": "asyncquery=true"}


@dataclass(frozen=True)
class World:
    """Three publications, versions 0, 1 and 2 with 3, 4 and 5 files, shared with, without and with some history."""

    provider: Provider
    server: Running
    client: httpx.Client
    times: tuple[datetime, ...]

    def ask(self, body: dict[str, Any], path: str = FLIGHTS, **headers: str) -> httpx.Response:
        return self.client.post(f"{path}/query", json=body, headers=headers)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("queries")
    provider = a_provider(folder)
    location = a_delta_table(folder / "table")
    times = [provider.publish_delta("lake.flights", location).published_at]
    for _ in range(2):
        append_delta(location, some_rows(days=1))
        times.append(provider.publish_delta("lake.flights", location).published_at)
    provider.publish_delta("lake.other", a_delta_table(folder / "other"))
    provider.share("lake.flights", "lake.other")
    here = SharedTable("lake", "flights", "lake.flights")
    share_table(provider.catalog, "closed", SharedTable("lake", "flights", "lake.flights", history=False))
    share_table(provider.catalog, "recent", here, start_version=1)
    token = provider.recipient("bob", ("flights", "closed", "recent"))
    with a_server(provider) as server, server.client(token) as client:
        yield World(provider, server, client, tuple(times))


def refused(answer: httpx.Response, fragment: str) -> None:
    assert answer.status_code == 400, answer.text
    assert answer.json()["errorCode"] == "INVALID_PARAMETER_VALUE"
    assert fragment in answer.json()["message"]


NEVER = "2022-01-01T00:00:00Z"
ONE_OF = "Please only provide one of: version,timestamp,startingVersion"
NOT_SPECIFIC = "cannot be used when querying a specific version"
FIRST_PAGE = "must be used in the first page request"
FRAGMENTS: list[tuple[dict[str, Any], str]] = [
    ({"version": 0, "timestamp": NEVER}, ONE_OF),
    ({"version": 0, "startingVersion": 0}, ONE_OF),
    ({"timestamp": NEVER, "startingVersion": 0}, ONE_OF),
    ({"version": 0, "timestamp": NEVER, "startingVersion": 0}, ONE_OF),
    ({"version": -1}, "table version cannot be negative"),
    ({"version": "-1"}, "table version cannot be negative"),
    ({"startingVersion": -1}, "startingVersion cannot be negative"),
    ({"maxFiles": 0}, "maxFiles must be positive"),
    ({"maxFiles": -1}, "maxFiles must be positive"),
    (
        {"startingVersion": 3, "endingVersion": 2},
        "startingVersion(3) must be smaller than or equal to endingVersion(2)",
    ),
    ({"startingVersion": 0, "endingVersion": 3}, "End version cannot be greater than the latest version"),
    ({"timestamp": "yesterday"}, "Invalid startingTimestamp:"),
    ({"timestamp": "2022-01-01"}, "Invalid startingTimestamp:"),
    ({"timestamp": "2022-01-01T00:00:00"}, "Invalid startingTimestamp:"),
    ({"timestamp": "2022-13-01T00:00:00Z"}, "Invalid startingTimestamp:"),
    ({"timestamp": ""}, "Invalid startingTimestamp:"),
    ({"timestamp": NEVER}, f"The provided timestamp ({NEVER}) is before the earliest available version"),
    (
        {"timestamp": "2922-01-01T00:00:00Z"},
        "The provided timestamp (2922-01-01T00:00:00Z) is after the latest available version",
    ),
    ({"version": 0, "includeRefreshToken": True}, f"includeRefreshToken {NOT_SPECIFIC}"),
    ({"timestamp": NEVER, "includeRefreshToken": "true"}, f"includeRefreshToken {NOT_SPECIFIC}"),
    ({"startingVersion": 0, "includeRefreshToken": True}, f"includeRefreshToken {NOT_SPECIFIC}"),
    ({"version": 0, "refreshToken": "x"}, f"refreshToken {NOT_SPECIFIC}"),
    ({"startingVersion": 0, "refreshToken": "x"}, f"refreshToken {NOT_SPECIFIC}"),
    ({"pageToken": "x", "includeRefreshToken": True}, f"includeRefreshToken {FIRST_PAGE}"),
    ({"pageToken": "x", "refreshToken": "x"}, f"refreshToken {FIRST_PAGE}"),
    ({"pageToken": "x"}, "Error decoding the page token"),
    ({"refreshToken": "x"}, "Error decoding refresh token"),
    ({"version": "zero"}, "Not a numeric value: zero"),
    ({"startingVersion": "1.5"}, "Not a numeric value: 1.5"),
    ({"version": 3}, "You can only query table data since version 0"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "fragment"), FRAGMENTS)
def test_what_cannot_be_answered_is_refused_in_the_expected_words(
    world: World, body: dict[str, Any], fragment: str
) -> None:
    """protocol §1.7: validation, all 400."""
    refused(world.ask(body), fragment)


@pytest.mark.parametrize("body", [{"version": 0}, {"timestamp": NEVER}, {"startingVersion": 0}])
def test_the_past_of_a_table_without_history_is_refused_by_its_full_name(
    world: World, body: dict[str, Any]
) -> None:
    """protocol §1.7: any of the three on a table without history sharing."""
    words = (
        "Reading table by version or timestamp is not supported because history sharing is not enabled on "
        "table: closed.lake.flights"
    )
    refused(world.ask(body, CLOSED), words)


def test_all_else_of_a_table_without_history_is_answered(world: World) -> None:
    for body in ({}, {"limitHint": 1}, {"maxFiles": 10}, {"includeRefreshToken": True}):
        assert len(files(world.ask(body, CLOSED))) == (1 if "limitHint" in body else 5)


def test_versions_before_the_start_are_refused_whatever_names_them(world: World) -> None:
    """protocol §1.7: `You can only query table data since version N`, for versions and resolved timestamps."""
    early = format_iso(milliseconds(world.times[0]))
    for body in ({"version": 0}, {"startingVersion": 0}, {"timestamp": early}):
        refused(world.ask(body, RECENT), "You can only query table data since version 1")
    for call in ("version?startingTimestamp=", "metadata?timestamp="):
        refused(world.client.get(f"{RECENT}/{call}{early}"), "You can only query table data since version 1")
    assert len(files(world.ask({"version": 1}, RECENT))) == 4


def milliseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def test_tokens_are_refused_in_the_expected_words(world: World) -> None:
    """protocol §1.7: the row of tokens."""
    first = world.ask({"maxFiles": 2, "includeRefreshToken": True})
    said = lines(first)[-1]["endStreamAction"]
    page, refresh = said["nextPageToken"], said["refreshToken"]
    other = f"{ROOT}/other"
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"pageToken": page}, other, "The table specified in the page token does not match the table being queried"),
        ({"pageToken": page, "limitHint": 1}, FLIGHTS, "Query parameter mismatch detected for the next page query"),
        ({"pageToken": page, "version": 2}, FLIGHTS, "Query parameter mismatch detected for the next page query"),
        ({"pageToken": page[:-4]}, FLIGHTS, "Error decoding the page token"),
        ({"pageToken": refresh}, FLIGHTS, "Error decoding the page token"),
        ({"refreshToken": page}, FLIGHTS, "Error decoding refresh token"),
        (
            {"refreshToken": refresh}, other,
            "The table specified in the refresh token does not match the table being queried",
        ),
    ]  # fmt: skip
    for body, path, fragment in cases:
        refused(world.ask(body, path), fragment)
    headers = {"delta-sharing-capabilities": "responseformat=delta"}
    refused(world.ask({"pageToken": page}, **headers), "Query parameter mismatch detected")


def test_expired_tokens_are_refused_in_the_expected_words(world: World) -> None:
    """protocol §1.7: `The page token has expired`, `The refresh token has expired`."""
    tokens = TableTokens(load_key(world.provider.settings), -1, -1)
    [table] = [
        item
        for item in world.client.get("/shares/flights/all-tables").json()["items"]
        if item["name"] == "flights"
    ]
    token_holder = TokenHolder(recipient_id(world), table["id"])
    refused(
        world.ask({"refreshToken": tokens.refresh_token(token_holder, Pin(2, ""))}),
        "The refresh token has expired",
    )
    refused(
        world.ask({"pageToken": tokens.page_token(token_holder, {}, Page(2, 2, 0))}),
        "The page token has expired",
    )


def recipient_id(world: World) -> str:
    from tests.builders.recipients import Recipients

    [bob] = [recipient for recipient in Recipients(world.provider.catalog).list() if recipient.name == "bob"]
    return bob.id


def test_an_async_query_needs_its_key(world: World) -> None:
    """protocol §1.7, §0.9: `idempotency_key is required for async query`."""
    refused(world.ask({}, **ASYNC), "idempotency_key is required for async query")


@pytest.mark.parametrize("value", ["md5", "", "parquet,delta"])
def test_a_scheme_of_file_ids_that_is_none_is_refused(world: World, value: str) -> None:
    """protocol §1.7, §1.12: also an empty one."""
    refused(world.ask({}, fileidhash=value), f"Unsupported fileidhash: '{value}'")


POINTS: list[tuple[dict[str, Any], int, int]] = [
    ({}, 2, 5),
    ({"version": 0}, 0, 3),
    ({"version": "1"}, 1, 4),
    ({"version": 2.0}, 2, 5),
]


@pytest.mark.parametrize(("body", "version", "count"), POINTS)
def test_a_version_is_answered_with_its_files_and_its_number(
    world: World, body: dict[str, Any], version: int, count: int
) -> None:
    """protocol §1.7: a number or digits; `Delta-Table-Version` is that of the files."""
    answer = world.ask(body)
    assert answer.headers["delta-table-version"] == str(version)
    assert len(files(answer)) == count


@pytest.mark.parametrize("after_ms", [-1, 0, 1])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_time_means_the_last_version_up_to_it(world: World, version: int, after_ms: int) -> None:
    """protocol §1.7: snapshot by timestamp is the latest version committed at or before it; so is metadata's."""
    at = world.times[version] + timedelta(milliseconds=after_ms)
    expected = max((number for number, time in enumerate(world.times) if time <= at), default=None)
    answer = world.ask({"timestamp": format_iso(milliseconds(at))})
    told = world.client.get(f"{FLIGHTS}/metadata", params={"timestamp": format_iso(milliseconds(at))})
    if expected is None:
        refused(answer, "before the earliest available version")
        refused(told, "before the earliest available version")
    elif at > world.times[-1]:
        refused(answer, "is after the latest available version")
        refused(told, "is after the latest available version")
    else:
        assert len(files(answer)) == 3 + expected
        assert answer.headers["delta-table-version"] == told.headers["delta-table-version"] == str(expected)
        assert lines(answer)[:2] == lines(told)
        assert {file["version"] for file in files(answer)} == {expected}


@pytest.mark.parametrize("after_ms", [-1, 0, 1])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_starting_time_means_the_first_version_from_it_on(
    world: World, version: int, after_ms: int
) -> None:
    """protocol §1.5: the earliest version committed at or after it; 400 when it is later than the last commit."""
    at = world.times[version] + timedelta(milliseconds=after_ms)
    expected = next((number for number, time in enumerate(world.times) if time >= at), None)
    answer = world.client.get(
        f"{FLIGHTS}/version", params={"startingTimestamp": format_iso(milliseconds(at))}
    )
    if expected is None:
        refused(answer, "is after the latest available version")
    else:
        assert answer.headers["delta-table-version"] == str(expected)
        assert answer.content == b""


def test_a_starting_time_before_all_versions_means_the_first(world: World) -> None:
    """protocol §1.5."""
    answer = world.client.get(f"{FLIGHTS}/version", params={"startingTimestamp": NEVER})
    assert answer.headers["delta-table-version"] == "0"


def test_a_starting_time_needs_history(world: World) -> None:
    """protocol §1.5: `startingTimestamp` requires shared history."""
    answer = world.client.get(f"{CLOSED}/version", params={"startingTimestamp": NEVER})
    refused(answer, "history sharing is not enabled on table: closed.lake.flights")
    assert world.client.get(f"{CLOSED}/version").headers["delta-table-version"] == "2"


@pytest.mark.parametrize(
    ("query", "fragment"),
    [
        ("version=0&timestamp=2022-01-01T00:00:00Z", "Please only provide one of: version,timestamp"),
        ("version=-1", "table version cannot be negative"),
        ("version=9", "You can only query table data since version 0"),
        ("timestamp=x", "Invalid startingTimestamp:"),
        ("version=x", "Not a numeric value: x"),
    ],
)
def test_metadata_refuses_like_the_query(world: World, query: str, fragment: str) -> None:
    """protocol §1.6: mutually exclusive, negative is 400."""
    refused(world.client.get(f"{FLIGHTS}/metadata?{query}"), fragment)


def test_metadata_of_a_version_needs_history(world: World) -> None:
    """protocol §1.6."""
    refused(world.client.get(f"{CLOSED}/metadata?version=0"), "history sharing is not enabled on table")


SPELLINGS = [
    "{:%Y-%m-%dT%H:%M:%S}.{ms:03d}Z",
    "{:%Y-%m-%dT%H:%M:%S}.{ms:03d}000Z",
    "{:%Y-%m-%dT%H:%M:%S}.{ms:03d}999999Z",
    "{:%Y-%m-%dT%H:%M:%S}.{ms:03d}z",
    "{:%Y-%m-%dT%H:%M:%S}.{ms:03d}+00:00",
    "{:%Y-%m-%dT%H:%M:%S}.{ms:03d}+0000",
    "{west:%Y-%m-%dT%H:%M:%S}.{ms:03d}-08:00",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_times_may_have_fractions_and_any_offset(world: World, spelling: str) -> None:
    """protocol §1.0: ISO 8601 in UTC, and any numeric offset."""
    at = world.times[1]
    text = spelling.format(at, ms=at.microsecond // 1000, west=at - timedelta(hours=8))
    assert len(files(world.ask({"timestamp": text}))) == 4


def test_a_refreshed_read_is_of_the_very_same_snapshot(world: World, tmp_path: Path) -> None:
    """protocol §0.16, §1.7: `refreshToken` re-issues URLs for the version it pins, not for what is new since."""
    location = a_delta_table(tmp_path / "table")
    world.provider.publish_delta("lake.growing", location)
    world.provider.share("lake.flights", "lake.other", "lake.growing")
    path = f"{ROOT}/growing"
    first = world.ask({"includeRefreshToken": True}, path)
    before = [file["id"] for file in files(first)]
    token = lines(first)[-1]["endStreamAction"]["refreshToken"]
    append_delta(location, some_rows(days=1))
    world.provider.publish_delta("lake.growing", location)
    again = world.ask({"refreshToken": token}, path)
    assert again.headers["delta-table-version"] == "0"
    assert [file["id"] for file in files(again)] == before
    assert again.content.splitlines()[:2] == first.content.splitlines()[:2]
    assert all(plain_http.get(file["url"]).status_code == 200 for file in files(again))
    renewed = lines(again)[-1]["endStreamAction"]["refreshToken"]
    assert [file["id"] for file in files(world.ask({"refreshToken": renewed}, path))] == before
    assert len(files(world.ask({}, path))) == 4


def test_a_refreshed_read_works_without_history_too(world: World) -> None:
    token = lines(world.ask({"includeRefreshToken": True}, CLOSED))[-1]["endStreamAction"]["refreshToken"]
    assert len(files(world.ask({"refreshToken": token}, CLOSED))) == 5


def test_nothing_of_one_recipients_tokens_is_of_use_to_another(world: World) -> None:
    said = lines(world.ask({"maxFiles": 2, "includeRefreshToken": True}))[-1]["endStreamAction"]
    with world.server.client(world.provider.recipient("eve", ("flights",))) as eve:
        for body, fragment in (
            ({"pageToken": said["nextPageToken"]}, "Error decoding the page token"),
            ({"refreshToken": said["refreshToken"]}, "Error decoding refresh token"),
        ):
            refused(eve.post(f"{FLIGHTS}/query", json=body), fragment)


@pytest.mark.parametrize("spelt", [True, "true", "True", "TRUE"])
def test_truth_may_be_spelt_in_any_case(spelt: object) -> None:
    """protocol §0.11, §1.7."""
    assert parse_query({"includeRefreshToken": spelt}).include_refresh_token


def test_both_spellings_of_the_idempotency_key_are_taken() -> None:
    """protocol §0.9: `idempotencyKey` in the protocol, `idempotency_key` in every client."""
    for name in ("idempotencyKey", "idempotency_key"):
        assert parse_query({name: "k"}).idempotency_key == "k"


def test_undocumented_fields_say_nothing() -> None:
    """protocol §1.7: unknown fields are ignored, so are those that REF knows and does not use."""
    body = {"requested_columns": ["a"], "queryDeltaLog": True, "other": {"x": [1]}}
    assert parse_query(body) == parse_query({})


def test_a_predicate_too_long_to_be_looked_at_fills_no_limit() -> None:
    """What is left out may be false for any row (protocol §1.7, limitHint): no row is sure to be wanted."""
    column = {"op": "column", "name": "n", "valueType": "int"}
    constants = [{"op": "literal", "value": str(number), "valueType": "int"} for number in range(5000)]
    options = [{"op": "equal", "children": [column, constant]} for constant in constants]
    asked = parse_query({"jsonPredicateHints": json.dumps({"op": "or", "children": options}), "limitHint": 1})
    batch = pa.RecordBatch.from_pydict({"rows": pa.array([10], pa.int64())})
    assert evaluate(asked.predicate, batch).true.to_pylist() == [True]
    assert evaluate(asked.predicate, batch).surely_all.to_pylist() == [False]
