"""A URL of the server's own byte endpoint ends with what it was issued for: recipient, credential, grant."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from lakeshare_server.catalog import SharedTable, share_table
from lakeshare_server.catalog.credentials import revoke_token, rotate_token
from lakeshare_server.catalog.listings import effective_grant
from lakeshare_server.catalog.sharing import (
    alter_recipient,
    drop_recipient,
    editing,
    grant,
    remove_table,
    revoke,
    revoke_recipient,
)
from tests.builders import plain_http
from tests.builders.credentials import OAUTH, Known, a_recipient, ask_token
from tests.builders.grants import alter_shared
from tests.builders.lake_tables import FIRST_DAY
from tests.builders.sharing import FLIGHTS, Provider, Running, a_provider_of_flights, a_server, files
from tests.builders.waiting import wait_until


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    return a_provider_of_flights(tmp_path_factory.mktemp("ended"))


@pytest.fixture(scope="module")
def server(provider: Provider) -> Iterator[Running]:
    with a_server(provider) as running:
        yield running


def edited(provider: Provider, operation: Callable[..., object], *given: object, **fields: object) -> None:
    with editing(provider.catalog, "tests") as edit:
        operation(edit, *given, **fields)


def first_url(server: Running, token: str, share: str = "flights") -> str:
    table = FLIGHTS.replace("/shares/flights", f"/shares/{share}")
    with server.client(token) as client:
        return str(files(client.post(f"{table}/query", json={}))[0]["url"])


ENDINGS: dict[str, Callable[[Provider, Known], object]] = {
    "revoked": lambda at, known: edited(at, revoke_recipient, known.state.name),
    "dropped": lambda at, known: edited(at, drop_recipient, known.state.name),
    "rotated": lambda at, known: edited(at, rotate_token, known.state.name),
    "token revoked": lambda at, known: edited(
        at, revoke_token, known.state.name, known.given and known.given.state.id
    ),
    "expired": lambda at, known: edited(at, alter_recipient, known.state.name, expires_at=datetime.now(UTC)),
    "grant revoked": lambda at, known: edited(at, revoke, "flights", recipient=known.state.name),
    "grant ended": lambda at, known: edited(
        at, grant, "flights", recipient=known.state.name, ends_at=datetime.now(UTC)
    ),
    "grant restricted": lambda at, known: edited(
        at, grant, "flights", recipient=known.state.name, rule=f"day = '{FIRST_DAY}'"
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("authentication", ["TOKEN", OAUTH])
def test_a_url_ends_at_once(provider: Provider, server: Running, ending: str, authentication: str) -> None:
    known = a_recipient(provider, f"{ending} {authentication}".replace(" ", "-"), authentication)
    token = known.secret if authentication == "TOKEN" else ask_token(server, known).json()["access_token"]
    other = a_recipient(provider, f"other {ending} {authentication}".replace(" ", "-"))
    url, others = first_url(server, token), first_url(server, other.secret)
    assert plain_http.get(url).status_code == 200
    ENDINGS[ending](provider, known)
    for method in ("GET", "HEAD"):
        assert plain_http.request(method, url).status_code == 403
    assert plain_http.get(url, headers={"Range": "bytes=0-3"}).json()["errorCode"] == "PERMISSION_DENIED"
    assert plain_http.get(others).status_code == 200


@pytest.mark.parametrize("ending", ["recipient", "grant", "token"])
def test_a_url_ends_at_the_time_that_was_set_before(provider: Provider, server: Running, ending: str) -> None:
    known = a_recipient(provider, f"timed-{ending}")
    ends_at = datetime.now(UTC) + timedelta(seconds=2)
    token = known.secret
    if ending == "recipient":
        edited(provider, alter_recipient, known.state.name, expires_at=ends_at)
    elif ending == "grant":
        edited(provider, grant, "flights", recipient=known.state.name, ends_at=ends_at)
    else:
        with editing(provider.catalog, "tests") as edit:
            token = rotate_token(edit, known.state.name, expires_at=ends_at).secret
    url = first_url(server, token)
    assert plain_http.get(url).status_code == 200
    wait_until(lambda: plain_http.get(url).status_code == 403)
    assert datetime.now(UTC) >= ends_at


def test_the_rules_of_several_grants_have_one_order() -> None:
    def granted(rule: str) -> SimpleNamespace:
        return SimpleNamespace(rule=rule, starts_at=None, ends_at=None, recipient_name="bob", properties=None)

    now, rows = datetime.now(UTC), [granted("day = 'b'"), granted("day = 'a'")]
    assert effective_grant("id", rows, now) == effective_grant("id", rows[::-1], now)


def test_a_url_lives_on_over_publications_and_changes_of_others(provider: Provider, server: Running) -> None:
    known = a_recipient(provider, "steady")
    url = first_url(server, known.secret)
    a_recipient(provider, "newcomer")
    edited(provider, alter_recipient, known.state.name, comment="still here")
    assert plain_http.get(url).status_code == 200


def test_a_url_shows_neither_names_nor_places_of_the_provider(provider: Provider, server: Running) -> None:
    known = a_recipient(provider, "curious")
    url = first_url(server, known.secret)
    assert str(provider.settings.state_dir.parent) not in url
    assert "curious" not in url


def test_a_url_ends_when_the_table_is_no_longer_shared(provider: Provider, server: Running) -> None:
    share_table(provider.catalog, "byhand", SharedTable("lake", "flights", "lake.flights"))
    known = a_recipient(provider, "unshared", shares=("byhand",))
    for change in (
        lambda: alter_shared(provider, "byhand.lake.flights", history=False),
        lambda: alter_shared(provider, "byhand.lake.flights", publication=0),
        lambda: alter_shared(provider, "byhand.lake.flights", rule=f"day >= '{FIRST_DAY}'"),
        lambda: edited(provider, remove_table, "byhand", "lake", "flights"),
    ):
        url = first_url(server, known.secret, "byhand")
        assert plain_http.get(url).status_code == 200
        change()
        assert plain_http.get(url).status_code == 403
