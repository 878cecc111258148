"""Applying files makes the catalog hold what they say, all or nothing; twice changes nothing; hands lose nothing."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from lakeshare_server.catalog import Catalog, DeclaredShare, SharedTable, apply_shares, open_catalog
from lakeshare_server.catalog.declared import Plan, apply_files, export, planned, read_files, tried
from lakeshare_server.catalog.declared.planning import Step
from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.catalog.sharing import (
    add_table,
    alter_recipient,
    alter_share,
    alter_table,
    create_recipient,
    create_share,
    editing,
    grant,
    issue_token,
    look,
    remove_table,
    revoke,
    revoke_recipient,
)
from lakeshare_server.catalog.sharing.states import SharedObject
from lakeshare_server.errors import BadRequest, CatalogConflict, DocumentError

EVERYTHING = """
shares:
  partners:
    comment: |
      Orders of the last year,
      for partners
    display_name: Partners, ü
    owner: sales-data
    properties: {tier: gold}
    tables:
      sales.orders:
      sales.items: lake.items_v2
      eu.orders:
        table: sales.orders
        comment: Those of the EU
        history: false
        start_version: 3
        rule: region = current_recipient('region')
        publication: 12
      eu.seen: {table: sales.seen, kind: VIEW, directory_access: true}
  empty:
recipients:
  acme:
    comment: "Acme: first customer"
    owner: ann
    properties: {region: EU, "a b": 'it''s'}
    ip_allow: [203.0.113.0/24, 2001:db8::1]
    expires_at: 2030-01-01T00:00:00+01:00
    agreement: Do not pass it on.
  Ci:
    authentication: OIDC_FEDERATION
    policies:
      main: {issuer: "https://issuer.example", subject: repo, audiences: [lake, other], comment: builds}
groups:
  retail: {comment: All shops, members: [acme, CI]}
  nobody:
grants:
  - {share: partners, recipient: acme, starts_at: 2024-01-01T00:00:00Z, ends_at: 2030-01-01T00:00:00Z}
  - {share: Partners, group: retail, rule: "day > '2024-01-01'"}
"""


@pytest.fixture
def said(tmp_path: Path) -> Callable[[str], Any]:
    def wanted(text: str, name: str = "shares.yaml") -> Any:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return read_files([path])

    return wanted


@pytest.fixture
def other_catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = open_catalog(f"sqlite:///{tmp_path / 'other' / 'lakeshare.db'}")
    yield opened
    opened.close()


def exported(catalog: Catalog, **options: bool) -> str:
    with catalog.reading() as session:
        return export(session, **options)


def told(steps: tuple[Step, ...]) -> list[tuple[str, str, list[str]]]:
    return [(step.verb, step.name, [one.field for one in step.differences]) for step in steps]


def paths(catalog: Catalog) -> list[str]:
    with catalog.reading() as session:
        return sorted(one.path for one in look.objects(session))


def by_hand(catalog: Catalog, operation: Callable[[Any], object]) -> None:
    with editing(catalog, "eve") as edit:
        operation(edit)


def test_applied_twice_changes_nothing(catalog: Catalog, said: Callable[[str], Any]) -> None:
    first = apply_files(catalog, said(EVERYTHING), "ann")
    assert len(first.steps) == 12
    generation = catalog.generation()
    assert planned(catalog, said(EVERYTHING)) == Plan(())
    assert apply_files(catalog, said(EVERYTHING), "ann").steps == ()
    assert catalog.generation() == generation, "whoever changes nothing makes nobody look again"


def test_what_is_exported_makes_the_same_in_an_empty_catalog(
    catalog: Catalog, other_catalog: Catalog, said: Callable[[str], Any]
) -> None:
    apply_files(catalog, said(EVERYTHING), "ann")
    text = exported(catalog)
    assert "token" not in text.replace("# ", "").partition("version")[2]
    assert planned(catalog, said(text)).steps == ()
    apply_files(other_catalog, said(text), "ann")
    assert exported(other_catalog) == text
    assert planned(other_catalog, said(EVERYTHING)).drifted is False


def test_secrets_are_in_no_export(catalog: Catalog, said: Callable[[str], Any]) -> None:
    apply_files(catalog, said("recipients: {bob: {}}"), "ann")
    with editing(catalog, "ann") as edit:
        given = issue_token(edit, "bob")
    text = exported(catalog)
    assert given.secret not in text
    assert given.state.id not in text
    assert planned(catalog, said(text)).steps == ()


def test_a_refusal_leaves_everything_as_it_was_and_names_the_line(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    apply_files(catalog, said("shares: {s: {}}"), "ann")
    before = exported(catalog)
    bad = "shares:\n  new: {tables: [a.x]}\n  s: {properties: {lakeshare.x: y}}\nrecipients: {bob: {}}"
    worse = 'shares:\n  s:\n    tables: {a.x: ,\n      a.y: {rule: " "}}'
    for way in (apply_files, tried):
        with pytest.raises(DocumentError, match=r"shares\.yaml:3: shares\.s: properties: .* reserved"):
            way(catalog, said(bad), "ann")
        with pytest.raises(
            DocumentError, match=r'shares\.yaml:4: shares\.s\.tables\["a\.y"\]: rule: .*predicate'
        ):
            way(catalog, said(worse), "ann")
    assert exported(catalog) == before
    with catalog.reading() as session:
        assert session.scalars(select(AuditRow.action)).all() == ["create_share"]


def test_a_plan_that_is_tried_changes_nothing(catalog: Catalog, said: Callable[[str], Any]) -> None:
    before = exported(catalog)
    assert len(tried(catalog, said(EVERYTHING), "ann").steps) == 12
    assert exported(catalog) == before
    with catalog.reading() as session:
        assert session.scalars(select(AuditRow.key)).all() == []


CHANGES: list[tuple[Callable[[Any], object], tuple[str, str, list[str]]]] = [
    (lambda edit: alter_share(edit, "partners", comment="x"), ("update", "partners", ["comment"])),
    (lambda edit: alter_share(edit, "partners", new_name="PARTNERS"), ("update", "partners", ["name"])),
    (lambda edit: alter_share(edit, "partners", properties=None), ("update", "partners", ["properties"])),
    (
        lambda edit: alter_table(edit, "partners", "eu", "orders", rule=None, publication=13),
        ("update", "partners.eu.orders", ["rule", "publication"]),
    ),
    (
        lambda edit: alter_table(edit, "partners", "eu", "seen", table="hr.salaries"),
        ("update", "partners.eu.seen", ["table", "directory_access"]),
    ),
    (
        lambda edit: alter_table(edit, "partners", "eu", "seen", directory_access=False),
        ("update", "partners.eu.seen", ["directory_access"]),
    ),
    (
        lambda edit: remove_table(edit, "partners", "sales", "items"),
        ("create", "partners.sales.items", ["table"]),
    ),
    (lambda edit: alter_recipient(edit, "acme", ip_allow=None), ("update", "acme", ["ip_allow"])),
    (lambda edit: alter_recipient(edit, "acme", owner="eve"), ("update", "acme", ["owner"])),
    (
        lambda edit: revoke(edit, "partners", group="retail"),
        ("create", "Partners to group retail", ["rule"]),
    ),
    (
        lambda edit: grant(edit, "partners", recipient="acme"),
        ("update", "partners to recipient acme", ["starts_at", "ends_at"]),
    ),
]


def test_what_was_changed_by_hand_is_shown_and_taken_back(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    wanted = said(EVERYTHING)
    apply_files(catalog, wanted, "ann")
    before = exported(catalog)
    for change, drift in CHANGES:
        by_hand(catalog, change)
        assert told(planned(catalog, wanted).steps) == [drift]
        apply_files(catalog, wanted, "ann")
        assert sorted(exported(catalog).splitlines()) == sorted(before.splitlines())
        assert planned(catalog, wanted).steps == ()


def test_members_and_policies_are_those_of_the_file(catalog: Catalog, said: Callable[[str], Any]) -> None:
    apply_files(catalog, said(EVERYTHING), "ann")
    other = EVERYTHING.replace("members: [acme, CI]", "members: [acme]").replace("main: {", "branch: {")
    assert told(apply_files(catalog, said(other), "ann").steps) == [
        ("update", "Ci", ["policies"]),
        ("update", "retail", ["members"]),
    ]
    with catalog.reading() as session:
        assert look.group(session, "retail").members == ("acme",)
        assert [one.name for one in look.recipient(session, "ci").policies] == ["branch"]


def test_what_no_file_names_any_more_goes_only_when_asked(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    by_hand(catalog, lambda edit: (create_share(edit, "mine"), create_recipient(edit, "eve")))
    apply_files(catalog, said(EVERYTHING), "ann")
    less = "shares: {partners: {tables: [sales.orders]}}\nrecipients: {acme: {}}"
    plan = apply_files(catalog, said(less), "ann")
    assert {step.verb for step in plan.steps} == {"update"}
    assert {left.why for left in plan.left} == {"orphan"}
    apply_files(catalog, said(less), "ann", prune=True)
    assert paths(catalog) == ["partners.sales.orders"]
    with catalog.reading() as session:
        assert [one.name for one in look.shares(session)] == ["mine", "partners"]
        assert [one.name for one in look.recipients(session)] == ["eve", "acme"]
        assert (look.groups(session), look.grants(session)) == ([], [])
    assert planned(catalog, said(less), prune=True).drifted is False


def test_pruning_takes_nothing_that_hands_or_contracts_made(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    apply_files(catalog, said("shares: {s: {tables: [a.x]}, t: {}}\nrecipients: {bob: {}}"), "ann")
    apply_shares(catalog, [DeclaredShare("s", (SharedTable("c", "y", "lake.y"),))])
    by_hand(catalog, lambda edit: add_table(edit, "t", SharedObject(schema="h", name="z", table="lake.z")))
    by_hand(catalog, lambda edit: grant(edit, "t", recipient="bob"))
    plan = apply_files(catalog, said("{}"), "ann", prune=True)
    assert told(plan.steps) == [("delete", "s.a.x", ["table"])]
    assert sorted((left.why, left.held.name) for left in plan.left) == [
        ("needed", "bob"),
        ("needed", "s"),
        ("needed", "t"),
    ]
    assert paths(catalog) == ["s.c.y", "t.h.z"]


def test_files_and_contracts_leave_each_other_alone(catalog: Catalog, said: Callable[[str], Any]) -> None:
    contract = [DeclaredShare("s", (SharedTable("c", "y", "lake.y"),))]
    apply_shares(catalog, contract)
    text = "shares: {s: {display_name: S, tables: {a.x: , c.y: {declared: true, rule: \"day > '2024'\"}}}}"
    apply_files(catalog, said(text), "ann")
    apply_shares(catalog, contract)
    assert planned(catalog, said(text)).drifted is False
    with catalog.reading() as session:
        assert {one.path: one.rule for one in look.objects(session)} == {
            "s.c.y": "day > '2024'",
            "s.a.x": None,
        }
    with pytest.raises(BadRequest, match=r"s\.a\.x.*A file of `lakeshare apply` shares it"):
        apply_shares(catalog, [DeclaredShare("s", (SharedTable("a", "x", "lake.other"),))])
    with pytest.raises(DocumentError, match=r"s\.c\.y is declared by a contract"):
        apply_files(catalog, said("shares: {s: {tables: [c.y]}}"), "ann")
    apply_shares(catalog, [])
    assert paths(catalog) == ["s.a.x"]
    with pytest.raises(DocumentError, match=r"no contract declares s\.c\.y"):
        apply_files(catalog, said(text), "ann")
    # What a contract takes back does not come again by a file that only restricted it.
    assert paths(catalog) == ["s.a.x"]


def test_a_share_of_contracts_is_exported_when_it_was_granted(
    catalog: Catalog, other_catalog: Catalog, said: Callable[[str], Any]
) -> None:
    contract = [DeclaredShare("s", (SharedTable("c", "y", "lake.y"),)), DeclaredShare("quiet", ())]
    apply_shares(catalog, contract)
    by_hand(catalog, lambda edit: (create_recipient(edit, "bob"), grant(edit, "s", recipient="bob")))
    text = exported(catalog)
    assert "quiet" not in text
    apply_files(other_catalog, said(text), "ann")
    apply_shares(other_catalog, contract)
    assert paths(other_catalog) == paths(catalog) == ["s.c.y"]
    assert planned(other_catalog, said(text)).drifted is False


def test_a_share_that_a_group_was_granted_outlives_its_contract(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    apply_shares(catalog, [DeclaredShare("s", (SharedTable("c", "y", "lake.y"),))])
    apply_files(catalog, said("groups: {g: {}}\ngrants: [{share: s, group: g}]"), "ann")
    apply_shares(catalog, [])
    with catalog.reading() as session:
        assert [one.name for one in look.shares(session)] == ["s"]


def test_a_table_that_moves_to_another_lake_table_has_the_access_the_file_says(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    text = "shares: {s: {tables: {a.x: {table: lake.one, directory_access: true}}}}"
    apply_files(catalog, said(text), "ann")
    apply_files(catalog, said(text.replace("lake.one", "lake.two")), "ann")
    assert planned(catalog, said(text.replace("lake.one", "lake.two"))).steps == ()
    with catalog.reading() as session:
        assert [(one.table, one.directory_access) for one in look.objects(session)] == [("lake.two", True)]


def test_a_recipient_that_was_revoked_does_not_come_back_by_a_file(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    text = "shares: {s: {}}\nrecipients: {bob: {}, eve: {}}\ngroups: {g: {members: [bob, eve]}}\n"
    apply_files(catalog, said(text + "grants: [{share: s, recipient: bob}]"), "ann")
    by_hand(catalog, lambda edit: revoke_recipient(edit, "bob"))
    with pytest.raises(DocumentError, match="recipient bob was revoked"):
        apply_files(catalog, said("recipients: {bob: {comment: again}}"), "ann")
    text = exported(catalog)
    assert "# Revoked, and left out: bob" in text

    assert [(left.why, left.held.name) for left in planned(catalog, said(text)).left] == [("orphan", "bob")]
    assert planned(catalog, said(text)).steps == ()
    for part in ("groups: {g: {members: [bob]}}", "shares: {s: {}}\ngrants: [{share: s, recipient: bob}]"):
        with pytest.raises(DocumentError, match="recipient bob was revoked"):
            planned(catalog, said(part))


def test_nothing_else_is_done_than_the_plan_that_was_looked_at(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    text = "shares: {s: {comment: new}}"
    looked_at = planned(catalog, said(text))
    by_hand(catalog, lambda edit: create_share(edit, "s", comment="by eve"))
    with pytest.raises(CatalogConflict, match=f"not plan {looked_at.digest} any more"):
        apply_files(catalog, said(text), "ann", digest=looked_at.digest)
    with catalog.reading() as session:
        assert look.share(session, "s").comment == "by eve"


def test_an_export_with_revisions_overwrites_no_edit_made_since(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    apply_files(catalog, said(EVERYTHING), "ann")
    text = exported(catalog, revisions=True)
    by_hand(catalog, lambda edit: alter_share(edit, "partners", comment="by eve"))
    edited = text.replace("display_name: Partners, ü", "display_name: Ours")
    with pytest.raises(
        DocumentError, match=r"shares\.partners: it is at revision \d+, not \d+: eve has edited"
    ):
        apply_files(catalog, said(edited), "ann")
    with catalog.reading() as session:
        assert look.share(session, "partners").comment == "by eve"
    again = exported(catalog, revisions=True).replace("display_name: Partners, ü", "display_name: Ours")
    assert told(apply_files(catalog, said(again), "ann").steps) == [("update", "partners", ["display_name"])]


def test_two_administrators_at_once_lose_no_change(catalog: Catalog, said: Callable[[str], Any]) -> None:
    apply_files(catalog, said("shares: {s: {}, t: {}}"), "ann")
    seen = exported(catalog, revisions=True)
    texts = {who: seen.replace("  s:\n", f"  s:\n    comment: by {who}\n") for who in ("ann", "ben")}
    wanted = {who: said(text, f"{who}.yaml") for who, text in texts.items()}
    ended: dict[str, object] = {}
    together = threading.Barrier(2)

    def edit(who: str) -> None:
        together.wait(30)
        try:
            ended[who] = len(apply_files(catalog, wanted[who], who).steps)
        except DocumentError as refused:
            ended[who] = refused

    threads = [threading.Thread(target=edit, args=(who,)) for who in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [won] = [who for who, end in ended.items() if end == 1]
    [told_so] = [end for end in ended.values() if isinstance(end, DocumentError)]
    assert f"{won} has edited it since" in str(told_so)
    with catalog.reading() as session:
        assert look.share(session, "s").comment == f"by {won}"


def test_every_step_is_an_event_with_before_and_after(catalog: Catalog, said: Callable[[str], Any]) -> None:
    apply_files(catalog, said("shares: {s: {tables: [a.x, a.y]}}"), "ann")
    apply_files(catalog, said("shares: {s: {tables: {a.x: {history: false}}}}"), "ben", prune=True)
    with catalog.reading() as session:
        events = session.execute(
            select(AuditRow.action, AuditRow.principal, AuditRow.object_name).order_by(AuditRow.key)
        )
        assert [tuple(event) for event in events] == [
            ("create_share", "ann", "s"),
            ("add_table", "ann", "s.a.x"),
            ("add_table", "ann", "s.a.y"),
            ("remove_table", "ben", "s.a.y"),
            ("alter_table", "ben", "s.a.x"),
        ]
