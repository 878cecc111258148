"""Operations on OIDC federation: whose tokens of which issuer are a recipient's."""

import uuid
from urllib.parse import urlsplit

from sqlalchemy import select

from lakeshare_server.catalog.models import FederationPolicyRow, RecipientRow
from lakeshare_server.catalog.names import require_name
from lakeshare_server.catalog.sharing.editing import Edit, touch
from lakeshare_server.catalog.sharing.look import recipient_row
from lakeshare_server.catalog.sharing.recipients import require_not_revoked
from lakeshare_server.catalog.sharing.states import FederationPolicy
from lakeshare_server.catalog.sharing.told import told_policy
from lakeshare_server.errors import BadRequest, CatalogConflict, NotFound


def put_policy(edit: Edit, recipient: str, wanted: FederationPolicy) -> FederationPolicy:
    """Give a recipient a policy, or change the one of this name.

    Raises:
        NotFound: there is no such recipient.
        BadRequest: a value cannot be used, or the recipient gets in otherwise.
        CatalogConflict: another recipient has the same issuer, claim and subject.
    """
    _require_usable(wanted)
    row = recipient_row(edit.session, recipient)
    require_not_revoked(row)
    if row.authentication != "OIDC_FEDERATION":
        raise BadRequest("recipient", row.name, f"It gets in by {row.authentication}; add one USING OIDC.")
    _require_unambiguous(edit, row, wanted)
    policy = _policy(edit, row, wanted.name)
    before = None if policy is None else told_policy(policy).as_json()
    if policy is None:
        policy = FederationPolicyRow(
            id=str(uuid.uuid4()), recipient_key=row.key, name_key=wanted.name.lower(), created_at=edit.at
        )
        edit.session.add(policy)
    else:
        policy.updated_at = edit.at
    policy.name, policy.comment = wanted.name, wanted.comment
    policy.issuer, policy.audiences = wanted.issuer, list(wanted.audiences)
    policy.subject_claim, policy.subject = wanted.subject_claim, wanted.subject
    row.activated_at = row.activated_at or edit.at
    touch(edit, row, "Recipient", row.name)
    edit.session.flush()
    told = told_policy(policy)
    edit.changed("put_policy", row.name, before, told.as_json())
    return told


def drop_policy(edit: Edit, recipient: str, name: str) -> FederationPolicy:
    """Take a policy from a recipient.

    Raises:
        NotFound: there is no such recipient, or it has no such policy.
    """
    row = recipient_row(edit.session, recipient)
    policy = _policy(edit, row, name)
    if policy is None:
        raise NotFound("Federation policy", name)
    told = told_policy(policy)
    touch(edit, row, "Recipient", row.name)
    edit.session.delete(policy)
    edit.session.flush()
    edit.changed("drop_policy", row.name, told.as_json(), None)
    return told


def _policy(edit: Edit, row: RecipientRow, name: str) -> FederationPolicyRow | None:
    same = select(FederationPolicyRow).where(
        FederationPolicyRow.recipient_key == row.key, FederationPolicyRow.name_key == name.lower()
    )
    return edit.session.scalars(same).one_or_none()


def _require_unambiguous(edit: Edit, row: RecipientRow, wanted: FederationPolicy) -> None:
    same = (
        select(RecipientRow.name, FederationPolicyRow.audiences)
        .join(RecipientRow, RecipientRow.key == FederationPolicyRow.recipient_key)
        .where(
            FederationPolicyRow.issuer == wanted.issuer,
            FederationPolicyRow.subject_claim == wanted.subject_claim,
            FederationPolicyRow.subject == wanted.subject,
            FederationPolicyRow.recipient_key != row.key,
        )
    )
    for name, audiences in edit.session.execute(same):
        if set(audiences) & set(wanted.audiences):
            raise CatalogConflict(
                f"recipient {name} has the same issuer, {wanted.subject_claim}, subject and audience",
                "A token must be one recipient's only; give another subject or audience.",
            )


def _require_usable(wanted: FederationPolicy) -> None:
    require_name("policy", wanted.name)
    parsed = urlsplit(wanted.issuer)
    if parsed.scheme not in ("https", "http") or not parsed.hostname or parsed.query or parsed.fragment:
        raise BadRequest("issuer", wanted.issuer, "Give the issuer's URL as its tokens say it in `iss`.")
    for field, value in (("subject_claim", wanted.subject_claim), ("subject", wanted.subject)):
        if not 0 < len(value) <= 255 or not value.isprintable():
            raise BadRequest(field, value, "Give a text of 1 to 255 printable characters.")
    if not wanted.audiences or not all(0 < len(one) <= 255 for one in wanted.audiences):
        raise BadRequest(
            "audiences", list(wanted.audiences), "Name at least one audience, each of 1 to 255 characters."
        )
