"""What policies of IAM mean: denials end it, two accounts both have to allow, what is not understood is not guessed."""

from typing import Any

import pytest

from lakeshare_pipelines.backup.policy_checks import Request, UnsupportedPolicy, decide, is_met

HERE, THERE = "111111111111", "222222222222"
ROLE = f"arn:aws:iam::{HERE}:role/copy"
KEY = f"arn:aws:kms:eu-central-1:{HERE}:key/k"
OBJECT = "arn:aws:s3:::lake/sales/a b.parquet"


def a_statement(effect: str = "Allow", **said: Any) -> dict[str, Any]:
    """A statement about reading all of the lake."""
    return {"Sid": "S", "Effect": effect, "Action": "s3:Get*", "Resource": "arn:aws:s3:::lake/*", **said}


def by(*statements: dict[str, Any]) -> list[dict[str, Any]]:
    """Policies with these statements."""
    return [{"Version": "2012-10-17", "Statement": list(statements)}]


def asked(
    action: str = "s3:GetObject", resource: str = OBJECT, account: str = HERE, **context: str
) -> Request:
    """The role reads an object that belongs to an account."""
    return Request(action, resource, ROLE, account, context)


TO_ROLE, TO_ALL = {"Principal": {"AWS": ROLE}}, {"Principal": "*"}
TO_ACCOUNT = {"Principal": {"AWS": f"arn:aws:iam::{HERE}:root"}}
TO_NUMBER = {"Principal": {"AWS": HERE}}


@pytest.mark.parametrize(
    ("account", "identity", "resource", "expected"),
    [
        (HERE, [], [], "denied"),
        (HERE, [a_statement()], [], "allowed"),
        (HERE, [], [a_statement(**TO_ROLE)], "allowed"),
        (HERE, [], [a_statement(**TO_ALL)], "allowed"),
        # An account that is named hands the decision on to its own policies.
        (HERE, [], [a_statement(**TO_ACCOUNT)], "denied"),
        (HERE, [a_statement()], [a_statement(**TO_ACCOUNT)], "allowed"),
        (THERE, [a_statement()], [], "denied"),
        (THERE, [], [a_statement(**TO_ROLE)], "denied"),
        (THERE, [a_statement()], [a_statement(**TO_ROLE)], "allowed"),
        (THERE, [a_statement()], [a_statement(**TO_ACCOUNT)], "allowed"),
        (THERE, [a_statement()], [a_statement(**TO_NUMBER)], "allowed"),
        (THERE, [a_statement()], [a_statement(Principal={"AWS": f"arn:aws:iam::{THERE}:root"})], "denied"),
        (HERE, [a_statement(), a_statement("Deny")], [], "denied"),
        (HERE, [a_statement()], [a_statement("Deny", **TO_ALL)], "denied"),
        (HERE, [a_statement()], [a_statement("Deny", NotPrincipal={"AWS": ROLE})], "allowed"),
        (HERE, [a_statement()], [a_statement("Deny", Principal={"AWS": f"{ROLE}2"})], "allowed"),
    ],
)
def test_who_allows_and_who_denies(
    account: str, identity: list[Any], resource: list[Any], expected: str
) -> None:
    assert decide(asked(account=account), by(*identity), by(*resource)).decision == expected


@pytest.mark.parametrize(
    ("statement", "request_", "expected"),
    [
        (a_statement(Action="s3:getobject"), asked(), True),
        (a_statement(Action=["s3:Put*", "s3:GetObject?"]), asked(), False),
        (a_statement(Action="*"), asked(), True),
        (a_statement(Action="s3:GetObject"), asked("s3:GetObjectVersion"), False),
        (a_statement(Resource="arn:aws:s3:::lake"), asked(), False),
        (a_statement(Resource="arn:aws:s3:::lake/sales/*"), asked(), True),
        (a_statement(Resource="arn:aws:s3:::Lake/*"), asked(), False),
        (a_statement(Resource="arn:aws:s3:::lake/sales/[a] *"), asked(), False),
        ({"Effect": "Allow", "NotAction": "s3:Put*", "Resource": "*"}, asked(), True),
        ({"Effect": "Allow", "NotAction": "s3:Get*", "Resource": "*"}, asked(), False),
        ({"Effect": "Allow", "Action": "s3:*", "NotResource": "arn:aws:s3:::lake/*"}, asked(), False),
        ({"Effect": "Allow", "Action": "s3:*", "NotResource": "arn:aws:s3:::mine/*"}, asked(), True),
    ],
)
def test_actions_and_resources(statement: dict[str, Any], request_: Request, expected: bool) -> None:
    assert decide(request_, by(statement), []).is_allowed is expected


@pytest.mark.parametrize(
    ("operator", "wanted", "found", "expected"),
    [
        ("StringEquals", ["a", "b"], "b", True),
        ("StringEquals", ["a"], "A", False),
        ("StringEquals", ["a"], None, False),
        ("StringEqualsIfExists", ["a"], None, True),
        ("StringEqualsIgnoreCase", ["A"], "a", True),
        ("StringNotEquals", ["a", "b"], "b", False),
        ("StringNotEquals", ["a"], None, True),
        ("StringLike", ["o-*"], "o-abc", True),
        ("ArnLike", ["arn:aws:iam::*:role/copy"], ROLE, True),
        ("ArnLike", ["arn:aws:iam::*"], ROLE, False),
        ("ArnNotLike", [ROLE], ROLE, False),
        ("ArnNotLike", ["arn:aws:iam::1:role/x"], ROLE, True),
        ("Bool", ["false"], "False", True),
        ("Null", ["true"], None, True),
        ("Null", ["false"], "x", True),
        ("NumericLessThan", ["7"], "6.5", True),
        ("NumericGreaterThanEquals", ["7"], "6.5", False),
        ("DateLessThan", ["2026-11-22T00:00:00Z"], "2026-11-21T23:59:59Z", True),
        ("DateGreaterThan", ["1700000000"], "1600000000", False),
    ],
)
def test_conditions(operator: str, wanted: list[str], found: str | None, expected: bool) -> None:
    context = {} if found is None else {"AWS:Thing": found}
    assert is_met(operator, "aws:thing", wanted, context) is expected


@pytest.mark.parametrize(
    ("operator", "wanted"),
    [("ForAllValues:StringLike", ["a"]), ("Colour", ["a"]), ("NumericLessThan", ["many"])],
)
def test_what_is_not_understood_is_unknown_and_never_allowed(operator: str, wanted: list[str]) -> None:
    with pytest.raises(UnsupportedPolicy):
        is_met(operator, "aws:thing", wanted, {"aws:thing": "1"})
    statement = a_statement(Condition={operator: {"aws:thing": wanted}})
    verdict = decide(asked(**{"aws:thing": "1"}), by(statement, a_statement()), [])
    assert (verdict.decision, verdict.is_allowed) == ("unknown", False)


def test_an_element_that_is_not_known_is_unknown() -> None:
    assert decide(asked(), by(a_statement(Sometimes="yes")), []).decision == "unknown"


@pytest.mark.parametrize(
    ("identity", "key", "expected"),
    [
        ([{"Effect": "Allow", "Action": "kms:*", "Resource": "*"}], [], False),
        ([], [{"Effect": "Allow", "Action": "kms:*", "Resource": "*", **TO_ROLE}], True),
        ([], [{"Effect": "Allow", "Action": "kms:*", "Resource": "*", **TO_ACCOUNT}], False),
        (
            [{"Effect": "Allow", "Action": "kms:*", "Resource": "*"}],
            [{"Effect": "Allow", "Action": "kms:*", "Resource": "*", **TO_ACCOUNT}],
            True,
        ),
    ],
)
def test_a_key_obeys_its_own_policy(identity: list[Any], key: list[Any], expected: bool) -> None:
    assert decide(asked("kms:Decrypt", KEY), by(*identity), by(*key)).is_allowed is expected


def test_a_service_is_let_in_by_name_only() -> None:
    request = Request(
        "sts:AssumeRole", ROLE, "batchoperations.s3.amazonaws.com", HERE, {"aws:SourceAccount": HERE}
    )
    trust = {
        "Effect": "Allow",
        "Principal": {"Service": "batchoperations.s3.amazonaws.com"},
        "Action": "sts:AssumeRole",
        "Resource": "*",
        "Condition": {"StringEquals": {"aws:SourceAccount": HERE}},
    }
    assert decide(request, [], by(trust)).is_allowed
    assert not decide(request, [], by({**trust, "Principal": {"Service": "ec2.amazonaws.com"}})).is_allowed
    assert not decide(request, [], by({**trust, "Principal": {"AWS": HERE}})).is_allowed
    elsewhere = Request(request.action, ROLE, request.principal, HERE, {"aws:SourceAccount": THERE})
    assert not decide(elsewhere, [], by(trust)).is_allowed


def test_a_verdict_says_by_what() -> None:
    denial = a_statement("Deny", Sid="KeepCopies")
    assert "KeepCopies denies it" in decide(asked(), by(denial), []).because
    assert "policy of the resource" in decide(asked(account=THERE), by(a_statement()), []).because
