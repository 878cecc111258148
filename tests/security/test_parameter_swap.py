"""Ids, names and tokens of one recipient, share or table are of no use with those of another: not found, every time.

Three recipients, three shares with the same tables of the lake under the same names, and everything that a server ever
handed to somebody: page, refresh and query ids, plan tasks, URLs. Each is sent with all tokens, shares and tables.
"""

import itertools
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakeshare_server.catalog import DeclaredShare, SharedTable, apply_shares
from tests.builders.grants import grant_to, grant_to_group
from tests.builders.lake_tables import an_iceberg_table, some_rows
from tests.builders.sharing import Provider, Running, a_provider, a_server, files, lines

SHARES = ("alpha", "beta", "gamma")
NAMES = ("first", "second", "absent")
# Who may read what: by a grant of its own, by one with a rule, by a group.
GRANTED = {"ann": {"alpha"}, "bob": {"beta"}, "cat": {"alpha", "gamma"}}
ASYNC = {"delta-sharing-capabilities": "asyncquery=true"}
PLANNING = {"delta-sharing-capabilities": "responseformat=delta"}


@dataclass(frozen=True)
class Place:
    """A table as one recipient asks for it."""

    reader: str
    share: str
    table: str

    @property
    def path(self) -> str:
        return f"/shares/{self.share}/schemas/lake/tables/{self.table}"

    @property
    def is_granted(self) -> bool:
        return self.share in GRANTED[self.reader] and self.table != "absent"


@dataclass(frozen=True)
class Handed:
    """Something that the server handed out, and the call that takes it."""

    kind: str
    origin: Place
    method: str
    call: str
    fields: Mapping[str, Any]

    def at(self, place: Place) -> tuple[str, str]:
        """Method and path of the same call for another table."""
        return self.method, f"{place.path}{self.call}"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, dict[str, httpx.Client]]]:
    folder = tmp_path_factory.mktemp("swap")
    provider = a_provider(folder, page_files=2)
    for name in NAMES[:2]:
        made = an_iceberg_table(folder / name)
        provider.publish_iceberg(f"lake.{name}", made.state())
        provider.publish_iceberg(f"lake.{name}", made.append(some_rows(days=3)))
    tables = tuple(SharedTable("lake", name, f"lake.{name}", history=True) for name in NAMES[:2])
    apply_shares(provider.catalog, [DeclaredShare(share, tables) for share in SHARES])
    clients = granted(provider)
    with a_server(provider) as server:
        opened = {name: server.client(token) for name, token in clients.items()}
        yield server, opened
        for client in opened.values():
            client.close()


def granted(provider: Provider) -> dict[str, str]:
    tokens = {name: provider.recipient(name, ()) for name in GRANTED}
    grant_to(provider, "ann", "alpha")
    grant_to(provider, "bob", "beta", rule="day IS NOT NULL")
    grant_to(provider, "cat", "alpha")
    grant_to_group(provider, "cats", ("cat",), "gamma")
    return tokens


def collected(clients: Mapping[str, httpx.Client], origin: Place) -> Iterator[Handed]:
    """Everything with an id that one recipient gets of one table."""
    client, path = clients[origin.reader], origin.path

    def post(call: str, body: Mapping[str, Any], **headers: str) -> list[dict[str, Any]]:
        return lines(client.post(f"{path}{call}", json=body, headers=headers))

    for kind, body in (
        ("page of a snapshot", {"maxFiles": 1}),
        ("page of a version", {"maxFiles": 1, "version": 0}),
        ("page of a window", {"maxFiles": 1, "startingVersion": 0}),
    ):
        token = post("/query", body)[-1]["endStreamAction"]["nextPageToken"]
        yield Handed(kind, origin, "POST", "/query", {"json": {**body, "pageToken": token}})
    asked = {"maxFiles": "1", "startingVersion": "0"}
    token = lines(client.get(f"{path}/changes", params=asked))[-1]["endStreamAction"]["nextPageToken"]
    yield Handed("page of changes", origin, "GET", "/changes", {"params": {**asked, "pageToken": token}})
    end = post("/query", {"includeRefreshToken": True})[-1]["endStreamAction"]
    yield Handed("refresh", origin, "POST", "/query", {"json": {"refreshToken": end["refreshToken"]}})
    [pending] = [
        line
        for line in post("/query", {"idempotencyKey": str(uuid.uuid4())}, **ASYNC)
        if "queryStatus" in line
    ] or [None]
    if pending is not None:
        call = f"/queries/{pending['queryStatus']['queryId']}"
        yield Handed("query id", origin, "POST", call, {"json": {}, "headers": ASYNC})


def plan_task(server: Running, client: httpx.Client, origin: Place) -> Handed:
    made = client.post(str(iceberg(server, origin)) + "/plan", json={})
    assert made.status_code == 200, made.text
    [task] = made.json()["plan-tasks"]
    return Handed("plan task", origin, "POST", "/tasks", {"json": {"plan-task": task}})


def iceberg(server: Running, place: Place) -> httpx.URL:
    path = f"/iceberg/v1/shares/{place.share}/namespaces/lake/tables/{place.table}"
    return httpx.URL(server.url).join(path)


def test_whatever_was_handed_to_somebody_is_of_no_use_anywhere_else(
    running: tuple[Running, dict[str, httpx.Client]],
) -> None:
    """What is issued for the first table is sent with all tokens, shares and tables; the second is one like it."""
    server, clients = running
    every = [Place(*one) for one in itertools.product(GRANTED, SHARES, NAMES)]
    origins = [place for place in every if place.is_granted and place.table == "first"]
    handed = [one for origin in origins for one in collected(clients, origin)]
    tasks = [plan_task(server, clients[origin.reader], origin) for origin in origins]
    assert len({one.kind for one in handed}) == 6
    swapped = 0
    for one, place in itertools.product(handed, every):
        method, path = one.at(place)
        answer = clients[place.reader].request(method, path, **one.fields)
        require_own(one, place, answer)
        swapped += 1
    for one, place in itertools.product(tasks, every):
        url = str(iceberg(server, place)) + one.call
        require_own(one, place, clients[place.reader].request(one.method, url, **one.fields))
        swapped += 1
    assert swapped == len(every) * (len(handed) + len(tasks)) > 700


def require_own(one: Handed, place: Place, answer: httpx.Response) -> None:
    said = f"{one.kind} of {one.origin} at {place}: {answer.status_code} {answer.text[:200]}"
    if place == one.origin:
        assert answer.status_code == 200, said
        return
    # Own tables know no ids of others; what is not granted does not exist, whatever is sent along.
    expected = {400, 404} if place.is_granted else {404}
    assert answer.status_code in expected, said
    assert "/files/" not in answer.text, said
    assert one.kind != "query id" or answer.status_code == 404, said


def test_what_is_not_granted_is_not_there_by_any_call(
    running: tuple[Running, dict[str, httpx.Client]],
) -> None:
    """Word for word the answer for a name that nobody has."""
    server, clients = running
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "", {}),
        ("HEAD", "", {}),
        ("GET", "/version", {}),
        ("GET", "/version", {"params": {"startingTimestamp": "never"}}),
        ("GET", "/metadata", {}),
        ("GET", "/metadata", {"params": {"version": "x"}}),
        ("GET", "/evidence", {}),
        ("GET", "/evidence", {"params": {"version": "x"}}),
        ("GET", "/changes", {"params": {"startingVersion": "0"}}),
        ("POST", "/query", {"json": {}}),
        ("POST", "/query", {"content": b"{"}),
        ("POST", "/query", {"json": {"pageToken": "x", "maxFiles": "y"}}),
        ("POST", "/queries/x", {"json": {}}),
        ("POST", "/temporary-table-credentials", {"json": {}}),
    ]
    doors: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "", {}), ("HEAD", "", {}), ("POST", "/plan", {"content": b"{"}), ("POST", "/plan", {"json": {}}),
        ("POST", "/tasks", {"json": {"plan-task": "x"}}), ("GET", "/plan/x", {}), ("DELETE", "/plan/x", {}),
        ("POST", "/sign", {"json": {}}), ("POST", "/metrics", {"json": {}}), ("GET", "/credentials", {}),
    ]  # fmt: skip
    portal = [
        ("/about", {}),
        ("/versions", {}),
        ("/preview", {}),
        ("/preview", {"limit": "x"}),
        ("/code", {}),
    ]
    for reader, share in itertools.product(GRANTED, SHARES):
        if share in GRANTED[reader]:
            continue
        hidden, nobodys = Place(reader, share, "first"), Place(reader, "n" * len(share), "first")
        for method, call, fields in calls:
            require_alike(clients[reader], method, hidden.path + call, nobodys.path + call, fields, share)
        for method, call, fields in doors:
            urls = [str(iceberg(server, place)) + call for place in (hidden, nobodys)]
            require_alike(clients[reader], method, *urls, fields, share)
        for call, params in portal:
            root = httpx.URL(server.url).join("/portal/api")
            urls = [f"{root}{place.path}{call}" for place in (hidden, nobodys)]
            require_alike(clients[reader], "GET", *urls, {"params": params}, share)


def test_listings_of_others_are_not_there_whatever_page_is_asked_for(
    running: tuple[Running, dict[str, httpx.Client]],
) -> None:
    server, clients = running
    calls = ("", "/schemas", "/schemas/lake/tables", "/all-tables")
    door = str(httpx.URL(server.url).join("/iceberg/v1/shares/{}"))
    tokens = [
        clients["cat"].get(f"/shares/gamma{call}", params={"maxResults": "1"}).json()["nextPageToken"]
        for call in calls[2:]
    ]
    for reader, share, params in itertools.product(
        GRANTED, SHARES, ({}, *({"pageToken": token} for token in (*tokens, "x")), {"maxResults": "x"})
    ):
        if share in GRANTED[reader]:
            continue
        nobodys = "n" * len(share)
        for call in calls:
            paths = f"/shares/{share}{call}", f"/shares/{nobodys}{call}"
            require_alike(clients[reader], "GET", *paths, {"params": params}, share)
        for call in ("/namespaces", "/namespaces/lake", "/namespaces/lake/tables"):
            urls = door.format(share) + call, door.format(nobodys) + call
            require_alike(clients[reader], "GET", *urls, {"params": params}, share)


def require_alike(
    client: httpx.Client, method: str, hidden: str, nobodys: str, fields: dict[str, Any], share: str
) -> None:
    answers = [client.request(method, path, **fields) for path in (hidden, nobodys)]
    told = [(answer.status_code, answer.text.replace(share, "n" * len(share))) for answer in answers]
    assert answers[0].status_code == 404, f"{method} {hidden} {fields}: {told[0]}"
    assert told[0] == told[1], f"{method} {hidden} {fields}"


def ticket_of(url: httpx.URL) -> str:
    return url.path.partition("/files/")[2].partition("/")[0]


def test_urls_are_of_one_recipient_one_file_and_one_time(
    running: tuple[Running, dict[str, httpx.Client]],
) -> None:
    _, clients = running
    urls = {
        reader: [
            httpx.URL(file["url"])
            for file in files(clients[reader].post(Place(reader, share, "first").path + "/query", json={}))
        ]
        for reader, share in (("ann", "alpha"), ("bob", "beta"), ("cat", "gamma"))
    }
    with httpx.Client(verify=False) as anybody:
        for reader, own in urls.items():
            for url, other in itertools.pairwise(own):
                assert anybody.get(url).status_code == 200
                signature = dict(url.params)
                ticket = ticket_of(url)
                foreign_ticket = next(ticket_of(one) for name in urls if name != reader for one in urls[name])
                assert ticket != foreign_ticket
                changed = [
                    url.copy_with(path=url.path.replace(ticket, foreign_ticket)),
                    url.copy_with(path=url.path.replace(ticket, ticket[:-2])),
                    url.copy_set_param("expires", str(int(signature["expires"]) + 1)),
                    url.copy_with(path=other.path),
                    url.copy_with(path=url.path + "/../" + Path(other.path).name),
                    url.copy_remove_param("expires"),
                ]
                for foreign in changed:
                    assert anybody.get(foreign).status_code in (403, 404), foreign
