"""What policies of IAM allow: pure, for one request at a time (IAM user guide, "Policy evaluation logic").

Knows identity and resource policies, within an account and across two. What it does not know it says, rather than
guess: an operator or an element that it has not heard of makes the answer `unknown`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lakeshare_pipelines.backup.policies.conditions import NotUnderstood, is_met, matches

# A policy document: JSON, as IAM has it.
Document = Mapping[str, Any]
Decision = Literal["allowed", "denied", "unknown"]
KNOWN = {
    "Sid", "Effect", "Principal", "NotPrincipal", "Action", "NotAction", "Resource", "NotResource", "Condition",
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """One action of somebody on something."""

    action: str
    resource: str
    """ARN."""
    principal: str
    """ARN of a user or a role, or a service such as batchoperations.s3.amazonaws.com."""
    resource_account: str
    context: Mapping[str, str] = field(default_factory=dict)
    """Condition keys with their values."""

    @property
    def account(self) -> str | None:
        """The account of who asks; a service has none."""
        found = re.match(r"arn:[^:]*:[^:]*:[^:]*:(\d{12}):", self.principal)
        return found[1] if found else None


@dataclass(frozen=True)
class Verdict:
    """What was decided, and by what: the Sid of a statement, or the side that says nothing."""

    decision: Decision
    because: str

    @property
    def is_allowed(self) -> bool:
        """It is allowed for certain."""
        return self.decision == "allowed"


def decide(request: Request, identity: Sequence[Document], resource: Sequence[Document]) -> Verdict:
    """Whether a request goes through, by the policies of who asks and those of what is asked for.

    An explicit denial ends it. Across accounts both sides have to allow it, within one account either of them.
    """
    try:
        mine = [one for policy in identity for one in _statements(policy) if _is_about(one, request, False)]
        theirs = [one for policy in resource for one in _statements(policy) if _is_about(one, request, True)]
    except NotUnderstood as error:
        return Verdict("unknown", str(error))
    for one in (*mine, *theirs):
        if one["Effect"] == "Deny":
            return Verdict("denied", f"statement {one.get('Sid', 'without a Sid')} denies it")
    return _of_allowances(request, _allowing(mine), theirs)


def _of_allowances(request: Request, by_identity: str | None, theirs: list[Document]) -> Verdict:
    by_name = _allowing(one for one in theirs if not _is_handed_on(one, request))
    by_resource = by_name or _allowing(theirs)
    if request.account is None:
        allowing: tuple[str | None, ...] = (by_name,)
    elif request.account != request.resource_account:
        allowing = (by_identity, by_resource)
    elif request.action.startswith("kms:"):
        # A key obeys its own policy only, which may hand the decision on to the account.
        allowing = (by_name or by_resource, by_name or by_identity)
    else:
        allowing = (by_name or by_identity,)
    if all(allowing):
        return Verdict("allowed", " and ".join(dict.fromkeys(name for name in allowing if name)))
    silent = ["the policies of who asks"] * (by_identity is None) + ["the policy of the resource"] * (
        by_resource is None
    )
    return Verdict("denied", f"{' and '.join(silent)} do not allow it")


def _is_handed_on(statement: Document, request: Request) -> bool:
    """Whether it names the account and nobody in it: then the account's own policies decide."""
    principal = statement.get("Principal", {})
    if principal == "*" or request.account is None or isinstance(principal, str):
        return False
    return not {"*", request.principal} & set(listed(principal.get("AWS", [])))


def _allowing(statements: Iterable[Document]) -> str | None:
    return next(
        (f"statement {one.get('Sid', 'without a Sid')}" for one in statements if one["Effect"] == "Allow"),
        None,
    )


def _statements(policy: Document) -> list[Document]:
    found = policy.get("Statement", [])
    return [found] if isinstance(found, Mapping) else list(found)


def _is_about(statement: Document, request: Request, names_principals: bool) -> bool:
    if unknown := set(statement) - KNOWN:
        raise NotUnderstood(f"a statement has {', '.join(sorted(unknown))}, which is not understood here")
    return (
        (not names_principals or _is_of(statement, request))
        and _either(statement, "Action", request.action.lower(), lower=True)
        and _either(statement, "Resource", request.resource)
        and all(
            is_met(operator, key, listed(values), request.context)
            for operator, tests in statement.get("Condition", {}).items()
            for key, values in tests.items()
        )
    )


def _either(statement: Document, name: str, value: str, *, lower: bool = False) -> bool:
    """Whether a value is among `name`, or not among `Not…`."""
    said = listed(statement.get(name, statement.get(f"Not{name}", [])))
    found = any(matches(one.lower() if lower else one, value) for one in said)
    return found if name in statement else not found


def _is_of(statement: Document, request: Request) -> bool:
    if "NotPrincipal" in statement:
        return not _names(statement["NotPrincipal"], request)
    return _names(statement.get("Principal", {}), request)


def _names(principal: str | Document, request: Request) -> bool:
    if principal == "*":
        return True
    if isinstance(principal, str):
        raise NotUnderstood(f"the principal {principal!r} is not understood here")
    if request.account is None:
        return request.principal in listed(principal.get("Service", []))
    whole_account = (request.account, f":iam::{request.account}:root")
    return any(
        one in ("*", request.principal, whole_account[0]) or one.endswith(whole_account[1])
        for one in listed(principal.get("AWS", []))
    )


def listed(said: str | Sequence[str]) -> list[str]:
    """What may be one or several, as several."""
    return [said] if isinstance(said, str) else list(said)
