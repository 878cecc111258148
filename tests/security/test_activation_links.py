"""An activation link gives a profile once, to whoever has all of it; nothing else uses it up, and nothing keeps it."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from lakeshare_server.catalog import states
from lakeshare_server.catalog.database import database_file
from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.catalog.sharing import (
    alter_recipient,
    create_recipient,
    editing,
    grant,
    revoke_recipient,
)
from lakeshare_server.catalog.states import RecipientState
from tests.builders import plain_http
from tests.builders.offered_lake import AGREEMENT, OfferedLake, an_offered_lake

JSON = {"Accept": "application/json"}
RACERS = 8


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfferedLake]:
    with an_offered_lake(tmp_path_factory.mktemp("links")) as running:
        yield running


def state(lake: OfferedLake, name: str) -> RecipientState:
    with lake.provider.catalog.reading() as session:
        return states.get_recipient(session, name)


def is_open(lake: OfferedLake, name: str) -> bool:
    told = state(lake, name)
    return told.links[-1].is_open(datetime.now(UTC)) and not told.tokens


def test_looking_uses_nothing_up_however_often_and_whoever_looks(lake: OfferedLake) -> None:
    link = lake.invited("scanned")
    for method in ("GET", "HEAD", "GET", "OPTIONS", "PUT", "PATCH", "DELETE"):
        for headers in ({}, JSON, {"User-Agent": "a mail scanner", "Purpose": "prefetch"}):
            answer = plain_http.request(method, link, headers=headers)
            assert answer.status_code == (200 if method in ("GET", "HEAD") else 400)
    assert is_open(lake, "scanned")


def test_of_many_at_once_one_gets_the_profile(lake: OfferedLake) -> None:
    link = lake.invited("raced")
    with ThreadPoolExecutor(RACERS) as pool:
        answers = list(pool.map(lambda _: plain_http.post(link, headers=JSON, timeout=30), range(RACERS)))
    assert sorted(answer.status_code for answer in answers) == [200] + [410] * (RACERS - 1)
    assert len(state(lake, "raced").tokens) == 1
    [given] = [answer.json()["profile"] for answer in answers if answer.status_code == 200]
    headers = {"Authorization": f"Bearer {given['bearerToken']}"}
    assert plain_http.get(f"{given['endpoint']}/shares", headers=headers).status_code == 200


def test_a_used_link_says_when_and_from_where_and_gives_nothing(lake: OfferedLake) -> None:
    link = lake.invited("twice")
    assert plain_http.post(link, headers=JSON).status_code == 200
    used = state(lake, "twice").links[-1]
    assert (used.used_from, used.used_at is not None) == ("127.0.0.1", True)
    for answer in (plain_http.get(link, headers=JSON), plain_http.post(link, headers=JSON)):
        assert answer.status_code == 410
        assert f"was used on {used.used_at:%Y-%m-%d at %H:%M} UTC from 127.0.0.1" in answer.json()["message"]
    for answer in (plain_http.get(link), plain_http.post(link)):
        assert answer.status_code == 410
        assert "It was used on" in answer.text
        assert "Get the profile" not in answer.text
    assert len(state(lake, "twice").tokens) == 1


CHANGED: dict[str, Callable[[str], str]] = {
    "shorter": lambda code: code[:-1],
    "longer": lambda code: code + "A",
    "another end": lambda code: code[:-1] + ("A" if code[-1] != "A" else "B"),
    "another case": str.swapcase,
    "a slash behind": lambda code: f"{code}/",
    "a line break within": lambda code: f"{code[:9]}%0A{code[9:]}",
    "a NUL": lambda code: f"{code}%00",
    "half a surrogate": lambda code: f"{code}%ED%A0%80",
    "nothing": lambda _: "",
    "a pattern of SQL": lambda _: "%25",
    "SQL": lambda _: "'%20OR%20'1'='1",
    "a place": lambda _: "..%2f..%2fetc%2fpasswd",
    "very long": lambda code: code * 200,
}


@pytest.mark.parametrize("change", CHANGED)
def test_a_changed_link_is_no_link(lake: OfferedLake, change: str) -> None:
    name = f"changed-{list(CHANGED).index(change)}"
    root, _, code = lake.invited(name).rpartition("/")
    for method in ("GET", "POST"):
        answer = plain_http.request(method, f"{root}/{CHANGED[change](code)}")
        assert answer.status_code == 404
        assert name not in answer.text
    assert is_open(lake, name)


def test_links_end_by_time_by_a_newer_one_and_with_their_recipient(lake: OfferedLake) -> None:
    expired = lake.invited("ends", link_life=timedelta(microseconds=1))
    assert "has expired on" in plain_http.post(expired, headers=JSON).json()["message"]
    replaced, newest = lake.link("ends"), lake.link("ends")
    assert "was replaced or revoked on" in plain_http.post(replaced, headers=JSON).json()["message"]
    with editing(lake.provider.catalog, "steward") as edit:
        revoke_recipient(edit, "ends")
    assert [plain_http.post(link).status_code for link in (expired, replaced, newest)] == [410, 410, 410]
    assert state(lake, "ends").tokens == ()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"json": {}},
        {"json": {"acceptsAgreement": False}},
        {"json": {"acceptsAgreement": "perhaps"}},
        {"json": ["acceptsAgreement"]},
        {"data": {"accept": "no"}},
        {"data": {"accept": ["yes", "no"]}},
        {"content": b"\xff\xfe", "headers": {**JSON, "Content-Type": "application/json"}},
        {"content": b"accept=yes&" + b"x" * 5000},
    ],
)  # fmt: skip
def test_an_agreement_that_is_not_accepted_gives_nothing(lake: OfferedLake, body: dict[str, object]) -> None:
    name = f"reader-{id(body)}"
    link = lake.invited(name, agreement=AGREEMENT)
    answer = plain_http.post(link, **{"headers": JSON, **body})  # type: ignore[arg-type]
    assert answer.status_code == 400
    assert is_open(lake, name)
    assert state(lake, name).agreement_accepted_at is None
    answer = plain_http.post(link, json={"acceptsAgreement": True}, headers=JSON)
    assert answer.json()["fileName"] == f"{name}.share"
    told = state(lake, name)
    assert (told.agreement_accepted_at is not None, told.agreement_accepted_from) == (True, "127.0.0.1")


def test_an_agreement_is_accepted_once_and_again_when_it_is_another_one(lake: OfferedLake) -> None:
    assert plain_http.post(lake.invited("agreed", agreement="one"), data={"accept": "yes"}).status_code == 200
    assert plain_http.get(lake.link("agreed"), headers=JSON).json()["agreement"] is None
    assert plain_http.post(lake.link("agreed")).status_code == 200
    with editing(lake.provider.catalog, "steward") as edit:
        alter_recipient(edit, "agreed", agreement="two")
    link = lake.link("agreed")
    assert plain_http.get(link, headers=JSON).json()["agreement"] == "two"
    assert plain_http.post(link).status_code == 400


def test_from_elsewhere_a_link_neither_shows_nor_gives_anything(lake: OfferedLake) -> None:
    link = lake.invited("listed")
    with editing(lake.provider.catalog, "steward") as edit:
        alter_recipient(edit, "listed", ip_allow=["192.0.2.0/24"])
    code = link.rpartition("/")[2]
    public = f"{lake.root}/api/2.1/unity-catalog/public/data_sharing_activation"
    for address in (link, f"{public}_info/{code}", f"{public}/{code}"):
        answer = plain_http.get(address)
        assert answer.status_code == 403
        assert "listed may not ask from 127.0.0.1" in answer.text
        assert "flights" not in answer.text
    assert plain_http.post(link).status_code == 403
    assert is_open(lake, "listed")
    with editing(lake.provider.catalog, "steward") as edit:
        alter_recipient(edit, "listed", ip_allow=["192.0.2.0/24", "127.0.0.0/8"])
    assert plain_http.post(link).status_code == 200


def test_a_client_gets_its_secret_and_code_that_takes_it(lake: OfferedLake) -> None:
    with editing(lake.provider.catalog, "steward") as edit:
        create_recipient(edit, "client", authentication="OAUTH_CLIENT_CREDENTIALS")
        grant(edit, "trade", recipient="client")
    given = plain_http.post(lake.link("client"), headers=JSON).json()["profile"]
    assert (given["shareCredentialsVersion"], given["type"]) == (2, "oauth_client_credentials")
    asked = {"grant_type": "client_credentials"}
    pair = given["clientId"], given["clientSecret"]
    token = plain_http.post(given["tokenEndpoint"], data=asked, auth=pair).json()["access_token"]
    headers = {"Authorization": f"Bearer {token}"}
    path = f"{lake.root}/portal/api/shares/trade/schemas/lake/tables/cargo"
    code = {one["engine"]: one for one in plain_http.get(f"{path}/code", headers=headers).json()["snippets"]}
    assert "delta_sharing.load_as_pandas" in code["duckdb"]["text"]
    assert code["pyiceberg"]["text"] is None
    assert plain_http.get(f"{path}/preview", headers=headers).json()["rows"]
    assert plain_http.get(f"{lake.root}/portal/api/status", headers=headers).json()["recipient"] == "client"


def test_the_profile_ends_when_the_link_said(lake: OfferedLake) -> None:
    link = lake.invited("timed")
    offered = plain_http.get(link, headers=JSON).json()
    given = plain_http.post(link, headers=JSON).json()["profile"]
    [token] = state(lake, "timed").tokens
    assert datetime.fromisoformat(offered["profileExpiresAt"]) == token.expires_at
    assert datetime.fromisoformat(given["expirationTime"]) == token.expires_at


def test_neither_links_nor_tokens_are_kept_or_told_anywhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with an_offered_lake(tmp_path) as lake:
        link = lake.invited("kept", agreement=AGREEMENT)
        code = link.rpartition("/")[2]
        pages = [plain_http.request(method, link).text for method in ("GET", "PUT", "OPTIONS", "POST")]
        pages += [
            plain_http.get(f"{link}/{code}").text,
            plain_http.get(f"{lake.root}/activate/{code}?{code}").text,
        ]
        given = plain_http.post(link, json={"acceptsAgreement": True}, headers=JSON)
        pages += [plain_http.get(link).text, plain_http.get(link, headers=JSON).text]
        broken = f"{code[:9]}\n{code[9:]}"
        assert plain_http.get(f"{lake.root}/activate/{broken.replace(chr(10), '%0A')}").status_code == 404
        token = given.json()["profile"]["bearerToken"]
        assert plain_http.get(
            f"{lake.root}/portal/api/status", headers={"Authorization": f"Bearer {token}"}
        ).is_success
        catalog = lake.provider.catalog
        file = database_file(lake.provider.settings.catalog_url)
    assert file is not None
    with catalog.reading() as session:
        actions = {row.action for row in session.scalars(select(AuditRow))}
    assert {"look_at_link", "redeem_link", "invite", "portal_status"} <= actions
    stored = b"".join(one.read_bytes() for one in file.parent.iterdir() if one.is_file())
    for secret in (code, token, code[9:]):
        assert secret.encode() not in stored
        # What a client of these tests logs of its own requests is not the server's.
        told = [one.getMessage() for one in caplog.records if not one.name.startswith(("httpx", "httpcore"))]
        assert not [line for line in told if secret in line]
        assert not [page for page in pages if secret in page]
