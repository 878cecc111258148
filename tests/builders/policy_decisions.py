"""IAM's decision by the policies of both sides: of the principal and of the resource.

`lakeshare doctor` reads policies of buckets only; this decides what roles with policies of their own may do.
"""

from collections.abc import Iterable, Sequence

from lakeshare_pipelines.backup.policies import (
    Document,
    Request,
    UnsupportedPolicy,
    Verdict,
    as_list,
    is_about,
    list_statements,
)

EVERYTHING = {"Statement": {"Sid": "Everything", "Effect": "Allow", "Action": "*", "Resource": "*"}}


def decide_between(
    request: Request, resource_account: str, identity: Sequence[Document], resource: Sequence[Document]
) -> Verdict:
    """A statement that denies wins. Across accounts both sides have to allow, within an account either of them."""
    try:
        of_identity = [
            statement
            for policy in identity
            for statement in list_statements(policy)
            if is_about({**statement, "Principal": "*"}, request)
        ]
        of_resource = [
            statement
            for policy in resource
            for statement in list_statements(policy)
            if is_about(statement, request)
        ]
    except UnsupportedPolicy as error:
        return Verdict("unknown", str(error))
    for one in (*of_identity, *of_resource):
        if one["Effect"] == "Deny":
            return Verdict("denied", f"statement {one.get('Sid', 'without a Sid')} denies it")
    by_identity = _find_allowing(of_identity)
    by_name = _find_allowing(one for one in of_resource if not _delegates_to_account(one, request))
    by_resource = by_name or _find_allowing(of_resource)
    if request.account is None:
        allowing: tuple[str | None, ...] = (by_name,)
    elif request.account != resource_account:
        allowing = (by_identity, by_resource)
    elif request.action.startswith("kms:"):
        # A key obeys its own policy only, which may delegate the decision to the account.
        allowing = (by_name or by_resource, by_name or by_identity)
    else:
        allowing = (by_name or by_identity,)
    if all(allowing):
        return Verdict("allowed", " and ".join(dict.fromkeys(name for name in allowing if name)))
    silent = ["the policies of the principal"] * (by_identity is None)
    silent += ["the policy of the resource"] * (by_resource is None)
    return Verdict("denied", f"{' and '.join(silent)} do not allow it")


def _delegates_to_account(statement: Document, request: Request) -> bool:
    """Whether it names the account and no principal of it: then the account's own policies decide."""
    principal = statement.get("Principal", {})
    if request.account is None or isinstance(principal, str):
        return False
    return not {"*", request.principal} & set(as_list(principal.get("AWS", [])))


def _find_allowing(statements: Iterable[Document]) -> str | None:
    allowing = (
        f"statement {one.get('Sid', 'without a Sid')}" for one in statements if one["Effect"] == "Allow"
    )
    return next(allowing, None)
