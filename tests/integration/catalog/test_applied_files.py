"""Applying files makes the catalog hold what they say, all or nothing; twice changes nothing; hands lose nothing."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import ANY

import pytest
from sqlalchemy import select

from lakeshare_server.catalog import Catalog, states
from lakeshare_server.catalog.credentials import issue_token
from lakeshare_server.catalog.declared import Configuration, Plan, apply_files, plan_changes
from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.catalog.sharing import (
    alter_recipient,
    alter_share,
    alter_table,
    create_recipient,
    create_share,
    editing,
    grant,
    remove_table,
    revoke,
    revoke_recipient,
)
from lakeshare_server.errors import BadRequest, CatalogConflict, DocumentError
from tests.builders.applied_files import EVERYTHING, by_hand, exported, paths, told


def test_applied_twice_changes_nothing(catalog: Catalog, said: Callable[[str], Any]) -> None:
    first = apply_files(catalog, said(EVERYTHING), "ann")
    assert len(first.steps) == 12
    generation = catalog.generation()
    assert plan_changes(catalog, said(EVERYTHING)) == Plan(())
    assert apply_files(catalog, said(EVERYTHING), "ann").steps == ()
    assert catalog.generation() == generation, "whoever changes nothing makes nobody look again"


def test_what_is_exported_makes_the_same_in_an_empty_catalog(
    catalog: Catalog, other_catalog: Catalog, said: Callable[[str], Any]
) -> None:
    apply_files(catalog, said(EVERYTHING), "ann")
    text = exported(catalog)
    assert "token" not in text.replace("# ", "").partition("version")[2]
    assert plan_changes(catalog, said(text)).steps == ()
    apply_files(other_catalog, said(text), "ann")
    assert exported(other_catalog) == text
    assert plan_changes(other_catalog, said(EVERYTHING)).drifted is False


def test_secrets_are_in_no_export(catalog: Catalog, said: Callable[[str], Any]) -> None:
    apply_files(catalog, said("recipients: {bob: {}}"), "ann")
    with editing(catalog, "ann") as edit:
        given = issue_token(edit, "bob")
    text = exported(catalog)
    assert given.secret not in text
    assert given.state.id not in text
    assert plan_changes(catalog, said(text)).steps == ()


def test_a_refusal_leaves_everything_as_it_was_and_names_the_line(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    apply_files(catalog, said("shares: {s: {}}"), "ann")
    before = exported(catalog)
    bad = "shares:\n  new: {tables: [a.x]}\n  s: {properties: {lakeshare.x: y}}\nrecipients: {bob: {}}"
    worse = 'shares:\n  s:\n    tables: {a.x: ,\n      a.y: {rule: " "}}'
    for way in (apply_files, partial(apply_files, dry_run=True)):
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
    assert len(apply_files(catalog, said(EVERYTHING), "ann", dry_run=True).steps) == 12
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
    (lambda edit: revoke(edit, "partners", group="retail"), ("create", "Partners to group retail", ["rule"])),
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
        assert told(plan_changes(catalog, wanted).steps) == [drift]
        apply_files(catalog, wanted, "ann")
        assert sorted(exported(catalog).splitlines()) == sorted(before.splitlines())
        assert plan_changes(catalog, wanted).steps == ()


def test_members_and_policies_are_those_of_the_file(catalog: Catalog, said: Callable[[str], Any]) -> None:
    apply_files(catalog, said(EVERYTHING), "ann")
    other = EVERYTHING.replace("members: [acme, CI]", "members: [acme]").replace("main: {", "branch: {")
    assert told(apply_files(catalog, said(other), "ann").steps) == [
        ("update", "Ci", ["policies"]),
        ("update", "retail", ["members"]),
    ]
    with catalog.reading() as session:
        assert states.get_group(session, "retail").members == ("acme",)
        assert [one.name for one in states.get_recipient(session, "ci").policies] == ["branch"]


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
        assert [one.name for one in states.list_shares(session)] == ["mine", "partners"]
        assert [one.name for one in states.list_recipients(session)] == ["eve", "acme"]
        assert (states.list_groups(session), states.list_grants(session)) == ([], [])
    assert plan_changes(catalog, said(less), prune=True).drifted is False


def test_a_table_that_moves_to_another_lake_table_has_the_access_the_file_says(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    text = "shares: {s: {tables: {a.x: {table: lake.one, directory_access: true}}}}"
    apply_files(catalog, said(text), "ann")
    apply_files(catalog, said(text.replace("lake.one", "lake.two")), "ann")
    assert plan_changes(catalog, said(text.replace("lake.one", "lake.two"))).steps == ()
    with catalog.reading() as session:
        assert [(one.table, one.directory_access) for one in states.list_objects(session)] == [
            ("lake.two", True)
        ]


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

    assert [(left.why, left.current.name) for left in plan_changes(catalog, said(text)).left] == [
        ("orphan", "bob")
    ]
    assert plan_changes(catalog, said(text)).steps == ()
    for part in ("groups: {g: {members: [bob]}}", "shares: {s: {}}\ngrants: [{share: s, recipient: bob}]"):
        with pytest.raises(DocumentError, match="recipient bob was revoked"):
            plan_changes(catalog, said(part))


def test_nothing_else_is_done_than_the_plan_that_was_looked_at(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    text = "shares: {s: {comment: new}}"
    looked_at = plan_changes(catalog, said(text))
    by_hand(catalog, lambda edit: create_share(edit, "s", comment="by eve"))
    with pytest.raises(CatalogConflict, match=f"not plan {looked_at.digest} any more"):
        apply_files(catalog, said(text), "ann", digest=looked_at.digest)
    with catalog.reading() as session:
        assert states.get_share(session, "s").comment == "by eve"


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
        assert states.get_share(session, "partners").comment == "by eve"
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
        assert states.get_share(session, "s").comment == f"by {won}"


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


def test_configurations_prune_their_own_objects_only(catalog: Catalog, said: Callable[[str], Any]) -> None:
    sales, stock = Configuration("sales"), Configuration("stock")
    apply_files(
        catalog, said("shares: {orders: {tables: [a.x]}}\nrecipients: {acme: , bob: }"), "ann", scope=sales
    )
    of_stock = "shares: {parts: {tables: [a.y]}}\ngrants: [{share: parts, recipient: acme}]"
    apply_files(catalog, said(of_stock), "ben", scope=stock)
    apply_files(catalog, said("groups: {unnamed: {members: [acme]}}"), "ann")

    left = plan_changes(catalog, said("{}"), prune=True, scope=sales)
    assert told(left.steps) == [
        ("delete", "orders.a.x", ANY),
        ("delete", "orders", ANY),
        ("delete", "bob", ANY),
    ]
    assert [(item.why, item.current.name) for item in left.left] == [("needed", "acme")], (
        "stock has granted to it"
    )
    assert plan_changes(catalog, said(of_stock), prune=True, scope=stock).drifted is False
    pruned = apply_files(catalog, said("recipients: {acme: }"), "ann", prune=True, scope=sales)
    assert {step.name for step in pruned.steps} == {"orders.a.x", "orders", "bob"}
    with catalog.reading() as session:
        kept = [(state.name, state.configuration) for state in states.list_shares(session)]
        assert (kept, states.list_groups(session)[0].configuration) == ([("parts", "stock")], None)


def test_an_object_moves_to_another_configuration_when_that_is_asked_for(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    files, sales, stock = "shares: {orders: {tables: [a.x]}}", Configuration("sales"), Configuration("stock")
    apply_files(catalog, said(files), "ann")
    taken = apply_files(catalog, said(files), "ann", scope=sales)
    assert told(taken.steps) == [
        ("update", "orders", ["configuration"]),
        ("update", "orders.a.x", ["configuration"]),
    ]
    for scope in (stock, Configuration()):
        with pytest.raises(DocumentError, match=r"orders is of configuration sales.*give --take-from sales"):
            apply_files(catalog, said(files), "ben", scope=scope)
    moved = Configuration("stock", take_from="sales")
    digest = plan_changes(catalog, said(files), scope=moved).digest
    assert digest != plan_changes(catalog, said(files), scope=Configuration(take_from="sales")).digest
    apply_files(catalog, said(files), "ben", scope=moved, digest=digest)
    assert plan_changes(catalog, said(files), prune=True, scope=stock).drifted is False
    with pytest.raises(BadRequest, match="--configuration"):
        Configuration("no name")
