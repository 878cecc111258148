"""Federation policies: whose tokens of which OIDC issuer are a recipient's."""

from typing import Annotated

from fastapi import APIRouter, Response

from lakeshare_server.catalog.sharing import FederationPolicy, drop_policy, look, put_policy
from lakeshare_server.errors import BadRequest, NameTaken, NotFound
from lakeshare_server.protocol.admin.replies import FederationPolicies, FederationPolicyInfo
from lakeshare_server.protocol.admin.requests import PutPolicy
from lakeshare_server.protocol.admin.telling import told_policy
from lakeshare_server.routes.admin.context import LookDep, ShareDep, body, reply, takes

router = APIRouter(tags=["federation policies"], prefix="/recipients/{recipient}/federation-policies")


@router.post("", response_model=FederationPolicyInfo, openapi_extra=takes(PutPolicy))
def create_policy(by: ShareDep, recipient: str, wanted: Annotated[PutPolicy, body(PutPolicy)]) -> Response:
    """Give a recipient of OIDC federation a policy."""
    with by.editing() as edit:
        if _named(look.recipient(edit.session, recipient).policies, wanted.name) is not None:
            raise NameTaken(f"{recipient} has a policy {wanted.name} already", "Choose another name.")
        made = put_policy(edit, recipient, _policy(wanted))
    return reply(told_policy(made))


@router.get("", response_model=FederationPolicies)
def list_policies(by: LookDep, recipient: str) -> Response:
    """List a recipient's policies."""
    with by.parts.catalog.reading() as session:
        found = look.recipient(session, recipient).policies
    return reply(FederationPolicies(policies=[told_policy(one) for one in found]))


@router.get("/{policy}", response_model=FederationPolicyInfo)
def look_at_policy(by: LookDep, recipient: str, policy: str) -> Response:
    """One policy of a recipient."""
    with by.parts.catalog.reading() as session:
        found = _named(look.recipient(session, recipient).policies, policy)
    if found is None:
        raise NotFound("Federation policy", policy)
    return reply(told_policy(found))


@router.patch("/{policy}", response_model=FederationPolicyInfo, openapi_extra=takes(PutPolicy))
def alter_policy(
    by: ShareDep, recipient: str, policy: str, wanted: Annotated[PutPolicy, body(PutPolicy)]
) -> Response:
    """Put another policy in the place of one."""
    if wanted.name.lower() != policy.lower():
        raise BadRequest("name", wanted.name, f"The policy is {policy}; policies keep their names.")
    with by.editing() as edit:
        if _named(look.recipient(edit.session, recipient).policies, policy) is None:
            raise NotFound("Federation policy", policy)
        changed = put_policy(edit, recipient, _policy(wanted))
    return reply(told_policy(changed))


@router.delete("/{policy}")
def delete_policy(by: ShareDep, recipient: str, policy: str) -> Response:
    """Take a policy from a recipient."""
    with by.editing() as edit:
        drop_policy(edit, recipient, policy)
    return reply(None)


def _named(policies: tuple[FederationPolicy, ...], name: str) -> FederationPolicy | None:
    return next((one for one in policies if one.name.lower() == name.lower()), None)


def _policy(wanted: PutPolicy) -> FederationPolicy:
    said = wanted.oidc_policy
    return FederationPolicy(
        name=wanted.name,
        issuer=said.issuer,
        subject_claim=said.subject_claim,
        subject=said.subject,
        audiences=tuple(said.audiences),
        comment=wanted.comment,
    )
