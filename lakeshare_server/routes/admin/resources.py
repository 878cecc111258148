"""Recipients, and the links by which they come to their profiles."""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lakeshare_server.access.authentication import Administrator, Permission, profile_of
from lakeshare_server.access.rate_limit import require_allowed
from lakeshare_server.access.rules import require_decidable_rules
from lakeshare_server.catalog import FollowedTables, ledger
from lakeshare_server.catalog.sharing import (
    KEEP,
    FederationPolicy,
    RecipientState,
    drop_group,
    drop_policy,
    drop_recipient,
    invite,
    look_at_link,
    put_policy,
    redeem,
    shorten_tokens,
    states,
)
from lakeshare_server.catalog.sharing import alter_group as change_group
from lakeshare_server.catalog.sharing import alter_recipient as alter
from lakeshare_server.catalog.sharing import create_group as add_group
from lakeshare_server.catalog.sharing import create_recipient as create
from lakeshare_server.catalog.sharing import revoke_recipient as revoke
from lakeshare_server.catalog.sharing import revoke_token as end_token
from lakeshare_server.catalog.sharing.credentials import add_admin_key, admin_keys, revoke_admin_key
from lakeshare_server.catalog.sharing.editing import Edit, editing
from lakeshare_server.catalog.sharing.shares import create_share as create_in_shares
from lakeshare_server.catalog.sharing.shares import drop_share
from lakeshare_server.errors import BadRequest, NameTaken, NotFound, Unauthenticated
from lakeshare_server.protocol.admin_requests import (
    CreateAdminKey,
    CreateGroup,
    CreateRecipient,
    CreateShare,
    FollowTables,
    PutPolicy,
    Reply,
    RequestBody,
    RotateToken,
    UpdateGroup,
    UpdatePermissions,
    UpdateRecipient,
    UpdateShare,
    from_ms,
    in_ms,
    parsed,
)
from lakeshare_server.protocol.admin_responses import (
    ActivationInfo,
    AdminKeyInfo,
    AdminKeys,
    FederationPolicies,
    FederationPolicyInfo,
    FollowedTableInfo,
    FollowedTablesReply,
    FollowReport,
    GroupInfo,
    Groups,
    Myself,
    RecipientInfo,
    RecipientPermissions,
    Recipients,
    ShareInfo,
    SharePermissions,
    Shares,
    told_assignment,
    told_followed_table,
    told_group,
    told_key,
    told_permissions,
    told_policy,
    told_recipient,
    told_share,
)
from lakeshare_server.protocol.requests import json_object, whole_number
from lakeshare_server.protocol.tokens import Keyed, PageRequest
from lakeshare_server.provider.following import (
    Following,
    FollowRequest,
    change_permissions,
    find_versions_ahead,
    update_share,
)
from lakeshare_server.provider.serveability import TableServeability
from lakeshare_server.routes.context import SEEN_AS, Note, Parts, SeenAs, address_of, seen_as, whole_body
from lakeshare_server.routes.responses import json_response
from lakeshare_server.storage import Stores

TAG = re.compile(r'(?:W/)?"([0-9]{1,18})"')
NAMES = ("share", "recipient", "group", "policy", "key", "table")
# What is told of people, and links that are told once, are nobody's to keep.
NOT_KEPT = {"Cache-Control": "no-store"}

AnyBody = TypeVar("AnyBody", bound=RequestBody)
Entry = TypeVar("Entry", bound=Keyed)


@dataclass(frozen=True)
class AdminRequest:
    """A request of a known administrator whose role is enough for it."""

    request: Request
    parts: Parts
    by: Administrator

    @contextmanager
    def editing(self) -> Iterator[Edit]:
        """One transaction in the administrator's name; rules that it writes are such as partitions decide.

        Raises:
            BadRequest: one is not.
        """
        note: Note = self.request.state.note
        with editing(self.parts.catalog, self.by.name, request_id=note.request_id) as edit:
            yield edit
            require_decidable_rules(edit, self.parts.versions)

    def find_versions_ahead(self, share: str, tables: Iterable[str] = (), *, writes_rule: bool) -> None:
        """Find the versions of followed tables that rules will be held against, in front of the edit."""
        parts = self.parts
        find_versions_ahead(parts.catalog, parts.versions, share, tables, writes_rule=writes_rule)

    @property
    def revision(self) -> int | None:
        """The revision that the client has looked at; None when it does not say, or says any.

        Raises:
            BadRequest: it says something else.
        """
        said = self.request.headers.get("if-match")
        if said is None or said.strip() == "*":
            return None
        tag = TAG.fullmatch(said.strip())
        if tag is None:
            raise BadRequest("If-Match", said, 'Give the ETag of what you have looked at, like "7".')
        return int(tag[1])

    def page(
        self, listing: str, read: Callable[[int, int | None], Sequence[Entry]]
    ) -> tuple[Sequence[Entry], str | None]:
        """The page of a listing that is asked for, all of it by default; `read(after, limit)` gets the entries.

        Raises:
            BadRequest: the size or the token cannot be used.
        """
        query, pager = self.request.query_params, self.parts.pager
        asked, token = query.get("max_results"), query.get("page_token") or None
        if asked is None and token is None:
            return read(0, None), None
        size = min(whole_number("max_results", asked or 0), pager.page_size) or pager.page_size
        try:
            return pager.page(self.by.name, f"admin/{listing}", PageRequest(str(size), token), read)
        except BadRequest as error:
            hint = "Pass on the next_page_token of the page before, unchanged."
            raise BadRequest("page_token", token, hint) from error


def _asking(permission: Permission) -> Callable[[Request], AdminRequest]:
    def asked(request: Request) -> AdminRequest:
        parts: Parts = request.app.state.parts
        note: Note = request.state.note
        note.action = request.scope["endpoint"].__name__
        names = [request.path_params[name] for name in NAMES if name in request.path_params]
        note.object_name = ".".join(names) or None
        by = parts.administrators.authenticated(request.headers.get("authorization"), address_of(request))
        note.principal = by.name
        by.require(permission)
        return AdminRequest(request, parts, by)

    asked.__name__ = f"may_{permission.name.lower()}"
    return asked


LookDep = Annotated[AdminRequest, Depends(_asking(Permission.LOOK))]
ShareDep = Annotated[AdminRequest, Depends(_asking(Permission.SHARE))]
OwnerDep = Annotated[AdminRequest, Depends(_asking(Permission.ADMINISTER))]


def body(model: type[AnyBody]) -> Any:  # a dependency's default, as FastAPI has them
    """The body of a request, read after its sender is known: stand it behind the administrator."""

    async def read(request: Request) -> AnyBody:
        settings = request.app.state.parts.settings
        return parsed(
            model, json_object(await whole_body(request, settings.max_body_bytes, settings.slow_client_s))
        )

    reading: Callable[[Request], Awaitable[AnyBody]] = read
    return Depends(reading)


def takes(model: type[RequestBody]) -> dict[str, Any]:
    """What the API's document says of a route that reads this body."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def reply(told: Reply | None, *, revision: int | None = None, status: int = 200) -> Response:
    """What a client is told, with the revision as entity tag; nothing is an empty object."""
    content: Mapping[str, Any] = {} if told is None else told.model_dump(mode="json", exclude_none=True)
    headers = dict(NOT_KEPT)
    if revision is not None:
        headers["ETag"] = f'"{revision}"'
    return json_response(content, status, headers)


router = APIRouter(tags=["recipients"])
# What the Databricks API does not have.
own = APIRouter(tags=["recipients"])


@router.post("/recipients", response_model=RecipientInfo, openapi_extra=takes(CreateRecipient))
def create_recipient(by: ShareDep, wanted: Annotated[CreateRecipient, body(CreateRecipient)]) -> Response:
    """Make a recipient; the reply has its activation link, here only. One of OIDC federation needs none."""
    with by.editing() as edit:
        made = create(
            edit,
            wanted.name,
            comment=wanted.comment,
            owner=wanted.owner,
            properties=_properties(wanted),
            authentication=wanted.authentication_type,
            ip_allow=_addresses(wanted),
            expires_at=from_ms(wanted.expiration_time),
            agreement=wanted.agreement,
        )
        if wanted.authentication_type == "OIDC_FEDERATION":
            return reply(told_recipient(made), revision=made.revision)
        return _invited(by, edit, made.name, made.expires_at)


@router.get("/recipients", response_model=Recipients)
def list_recipients(by: LookDep) -> Response:
    """List the recipients, revoked ones too."""
    with by.parts.catalog.reading() as session:
        found, token = by.page("recipients", lambda after, limit: states.recipients(session, after, limit))
    return reply(Recipients(recipients=[told_recipient(one) for one in found], next_page_token=token))


@router.get("/recipients/{recipient}", response_model=RecipientInfo)
def look_at_recipient(by: LookDep, recipient: str) -> Response:
    """A recipient with its tokens and links, but for their secrets."""
    with by.parts.catalog.reading() as session:
        found = states.recipient(session, recipient)
    return reply(told_recipient(found), revision=found.revision)


@router.patch("/recipients/{recipient}", response_model=RecipientInfo, openapi_extra=takes(UpdateRecipient))
def alter_recipient(
    by: ShareDep, recipient: str, wanted: Annotated[UpdateRecipient, body(UpdateRecipient)]
) -> Response:
    """Change a recipient; its tokens and grants stay."""
    with by.editing() as edit:
        changed = alter(edit, recipient, **_changes(wanted), revision=by.revision)
    return reply(told_recipient(changed), revision=changed.revision)


@router.delete("/recipients/{recipient}")
def delete_recipient(by: ShareDep, recipient: str) -> Response:
    """Remove a recipient with its tokens and grants."""
    with by.editing() as edit:
        drop_recipient(edit, recipient, revision=by.revision)
    return reply(None)


@router.post(
    "/recipients/{recipient}/rotate-token", response_model=RecipientInfo, openapi_extra=takes(RotateToken)
)
def rotate_token(by: ShareDep, recipient: str, wanted: Annotated[RotateToken, body(RotateToken)]) -> Response:
    """Let the tokens that are out end, none later than it would, and tell a new activation link, here only."""
    grace = timedelta(seconds=wanted.existing_token_expire_in_seconds)
    with by.editing() as edit:
        found = shorten_tokens(edit, recipient, existing_expire_in=grace)
        return _invited(by, edit, found.name, found.expires_at)


@own.post("/recipients/{recipient}/revoke", response_model=RecipientInfo)
def revoke_recipient(by: ShareDep, recipient: str) -> Response:
    """End all access of a recipient for good; its name and what the audit log says of it stay."""
    with by.editing() as edit:
        ended = revoke(edit, recipient, revision=by.revision)
    return reply(told_recipient(ended), revision=ended.revision)


@own.delete("/recipients/{recipient}/tokens/{token}", response_model=RecipientInfo)
def revoke_token(by: ShareDep, recipient: str, token: str) -> Response:
    """End one token of a recipient at once."""
    with by.editing() as edit:
        changed = end_token(edit, recipient, token)
    return reply(told_recipient(changed), revision=changed.revision)


def _invited(by: AdminRequest, edit: Edit, name: str, token_expires_at: datetime | None) -> Response:
    link, code = invite(edit, name, token_expires_at=token_expires_at)
    told: RecipientState = states.recipient(edit.session, name)
    urls = {link.id: by.parts.settings.activation_url(code)}
    return reply(told_recipient(told, urls), revision=told.revision)


def _changes(wanted: UpdateRecipient) -> dict[str, Any]:
    """What was sent, in the words of the operation; null empties a field, but for the name."""
    fields = {name: getattr(wanted, name) for name in ("comment", "owner", "agreement") if wanted.has(name)}
    if wanted.new_name is not None:
        fields["new_name"] = wanted.new_name
    if wanted.has("expiration_time"):
        fields["expires_at"] = from_ms(wanted.expiration_time)
    if wanted.has("ip_access_list"):
        fields["ip_allow"] = _addresses(wanted)
    if wanted.has("properties_kvpairs"):
        fields["properties"] = _properties(wanted)
    return fields


def _properties(wanted: CreateRecipient | UpdateRecipient) -> dict[str, str] | None:
    return None if wanted.properties_kvpairs is None else wanted.properties_kvpairs.properties


def _addresses(wanted: CreateRecipient | UpdateRecipient) -> list[str] | None:
    return None if wanted.ip_access_list is None else wanted.ip_access_list.allowed_ip_addresses


activation_router = APIRouter(tags=["activation"])
LONGEST_CODE = 200
LONGEST_BY = 255


def code_in(request: Request, activation_url: str) -> str:
    """The code of a link, given by itself or as the whole link."""
    note: Note = request.state.note
    note.action = request.scope["endpoint"].__name__
    code = activation_url.rstrip("/").rpartition("/")[2]
    if len(code) > LONGEST_CODE:
        raise BadRequest("activation_url", code, "Give the link, or the code at its end.")
    return code


def parts_of(request: Request) -> Parts:
    """The parts of the server."""
    parts: Parts = request.app.state.parts
    return parts


CodeDep = Annotated[str, Depends(code_in)]
PartsDep = Annotated[Parts, Depends(parts_of)]


@activation_router.get("/data_sharing_activation_info/{activation_url:path}", response_model=ActivationInfo)
def look_at_activation(request: Request, code: CodeDep, parts: PartsDep) -> Response:
    """What a link is good for; asking does not use it up."""
    link, recipient = look_at_link(parts.catalog, code)
    require_allowed(recipient.name, recipient.ip_allow, address_of(request))
    with parts.catalog.reading() as session:
        shares = sorted({grant.share for grant in states.grants_to(session, recipient.name)})
    told = ActivationInfo(
        recipient=recipient.name,
        expires_at=in_ms(link.expires_at),
        agreement=recipient.agreement,
        shares=shares,
    )
    return reply(told)


@activation_router.get("/data_sharing_activation/{activation_url:path}")
def redeem_activation(
    request: Request, code: CodeDep, parts: PartsDep, accepts_agreement: Annotated[bool, Query()] = False
) -> Response:
    """The recipient's profile, once; `accepts_agreement` says yes to its agreement, if there is one."""
    _, recipient = look_at_link(parts.catalog, code)
    address = address_of(request)
    require_allowed(recipient.name, recipient.ip_allow, address)
    with editing(parts.catalog, f"recipient:{recipient.name}"[:LONGEST_BY]) as edit:
        found, given = redeem(edit, code, from_address=address, accepts_agreement=accepts_agreement)
    note: Note = request.state.note
    note.recipient = found.name
    return json_response(profile_of(found, given, parts.settings), headers=NOT_KEPT)


policies_router = APIRouter(
    tags=["federation policies"], prefix="/recipients/{recipient}/federation-policies"
)


@policies_router.post("", response_model=FederationPolicyInfo, openapi_extra=takes(PutPolicy))
def create_policy(by: ShareDep, recipient: str, wanted: Annotated[PutPolicy, body(PutPolicy)]) -> Response:
    """Give a recipient of OIDC federation a policy."""
    with by.editing() as edit:
        if _named(states.recipient(edit.session, recipient).policies, wanted.name) is not None:
            raise NameTaken(f"{recipient} has a policy {wanted.name} already", "Choose another name.")
        made = put_policy(edit, recipient, _policy(wanted))
    return reply(told_policy(made))


@policies_router.get("", response_model=FederationPolicies)
def list_policies(by: LookDep, recipient: str) -> Response:
    """List a recipient's policies."""
    with by.parts.catalog.reading() as session:
        found = states.recipient(session, recipient).policies
    return reply(FederationPolicies(policies=[told_policy(one) for one in found]))


@policies_router.get("/{policy}", response_model=FederationPolicyInfo)
def look_at_policy(by: LookDep, recipient: str, policy: str) -> Response:
    """One policy of a recipient."""
    with by.parts.catalog.reading() as session:
        found = _named(states.recipient(session, recipient).policies, policy)
    if found is None:
        raise NotFound("Federation policy", policy)
    return reply(told_policy(found))


@policies_router.patch("/{policy}", response_model=FederationPolicyInfo, openapi_extra=takes(PutPolicy))
def alter_policy(
    by: ShareDep, recipient: str, policy: str, wanted: Annotated[PutPolicy, body(PutPolicy)]
) -> Response:
    """Put another policy in the place of one."""
    if wanted.name.lower() != policy.lower():
        raise BadRequest("name", wanted.name, f"The policy is {policy}; policies keep their names.")
    with by.editing() as edit:
        if _named(states.recipient(edit.session, recipient).policies, policy) is None:
            raise NotFound("Federation policy", policy)
        changed = put_policy(edit, recipient, _policy(wanted))
    return reply(told_policy(changed))


@policies_router.delete("/{policy}")
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


groups_router = APIRouter(tags=["groups"])


@groups_router.post("/groups", response_model=GroupInfo, openapi_extra=takes(CreateGroup))
def create_group(by: ShareDep, wanted: Annotated[CreateGroup, body(CreateGroup)]) -> Response:
    """Make a group of recipients."""
    with by.editing() as edit:
        made = add_group(edit, wanted.name, comment=wanted.comment, members=wanted.members)
    return reply(told_group(made), revision=made.revision)


@groups_router.get("/groups", response_model=Groups)
def list_groups(by: LookDep) -> Response:
    """List the groups with their members."""
    with by.parts.catalog.reading() as session:
        found = states.groups(session)
    return reply(Groups(groups=[told_group(one) for one in found]))


@groups_router.get("/groups/{group}", response_model=GroupInfo)
def look_at_group(by: LookDep, group: str) -> Response:
    """A group with its members."""
    with by.parts.catalog.reading() as session:
        found = states.group(session, group)
    return reply(told_group(found), revision=found.revision)


@groups_router.patch("/groups/{group}", response_model=GroupInfo, openapi_extra=takes(UpdateGroup))
def alter_group(by: ShareDep, group: str, wanted: Annotated[UpdateGroup, body(UpdateGroup)]) -> Response:
    """Change a group: its name, its comment, its members."""
    with by.editing() as edit:
        changed = change_group(
            edit,
            group,
            new_name=wanted.new_name or KEEP,
            comment=wanted.comment if wanted.has("comment") else KEEP,
            add=wanted.add_members,
            remove=wanted.remove_members,
            revision=by.revision,
        )
    return reply(told_group(changed), revision=changed.revision)


@groups_router.delete("/groups/{group}")
def delete_group(by: ShareDep, group: str) -> Response:
    """Remove a group with its grants; its members keep their own."""
    with by.editing() as edit:
        drop_group(edit, group, revision=by.revision)
    return reply(None)


keys_router = APIRouter(tags=["administrators"])
# Where clients of Databricks ask whether their key is good.
me = APIRouter(tags=["administrators"])


@keys_router.post("/admin-keys", response_model=AdminKeyInfo, openapi_extra=takes(CreateAdminKey))
def create_admin_key(by: OwnerDep, wanted: Annotated[CreateAdminKey, body(CreateAdminKey)]) -> Response:
    """Make a key; the reply has it, here only."""
    with by.editing() as edit:
        made, secret = add_admin_key(
            edit, wanted.name, wanted.role, expires_at=from_ms(wanted.expiration_time)
        )
    return reply(told_key(made, secret))


@keys_router.get("/admin-keys", response_model=AdminKeys)
def list_admin_keys(by: OwnerDep) -> Response:
    """List all keys, revoked ones too."""
    with by.parts.catalog.reading() as session:
        found = admin_keys(session)
    return reply(AdminKeys(keys=[told_key(one) for one in found]))


@keys_router.delete("/admin-keys/{key}", response_model=AdminKeyInfo)
def delete_admin_key(by: OwnerDep, key: str) -> Response:
    """End a key at once; its name stays taken."""
    with by.editing() as edit:
        ended = revoke_admin_key(edit, key)
    return reply(told_key(ended))


@me.get("/Me", response_model=Myself)
def look_at_myself(by: LookDep) -> Response:
    """Who is asking, and in which role."""
    told = Myself(
        id=by.by.name, userName=by.by.name, displayName=f"{by.by.name} ({by.by.role})", role=by.by.role
    )
    return reply(told)


share_router = APIRouter(tags=["shares"])


@share_router.post("/shares", response_model=ShareInfo, openapi_extra=takes(CreateShare))
def create_share(by: ShareDep, wanted: Annotated[CreateShare, body(CreateShare)]) -> Response:
    """Make a share; its tables are added by an update."""
    fields = wanted.model_dump(include={"comment", "display_name", "properties", "owner"})
    with by.editing() as edit:
        made = create_in_shares(edit, wanted.name, **fields)
    return reply(told_share(made), revision=made.revision)


@share_router.get("/shares", response_model=Shares)
def list_all_shares(by: LookDep) -> Response:
    """List the shares, without what is in them."""
    with by.parts.catalog.reading() as session:
        found, token = by.page("shares", lambda after, limit: states.shares(session, after, limit))
    return reply(Shares(shares=[told_share(one) for one in found], next_page_token=token))


@share_router.get("/shares/{share}", response_model=ShareInfo)
def look_at_share(by: LookDep, share: str, include_shared_data: Annotated[bool, Query()] = False) -> Response:
    """A share, with its tables if they are asked for."""
    with by.parts.catalog.reading() as session:
        found = states.share(session, share)
        told = told_share(found, states.objects(session, found.name) if include_shared_data else None)
    return reply(told, revision=found.revision)


@share_router.patch("/shares/{share}", response_model=ShareInfo, openapi_extra=takes(UpdateShare))
def alter_share(by: ShareDep, share: str, wanted: Annotated[UpdateShare, body(UpdateShare)]) -> Response:
    """Change a share, and add, alter and remove tables: all of it or nothing."""
    tables = [update.data_object for update in wanted.updates]
    writes_rule = any(table.rule or table.partitions for table in tables)
    by.find_versions_ahead(share, [table.name for table in tables], writes_rule=writes_rule)
    with by.editing() as edit:
        changed = update_share(edit, share, wanted, by.revision)
        told = told_share(changed, states.objects(edit.session, changed.name))
    return reply(told, revision=changed.revision)


@share_router.delete("/shares/{share}")
def delete_share(by: ShareDep, share: str) -> Response:
    """Remove a share with its tables and the grants on it."""
    with by.editing() as edit:
        drop_share(edit, share, revision=by.revision)
    return reply(None)


permissions_router = APIRouter(tags=["permissions"])


@permissions_router.get("/shares/{share}/permissions", response_model=SharePermissions)
def list_permissions(by: LookDep, share: str) -> Response:
    """Who may read a share: recipients, and groups as `group:NAME`."""
    with by.parts.catalog.reading() as session:
        found = states.share(session, share)
        granted = [told_assignment(grant) for grant in states.grants_on(session, share)]
    return reply(SharePermissions(privilege_assignments=granted), revision=found.revision)


@permissions_router.patch(
    "/shares/{share}/permissions", response_model=SharePermissions, openapi_extra=takes(UpdatePermissions)
)
def alter_permissions(
    by: ShareDep, share: str, wanted: Annotated[UpdatePermissions, body(UpdatePermissions)]
) -> Response:
    """Grant and revoke: all of it or nothing."""
    by.find_versions_ahead(share, writes_rule=any(change.rule for change in wanted.changes))
    with by.editing() as edit:
        revision = change_permissions(edit, share, wanted.changes, by.revision)
        granted = [] if wanted.omit_permissions_list else states.grants_on(edit.session, share)
    told = [told_assignment(grant) for grant in granted]
    return reply(SharePermissions(privilege_assignments=told), revision=revision)


@permissions_router.get("/recipients/{recipient}/share-permissions", response_model=RecipientPermissions)
def list_share_permissions(by: LookDep, recipient: str) -> Response:
    """What a recipient may read, by itself or as a member of a group."""
    with by.parts.catalog.reading() as session:
        granted = states.grants_to(session, recipient)
    return reply(RecipientPermissions(permissions_out=told_permissions(granted)))


followed_router = APIRouter(tags=["followed tables"])


@followed_router.post("/followed-tables", response_model=FollowReport, openapi_extra=takes(FollowTables))
def follow_tables(by: OwnerDep, wanted: Annotated[FollowTables, body(FollowTables)]) -> Response:
    """Follow and share tables where they lie; the reply has a result for each, refusals among them."""
    following = _following(by.parts)
    usual = FollowRequest(
        share=wanted.share,
        check_every_s=wanted.check_every_s,
        start_version=wanted.start_version,
        history=wanted.history,
    )
    given = [(one.location, one.name) for one in wanted.tables]
    requests = following.requests(given, usual, wanted.table_schema)
    results = [one.as_json() for one in following.follow_all(requests, by.by.name)]
    return reply(FollowReport.model_validate({"results": results}))


@followed_router.get("/followed-tables", response_model=FollowedTablesReply)
def list_followed_tables(by: LookDep) -> Response:
    """List the followed tables by name."""
    found = FollowedTables(by.parts.catalog).list()
    return reply(FollowedTablesReply(tables=[told_followed_table(one) for one in found]))


@followed_router.delete("/followed-tables/{table}", response_model=FollowedTableInfo)
def unfollow_table(by: OwnerDep, table: str) -> Response:
    """Follow a table no more: what shares it has no versions any more; the table itself is not touched."""
    with by.editing() as edit:
        found = ledger.unfollow_table(edit, table)
    return reply(told_followed_table(found))


def _following(parts: Parts) -> Following:
    serveability = TableServeability(parts.iceberg_tables, parts.signers, parts.settings)
    return Following(parts.catalog, parts.settings, Stores(parts.settings), parts.versions, serveability)


impersonation_router = APIRouter(tags=["see as"])
# What a request is made of; the rest belongs to the application that got it.
KEPT = ("type", "asgi", "http_version", "method", "scheme", "query_string", "client", "server", "extensions")
# The administrator's own: they stay here.
OWN_HEADERS = frozenset({b"authorization", b"cookie", b"if-match", b"x-forwarded-for"})


class SeenAnswer(Response):
    """The answer of another path of the server, passed on while it is made."""

    def __init__(self, app: ASGIApp, path: str, seen: SeenAs) -> None:
        super().__init__()
        self._app, self._path, self._seen = app, path, seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the path does."""
        asked = {name: scope[name] for name in KEPT if name in scope}
        headers = [(name, value) for name, value in scope["headers"] if name not in OWN_HEADERS]
        place = {"path": self._path, "raw_path": quote(self._path).encode(), "root_path": ""}
        state = dict(scope.get("state", {}))
        await self._app(
            {**asked, **place, "headers": headers, "state": state, SEEN_AS: self._seen}, receive, send
        )


@impersonation_router.get("/recipients/{recipient}/as/{path:path}")
def see_as(by: ShareDep, recipient: str, path: str) -> Response:
    """What the protocol's path behind `as/` answers the recipient."""
    return _seen(by, recipient, path)


@impersonation_router.post("/recipients/{recipient}/as/{path:path}")
def query_as(by: ShareDep, recipient: str, path: str) -> Response:
    """The same for queries, which come with URLs that open the recipient's files."""
    return _seen(by, recipient, path)


def _seen(by: AdminRequest, recipient: str, path: str) -> SeenAnswer:
    try:
        seen = seen_as(by.parts.catalog, recipient, by.by.name)
    except Unauthenticated as error:
        raise BadRequest("recipient", recipient, str(error)) from error
    endpoint = by.parts.settings.endpoint.rstrip("/")
    return SeenAnswer(by.request.app.state.server, f"{endpoint}/{path}", seen)
