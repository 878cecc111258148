"""Whatever a client sends, the answer is an answer: good values in any spelling, bad ones 400 with the field named."""

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.campaign import campaign_size
from tests.builders.lake_tables import a_delta_table
from tests.builders.sharing import FLIGHTS, Provider, Running, a_provider, a_server, files, lines


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    folder = tmp_path_factory.mktemp("requests")
    provider = a_provider(folder, max_body_bytes=100_000)
    provider.publish_delta("lake.flights", a_delta_table(folder / "table"))
    provider.publish_delta("lake.closed", folder / "table")
    provider.share("lake.flights")
    provider.share("lake.closed", share="closed", history=False)
    provider.share("lake.flights")
    return provider


@pytest.fixture(scope="module")
def server(provider: Provider) -> Iterator[Running]:
    with a_server(provider) as running:
        yield running


@pytest.fixture(scope="module")
def client(provider: Provider, server: Running) -> Iterator[httpx.Client]:
    with server.client(provider.recipient()) as client:
        yield client


def refused(answer: httpx.Response, status: int, *mentioned: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    body = answer.json()
    assert set(body) == {"errorCode", "message"}
    for text in mentioned:
        assert text in body["message"]


@pytest.mark.parametrize(
    ("body", "mentioned"),
    [
        (b"{", "JSON"),
        (b"[]", "object"),
        (b'"x"', "object"),
        (b"null", "object"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 50_000, "JSON"),
        (b'{"version": "x"}', "version"),
        (b'{"version": -1}', "version"),
        (b'{"version": true}', "version"),
        (b'{"version": 1.5}', "version"),
        (b'{"version": [1]}', "version"),
        (b'{"version": 99999999999999999999}', "version"),
        (b'{"version": 7}', "version"),
        (b'{"version": NaN}', "version"),
        (b'{"limitHint": -1}', "limitHint"),
        (b'{"limitHint": "ten"}', "limitHint"),
        (b'{"limitHint": 4294967296}', "limitHint"),
        (b'{"maxFiles": 0}', "maxFiles"),
        (b'{"maxFiles": {}}', "maxFiles"),
        (b'{"includeRefreshToken": "maybe"}', "includeRefreshToken"),
        (b'{"predicateHints": "a = 1"}', "predicateHints"),
        (b'{"predicateHints": [1]}', "predicateHints"),
        (b'{"predicateHints": {"a": 1}}', "predicateHints"),
        (b'{"jsonPredicateHints": {"op": "and"}}', "jsonPredicateHints"),
        (b'{"timestamp": "2022-01-01T00:00:00Z"}', "timestamp"),
        (b'{"timestamp": "2022-01-01"}', "timestamp"),
        (b'{"timestamp": 1640995200000}', "timestamp"),
        (b'{"startingVersion": 1}', "startingVersion"),
        (b'{"startingVersion": 0, "endingVersion": 1}', "endingVersion"),
        (b'{"endingVersion": 0}', "endingVersion"),
        (b'{"pageToken": "x"}', "pageToken"),
        (b'{"refreshToken": "x"}', "refreshToken"),
        (b'{"predicateHints": ["' + b"x" * 100_000 + b'"]}', "100000 bytes"),
    ],
)
def test_a_bad_body_is_400_and_says_which_field(client: httpx.Client, body: bytes, mentioned: str) -> None:
    refused(client.post(f"{FLIGHTS}/query", content=body), 400, mentioned)


@pytest.mark.parametrize("field", ["timestamp", "version", "limitHint", "includeRefreshToken", "pageToken"])
@pytest.mark.parametrize("value", ["x" * 50_000, ["x" * 50_000]], ids=["text", "list"])
def test_a_refusal_shows_the_beginning_of_a_long_value(
    client: httpx.Client, field: str, value: object
) -> None:
    answer = client.post(f"{FLIGHTS}/query", json={field: value})
    refused(answer, 400, field, "xxx…")
    assert len(answer.content) < 1000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \n",
        b"{}",
        b'{"unknown": {"a": [1]}, "idempotencyKey": "x"}',
        b'{"version": null, "limitHint": null, "predicateHints": null, "jsonPredicateHints": null}',
        b'{"version": "0"}',
        b'{"version": 0.0}',
        b'{"predicateHints": [], "jsonPredicateHints": ""}',
        b'{"predicateHints": ["this is not SQL (", "SELECT 1; DROP FLIGHTS x", "", "\\u0000", "a.b.c = 1"]}',
        b'{"predicateHints": ["day > 1 AND", "rlike(carrier, \'x\')", "day = NULL", "other = 3"]}',
        b'{"jsonPredicateHints": "bad-predicates"}',
        b'{"jsonPredicateHints": "[]"}',
        b'{"jsonPredicateHints": "{\\"op\\": \\"equal\\", \\"children\\": [1, 2]}"}',
        b'{"jsonPredicateHints": "{\\"op\\": [], \\"children\\": {}}"}',
    ],
)
def test_a_tolerable_body_gets_all_files(client: httpx.Client, body: bytes) -> None:
    assert len(files(client.post(f"{FLIGHTS}/query", content=body))) == 3


def test_hints_nested_beyond_all_measure_get_all_files(client: httpx.Client) -> None:
    deep: dict[str, Any] = {
        "op": "isNull",
        "children": [{"op": "column", "name": "day", "valueType": "date"}],
    }
    for _ in range(300):
        deep = {"op": "not", "children": [deep]}
    for hints in (
        {"jsonPredicateHints": json.dumps(deep)},
        {"predicateHints": ["NOT (" * 3000 + "1=1" + ")" * 3000]},
    ):
        assert len(files(client.post(f"{FLIGHTS}/query", json=hints))) == 3


@pytest.mark.parametrize(
    ("method", "path", "mentioned"),
    [
        ("GET", "/shares?maxResults=-1", "maxResults"),
        ("GET", "/shares?maxResults=501", "maxResults"),
        ("GET", "/shares?maxResults=ten", "maxResults"),
        ("GET", "/shares?pageToken=forged", "pageToken"),
        ("GET", "/shares/flights/schemas?pageToken=%ff%00", "pageToken"),
        ("GET", "/shares/flights/all-tables?maxResults=1.0", "maxResults"),
        ("GET", f"{FLIGHTS}/metadata?version=-1", "version"),
        ("GET", f"{FLIGHTS}/metadata?version=x", "version"),
        ("GET", f"{FLIGHTS}/metadata?version=7", "version"),
        ("GET", f"{FLIGHTS}/metadata?timestamp=2022-01-01T00:00:00Z", "timestamp"),
        ("GET", f"{FLIGHTS}/metadata?timestamp=yesterday", "timestamp"),
        ("GET", f"{FLIGHTS}/version?startingTimestamp=2922-01-01T00:00:00Z", "startingTimestamp"),
        ("GET", f"{FLIGHTS}/version?startingTimestamp=2022-01-01", "startingTimestamp"),
        ("GET", f"{FLIGHTS}/changes?startingVersion=0", "change data was not recorded for version [0]"),
        ("POST", f"{FLIGHTS}/temporary-table-credentials", "directory access"),
    ],
)
def test_a_bad_parameter_is_400_and_named(
    client: httpx.Client, method: str, path: str, mentioned: str
) -> None:
    refused(client.request(method, path), 400, mentioned)


@pytest.mark.parametrize(
    "header",
    [
        "delta-sharing-capabilities: responseformat=avro",
        "fileidhash: sha",
        "fileidhash: ",
        "fileidhash: md5,delta",
    ],
)
@pytest.mark.parametrize("call", [("GET", "/metadata"), ("POST", "/query")])
def test_headers_that_cannot_be_met_are_400(client: httpx.Client, header: str, call: tuple[str, str]) -> None:
    name, _, value = header.partition(": ")
    refused(
        client.request(call[0], FLIGHTS + call[1], headers={name: value}),
        400,
        name if "hash" in name else "responseformat: 'avro'",
    )


@pytest.mark.parametrize(
    "header",
    ["", ";;;", "=", "responseformat", "responseformat=", "x=y;RESPONSEFORMAT=Parquet,DELTA", "a=b=c", "ü=ü"],
)
def test_capabilities_in_any_spelling_get_parquet(client: httpx.Client, header: str) -> None:
    answer = client.post(f"{FLIGHTS}/query", headers={"delta-sharing-capabilities": header.encode()})
    assert answer.headers["delta-sharing-capabilities"] == "responseformat=parquet"
    assert len(files(answer)) == 3


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "", 404),
        ("GET", "/nothing", 404),
        ("GET", "/shares/", 404),
        ("GET", "/shares//schemas", 404),
        ("POST", "/shares", 405),
        ("DELETE", FLIGHTS, 405),
        ("PUT", f"{FLIGHTS}/query", 405),
        ("GET", f"{FLIGHTS}/query", 405),
        ("GET", f"{FLIGHTS}/%2e%2e/query", 404),
        ("GET", "/shares/a%2Fb", 404),
        ("GET", "/shares/%00", 404),
        ("GET", "/shares/%ff", 404),
        ("GET", f"/shares/{'x' * 10_000}", 404),
        ("GET", "/shares/'; DROP FLIGHTS shares; --", 404),
    ],
)
def test_what_is_not_part_of_the_protocol_is_refused_as_json(
    client: httpx.Client, method: str, path: str, status: int
) -> None:
    refused(client.request(method, path), status)


def test_names_are_found_in_any_case(client: httpx.Client) -> None:
    loud = FLIGHTS.replace("flights", "FLIGHTS").replace("lake", "LaKe")
    assert client.get(f"{loud}/version").headers["delta-table-version"] == "0"
    assert client.get("/shares/FLIGHTS").json()["share"]["name"] == "flights"


def test_a_version_is_refused_where_history_is_not_shared(provider: Provider, server: Running) -> None:
    provider.share("lake.flights", history=False)
    try:
        with server.client(provider.recipient("eve")) as client:
            answer = client.post(f"{FLIGHTS}/query", json={"version": 0})
            refused(answer, 400, "history sharing is not enabled on table: flights.lake.flights")
            assert len(files(client.post(f"{FLIGHTS}/query"))) == 3
    finally:
        provider.share("lake.flights")


HINTS = {
    "day = '2013-01-02'": 1,
    "'2013-01-02' < day": 1,
    "`DAY` >= DATE '2013-01-02'": 2,
    "day <> '2013-01-02'": 2,
    "day IN ('2013-01-01', '2013-01-03')": 2,
    "day BETWEEN '2013-01-02' AND '2013-01-09'": 2,
    "day IS NULL": 0,
    "NOT (day IS NOT NULL)": 0,
    "day = '2013-01-02' AND other = 1": 1,
    "day = '2013-01-02' OR other = 1": 3,
    "distance >= 4000000000000 AND distance < 5000000000000": 1,
    "distance > -1": 3,
    "flight = 1000": 1,
    "carrier = 'zzz'": 0,
}


@pytest.mark.parametrize("hint", HINTS)
def test_sql_hints_leave_out_files(client: httpx.Client, hint: str) -> None:
    assert len(files(client.post(f"{FLIGHTS}/query", json={"predicateHints": [hint]}))) == HINTS[hint]


def test_several_hints_are_joined_by_and(client: httpx.Client) -> None:
    hints = ["day >= '2013-01-02'", "day < '2013-01-03'", "not SQL at all ("]
    [file] = files(client.post(f"{FLIGHTS}/query", json={"predicateHints": hints}))
    assert file["partitionValues"] == {"day": "2013-01-02"}


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["version", "limitHint", "predicateHints", "jsonPredicateHints", "maxFiles", "includeRefreshToken"]
OPERATIONS = ["and", "or", "not", "isNull", "equal", "lessThan", "column", "literal", "x"]
NODES = st.recursive(
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(["column", "literal"]),
            "name": st.sampled_from(["day", "distance", "carrier", "delay", "crew", "x"]) | ANYTHING,
            "value": st.sampled_from(["2013-01-02", "1", "-1e5", "NaN", "x", "9" * 30]) | ANYTHING,
            "valueType": st.sampled_from(["int", "long", "date", "string", "double", "timestamp", "bool"])
            | ANYTHING,
        }
    )
    | ANYTHING,
    lambda inner: st.fixed_dictionaries(
        {"op": st.sampled_from(OPERATIONS), "children": st.lists(inner, max_size=3)}
    ),
    max_leaves=8,
)


@pytest.mark.campaign
@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING))
@settings(deadline=None, max_examples=campaign_size(in_ci=30, in_campaign=2000))
def test_no_field_value_makes_the_server_fail(client: httpx.Client, body: dict[str, Any]) -> None:
    answer = client.post(f"{FLIGHTS}/query", content=json.dumps(body))
    assert answer.status_code in (200, 400), (body, answer.text)


@pytest.mark.campaign
@given(NODES)
@settings(deadline=None, max_examples=campaign_size(in_ci=40, in_campaign=2000))
def test_no_predicate_makes_the_server_fail(client: httpx.Client, node: Any) -> None:
    lines(client.post(f"{FLIGHTS}/query", json={"jsonPredicateHints": json.dumps(node)}))


@pytest.mark.campaign
@given(
    st.lists(
        st.sampled_from([*"()=<>'`,. ;", "day", "NOT", "AND", "IN", "NULL", "1", "DATE", "CAST", "BETWEEN"])
    )
)
@settings(deadline=None, max_examples=campaign_size(in_ci=40, in_campaign=2000))
def test_no_sql_makes_the_server_fail(client: httpx.Client, words: list[str]) -> None:
    lines(client.post(f"{FLIGHTS}/query", json={"predicateHints": [" ".join(words)]}))


@pytest.mark.campaign
@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=campaign_size(in_ci=20, in_campaign=1000))
def test_no_bytes_make_the_server_fail(server: Running, client: httpx.Client, noise: bytes) -> None:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(noise + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
    assert client.get("/shares").status_code == 200
