"""What administrators do: one transaction each, told to the audit log, refused by name, seen at once."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select

from lakeshare_server.catalog import Catalog, states
from lakeshare_server.catalog.credentials import (
    create_link,
    drop_policy,
    find_link,
    issue_token,
    put_policy,
    redeem_link,
    revoke_token,
    rotate_token,
    shorten_tokens,
)
from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.catalog.sharing import (
    Edit,
    add_table,
    alter_group,
    alter_recipient,
    alter_share,
    alter_table,
    create_group,
    create_recipient,
    create_share,
    drop_group,
    drop_recipient,
    drop_share,
    editing,
    grant,
    remove_table,
    revoke,
    revoke_recipient,
)
from lakeshare_server.catalog.states import FederationPolicy, RecipientState, SharedTable
from lakeshare_server.errors import BadRequest, CatalogConflict, LinkEnded, NotFound
from tests.builders.recipients import Recipients

ORDERS = SharedTable(schema="lake", name="orders", table="lake.orders")
ISSUER = "https://issuer.example"


@pytest.fixture
def seeded(catalog: Catalog) -> Catalog:
    with editing(catalog, "ann") as edit:
        create_share(edit, "sales", comment="What was sold")
        add_table(edit, "sales", ORDERS)
        create_recipient(edit, "bob", properties={"region": "EU"})
        create_group(edit, "partners", members=["bob"])
    return catalog


def done(catalog: Catalog, operation: Callable[[Edit], Any]) -> Any:
    with editing(catalog, "ann") as edit:
        return operation(edit)


def recipient(catalog: Catalog, name: str) -> RecipientState:
    with catalog.reading() as session:
        return states.get_recipient(session, name)


def test_every_operation_leaves_an_event_with_before_and_after(seeded: Catalog) -> None:
    done(seeded, lambda edit: alter_share(edit, "sales", comment="Sold", owner="eve"))
    with seeded.reading() as session:
        told = [
            (row.action, row.principal, row.details, row.request_id)
            for row in session.scalars(select(AuditRow).order_by(AuditRow.key))
        ]
    actions, principals, details, requests = zip(*told, strict=True)
    assert actions == ("create_share", "add_table", "create_recipient", "create_group", "alter_share")
    assert set(principals) == {"ann"}
    assert len(set(requests)) == 2
    assert [(details[-1][side]["comment"], details[-1][side]["owner"]) for side in ("before", "after")] == [
        ("What was sold", "ann"),
        ("Sold", "eve"),
    ]


def test_what_fails_later_takes_back_what_was_done(seeded: Catalog) -> None:
    def both(edit: Edit) -> None:
        alter_share(edit, "sales", comment="changed")
        grant(edit, "sales", recipient="nobody")

    with pytest.raises(NotFound, match="nobody"):
        done(seeded, both)
    with seeded.reading() as session:
        assert states.get_share(session, "sales").comment == "What was sold"
        assert session.scalars(select(AuditRow.action).where(AuditRow.action == "alter_share")).all() == []


def test_the_second_of_two_editors_is_told(seeded: Catalog) -> None:
    with seeded.reading() as session:
        seen = states.get_share(session, "sales").revision
    done(seeded, lambda edit: alter_table(edit, "sales", "lake", "orders", history=False, revision=seen))
    with pytest.raises(CatalogConflict, match=f"revision {seen + 1}, not {seen}: ann has edited it"):
        done(seeded, lambda edit: alter_share(edit, "sales", comment="mine", revision=seen))


def test_tables_are_altered_renamed_and_removed(seeded: Catalog) -> None:
    altered = done(
        seeded,
        lambda edit: alter_table(
            edit,
            "SALES",
            "Lake",
            "ORDERS",
            new_schema="eu",
            new_name="all_orders",
            rule="day > '2024'",
            publication=3,
        ),
    )
    assert (altered.path, altered.rule, altered.publication) == ("sales.eu.all_orders", "day > '2024'", 3)
    with seeded.reading() as session:
        assert [one.path for one in states.list_objects(session, "sales")] == ["sales.eu.all_orders"]
    done(seeded, lambda edit: remove_table(edit, "sales", "eu", "all_orders"))
    with seeded.reading() as session:
        assert states.list_objects(session) == []


def test_grants_change_and_end(seeded: Catalog) -> None:
    start, end = datetime.now(UTC), datetime.now(UTC) + timedelta(days=1)
    done(
        seeded, lambda edit: grant(edit, "sales", recipient="bob", starts_at=start, ends_at=end, rule="a = 1")
    )
    done(seeded, lambda edit: grant(edit, "sales", group="partners"))
    again = done(seeded, lambda edit: grant(edit, "sales", recipient="bob"))
    assert (again.rule, again.ends_at) == (None, None)
    with seeded.reading() as session:
        assert [(one.recipient, one.group) for one in states.list_grants(session, recipient="bob")] == [
            ("bob", None),
            (None, "partners"),
        ]
        assert states.list_grants(session, share="sales") == states.list_grants(session)
    done(seeded, lambda edit: revoke(edit, "sales", recipient="bob"))
    with pytest.raises(NotFound, match="Grant"):
        done(seeded, lambda edit: revoke(edit, "sales", recipient="bob"))
    done(seeded, lambda edit: drop_share(edit, "sales"))
    with seeded.reading() as session:
        assert states.list_grants(session) == []


def test_a_recipient_whose_access_is_over_gets_a_token_after_a_later_end_only(seeded: Catalog) -> None:
    done(seeded, lambda edit: alter_recipient(edit, "bob", expires_at=edit.at))
    for operation in (issue_token, rotate_token, create_link):
        with pytest.raises(BadRequest, match="access of bob ends then"):
            done(seeded, lambda edit, operation=operation: operation(edit, "bob"))
    done(seeded, lambda edit: alter_recipient(edit, "bob", expires_at=edit.at + timedelta(days=1)))
    assert done(seeded, lambda edit: issue_token(edit, "bob")).secret


def test_a_link_ends_with_the_token_that_it_is_for(seeded: Catalog) -> None:
    end = datetime.now(UTC) + timedelta(hours=1)
    link, _ = done(seeded, lambda edit: create_link(edit, "bob", token_expires_at=end))
    assert link.expires_at == end


def test_the_grace_of_a_rotated_token_only_shrinks(seeded: Catalog) -> None:
    first = done(seeded, lambda edit: issue_token(edit, "bob"))
    second = done(seeded, lambda edit: rotate_token(edit, "bob", keep_old_for=timedelta(hours=1)))
    assert recipient(seeded, "bob").state == "rotating"
    sooner = recipient(seeded, "bob").tokens[0].expires_at
    done(seeded, lambda edit: shorten_tokens(edit, "bob", existing_expire_in=timedelta(days=9)))
    assert recipient(seeded, "bob").tokens[0].expires_at == sooner
    readers = Recipients(seeded)
    assert readers.by_token(first.secret) is not None
    done(seeded, lambda edit: revoke_token(edit, "bob", first.state.id))
    assert readers.by_token(first.secret) is None
    assert readers.by_token(second.secret) is not None


def test_a_link_gives_a_token_once(seeded: Catalog) -> None:
    done(seeded, lambda edit: alter_recipient(edit, "bob", agreement="Do no harm."))
    _, replaced = done(seeded, lambda edit: create_link(edit, "bob"))
    _, code = done(seeded, lambda edit: create_link(edit, "bob"))
    assert recipient(seeded, "bob").state == "invited"
    link, state = find_link(seeded, code)
    assert (link.recipient, state.agreement) == ("bob", "Do no harm.")
    with pytest.raises(BadRequest, match="agreement"):
        done(seeded, lambda edit: redeem_link(edit, code, from_address="192.0.2.7"))
    told, given = done(
        seeded, lambda edit: redeem_link(edit, code, from_address="192.0.2.7", accepts_agreement=True)
    )
    assert (told.state, told.agreement_accepted_from) == ("activated", "192.0.2.7")
    assert Recipients(seeded).by_token(given.secret) is not None
    with pytest.raises(LinkEnded, match=r"was used on .* from 192\.0\.2\.7"):
        done(seeded, lambda edit: redeem_link(edit, code, from_address="192.0.2.8", accepts_agreement=True))
    with pytest.raises(LinkEnded, match="was replaced"):
        find_link(seeded, replaced)
    with pytest.raises(NotFound, match="Activation link"):
        find_link(seeded, "unknown")


def test_an_expired_link_says_when(seeded: Catalog) -> None:
    _, code = done(seeded, lambda edit: create_link(edit, "bob", link_life=timedelta(microseconds=1)))
    with pytest.raises(LinkEnded, match="has expired on"):
        find_link(seeded, code)
    assert recipient(seeded, "bob").state == "expired"


def test_policies_are_for_recipients_of_an_issuer_and_for_one_only(seeded: Catalog) -> None:
    policy = FederationPolicy(
        name="ci", issuer=ISSUER, subject_claim="sub", subject="robot", audiences=("lakeshare",)
    )
    with pytest.raises(BadRequest, match="OIDC"):
        done(seeded, lambda edit: put_policy(edit, "bob", policy))
    for name in ("ida", "ivy"):
        done(seeded, lambda edit, name=name: create_recipient(edit, name, authentication="OIDC_FEDERATION"))
    assert done(seeded, lambda edit: put_policy(edit, "ida", policy)).issuer == ISSUER
    assert recipient(seeded, "ida").state == "activated"
    with pytest.raises(CatalogConflict, match="recipient ida has the same issuer"):
        done(seeded, lambda edit: put_policy(edit, "ivy", policy))
    done(seeded, lambda edit: drop_policy(edit, "ida", "CI"))
    assert recipient(seeded, "ida").policies == ()


def test_groups_gain_and_lose_members(seeded: Catalog) -> None:
    done(seeded, lambda edit: create_recipient(edit, "eve"))
    changed = done(
        seeded, lambda edit: alter_group(edit, "partners", new_name="friends", add=["eve"], remove=["bob"])
    )
    assert (changed.name, changed.members) == ("friends", ("eve",))
    done(seeded, lambda edit: drop_group(edit, "friends"))
    with seeded.reading() as session:
        assert states.list_groups(session) == []


def test_revoked_recipients_get_nothing_and_dropped_ones_are_gone(seeded: Catalog) -> None:
    given = done(seeded, lambda edit: issue_token(edit, "bob"))
    assert done(seeded, lambda edit: revoke_recipient(edit, "bob")).state == "revoked"
    assert Recipients(seeded).by_token(given.secret) is None
    for operation in (issue_token, create_link, rotate_token):
        with pytest.raises(BadRequest, match="revoked"):
            done(seeded, lambda edit, operation=operation: operation(edit, "bob"))
    done(seeded, lambda edit: drop_recipient(edit, "bob"))
    with pytest.raises(NotFound, match="bob"):
        recipient(seeded, "bob")


BAD: dict[str, tuple[str, Callable[[Edit], Any]]] = {
    "share name": ("share", lambda edit: create_share(edit, "a b")),
    "taken share": ("sales already", lambda edit: create_share(edit, "SALES")),
    "reserved property": ("reserved", lambda edit: create_share(edit, "x", properties={"lakeshare.id": "1"})),
    "no owner": ("owner", lambda edit: create_recipient(edit, "x", owner=" ")),
    "address": ("ip_allow", lambda edit: create_recipient(edit, "x", ip_allow=["10.0.0.1/8"])),
    "naive end": ("zone", lambda edit: create_recipient(edit, "x", expires_at=datetime(2030, 1, 1))),  # noqa: DTZ001
    "taken alias": ("shared already", lambda edit: add_table(edit, "sales", ORDERS)),
    "negative version": (
        "start_version",
        lambda edit: alter_table(edit, "sales", "lake", "orders", start_version=-1),
    ),
    "empty rule": ("rule", lambda edit: grant(edit, "sales", recipient="bob", rule="  ")),
    "two readers": ("recipient,group", lambda edit: grant(edit, "sales", recipient="bob", group="partners")),
    "end before start": (
        "ends_at",
        lambda edit: grant(
            edit, "sales", recipient="bob", starts_at=edit.at, ends_at=edit.at - timedelta(seconds=1)
        ),
    ),
    "negative grace": ("keep_old_for", lambda edit: rotate_token(edit, "bob", keep_old_for=timedelta(-1))),
    "unknown member": ("nobody", lambda edit: alter_group(edit, "partners", add=["nobody"])),
    "ended token": ("still to come", lambda edit: issue_token(edit, "bob", expires_at=edit.at)),
    "rotated to an ended token": ("expires_at", lambda edit: rotate_token(edit, "bob", expires_at=edit.at)),
    "link to an ended token": (
        "token_expires_at",
        lambda edit: create_link(edit, "bob", token_expires_at=edit.at),
    ),
    "endless link": ("link_life", lambda edit: create_link(edit, "bob", link_life=timedelta(days=9999))),
}


def test_what_cannot_be_used_is_refused_and_changes_nothing(
    seeded: Catalog, subtests: pytest.Subtests
) -> None:
    with seeded.reading() as session:
        before = (
            states.list_shares(session),
            states.list_objects(session),
            states.list_recipients(session),
            states.list_groups(session),
        )
    for name, (words, operation) in BAD.items():
        with subtests.test(name):
            with pytest.raises((BadRequest, CatalogConflict, NotFound), match=words):
                done(seeded, operation)
            with seeded.reading() as session:
                assert before == (
                    *(states.list_shares(session), states.list_objects(session)),
                    *(states.list_recipients(session), states.list_groups(session)),
                )
