"""The plan of `lakeshare apply` is what has to be done and nothing else, in an order in which it can be done."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from lakeshare_server.catalog.declared import format_plan, plan_files, plan_json
from lakeshare_server.catalog.declared.documents import Origin, SourceFile
from lakeshare_server.catalog.declared.files import CurrentObject, DesiredObject, Key, object_key
from lakeshare_server.errors import DocumentError
from lakeshare_server.yaml_documents import parse

FILE = SourceFile(Path("shares.yaml"), parse("grants: []"))
ORIGIN = Origin(FILE, ("grants",))
SHARE = {"name": "s", "comment": None}
ORDERS = object_key("table", "s", "sales", "orders")
GRANT = object_key("grant", "s", "recipient", "bob")


def wanted(*objects: tuple[Key, dict[str, object]], **options: object) -> dict[Key, DesiredObject]:
    return {key: DesiredObject(key, ".".join(key[1:]), fields, ORIGIN, **options) for key, fields in objects}  # type: ignore[arg-type]


def held(*objects: tuple[Key, dict[str, object]], **options: object) -> dict[Key, CurrentObject]:
    return {key: CurrentObject(key, ".".join(key[1:]), fields, **options) for key, fields in objects}  # type: ignore[arg-type]


def verbs(steps: Iterable[object]) -> list[tuple[str, str]]:
    return [(step.verb, step.kind) for step in steps]  # type: ignore[attr-defined]


def test_what_is_held_as_wanted_needs_no_step() -> None:
    plan = plan_files(
        wanted((object_key("share", "S"), SHARE)), held((object_key("share", "s"), SHARE), applied=True)
    )
    assert (plan.steps, plan.drifted) == ((), False)
    assert list(format_plan(plan)) == ["No changes: the catalog holds what the files say."]


def test_only_the_fields_that_differ_change() -> None:
    before = {"name": "s", "comment": "old", "owner": "ann"}
    plan = plan_files(
        wanted((object_key("share", "s"), {"name": "s", "comment": "new"})),
        held((object_key("share", "s"), before), applied=True),
    )
    [step] = plan.steps
    assert [(one.field, one.before, one.after) for one in step.differences] == [("comment", "old", "new")]
    assert list(format_plan(plan))[:2] == ["  ~ share s", '      ~ comment: "old" → "new"']


def test_what_was_made_by_hand_is_taken_over_and_told_so() -> None:
    plan = plan_files(wanted((object_key("share", "s"), SHARE)), held((object_key("share", "s"), SHARE)))
    assert [(one.field, one.before, one.after) for one in plan.steps[0].differences] == [
        ("kept_by", "hand", "files")
    ]


def test_steps_come_in_an_order_in_which_they_can_be_taken() -> None:
    want = wanted(
        (GRANT, {}),
        (object_key("table", "s", "a", "new"), {}),
        (object_key("share", "s"), SHARE),
        (object_key("recipient", "bob"), {"name": "bob"}),
    )
    have = held(
        (object_key("share", "old"), SHARE),
        (object_key("table", "old", "a", "b"), {}),
        (object_key("grant", "old", "recipient", "eve"), {}),
        (object_key("recipient", "eve"), {}),
        applied=True,
    )
    assert verbs(plan_files(want, have, prune=True).steps) == [
        ("delete", "grant"),
        ("delete", "table"),
        ("create", "recipient"),
        ("create", "share"),
        ("create", "table"),
        ("create", "grant"),
        ("delete", "share"),
        ("delete", "recipient"),
    ]


def test_only_what_files_made_is_removed_and_only_when_asked() -> None:
    have = {
        **held((object_key("share", "by_hand"), SHARE)),
        **held((object_key("share", "of_contract"), SHARE), declared=True),
        **held((object_key("share", "of_files"), SHARE), applied=True),
    }
    plan = plan_files({}, have)
    assert (plan.steps, [(left.why, left.current.name) for left in plan.left]) == (
        (),
        [("orphan", "of_files")],
    )
    assert [(step.verb, step.name) for step in plan_files({}, have, prune=True).steps] == [
        ("delete", "of_files")
    ]


@pytest.mark.parametrize("other", [object_key("table", "s", "hr", "salaries"), GRANT])
def test_a_share_that_others_use_is_not_removed_with_what_they_made(other: Key) -> None:
    have = held((object_key("share", "s"), SHARE), (object_key("recipient", "bob"), {}), applied=True) | held(
        (other, {})
    )
    plan = plan_files(wanted((object_key("recipient", "bob"), {})), have, prune=True)
    assert verbs(plan.steps) == []
    assert [(left.why, left.current.key) for left in plan.left] == [("needed", object_key("share", "s"))]


def test_what_somebody_adds_by_hand_to_a_share_of_the_files_is_shown_and_stays() -> None:
    have = held((object_key("share", "s"), SHARE), applied=True) | held(
        (ORDERS, {}), (GRANT, {}), updated_by="eve"
    )
    plan = plan_files(wanted((object_key("share", "s"), SHARE)), have, prune=True)
    assert plan.steps == ()
    assert plan.drifted
    assert list(format_plan(plan)) == [
        "  ? table s.sales.orders: was made by hand by eve in a share of the files, and stays",
        "  ? grant s.recipient.bob: was made by hand by eve in a share of the files, and stays",
        "No changes: the catalog holds what the files say; 2 left as they are.",
    ]


@pytest.mark.parametrize(
    ("want", "have", "said"),
    [
        (wanted((GRANT, {}), (object_key("share", "s"), SHARE)), {}, "there is no recipient bob"),
        (wanted((GRANT, {}), (object_key("recipient", "bob"), {})), {}, "there is no share s"),
        (wanted((object_key("group", "g"), {"members": ("bob",)})), {}, "there is no recipient bob"),
        (wanted((ORDERS, {})), held((ORDERS, {}), declared=True), "is declared by a contract"),
        (wanted((ORDERS, {}), of_contract=True), {}, "no contract declares s.sales.orders"),
        (wanted((ORDERS, {}), of_contract=True), held((ORDERS, {})), "no contract declares s.sales.orders"),
        (
            wanted((object_key("recipient", "bob"), {})),
            held((object_key("recipient", "bob"), {}), is_revoked=True),
            "was revoked",
        ),
        (
            wanted((object_key("recipient", "bob"), {"authentication": "TOKEN"})),
            held((object_key("recipient", "bob"), {"authentication": "OIDC_FEDERATION"})),
            "OIDC_FEDERATION, which cannot become TOKEN",
        ),
    ],
)
def test_what_cannot_be_applied_is_refused_at_its_place(
    want: dict[Key, DesiredObject], have: dict[Key, CurrentObject], said: str
) -> None:
    with pytest.raises(DocumentError, match=said) as refused:
        plan_files(want, have)
    assert str(refused.value).startswith("shares.yaml:1: grants: ")


def test_a_grant_to_a_recipient_that_pruning_would_remove_is_refused() -> None:
    have = held((object_key("recipient", "bob"), {}), (object_key("share", "s"), SHARE), applied=True)
    want = wanted((GRANT, {}), (object_key("share", "s"), SHARE))
    assert verbs(plan_files(want, have).steps) == [("create", "grant")]
    with pytest.raises(DocumentError, match="recipient bob is in no file, and would be removed"):
        plan_files(want, have, prune=True)


def test_an_edit_of_another_revision_is_refused_and_the_same_object_unchanged_is_not() -> None:
    have = held((object_key("share", "s"), SHARE), applied=True, revision=7, updated_by="eve")
    plan_files(wanted((object_key("share", "s"), SHARE), revision=3), have)
    plan_files(wanted((object_key("share", "s"), {"comment": "new"}), revision=7), have)
    with pytest.raises(DocumentError, match="at revision 7, not 3: eve has edited it since"):
        plan_files(wanted((object_key("share", "s"), {"comment": "new"}), revision=3), have)
    with pytest.raises(DocumentError, match="at revision 7, not 3"):
        plan_files({**wanted((object_key("share", "s"), SHARE), revision=3), **wanted((ORDERS, {}))}, have)
    with pytest.raises(DocumentError, match="not there any more"):
        plan_files(wanted((object_key("share", "s"), SHARE), revision=3), {})


def test_the_digest_is_another_when_anything_to_be_done_is_another() -> None:
    one = plan_files(wanted((object_key("share", "s"), {"comment": "one"})), {})
    same = plan_files(wanted((object_key("share", "s"), {"comment": "one"})), {})
    other = plan_files(wanted((object_key("share", "s"), {"comment": "two"})), {})
    assert one.digest == same.digest != other.digest


def test_programs_get_the_plan_with_the_place_in_the_file() -> None:
    told = plan_json(plan_files(wanted((object_key("share", "s"), {"comment": "new"})), {}))
    assert told["changes"] == [
        {
            "action": "create",
            "kind": "share",
            "name": "s",
            "fields": {"comment": {"before": None, "after": "new"}},
            "file": "shares.yaml",
            "line": 1,
        }
    ]
    assert told["summary"] == {"create": 1, "update": 0, "delete": 0}
