"""What commands promise of a shared table beside what requests of the same clients are answered."""

from typing import Any

import httpx

from lakeshare_server.catalog import Catalog
from lakeshare_server.catalog.listings import find_shared_table
from lakeshare_server.provider.following import Provider
from lakeshare_server.provider.serveability import provider_view
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables.serveability import CLIENTS, ICEBERG_REST_ID, Verdict


def promised(settings: ServerSettings, catalog: Catalog, path: str) -> dict[str, Verdict]:
    """The verdicts by client, as commands give them in a process of their own."""
    provider = Provider(catalog, settings)
    view = provider_view(find_shared_table(catalog, path, "PATH"), provider.versions)
    return dict(provider.serveability.judge(view).verdicts)


def outcomes(client: httpx.Client, path: str) -> dict[str, tuple[str | None, str]]:
    """What each client of the promises gets: the format it is served in, or None with the refusal's text."""
    share, schema, table = path.split(".")
    at = f"/shares/{share}/schemas/{schema}/tables/{table}"
    found: dict[str, tuple[str | None, str]] = {}
    for one in CLIENTS:
        told = f"responseformat={one.response_format};readerfeatures={','.join(sorted(one.features))}"
        answer = client.post(f"{at}/query", json={}, headers={"delta-sharing-capabilities": told})
        found[one.id] = _outcome(answer, one.response_format)
    door = client.base_url.join(f"/iceberg/v1/shares/{share}/namespaces/{schema}/tables/{table}")
    found[ICEBERG_REST_ID] = _outcome(client.get(door), "iceberg")
    return found


def _outcome(answer: httpx.Response, served_as: str) -> tuple[str | None, str]:
    assert answer.status_code < 500, answer.text
    if answer.status_code == 200:
        return served_as, ""
    body: dict[str, Any] = answer.json()
    return None, str(body.get("message") or body["error"]["message"])


def require_kept(promises: dict[str, Verdict], found: dict[str, tuple[str | None, str]]) -> None:
    """Each promise is what a request gets, and each refusal has the code that was foretold."""
    assert {id_: verdict.served_as for id_, verdict in promises.items()} == {
        id_: served_as for id_, (served_as, _) in found.items()
    }
    for id_, (_, message) in found.items():
        code = promises[id_].code
        assert code is None or f"[{code}]" in message, (id_, code, message)
