"""What policies of IAM mean: denials end it, two accounts both have to allow, what is not understood is not guessed."""

from typing import Any

import pytest

from lakeshare_pipelines.backup.policies import Request, UnsupportedPolicy, Verdict, decide, is_met
from tests.builders.policy_decisions import EVERYTHING, decide_between

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


def a_request(action: str = "s3:GetObject", resource: str = OBJECT, **context: str) -> Request:
    """The role reads an object."""
    return Request(action, resource, ROLE, context)


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
    assert decide_between(a_request(), account, by(*identity), by(*resource)).decision == expected


@pytest.mark.parametrize(
    ("statement", "request_", "expected"),
    [
        (a_statement(Action="s3:getobject"), a_request(), True),
        (a_statement(Action=["s3:Put*", "s3:GetObject?"]), a_request(), False),
        (a_statement(Action="*"), a_request(), True),
        (a_statement(Action="s3:GetObject"), a_request("s3:GetObjectVersion"), False),
        (a_statement(Resource="arn:aws:s3:::lake"), a_request(), False),
        (a_statement(Resource="arn:aws:s3:::lake/sales/*"), a_request(), True),
        (a_statement(Resource="arn:aws:s3:::Lake/*"), a_request(), False),
        (a_statement(Resource="arn:aws:s3:::lake/sales/[a] *"), a_request(), False),
        ({"Effect": "Allow", "NotAction": "s3:Put*", "Resource": "*"}, a_request(), True),
        ({"Effect": "Allow", "NotAction": "s3:Get*", "Resource": "*"}, a_request(), False),
        ({"Effect": "Allow", "Action": "s3:*", "NotResource": "arn:aws:s3:::lake/*"}, a_request(), False),
        ({"Effect": "Allow", "Action": "s3:*", "NotResource": "arn:aws:s3:::mine/*"}, a_request(), True),
    ],
)
def test_actions_and_resources(statement: dict[str, Any], request_: Request, expected: bool) -> None:
    assert (decide_between(request_, HERE, by(statement), []).decision == "allowed") is expected


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
        # No request of the doctor has a number or a time.
        ("NumericLessThan", ["7"], None, False),
        ("NumericNotEquals", ["7"], None, True),
        ("DateLessThanIfExists", ["2026-11-22T00:00:00Z"], None, True),
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
    verdict = decide_between(a_request(**{"aws:thing": "1"}), HERE, by(statement, a_statement()), [])
    assert verdict.decision == "unknown"


def test_an_element_that_is_not_known_is_unknown() -> None:
    assert decide_between(a_request(), HERE, by(a_statement(Sometimes="yes")), []).decision == "unknown"


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
    assert (
        decide_between(a_request("kms:Decrypt", KEY), HERE, by(*identity), by(*key)).decision == "allowed"
    ) is expected


def test_a_service_is_let_in_by_name_only() -> None:
    request = Request("sts:AssumeRole", ROLE, "batchoperations.s3.amazonaws.com", {"aws:SourceAccount": HERE})
    trust = {
        "Effect": "Allow",
        "Principal": {"Service": "batchoperations.s3.amazonaws.com"},
        "Action": "sts:AssumeRole",
        "Resource": "*",
        "Condition": {"StringEquals": {"aws:SourceAccount": HERE}},
    }
    assert decide(request, by(trust)).decision == "allowed"
    for principal in ({"Service": "ec2.amazonaws.com"}, {"AWS": HERE}):
        assert decide(request, by({**trust, "Principal": principal})).decision == "undecided"
    of_other_account = Request(request.action, ROLE, request.principal, {"aws:SourceAccount": THERE})
    assert decide(of_other_account, by(trust)).decision == "undecided"


def test_a_verdict_says_by_what() -> None:
    denial = a_statement("Deny", Sid="KeepCopies")
    assert "KeepCopies denies it" in decide_between(a_request(), HERE, by(denial), []).because
    assert "policy of the resource" in decide_between(a_request(), THERE, by(a_statement()), []).because


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ([], Verdict("undecided", "the policy of the bucket does not allow it")),
        ([a_statement(**TO_ROLE)], Verdict("allowed", "statement S")),
        ([a_statement(**TO_ACCOUNT)], Verdict("allowed", "statement S")),
        (
            [a_statement(**TO_ROLE), a_statement("Deny", Sid="D", **TO_ALL)],
            Verdict("denied", "statement D denies it"),
        ),
        (
            [a_statement("Deny", Principal={"AWS": f"{ROLE}2"})],
            Verdict("undecided", "the policy of the bucket does not allow it"),
        ),
        ([a_statement(Principal="me")], Verdict("unknown", "the principal 'me' is not supported")),
    ],
)
def test_a_bucket_policy_decides_as_for_a_role_of_another_account_that_may_everything(
    statements: list[Any], expected: Verdict
) -> None:
    assert decide(a_request(), by(*statements)) == expected
    between = decide_between(a_request(), THERE, [EVERYTHING], by(*statements)).decision
    assert between == ("denied" if expected.decision == "undecided" else expected.decision)
