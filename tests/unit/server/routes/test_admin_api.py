"""The admin API beyond what the Databricks SDK asks: revisions, groups, grants with an end, aliases, its document."""

import html
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from lakeshare_server.catalog.models import AuditRow
from tests.builders import plain_http
from tests.builders.administration import PROVIDER, UNITY, Administered, an_administered_server
from tests.builders.lake_tables import an_iceberg_table
from tests.builders.waiting import wait_until

FAR = int((datetime.now(UTC) + timedelta(days=365)).timestamp()) * 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with an_administered_server(tmp_path_factory.mktemp("admin")) as running:
        yield running


@pytest.fixture(scope="module")
def unity(server: Administered) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def provider(server: Administered) -> Iterator[httpx.Client]:
    with server.client(prefix=PROVIDER) as client:
        yield client


def added(*tables: str) -> dict[str, Any]:
    return {"updates": [{"action": "ADD", "data_object": {"name": table}} for table in tables]}


@pytest.mark.parametrize("kind", ["share", "recipient", "group"])
def test_the_second_of_two_writers_is_told(provider: httpx.Client, kind: str) -> None:
    path = f"/{kind}s/second_{kind}"
    made = provider.post(f"/{kind}s", json={"name": f"second_{kind}"})
    seen = provider.get(path).headers["etag"]
    assert made.headers["etag"] == seen
    first = provider.patch(path, json={"comment": "mine"}, headers={"If-Match": seen})
    assert (first.status_code, first.json()["comment"]) == (200, "mine")
    for call in (
        provider.patch(path, json={"comment": "theirs"}, headers={"If-Match": seen}),
        provider.delete(path, headers={"If-Match": f"W/{seen}"}),
    ):
        assert (call.status_code, call.json()["error_code"]) == (412, "ABORTED")
        assert "owner has edited it" in call.json()["message"]
    assert provider.get(path).json()["comment"] == "mine"
    assert provider.patch(path, json={"comment": "both"}, headers={"If-Match": "*"}).status_code == 200
    assert provider.delete(path, headers={"If-Match": provider.get(path).headers["etag"]}).status_code == 200
    assert provider.get(path).status_code == 404


def test_a_grant_is_an_edit_of_its_share(unity: httpx.Client) -> None:
    unity.post("/shares", json={"name": "granted"})
    unity.post("/recipients", json={"name": "granted_to"})
    seen = {"If-Match": unity.get("/shares/granted/permissions").headers["etag"]}
    change = {"changes": [{"principal": "granted_to", "add": ["SELECT"]}]}
    assert unity.patch("/shares/granted", json=added("lake.flights"), headers=seen).status_code == 200
    late = unity.patch("/shares/granted/permissions", json=change, headers=seen)
    assert late.status_code == 412
    assert unity.get("/shares/granted/permissions").json()["privilege_assignments"] == []
    unity.patch("/shares/granted/permissions", json=change)
    seen = {"If-Match": unity.get("/shares/granted").headers["etag"]}
    # What is there already changes nothing, nor does taking what is not there.
    for same in (change, {"changes": [{"principal": "granted_to", "remove": []}]}, {}):
        assert (
            unity.patch("/shares/granted/permissions", json=same, headers=seen).headers["etag"]
            == seen["If-Match"]
        )


def test_administrators_at_once_lose_no_change(server: Administered, unity: httpx.Client) -> None:
    unity.post("/shares", json={"name": "busy"})

    def work(number: int) -> None:
        with server.client("steward") as client:
            while True:
                found = client.get("/shares/busy", params={"include_shared_data": True})
                sets = {"comment": f"{found.json().get('comment', '')}{number}"} | added(f"lake.t{number}")
                answer = client.patch("/shares/busy", json=sets, headers={"If-Match": found.headers["etag"]})
                if answer.status_code == 200:
                    return
                assert answer.status_code == 412, answer.text

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = unity.get("/shares/busy", params={"include_shared_data": True}).json()
    assert sorted(found["comment"]) == list("012345")
    assert {one["name"] for one in found["objects"]} == {f"lake.t{number}" for number in range(6)}


def test_a_grant_may_begin_end_and_have_a_rule(unity: httpx.Client) -> None:
    unity.post("/shares", json={"name": "timed"})
    unity.post("/recipients", json={"name": "timed_to"})
    terms = {"starts_at": FAR - 1000, "ends_at": FAR, "rule": "`day` = '2024-01-01'"}

    def granted(**change: Any) -> dict[str, Any]:
        changes = [{"principal": "timed_to", "add": ["SELECT"], **change}]
        [one] = unity.patch("/shares/timed/permissions", json={"changes": changes}).json()[
            "privilege_assignments"
        ]
        return {key: one[key] for key in one if key not in ("principal", "privileges")}

    assert granted(**terms) == terms
    # A tool that knows nothing of terms grants again without them: they stay.
    assert granted() == terms
    assert granted(ends_at=FAR) == {"ends_at": FAR}
    wrong = {"changes": [{"principal": "timed_to", "add": ["SELECT"], "starts_at": FAR, "ends_at": FAR - 1}]}
    refused = unity.patch("/shares/timed/permissions", json=wrong)
    assert (refused.status_code, refused.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert granted() == {"ends_at": FAR}


def test_a_rule_that_partitions_do_not_decide_is_refused_by_its_column(unity: httpx.Client) -> None:
    def shared(column: str) -> httpx.Response:
        test = [{"values": [{"name": column, "value": "2024-03-01"}]}]
        table = {"name": "lake.flights", "partitions": test}
        return unity.patch("/shares/ruled", json={"updates": [{"action": "ADD", "data_object": table}]})

    unity.post("/shares", json={"name": "ruled"})
    refused = shared("carrier")
    assert (refused.status_code, "carrier" in refused.json()["message"]) == (400, True)
    assert unity.get("/shares/ruled").json()["revision"] == 1
    assert shared("day").status_code == 200
    unity.post("/recipients", json={"name": "ruled_to"})
    change = {"changes": [{"principal": "ruled_to", "add": ["SELECT"], "rule": "carrier = 'AA'"}]}
    refused = unity.patch("/shares/ruled/permissions", json=change)
    assert (refused.status_code, "carrier" in refused.json()["message"]) == (400, True)
    assert unity.get("/shares/ruled/permissions").json()["privilege_assignments"] == []


def test_a_rule_on_a_table_whose_versions_were_not_found_yet_waits_for_nobody(
    server: Administered, unity: httpx.Client, tmp_path: Path
) -> None:
    an_iceberg_table(tmp_path)
    server.provider.follow_iceberg("lake.found", tmp_path / "lake" / "flights")
    unity.post("/shares", json={"name": "finding"})
    table = {"name": "lake.found", "rule": "day = DATE '2024-03-01'"}
    # Longer than a request may take is how long a writer would wait for another.
    answer = unity.patch(
        "/shares/finding", json={"updates": [{"action": "ADD", "data_object": table}]}, timeout=20
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["objects"][0]["rule"] == table["rule"]


def test_groups_are_made_filled_and_granted(provider: httpx.Client) -> None:
    for name in ("ann", "ben"):
        provider.post("/recipients", json={"name": name})
    provider.post("/shares", json={"name": "for_group"})
    made = provider.post("/groups", json={"name": "partners", "members": ["ann"]}).json()
    assert (made["members"], made["created_by"]) == (["ann"], "owner")
    changed = provider.patch(
        "/groups/partners", json={"add_members": ["ben"], "remove_members": ["ann"]}
    ).json()
    assert changed["members"] == ["ben"]
    change = {"changes": [{"principal": "group:partners", "add": ["SELECT"]}]}
    granted = provider.patch("/shares/for_group/permissions", json=change).json()
    assert [one["principal"] for one in granted["privilege_assignments"]] == ["group:partners"]
    [read] = provider.get("/recipients/ben/share-permissions").json()["permissions_out"]
    assert (read["share_name"], read["privilege_assignments"][0]["principal"]) == (
        "for_group",
        "group:partners",
    )
    assert provider.get("/recipients/ann/share-permissions").json()["permissions_out"] == []
    assert provider.patch("/groups/partners", json={"add_members": ["nobody"]}).status_code == 404
    assert "partners" in [one["name"] for one in provider.get("/groups").json()["groups"]]
    provider.delete("/groups/partners")
    assert provider.get("/shares/for_group/permissions").json()["privilege_assignments"] == []


def test_one_token_or_all_access_is_ended(server: Administered, provider: httpx.Client) -> None:
    tokens = [server.provider.recipient("ending", ())]
    code = provider.post(
        "/recipients/ending/rotate-token", json={"existing_token_expire_in_seconds": 600}
    ).json()
    public = (
        f"{server.root}{UNITY}/public/data_sharing_activation/{code['activation_url'].rpartition('/')[2]}"
    )
    tokens.append(plain_http.get(public).json()["bearerToken"])

    def opens() -> list[bool]:
        shares = f"{server.root}/delta-sharing/shares"
        return [
            plain_http.get(shares, headers={"Authorization": f"Bearer {one}"}).status_code == 200
            for one in tokens
        ]

    first, _ = provider.get("/recipients/ending").json()["tokens"]
    assert opens() == [True, True]
    assert provider.delete(f"/recipients/ending/tokens/{first['id']}").status_code == 200
    assert provider.delete("/recipients/ending/tokens/absent").status_code == 404
    assert opens() == [False, True]
    ended = provider.post("/recipients/ending/revoke").json()
    assert (ended["state"], ended.get("tokens"), opens()) == ("revoked", None, [False, False])
    again = provider.post("/recipients/ending/rotate-token", json={"existing_token_expire_in_seconds": 0})
    assert (again.status_code, "revoked" in again.json()["message"]) == (400, True)


def test_an_agreement_is_accepted_or_there_is_no_profile(
    server: Administered, provider: httpx.Client
) -> None:
    made = provider.post("/recipients", json={"name": "careful", "agreement": "For research only."}).json()
    code = made["activation_url"].rpartition("/")[2]
    public = f"{server.root}/api/2.1/opensharing/public"
    told = plain_http.get(f"{public}/data_sharing_activation_info/{code}").json()
    assert (told["recipient"], told["agreement"], told["shares"]) == ("careful", "For research only.", [])
    without = plain_http.get(f"{public}/data_sharing_activation/{code}")
    assert (without.status_code, "accepts_agreement" in without.text) == (400, True)
    profile = plain_http.get(f"{public}/data_sharing_activation/{code}", params={"accepts_agreement": True})
    assert set(profile.json()) >= {"bearerToken", "endpoint", "shareCredentialsVersion", "icebergEndpoint"}
    assert profile.headers["cache-control"] == "no-store"
    gone = plain_http.get(f"{public}/data_sharing_activation/{code}")
    assert (gone.status_code, "bearerToken" in gone.text) == (410, False)


def test_a_link_is_good_from_addresses_that_the_recipient_may_come_from(
    server: Administered, provider: httpx.Client
) -> None:
    made = provider.post(
        "/recipients", json={"name": "far", "ip_access_list": {"allowed_ip_addresses": ["192.0.2.7"]}}
    )
    code = made.json()["activation_url"].rpartition("/")[2]
    for call in ("data_sharing_activation_info", "data_sharing_activation"):
        refused = plain_http.get(f"{server.root}{UNITY}/public/{call}/{code}")
        assert (refused.status_code, refused.json()["error_code"]) == (403, "PERMISSION_DENIED")
    provider.patch("/recipients/far", json={"ip_access_list": {"allowed_ip_addresses": ["127.0.0.0/8"]}})
    assert plain_http.get(f"{server.root}{UNITY}/public/data_sharing_activation/{code}").json()["bearerToken"]


def test_a_client_of_oauth_gets_its_own_kind_of_profile(server: Administered, provider: httpx.Client) -> None:
    made = provider.post(
        "/recipients", json={"name": "robot", "authentication_type": "OAUTH_CLIENT_CREDENTIALS"}
    )
    code = made.json()["activation_url"].rpartition("/")[2]
    profile = plain_http.get(f"{server.root}{UNITY}/public/data_sharing_activation/{code}").json()
    assert (profile["type"], profile["clientId"]) == ("oauth_client_credentials", made.json()["id"])


def test_every_path_of_databricks_has_its_alias_of_opensharing(server: Administered) -> None:
    paths = plain_http.get(f"{server.root}/api/openapi.json").json()["paths"]
    unity = {
        path.removeprefix("/2.1/unity-catalog") for path in paths if path.startswith("/2.1/unity-catalog/")
    }
    policies = {
        path.removeprefix("/2.0/data-sharing") for path in paths if path.startswith("/2.0/data-sharing")
    }
    aliases = {path.removeprefix("/2.1/opensharing").removeprefix("/provider") for path in paths}
    assert len(unity) > 8
    assert unity | policies <= aliases


def test_opensharing_s_own_spellings_are_understood(provider: httpx.Client) -> None:
    provider.post("/shares", json={"name": "spelt"})
    provider.post("/recipients", json={"name": "spelt_to"})
    table = {"action": "ADD", "data_object": {"name": "main.lake.flights", "type": "VIEW"}}
    [found] = provider.patch("/shares/spelt", json={"updates": [table]}).json()["objects"]
    assert (found["shared_as"], found["data_object_type"]) == ("lake.flights", "VIEW")
    change = {"changes": [{"recipient_name": "spelt_to", "add": ["SELECT"]}]}
    told = provider.patch("/shares/spelt/permissions", json=change).json()
    assert told["privilege_assignments"][0]["principal"] == "spelt_to"


def test_fields_that_are_not_known_are_ignored_and_null_empties(unity: httpx.Client) -> None:
    made = unity.post("/shares", json={"name": "newer", "comment": "x", "from_the_future": {"a": [1]}})
    assert (made.status_code, made.json()["comment"]) == (200, "x")
    assert "comment" not in unity.patch("/shares/newer", json={"comment": None}).json()
    assert unity.patch("/shares/newer", json={"new_name": None}).status_code == 400


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b"\xff\xfe", b"null", b"[" * 100_000])
def test_a_body_that_is_no_object_is_malformed(unity: httpx.Client, body: bytes) -> None:
    answer = unity.post("/shares", content=body)
    assert (answer.status_code, answer.json()["error_code"]) == (400, "MALFORMED_REQUEST")


def test_a_body_of_any_size_is_not_read_for_somebody_unknown(
    server: Administered, unity: httpx.Client
) -> None:
    large = b'{"name": "' + b"x" * server.provider.settings.max_body_bytes + b'"}'
    assert unity.post("/shares", content=large).json()["error_code"] == "MALFORMED_REQUEST"
    with server.client(None) as stranger:
        assert stranger.post("/shares", content=large).status_code == 401


def test_a_change_is_an_event_with_before_and_after(server: Administered, unity: httpx.Client) -> None:
    unity.post("/shares", json={"name": "told"})
    unity.patch("/shares/told", json={"comment": "new"})
    with server.provider.catalog.reading() as session:
        told = select(AuditRow.action, AuditRow.principal, AuditRow.details).order_by(AuditRow.key)
        rows = session.execute(
            told.where(AuditRow.object_name == "told", AuditRow.details.is_not(None))
        ).all()
    [(made, by, first), (changed, _, second)] = rows
    assert (made, by, first["before"], changed) == ("create_share", "owner", None, "alter_share")
    assert second["before"].get("comment") is None
    assert second["after"]["comment"] == "new"


def test_the_document_tells_every_call_with_shapes_that_are_there(server: Administered) -> None:
    document = plain_http.get(f"{server.root}/api/openapi.json").json()
    assert document["openapi"].startswith("3.")
    schemas = document["components"]["schemas"]
    used = set(
        re.findall(r'"#/components/schemas/(\w+)"', plain_http.get(f"{server.root}/api/openapi.json").text)
    )
    assert used <= schemas.keys()
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert operation["description"], (method, path)
            takes = method in ("post", "patch") and not path.endswith(("/revoke", "/as/{path}", "/test"))
            assert ("requestBody" in operation) == takes, (method, path)
            assert (operation.get("security") == []) == ("/public/" in path)
    assert "updates" in schemas["UpdateShare"]["properties"]


def test_the_document_s_page_takes_nothing_from_elsewhere(server: Administered) -> None:
    answer = plain_http.get(f"{server.root}/api/docs")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    page = answer.text
    assert not re.search(r"<script|<link|<img|url\(|@import|https?://", page)
    linked = set(re.findall(r'href="#(\w+)"', page))
    assert linked
    assert linked <= set(re.findall(r'id="(\w+)"', page))
    for path in ("/api/2.1/unity-catalog/shares/{share}", "/api/2.1/opensharing/provider/groups"):
        assert html.escape(path) in page
    assert "<code>next_before</code>" in page
    assert re.search(r"Query: .*?<code>max_results</code>", page, re.DOTALL)


def test_the_audit_log_is_searched_in_pages_the_newest_first(
    server: Administered, provider: httpx.Client
) -> None:
    for number in range(3):
        provider.post("/shares", json={"name": f"audited_{number}"})
    changes = {"kind": "change", "action": "create_share", "principal": "owner"}
    with server.client("auditor", prefix=PROVIDER) as auditor:
        first = auditor.get("/audit-events", params=changes | {"max_results": 2}).json()
        names = [event["object_name"] for event in first["events"]]
        assert names == ["audited_2", "audited_1"]
        assert first["events"][0]["details"]["after"]["name"] == "audited_2"
        assert first["events"][0]["hash"]
        next_page = auditor.get("/audit-events", params=changes | {"before": first["next_before"]}).json()
        assert next_page["events"][0]["object_name"] == "audited_0"
        last = auditor.get("/audit-events", params=changes | {"object": "audited_0"}).json()
        assert [event["object_name"] for event in last["events"]] == ["audited_0"]
        assert "next_before" not in last
        tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        assert auditor.get("/audit-events", params={"since": tomorrow}).json() == {"events": []}


def test_usage_is_counted_by_what_is_asked(server: Administered, provider: httpx.Client) -> None:
    provider.post("/shares", json={"name": "used"})
    provider.patch("/shares/used", json=added("lake.flights"))
    made = provider.post("/recipients", json={"name": "user"}).json()
    provider.patch("/shares/used/permissions", json={"changes": [{"principal": "user", "add": ["SELECT"]}]})
    code = made["activation_url"].rpartition("/")[2]
    profile = provider.get(f"{server.root}/api/2.1/opensharing/public/data_sharing_activation/{code}").json()
    headers = {"Authorization": f"Bearer {profile['bearerToken']}"}
    query = f"{server.root}/delta-sharing/shares/used/schemas/lake/tables/flights/query"
    assert plain_http.post(query, json={}, headers=headers).status_code == 200

    def counted() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = provider.get(
            "/usage", params={"recipient": "user", "by": ["day", "table"]}
        ).json()["usage"]
        return found

    wait_until(lambda: any(row["queries"] for row in counted()))
    [row] = [row for row in counted() if row["queries"]]
    assert (row["table"], row["queries"], row["versions"]) == ("used.lake.flights", 1, 1)
    assert row["day"] == datetime.now(UTC).date().isoformat()


@pytest.mark.parametrize(
    ("path", "params", "field"),
    [
        ("/audit-events", {"max_results": 0}, "max_results"),
        ("/audit-events", {"since": "yesterday"}, "since"),
        ("/audit-events", {"before": "x"}, "before"),
        ("/usage", {"by": "colour"}, "by"),
        ("/usage", {"since": "2026-03-02", "until": "2026-03-01"}, "since"),
    ],
)
def test_a_search_that_cannot_be_used_is_refused(
    provider: httpx.Client, path: str, params: dict[str, Any], field: str
) -> None:
    refused = provider.get(path, params=params)
    assert (refused.status_code, refused.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert field in refused.json()["message"]
