"""Whatever stands in names, comments, properties, rules, paths and headers is a text, and stays one."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.admin import Partition, format_partitions, parse_body, parse_partitions
from tests.builders import plain_http
from tests.builders.administration import UNITY, Administered, an_administered_server

HOSTILE = [
    "'; DROP TABLE shares; --",
    "x';DELETE\tFROM\tgrants;--",
    '"quoted"',
    "back`tick",
    "\\'escaped",
    "%s%d%n{0}{name}",
    "{{7*7}}${7*7}#{7*7}<%=7*7%>",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "line\r\nSet-Cookie: admin=1",
    "line\r\n\r\nHTTP/1.1 200 OK",
    "nul\x00byte",
    "\x1b[2Jescape",
    "\u202egnp.exe",
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "$(id)`id`|id",
    "=HYPERLINK(1)",
    "\U0001f4a9\u0301ẞ",
    "group:everybody",
    "x" * 5000,
]
PLAIN = "kept"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with an_administered_server(tmp_path_factory.mktemp("injection")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Administered) -> Iterator[httpx.Client]:
    with server.client() as client:
        client.post("/shares", json={"name": PLAIN, "comment": PLAIN})
        client.post("/recipients", json={"name": PLAIN})
        change = {"changes": [{"principal": PLAIN, "add": ["SELECT"]}]}
        assert client.patch(f"/shares/{PLAIN}/permissions", json=change).status_code == 200
        yield client


@pytest.fixture(scope="module")
def reader(server: Administered) -> str:
    return server.provider.recipient("reader_of_texts", ())


def untouched(client: httpx.Client) -> list[Any]:
    paths = (f"/shares/{PLAIN}", f"/shares/{PLAIN}/permissions", f"/recipients/{PLAIN}/share-permissions")
    return [client.get(path).json() for path in paths]


def no_header_of_theirs(answer: httpx.Response) -> bool:
    return not {"set-cookie", "location"} & set(answer.headers) and answer.status_code < 500


def test_a_name_is_kept_as_it_is_or_refused(client: httpx.Client, subtests: pytest.Subtests) -> None:
    before = untouched(client)
    for text in HOSTILE:
        with subtests.test(text=text[:40]):
            require_name_as_it_is(client, text)
    assert untouched(client) == before


def require_name_as_it_is(client: httpx.Client, text: str) -> None:
    for kind in ("shares", "recipients"):
        made = client.post(f"/{kind}", json={"name": text})
        assert no_header_of_theirs(made)
        found = client.get(f"/{kind}/{quote(text, safe='')}")
        assert no_header_of_theirs(found)
        listed = [one["name"] for one in client.get(f"/{kind}").json()[kind]]
        if made.status_code == 200:
            assert made.json()["name"] == text
            # A name has no slash: every one of them is found by its path.
            assert found.json()["name"] == text
            assert listed.count(text) == 1
            assert client.delete(f"/{kind}/{quote(text, safe='')}").status_code == 200
        else:
            assert (made.status_code, made.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
            assert found.status_code == 404
            assert text not in listed
            # Its first part is in the message, as a literal: no control character comes back.
            assert made.json()["message"].isprintable()
            assert len(made.text) < 1000


def test_texts_come_back_as_they_were_given_to_everybody(
    server: Administered, client: httpx.Client, reader: str, subtests: pytest.Subtests
) -> None:
    before = untouched(client)
    for text in HOSTILE:
        with subtests.test(text=text[:40]):
            require_text_as_given(server, client, reader, text)
    assert untouched(client) == before


def require_text_as_given(server: Administered, client: httpx.Client, reader: str, text: str) -> None:
    kept = text.replace("\x00", "\ufffd")
    client.delete("/shares/texts")
    made = client.post("/shares", json={"name": "texts", "comment": text, "properties": {"key": text[:4000]}})
    if "\x00" in text:
        assert made.status_code == 400
        made = client.post("/shares", json={"name": "texts", "comment": text})
    else:
        assert made.json()["properties"] == {"key": text[:4000]}
    assert made.status_code == 200
    assert client.get("/shares/texts").json()["comment"] == kept
    client.patch(
        "/shares/texts/permissions", json={"changes": [{"principal": "reader_of_texts", "add": ["SELECT"]}]}
    )
    answer = plain_http.get(
        f"{server.root}/delta-sharing/shares/texts", headers={"Authorization": f"Bearer {reader}"}, timeout=30
    )
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.json()["share"]["comment"] == kept
    client.post("/recipients", json={"name": "texts", "comment": text, "agreement": text})
    assert client.get("/recipients/texts").json()["agreement"] == kept
    assert client.delete("/recipients/texts").status_code == 200


def test_tables_and_aliases_are_kept_as_they_are_or_refused(
    client: httpx.Client, subtests: pytest.Subtests
) -> None:
    before = untouched(client)
    for text in HOSTILE:
        with subtests.test(text=text[:40]):
            require_aliases_as_they_are(client, text)
    assert untouched(client) == before


def require_aliases_as_they_are(client: httpx.Client, text: str) -> None:
    client.post("/shares", json={"name": "aliases"})
    for field in ({"name": f"lake.{text}"}, {"name": "lake.t", "shared_as": f"s.{text}"}, {"name": text}):
        answer = client.patch("/shares/aliases", json={"updates": [{"action": "ADD", "data_object": field}]})
        assert answer.status_code in (200, 400), answer.text
        if answer.status_code == 200:
            [found] = answer.json()["objects"]
            assert {key: found[key] for key in field} == field
            gone = {"name": found["name"], "shared_as": found["shared_as"]}
            answer = client.patch(
                "/shares/aliases", json={"updates": [{"action": "REMOVE", "data_object": gone}]}
            )
            assert answer.json()["objects"] == []


def test_headers_queries_and_paths_of_others_are_refused_or_not_found(
    server: Administered, client: httpx.Client, subtests: pytest.Subtests
) -> None:
    before = untouched(client)
    for text in HOSTILE:
        with subtests.test(text=text[:40]):
            require_refusal_of_text(server, client, text)
    assert untouched(client) == before


def require_refusal_of_text(server: Administered, client: httpx.Client, text: str) -> None:
    for path in (
        f"/shares/{quote(text, safe='')}/permissions",
        f"/recipients/{quote(text)}/share-permissions",
    ):
        assert client.get(path).status_code == 404
    assert client.get("/shares", params={"page_token": text}).status_code == 400
    assert client.get("/shares", params={"max_results": text}).status_code == 400
    printable = text.encode("ascii", "replace").decode()
    if printable.isprintable():
        headers = {"If-Match": printable}
        refused = client.patch(f"/shares/{PLAIN}", json={"comment": "x"}, headers=headers)
        assert (refused.status_code, "If-Match" in refused.text) == (400, True)
        with server.client(None) as stranger:
            headers = {"Authorization": f"Bearer {printable}"}
            assert stranger.get("/shares", headers=headers).status_code == 401
    code = quote(text, safe="")
    public = plain_http.get(f"{server.root}{UNITY}/public/data_sharing_activation/{code}", timeout=30)
    assert public.status_code in (400, 404)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_value_of_a_partition_never_leaves_its_quotes(text: str) -> None:
    partition = parse_body(Partition, {"values": [{"name": text, "value": text}]})
    if "\\" in text:
        with pytest.raises(BadRequest, match="backslash"):
            parse_partitions([partition])
        return
    rule = parse_partitions([partition])
    [found] = format_partitions(rule) or []
    assert [(one.name, one.op, one.value) for one in found.values] == [(text, "EQUAL", text)]


def test_half_a_surrogate_pair_and_numbers_without_end_are_refused_by_name(client: httpx.Client) -> None:
    before = untouched(client)
    for body, field in (
        (b'{"name": "\\ud800"}', "name"),
        (b'{"name": "x", "comment": "\\udfff"}', "comment"),
        (b'{"name": "x", "properties": {"\\ud800": "v"}}', "properties"),
    ):
        answer = client.post("/shares", content=body)
        assert (answer.status_code, answer.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE"), (
            answer.text
        )
        assert field in answer.json()["message"]
    for number in ("1e999", "NaN", "-Infinity", "9" * 400, "[]"):
        body = f'{{"name": "x", "expiration_time": {number}}}'.encode()
        assert client.post("/recipients", content=body).status_code == 400
    assert untouched(client) == before


def test_the_same_key_twice_and_keys_of_python_are_nothing_special(client: httpx.Client) -> None:
    twice = client.post("/shares", content=b'{"name": "first", "name": "second"}')
    assert twice.json()["name"] == "second"
    odd = {
        "name": "odd",
        "__class__": "x",
        "model_fields_set": ["owner"],
        "revision": 99,
        "declared": True,
        "id": "1",
    }
    made = client.post("/shares", content=json.dumps(odd)).json()
    assert (made["revision"], made["declared"], made["owner"]) == (1, False, "owner")
    assert made["id"] != "1"
