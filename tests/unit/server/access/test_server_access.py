"""A recipient sees what it was granted, and of everything else not even that it exists."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, event

from lakeshare_server.catalog import DeclaredShare, SharedTable, apply_shares
from lakeshare_server.catalog.sharing import editing
from tests.builders import plain_http
from tests.builders.grants import alter_shared
from tests.builders.lake_tables import a_delta_table, an_iceberg_table, append_delta, some_rows
from tests.builders.recipients import Recipients, expire_token
from tests.builders.sharing import FLIGHTS, Provider, Running, a_provider, a_server, files

CALLS = [
    ("GET", "/shares/{share}"),
    ("GET", "/shares/{share}/schemas"),
    ("GET", "/shares/{share}/schemas/{schema}/tables"),
    ("GET", "/shares/{share}/all-tables"),
    ("GET", "/shares/{share}/schemas/{schema}/tables/{table}/version"),
    ("GET", "/shares/{share}/schemas/{schema}/tables/{table}/metadata"),
    ("POST", "/shares/{share}/schemas/{schema}/tables/{table}/query"),
    ("GET", "/shares/{share}/schemas/{schema}/tables/{table}/changes"),
    ("POST", "/shares/{share}/schemas/{schema}/tables/{table}/temporary-table-credentials"),
]


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    folder = tmp_path_factory.mktemp("access")
    provider = a_provider(folder)
    provider.publish_delta("lake.flights", a_delta_table(folder / "table"))
    table = SharedTable("lake", "flights", "lake.flights")
    planned = SharedTable("lake", "planned", "lake.planned")
    apply_shares(
        provider.catalog,
        [DeclaredShare("mine", (table, planned)), DeclaredShare("hidden", (table,), "secret")],
    )
    provider.recipient("eve", ("hidden",))
    return provider


@pytest.fixture(scope="module")
def server(provider: Provider) -> Iterator[Running]:
    with a_server(provider) as running:
        yield running


@pytest.fixture(scope="module")
def client(provider: Provider, server: Running) -> Iterator[httpx.Client]:
    with server.client(provider.recipient("bob", ("mine",))) as client:
        yield client


def filled(path: str, share: str, schema: str = "lake", table: str = "flights") -> str:
    return path.format(share=share, schema=schema, table=table)


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_ungranted_looks_exactly_like_unknown(client: httpx.Client, method: str, path: str) -> None:
    hidden = client.request(method, filled(path, "hidden"))
    unknown = client.request(method, filled(path, "nobody"))
    assert hidden.status_code == unknown.status_code == 404
    assert hidden.text.replace("hidden", "nobody") == unknown.text
    told = {name for name in hidden.headers if name not in ("x-request-id", "date", "content-length")}
    assert told == {
        name for name in unknown.headers if name not in ("x-request-id", "date", "content-length")
    }


@pytest.mark.parametrize(("method", "path"), [call for call in CALLS if "{table}" in call[1]])
@pytest.mark.parametrize(("schema", "table"), [("lake", "other"), ("other", "flights")])
def test_unknown_below_a_granted_share_is_not_found(
    client: httpx.Client, method: str, path: str, schema: str, table: str
) -> None:
    answer = client.request(method, filled(path, "mine", schema, table))
    assert answer.status_code == 404
    assert answer.json()["errorCode"] == "RESOURCE_DOES_NOT_EXIST"
    assert f"mine/{schema}/{table}" in answer.json()["message"]


def test_an_unknown_schema_is_not_found(client: httpx.Client) -> None:
    assert client.get("/shares/mine/schemas/other/tables").status_code == 404


def test_a_shared_table_without_a_publication_is_listed_but_not_found(client: httpx.Client) -> None:
    names = [table["name"] for table in client.get("/shares/mine/all-tables").json()["items"]]
    assert names == ["flights", "planned"]
    assert client.get("/shares/mine/schemas/lake/tables/planned/version").status_code == 404


def test_listings_hold_the_granted_share_only(client: httpx.Client) -> None:
    shares = client.get("/shares").json()["items"]
    assert [share["name"] for share in shares] == ["mine"]
    assert "secret" not in client.get("/shares").text


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Basic eDp5", "Bearer x y", "Bearer " + "x" * 5000, "bearer ü", "token"]
)
@pytest.mark.parametrize(("method", "path"), [*CALLS, ("GET", "/shares")])
def test_no_valid_token_is_401_before_anything_else(
    server: Running, method: str, path: str, header: str | None
) -> None:
    headers = {} if header is None else {"Authorization": header.encode()}
    answers = [
        plain_http.request(method, server.url + filled(path, share), headers=headers)
        for share in ("mine", "nobody")
    ]
    for answer in answers:
        assert answer.status_code == 401
        assert answer.json()["errorCode"] == "UNAUTHENTICATED"
        assert answer.headers["www-authenticate"] == "Bearer"
    assert answers[0].text == answers[1].text


def test_a_bad_body_of_somebody_unknown_is_still_401(server: Running) -> None:
    path = filled(CALLS[6][1], "mine")
    assert plain_http.post(server.url + path, content=b"{").status_code == 401


@pytest.mark.parametrize("end", ["revoked", "rotated", "expired"])
def test_access_ends_with_the_next_request(provider: Provider, server: Running, end: str) -> None:
    recipients = Recipients(provider.catalog)
    token = provider.recipient(end, ("mine",))
    with server.client(token) as client:
        assert client.get("/shares").status_code == 200
        if end == "revoked":
            recipients.revoke(end)
        elif end == "rotated":
            recipients.rotate(end)
        else:
            with editing(provider.catalog, "tests") as edit:
                expire_token(edit, token)
        assert client.get("/shares").status_code == 401


def test_the_scheme_may_be_written_in_any_case(provider: Provider, server: Running) -> None:
    token = provider.recipient("loud", ("mine",))
    answer = plain_http.get(server.url + "/shares", headers={"Authorization": f"BEARER  {token}"})
    assert answer.status_code == 200


def test_two_publications_of_one_table_are_pinned_by_number(
    provider: Provider, server: Running, tmp_path: Path
) -> None:
    location = a_delta_table(tmp_path / "pinned")
    provider.publish_delta("lake.planned", location)
    append_delta(location, some_rows(days=1))
    provider.publish_delta("lake.planned", location)
    with server.client(provider.recipient("pin", ("mine",))) as client:
        path = "/shares/mine/schemas/lake/tables/planned/query"
        found = [len(files(client.post(path, json=body))) for body in ({"version": 0}, {"version": 1}, {})]
    assert found == [3, 4, 4]


BY_THE_WAY = ("async_queries", "audit_chain", "audit_journal", "audit_log", "webhook")


@contextmanager
def counted_questions() -> Iterator[list[str]]:
    """What every database of this process is asked meanwhile."""
    asked: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        # Async queries and webhooks are looked for, and events written down, whoever asks for what meanwhile.
        if statement.startswith("SELECT") and not any(table in statement for table in BY_THE_WAY):
            asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def test_what_was_looked_up_once_is_not_asked_for_again(provider: Provider, server: Running) -> None:
    path = filled(CALLS[6][1], "mine")
    with server.client(provider.recipient("counted", ("mine",))) as client:
        with counted_questions() as asked:
            assert client.post(path, json={}).status_code == 200
        # Token, grant, whether the table is followed, and its newest publication: one question each.
        assert len(asked) == len(set(asked)) == 4, asked
        with counted_questions() as asked:
            for _ in range(3):
                assert client.post(path, json={}).status_code == 200
        assert asked == []
        with counted_questions() as asked:
            assert client.post(path, json={"version": 0}).status_code == 200
        assert asked == []


ONCE: list[tuple[dict[str, int], int, int]] = [
    ({"version": 1}, 1, 0),
    # A window asks each time for the publications within, and once for the first of all and its own last one.
    ({"startingVersion": 1}, 2, 1),
    ({"startingVersion": 1, "endingVersion": 2}, 3, 1),
]


@pytest.mark.parametrize(("body", "first", "again"), ONCE)
def test_a_publication_that_was_read_once_is_not_read_again(
    tmp_path: Path, body: dict[str, int], first: int, again: int
) -> None:
    provider, location = a_provider(tmp_path), a_delta_table(tmp_path / "table")
    provider.publish_delta("lake.flights", location)
    for _ in range(3):
        append_delta(location, some_rows(days=1))
        provider.publish_delta("lake.flights", location)
    provider.share("lake.flights")
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        assert client.post(f"{FLIGHTS}/query", json={}).status_code == 200
        for count in (first, again):
            with counted_questions() as asked:
                assert client.post(f"{FLIGHTS}/query", json=body).status_code == 200
            assert len(asked) == len(set(asked)) == count, asked


def test_recipients_are_told_of_a_table_by_the_name_it_is_shared_under(tmp_path: Path) -> None:
    """The lake's own names are the provider's: they say where else to look."""
    provider, shared = a_provider(tmp_path), "/shares/flights/schemas/pub/tables"
    location = a_delta_table(tmp_path / "table")
    for version in (0, 2):
        provider.publish_delta("secret.delta", location)
        for _ in range(2 - version):
            append_delta(location, some_rows(days=1))
    provider.publish_iceberg("secret.iceberg", an_iceberg_table(tmp_path / "warehouse").state())
    names = ("delta", "iceberg", "planned")
    tables = tuple(SharedTable("pub", name, f"secret.{name}") for name in names)
    apply_shares(provider.catalog, [DeclaredShare("flights", tables)])
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        for table, body, status, told in (
            ("planned", {}, 404, "flights/pub/planned"),
            ("planned", {"version": 0}, 404, "flights/pub/planned"),
            ("planned", {"startingVersion": 0}, 404, "flights/pub/planned"),
            ("planned", {"timestamp": "2020-01-01T00:00:00Z"}, 404, "flights/pub/planned"),
            ("iceberg", {"version": 1}, 400, "flights.pub.iceberg"),
            ("delta", {"startingVersion": 0}, 400, "this table"),
            ("delta", {"version": 1}, 400, "flights.pub.delta"),
        ):
            answer = client.post(f"{shared}/{table}/query", json=body)
            assert (answer.status_code, told in answer.json()["message"]) == (status, True), answer.text
            assert "secret" not in answer.text
        answer = client.get(f"{shared}/planned/version")
        assert (answer.status_code, "secret" in answer.text) == (404, False)


def test_what_was_looked_up_ends_with_the_grant(provider: Provider, server: Running) -> None:
    path = filled(CALLS[6][1], "mine")
    with server.client(provider.recipient("passing", ("mine",))) as client:
        assert client.post(path, json={}).status_code == 200
        Recipients(provider.catalog).revoke("passing")
        assert client.post(path, json={}).status_code == 401


def test_a_start_version_or_a_pin_that_is_still_to_come(provider: Provider, server: Running) -> None:
    provider.share("lake.flights", history=True)

    def ask(**body: object) -> tuple[int, str]:
        reply = client.post(f"{FLIGHTS}/query", json=body)
        return reply.status_code, "" if reply.is_success else reply.json()["message"]

    with server.client(provider.recipient("early")) as client:
        alter_shared(provider, "flights.lake.flights", start_version=9)
        assert ask() == (200, ""), "the latest version is always readable"
        for body in (
            {"version": 0},
            {"version": 9},
            {"startingVersion": 0},
            {"timestamp": "2020-01-01T00:00:00Z"},
        ):
            status, message = ask(**body)
            assert (status, "You can only query table data since version 9" in message) == (400, True), (
                message
            )
        assert "cannot be greater than the latest version 0" in ask(startingVersion=9)[1]
        alter_shared(provider, "flights.lake.flights", start_version=None, publication=9)
        assert (ask()[0], ask(version=9)[0], ask(startingVersion=0)[0], ask(version=0)) == (
            404,
            404,
            404,
            (200, ""),
        )
