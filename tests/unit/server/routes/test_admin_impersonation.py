"""Over the API an administrator sees what a recipient gets: the same answers by the same routes, and no more."""

from collections.abc import Iterator

import httpx
import pytest

from lakeshare_server.catalog.sharing import editing, grant, revoke_recipient
from tests.builders.administration import PROVIDER, Administered, an_administered_server
from tests.builders.lake_tables import FIRST_DAY
from tests.builders.sharing import files

TABLE = "shares/flights/schemas/lake/tables/flights"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with an_administered_server(tmp_path_factory.mktemp("see_as")) as running:
        running.provider.share("lake.flights")
        yield running


@pytest.fixture(scope="module")
def token(server: Administered) -> str:
    token = server.provider.recipient("seen", ())
    with editing(server.provider.catalog, "tests") as edit:
        grant(edit, "flights", recipient="seen", rule=f"day = DATE '{FIRST_DAY}'")
    return token


@pytest.fixture(scope="module")
def own(server: Administered, token: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(
        verify=False, base_url=f"{server.root}/delta-sharing", headers=headers, timeout=30
    ) as client:
        yield client


@pytest.fixture(scope="module")
def eyes(server: Administered, token: str) -> Iterator[httpx.Client]:
    with server.client("steward", f"{PROVIDER}/recipients/seen/as") as client:
        yield client


@pytest.mark.parametrize(
    "path",
    ["shares", f"{TABLE}/version", f"{TABLE}/metadata", "shares/other/schemas", "nothing", "%2e%2e/api/docs"],
)
def test_an_answer_is_the_recipient_s_own(own: httpx.Client, eyes: httpx.Client, path: str) -> None:
    mine, theirs = eyes.get(f"/{path}"), own.get(f"/{path}")
    assert (mine.status_code, mine.content) == (theirs.status_code, theirs.content)
    assert mine.headers.get("delta-table-version") == theirs.headers.get("delta-table-version")


def test_files_are_those_that_the_recipient_s_rule_leaves(own: httpx.Client, eyes: httpx.Client) -> None:
    mine, theirs = (files(one.post(f"/{TABLE}/query", json={"limitHint": 100})) for one in (eyes, own))
    assert [one["id"] for one in mine] == [one["id"] for one in theirs]
    assert len(mine) == 1


def test_nobody_sees_as_somebody_who_is_let_in_nowhere(server: Administered) -> None:
    server.provider.recipient("gone", ())
    with editing(server.provider.catalog, "tests") as edit:
        revoke_recipient(edit, "gone")
    with server.client("steward", f"{PROVIDER}/recipients") as client:
        refused = client.get("/gone/as/shares")
        assert (refused.status_code, "revoked" in refused.json()["message"]) == (400, True)
        assert client.get("/absent/as/shares").status_code == 404
    with server.client("auditor", f"{PROVIDER}/recipients") as client:
        assert client.get("/seen/as/shares").status_code == 403
