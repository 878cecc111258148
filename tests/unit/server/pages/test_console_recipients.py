"""Forms of recipients and groups: each changes what it names, and one that is refused shows why and changes nothing."""

import re
from collections.abc import Iterator

import httpx
import pytest

from lakeshare_server.catalog import audit, declared, states
from lakeshare_server.catalog.credentials import FederationPolicy, put_policy
from lakeshare_server.catalog.sharing import create_group, create_recipient, drop_recipient, editing, grant
from tests.builders.administration import Administered, an_administered_server, shares_read
from tests.builders.console import Browser, browser

LINK = re.compile(r'id="activation-link">([^<]+)<')
RECIPIENTS, GROUPS = "/console/recipients", "/console/groups"
POLICY = {"policy_name": "jobs", "issuer": "https://idp.example", "subject": "etl", "audiences": "lake"}


@pytest.fixture(scope="module")
def administered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    """With the recipients `acme` and `fed`, who has a policy, and the group `partners` with both."""
    with an_administered_server(tmp_path_factory.mktemp("recipients")) as running:
        with editing(running.provider.catalog, "tests") as edit:
            create_recipient(edit, "acme", comment="as it was")
            create_recipient(edit, "fed", authentication="OIDC_FEDERATION")
            kept = FederationPolicy(
                name="kept",
                issuer="https://idp.example",
                subject_claim="sub",
                subject="etl",
                audiences=("lake",),
            )
            put_policy(edit, "fed", kept)
            create_group(edit, "partners", members=["acme", "fed"])
        running.provider.share("lake.flights")
        yield running


@pytest.fixture(scope="module")
def console(administered: Administered) -> Browser:
    return browser(administered, "steward")


def export(administered: Administered) -> tuple[str, int]:
    """All recipients, groups and grants with their revisions, and the number of the last change in the audit log."""
    catalog = administered.provider.catalog
    [last] = audit.search(catalog, audit.Search(kind="change"), 1)
    with catalog.reading() as session:
        return declared.export(session, revisions=True), last.number


def invite(console: Browser, recipient: str, **fields: str) -> str:
    page = f"{RECIPIENTS}/{recipient}"
    link = LINK.search(console.send(page, f"{page}/invite", fields, 200).text)
    assert link is not None
    return link[1]


def redeem(link: str) -> httpx.Response:
    return httpx.post(link, headers={"Accept": "application/json"}, timeout=30)


def test_an_invitation_ends_earlier_links_and_one_token_is_revoked_alone(
    administered: Administered, console: Browser
) -> None:
    with editing(administered.provider.catalog, "tests") as edit:
        create_recipient(edit, "invited")
        grant(edit, "flights", recipient="invited")
    unused = invite(console, "invited")
    links = invite(console, "invited", link_days="365"), invite(console, "invited")
    assert [redeem(link).status_code for link in (unused, links[0])] == [410, 410]
    first = redeem(links[1]).json()["profile"]["bearerToken"]
    second = redeem(invite(console, "invited")).json()["profile"]["bearerToken"]
    page = f"{RECIPIENTS}/invited"
    with administered.provider.catalog.reading() as session:
        oldest, _ = sorted(
            states.get_recipient(session, "invited").tokens, key=lambda token: token.created_at
        )
    revoked = console.send(page, f"{page}/tokens/{oldest.id}/revoke")
    assert revoked.headers["location"] == f"{page}?done=revoked"
    assert [shares_read(administered.root, token) for token in (first, second)] == [None, ["flights"]]
    changes = audit.search(administered.provider.catalog, audit.Search(kind="change"), 2)
    assert [(change.event.action, change.event.principal) for change in changes][-1] == (
        "revoke_token",
        "steward",
    )


def test_old_tokens_end_at_once_without_a_grace_time_which_stays_empty_in_a_refused_form(
    administered: Administered, console: Browser
) -> None:
    token, page = administered.provider.recipient("hasty"), f"{RECIPIENTS}/hasty"
    assert 'name="grace_hours" value="24"' in console.page(page)
    fields = {"grace_hours": "", "link_days": "0"}
    assert 'name="grace_hours" value=""' in console.send(page, f"{page}/rotate", fields, 400).text
    assert shares_read(administered.root, token) == ["flights"]
    console.send(page, f"{page}/rotate", {"grace_hours": ""}, 200)
    assert shares_read(administered.root, token) is None


def test_a_policy_is_put_replaced_and_dropped(administered: Administered, console: Browser) -> None:
    page = f"{RECIPIENTS}/fed"
    console.send(page, f"{page}/policies", POLICY)
    console.send(page, f"{page}/policies", {**POLICY, "subject_claim": "client_id", "audiences": "a b"})
    with administered.provider.catalog.reading() as session:
        policy = next(one for one in states.get_recipient(session, "fed").policies if one.name == "jobs")
    assert (policy.subject_claim, policy.audiences) == ("client_id", ("a", "b"))
    console.send(page, f"{page}/policies/jobs/drop")
    with administered.provider.catalog.reading() as session:
        assert [one.name for one in states.get_recipient(session, "fed").policies] == ["kept"]


def test_a_recipient_is_made_without_a_link_and_removed_for_another_of_its_name(console: Browser) -> None:
    made = console.send(RECIPIENTS, RECIPIENTS, {"name": "brief", "authentication": "OIDC_FEDERATION"})
    assert made.headers["location"] == f"{RECIPIENTS}/brief?done=created"
    page = f"{RECIPIENTS}/brief"
    assert console.send(page, f"{page}/drop").headers["location"] == f"{RECIPIENTS}?done=removed"
    console.page(page, 404)
    assert LINK.search(console.send(RECIPIENTS, RECIPIENTS, {"name": "Brief"}, 200).text)
    console.page(page)


def test_a_group_is_made_altered_and_dropped(administered: Administered, console: Browser) -> None:
    console.send(GROUPS, GROUPS, {"name": "resellers", "comment": "of the north", "members": "acme"})
    change = {"add": "fed", "remove": "acme", "revision": "1"}
    console.send(GROUPS, f"{GROUPS}/resellers", change)
    assert "at revision 2, not 1" in console.send(GROUPS, f"{GROUPS}/resellers", change, 412).text
    assert (
        "at revision 2, not 1"
        in console.send(GROUPS, f"{GROUPS}/resellers/drop", {"revision": "1"}, 412).text
    )
    with administered.provider.catalog.reading() as session:
        group = states.get_group(session, "resellers")
    assert (group.members, group.comment) == (("fed",), "of the north")
    console.send(GROUPS, f"{GROUPS}/resellers/drop", {"revision": "2"})
    assert "resellers" not in console.page(GROUPS)


ACME, FED, PARTNERS = f"{RECIPIENTS}/acme", f"{RECIPIENTS}/fed", f"{GROUPS}/partners"
REFUSED: list[tuple[str, str, dict[str, str], int, str]] = [
    (RECIPIENTS, RECIPIENTS, {"name": "x", "share": "none"}, 404, "Share 'none' does not exist."),
    (RECIPIENTS, RECIPIENTS, {"name": "x", "link_days": "0"}, 400, "from 1 to 365"),
    (RECIPIENTS, RECIPIENTS, {"name": "x", "authentication": "FAX"}, 400, "It is one of TOKEN"),
    (ACME, f"{ACME}/invite", {"link_days": "366"}, 400, "from 1 to 365"),
    (ACME, f"{ACME}/invite", {"token_expires_at": "soon"}, 400, "Give a time in UTC"),
    (ACME, f"{ACME}/invite", {"token_expires_at": "2024-01-01"}, 400, "still to come"),
    (ACME, f"{ACME}/rotate", {"token_expires_at": "2024-01-01"}, 400, "still to come"),
    (FED, f"{FED}/invite", {}, 400, "its own issuer"),
    (ACME, f"{ACME}/rotate", {"grace_hours": "-1"}, 400, "Give a whole number"),
    (ACME, f"{ACME}/tokens/none/revoke", {}, 404, "Token 'none' does not exist."),
    (ACME, ACME, {"requests_per_minute": "many"}, 400, "Give a whole number"),
    (ACME, ACME, {"urls_per_day": "0"}, 400, "one or more"),
    (ACME, ACME, {"bytes_per_day": str(1 << 63)}, 400, "Give a whole number"),
    (ACME, ACME, {"properties": "region"}, 400, "like region=EU"),
    (ACME, ACME, {"properties": "region=EU\nregion=US"}, 400, "each once"),
    (ACME, ACME, {"ip_allow": "here"}, 400, "Give an address"),
    (ACME, ACME, {"revision": "newest"}, 400, "Open the page again"),
    (ACME, f"{ACME}/drop", {"revision": "7"}, 412, "Look at it again"),
    (ACME, f"{ACME}/policies", POLICY, 400, "It gets in by TOKEN"),
    *((FED, f"{FED}/policies", {**POLICY, name: ""}, 400, "cannot be used") for name in POLICY),
    (FED, f"{FED}/policies/none/drop", {}, 404, "'none' does not exist."),
    (GROUPS, GROUPS, {"name": "x", "members": "acme none"}, 404, "Recipient 'none' does not exist."),
    (GROUPS, GROUPS, {"name": "partners"}, 409, "there is a group partners already"),
    (GROUPS, PARTNERS, {"add": "none"}, 404, "Recipient 'none' does not exist."),
    (GROUPS, PARTNERS, {"remove": "acme none"}, 404, "Recipient 'none' does not exist."),
    (GROUPS, f"{GROUPS}/none", {"add": "acme"}, 404, "Group 'none' does not exist."),
    (GROUPS, f"{GROUPS}/none/drop", {}, 404, "Group 'none' does not exist."),
]


@pytest.mark.parametrize(("page", "path", "fields", "status", "reason"), REFUSED)
def test_a_refused_form_shows_why_and_changes_nothing(
    administered: Administered,
    console: Browser,
    page: str,
    path: str,
    fields: dict[str, str],
    status: int,
    reason: str,
) -> None:
    before = export(administered)
    refused = console.send(page, path, fields, status).text
    assert re.search(rf'role="alert">[^<]*{re.escape(reason)}', refused.replace("&#39;", "'"))
    assert 'name="form_token"' in refused  # the page of the form, not one of an error alone
    assert export(administered) == before


def test_a_recipient_that_is_removed_meanwhile_has_no_page(
    administered: Administered, console: Browser
) -> None:
    with editing(administered.provider.catalog, "tests") as edit:
        create_recipient(edit, "gone")
    page = f"{RECIPIENTS}/gone"
    fields = {"form_token": console.page(page).split('name="form_token" value="')[1].split('"')[0]}
    with editing(administered.provider.catalog, "tests") as edit:
        drop_recipient(edit, "gone")
    for path in (page, f"{page}/invite", f"{page}/rotate", f"{page}/revoke", f"{page}/drop"):
        assert "Recipient &#39;gone&#39; does not exist." in console.post(path, fields, 404).text
