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

from lakeshare_server.access.authentication import Administrator, Permission, make_profile
from lakeshare_server.access.rate_limit import require_allowed
from lakeshare_server.access.rules import require_decidable_rules
from lakeshare_server.catalog import FollowedTables, ledger
from lakeshare_server.catalog.sharing import (
    UNCHANGED,
    FederationPolicy,
    RecipientState,
    create_link,
    drop_group,
    drop_policy,
    drop_recipient,
    find_link,
    put_policy,
    redeem_link,
    shorten_tokens,
    states,
)
from lakeshare_server.catalog.sharing import alter_group as change_group
from lakeshare_server.catalog.sharing import alter_recipient as alter
from lakeshare_server.catalog.sharing import create_group as add_group
from lakeshare_server.catalog.sharing import create_recipient as create
from lakeshare_server.catalog.sharing import revoke_recipient as revoke
from lakeshare_server.catalog.sharing import revoke_token as end_token
from lakeshare_server.catalog.sharing.credentials import add_admin_key, read_admin_keys, revoke_admin_key
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
    parse_body,
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
    make_admin_key_info,
    make_followed_table_info,
    make_group_info,
    make_policy_info,
    make_privilege_assignment,
    make_recipient_info,
    make_share_info,
    make_share_permissions,
)
from lakeshare_server.protocol.requests import parse_integer, parse_json_object
from lakeshare_server.protocol.tokens import Keyed, PageRequest
from lakeshare_server.provider.following import Following, FollowRequest, change_permissions, update_share
from lakeshare_server.provider.following import prefetch_versions as find_versions_ahead
from lakeshare_server.provider.serveability import TableServeability
from lakeshare_server.routes.context import (
    IMPERSONATION,
    AppState,
    AuditRecord,
    Impersonation,
    client_address,
    make_impersonation,
    read_bounded_body,
)
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

    http_request: Request
    app_state: AppState
    administrator: Administrator

    @contextmanager
    def editing(self) -> Iterator[Edit]:
        """One transaction in the administrator's name; rules that it writes are such as partitions decide.

        Raises:
            BadRequest: one is not.
        """
        audit_record: AuditRecord = self.http_request.state.audit_record
        with editing(
            self.app_state.catalog, self.administrator.name, request_id=audit_record.request_id
        ) as edit:
            yield edit
            require_decidable_rules(edit, self.app_state.versions)

    def prefetch_versions(self, share: str, tables: Iterable[str] = (), *, writes_rule: bool) -> None:
        """Find the versions of followed tables that rules will be held against, in front of the edit."""
        app_state = self.app_state
        find_versions_ahead(app_state.catalog, app_state.versions, share, tables, writes_rule=writes_rule)

    @property
    def revision(self) -> int | None:
        """The revision that the client has looked at; None when it does not say, or says any.

        Raises:
            BadRequest: it says something else.
        """
        etag = self.http_request.headers.get("if-match")
        if etag is None or etag.strip() == "*":
            return None
        tag = TAG.fullmatch(etag.strip())
        if tag is None:
            raise BadRequest("If-Match", etag, 'Give the ETag of what you have looked at, like "7".')
        return int(tag[1])

    def page(
        self, listing: str, read: Callable[[int, int | None], Sequence[Entry]]
    ) -> tuple[Sequence[Entry], str | None]:
        """The page of a listing that is asked for, all of it by default; `read(after, limit)` gets the entries.

        Raises:
            BadRequest: the size or the token cannot be used.
        """
        query, pager = self.http_request.query_params, self.app_state.pager
        max_results, token = query.get("max_results"), query.get("page_token") or None
        if max_results is None and token is None:
            return read(0, None), None
        size = min(parse_integer("max_results", max_results or 0), pager.page_size) or pager.page_size
        try:
            return pager.page(
                self.administrator.name, f"admin/{listing}", PageRequest(str(size), token), read
            )
        except BadRequest as error:
            hint = "Pass on the next_page_token of the page before, unchanged."
            raise BadRequest("page_token", token, hint) from error


def _require_permission(permission: Permission) -> Callable[[Request], AdminRequest]:
    def asked(http_request: Request) -> AdminRequest:
        app_state: AppState = http_request.app.state.app_state
        audit_record: AuditRecord = http_request.state.audit_record
        audit_record.action = http_request.scope["endpoint"].__name__
        names = [http_request.path_params[name] for name in NAMES if name in http_request.path_params]
        audit_record.object_name = ".".join(names) or None
        request = app_state.admin_authenticator.authenticate(
            http_request.headers.get("authorization"), client_address(http_request)
        )
        audit_record.principal = request.name
        request.require(permission)
        return AdminRequest(http_request, app_state, request)

    asked.__name__ = f"may_{permission.name.lower()}"
    return asked


LookDep = Annotated[AdminRequest, Depends(_require_permission(Permission.LOOK))]
ShareDep = Annotated[AdminRequest, Depends(_require_permission(Permission.SHARE))]
OwnerDep = Annotated[AdminRequest, Depends(_require_permission(Permission.ADMINISTER))]


def body(model: type[AnyBody]) -> Any:  # a dependency's default, as FastAPI has them
    """The body of a request, read after its sender is known: stand it behind the administrator."""

    async def read(http_request: Request) -> AnyBody:
        settings = http_request.app.state.app_state.settings
        return parse_body(
            model,
            parse_json_object(
                await read_bounded_body(http_request, settings.max_body_bytes, settings.slow_client_s)
            ),
        )

    reading: Callable[[Request], Awaitable[AnyBody]] = read
    return Depends(reading)


def request_schema(model: type[RequestBody]) -> dict[str, Any]:
    """What the API's document says of a route that reads this body."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def reply(content_model: Reply | None, *, revision: int | None = None, status: int = 200) -> Response:
    """What a client is told, with the revision as entity tag; nothing is an empty object."""
    content: Mapping[str, Any] = (
        {} if content_model is None else content_model.model_dump(mode="json", exclude_none=True)
    )
    headers = dict(NOT_KEPT)
    if revision is not None:
        headers["ETag"] = f'"{revision}"'
    return json_response(content, status, headers)


router = APIRouter(tags=["recipients"])
# What the Databricks API does not have.
own = APIRouter(tags=["recipients"])


@router.post("/recipients", response_model=RecipientInfo, openapi_extra=request_schema(CreateRecipient))
def create_recipient(
    request: ShareDep, wanted: Annotated[CreateRecipient, body(CreateRecipient)]
) -> Response:
    """Make a recipient; the reply has its activation link, here only. One of OIDC federation needs none."""
    with request.editing() as edit:
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
            return reply(make_recipient_info(made), revision=made.revision)
        return _invite_if_needed(request, edit, made.name, made.expires_at)


@router.get("/recipients", response_model=Recipients)
def list_recipients(request: LookDep) -> Response:
    """List the recipients, revoked ones too."""
    with request.app_state.catalog.reading() as session:
        found, token = request.page(
            "recipients", lambda after, limit: states.list_recipients(session, after, limit)
        )
    return reply(Recipients(recipients=[make_recipient_info(one) for one in found], next_page_token=token))


@router.get("/recipients/{recipient}", response_model=RecipientInfo)
def look_at_recipient(request: LookDep, recipient: str) -> Response:
    """A recipient with its tokens and links, but for their secrets."""
    with request.app_state.catalog.reading() as session:
        found = states.get_recipient(session, recipient)
    return reply(make_recipient_info(found), revision=found.revision)


@router.patch(
    "/recipients/{recipient}", response_model=RecipientInfo, openapi_extra=request_schema(UpdateRecipient)
)
def alter_recipient(
    request: ShareDep, recipient: str, wanted: Annotated[UpdateRecipient, body(UpdateRecipient)]
) -> Response:
    """Change a recipient; its tokens and grants stay."""
    with request.editing() as edit:
        changed = alter(edit, recipient, **_changes(wanted), revision=request.revision)
    return reply(make_recipient_info(changed), revision=changed.revision)


@router.delete("/recipients/{recipient}")
def delete_recipient(request: ShareDep, recipient: str) -> Response:
    """Remove a recipient with its tokens and grants."""
    with request.editing() as edit:
        drop_recipient(edit, recipient, revision=request.revision)
    return reply(None)


@router.post(
    "/recipients/{recipient}/rotate-token",
    response_model=RecipientInfo,
    openapi_extra=request_schema(RotateToken),
)
def rotate_token(
    request: ShareDep, recipient: str, wanted: Annotated[RotateToken, body(RotateToken)]
) -> Response:
    """Let the tokens that are out end, none later than it would, and tell a new activation link, here only."""
    grace = timedelta(seconds=wanted.existing_token_expire_in_seconds)
    with request.editing() as edit:
        found = shorten_tokens(edit, recipient, existing_expire_in=grace)
        return _invite_if_needed(request, edit, found.name, found.expires_at)


@own.post("/recipients/{recipient}/revoke", response_model=RecipientInfo)
def revoke_recipient(request: ShareDep, recipient: str) -> Response:
    """End all access of a recipient for good; its name and what the audit log says of it stay."""
    with request.editing() as edit:
        ended = revoke(edit, recipient, revision=request.revision)
    return reply(make_recipient_info(ended), revision=ended.revision)


@own.delete("/recipients/{recipient}/tokens/{token}", response_model=RecipientInfo)
def revoke_token(request: ShareDep, recipient: str, token: str) -> Response:
    """End one token of a recipient at once."""
    with request.editing() as edit:
        changed = end_token(edit, recipient, token)
    return reply(make_recipient_info(changed), revision=changed.revision)


def _invite_if_needed(
    request: AdminRequest, edit: Edit, name: str, token_expires_at: datetime | None
) -> Response:
    link, code = create_link(edit, name, token_expires_at=token_expires_at)
    told: RecipientState = states.get_recipient(edit.session, name)
    urls = {link.id: request.app_state.settings.activation_url(code)}
    return reply(make_recipient_info(told, urls), revision=told.revision)


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
MAX_CODE_CHARS = 200
MAX_NAME_CHARS = 255


def code_in(http_request: Request, activation_url: str) -> str:
    """The code of a link, given by itself or as the whole link."""
    audit_record: AuditRecord = http_request.state.audit_record
    audit_record.action = http_request.scope["endpoint"].__name__
    code = activation_url.rstrip("/").rpartition("/")[2]
    if len(code) > MAX_CODE_CHARS:
        raise BadRequest("activation_url", code, "Give the link, or the code at its end.")
    return code


def get_app_state(http_request: Request) -> AppState:
    """The parts of the server."""
    app_state: AppState = http_request.app.state.app_state
    return app_state


CodeDep = Annotated[str, Depends(code_in)]
AppStateDep = Annotated[AppState, Depends(get_app_state)]


@activation_router.get("/data_sharing_activation_info/{activation_url:path}", response_model=ActivationInfo)
def look_at_activation(http_request: Request, code: CodeDep, app_state: AppStateDep) -> Response:
    """What a link is good for; asking does not use it up."""
    link, recipient = find_link(app_state.catalog, code)
    require_allowed(recipient.name, recipient.ip_allow, client_address(http_request))
    with app_state.catalog.reading() as session:
        shares = sorted({grant.share for grant in states.list_grants_to(session, recipient.name)})
    told = ActivationInfo(
        recipient=recipient.name,
        expires_at=in_ms(link.expires_at),
        agreement=recipient.agreement,
        shares=shares,
    )
    return reply(told)


@activation_router.get("/data_sharing_activation/{activation_url:path}")
def redeem_activation(
    http_request: Request,
    code: CodeDep,
    app_state: AppStateDep,
    accepts_agreement: Annotated[bool, Query()] = False,
) -> Response:
    """The recipient's profile, once; `accepts_agreement` says yes to its agreement, if there is one."""
    _, recipient = find_link(app_state.catalog, code)
    address = client_address(http_request)
    require_allowed(recipient.name, recipient.ip_allow, address)
    with editing(app_state.catalog, f"recipient:{recipient.name}"[:MAX_NAME_CHARS]) as edit:
        found, given = redeem_link(edit, code, from_address=address, accepts_agreement=accepts_agreement)
    audit_record: AuditRecord = http_request.state.audit_record
    audit_record.recipient = found.name
    return json_response(make_profile(found, given, app_state.settings), headers=NOT_KEPT)


policies_router = APIRouter(
    tags=["federation policies"], prefix="/recipients/{recipient}/federation-policies"
)


@policies_router.post("", response_model=FederationPolicyInfo, openapi_extra=request_schema(PutPolicy))
def create_policy(
    request: ShareDep, recipient: str, wanted: Annotated[PutPolicy, body(PutPolicy)]
) -> Response:
    """Give a recipient of OIDC federation a policy."""
    with request.editing() as edit:
        if _named(states.get_recipient(edit.session, recipient).policies, wanted.name) is not None:
            raise NameTaken(f"{recipient} has a policy {wanted.name} already", "Choose another name.")
        made = put_policy(edit, recipient, _policy(wanted))
    return reply(make_policy_info(made))


@policies_router.get("", response_model=FederationPolicies)
def list_policies(request: LookDep, recipient: str) -> Response:
    """List a recipient's policies."""
    with request.app_state.catalog.reading() as session:
        found = states.get_recipient(session, recipient).policies
    return reply(FederationPolicies(policies=[make_policy_info(one) for one in found]))


@policies_router.get("/{policy}", response_model=FederationPolicyInfo)
def look_at_policy(request: LookDep, recipient: str, policy: str) -> Response:
    """One policy of a recipient."""
    with request.app_state.catalog.reading() as session:
        found = _named(states.get_recipient(session, recipient).policies, policy)
    if found is None:
        raise NotFound("Federation policy", policy)
    return reply(make_policy_info(found))


@policies_router.patch(
    "/{policy}", response_model=FederationPolicyInfo, openapi_extra=request_schema(PutPolicy)
)
def alter_policy(
    request: ShareDep, recipient: str, policy: str, wanted: Annotated[PutPolicy, body(PutPolicy)]
) -> Response:
    """Put another policy in the place of one."""
    if wanted.name.lower() != policy.lower():
        raise BadRequest("name", wanted.name, f"The policy is {policy}; policies keep their names.")
    with request.editing() as edit:
        if _named(states.get_recipient(edit.session, recipient).policies, policy) is None:
            raise NotFound("Federation policy", policy)
        changed = put_policy(edit, recipient, _policy(wanted))
    return reply(make_policy_info(changed))


@policies_router.delete("/{policy}")
def delete_policy(request: ShareDep, recipient: str, policy: str) -> Response:
    """Take a policy from a recipient."""
    with request.editing() as edit:
        drop_policy(edit, recipient, policy)
    return reply(None)


def _named(policies: tuple[FederationPolicy, ...], name: str) -> FederationPolicy | None:
    return next((policy for policy in policies if policy.name.lower() == name.lower()), None)


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


@groups_router.post("/groups", response_model=GroupInfo, openapi_extra=request_schema(CreateGroup))
def create_group(request: ShareDep, wanted: Annotated[CreateGroup, body(CreateGroup)]) -> Response:
    """Make a group of recipients."""
    with request.editing() as edit:
        made = add_group(edit, wanted.name, comment=wanted.comment, members=wanted.members)
    return reply(make_group_info(made), revision=made.revision)


@groups_router.get("/groups", response_model=Groups)
def list_groups(request: LookDep) -> Response:
    """List the groups with their members."""
    with request.app_state.catalog.reading() as session:
        found = states.list_groups(session)
    return reply(Groups(groups=[make_group_info(one) for one in found]))


@groups_router.get("/groups/{group}", response_model=GroupInfo)
def look_at_group(request: LookDep, group: str) -> Response:
    """A group with its members."""
    with request.app_state.catalog.reading() as session:
        found = states.get_group(session, group)
    return reply(make_group_info(found), revision=found.revision)


@groups_router.patch("/groups/{group}", response_model=GroupInfo, openapi_extra=request_schema(UpdateGroup))
def alter_group(request: ShareDep, group: str, wanted: Annotated[UpdateGroup, body(UpdateGroup)]) -> Response:
    """Change a group: its name, its comment, its members."""
    with request.editing() as edit:
        changed = change_group(
            edit,
            group,
            new_name=wanted.new_name or UNCHANGED,
            comment=wanted.comment if wanted.has("comment") else UNCHANGED,
            add=wanted.add_members,
            remove=wanted.remove_members,
            revision=request.revision,
        )
    return reply(make_group_info(changed), revision=changed.revision)


@groups_router.delete("/groups/{group}")
def delete_group(request: ShareDep, group: str) -> Response:
    """Remove a group with its grants; its members keep their own."""
    with request.editing() as edit:
        drop_group(edit, group, revision=request.revision)
    return reply(None)


keys_router = APIRouter(tags=["administrators"])
# Where clients of Databricks ask whether their key is good.
me = APIRouter(tags=["administrators"])


@keys_router.post("/admin-keys", response_model=AdminKeyInfo, openapi_extra=request_schema(CreateAdminKey))
def create_admin_key(request: OwnerDep, wanted: Annotated[CreateAdminKey, body(CreateAdminKey)]) -> Response:
    """Make a key; the reply has it, here only."""
    with request.editing() as edit:
        made, secret = add_admin_key(
            edit, wanted.name, wanted.role, expires_at=from_ms(wanted.expiration_time)
        )
    return reply(make_admin_key_info(made, secret))


@keys_router.get("/admin-keys", response_model=AdminKeys)
def list_admin_keys(request: OwnerDep) -> Response:
    """List all keys, revoked ones too."""
    with request.app_state.catalog.reading() as session:
        found = read_admin_keys(session)
    return reply(AdminKeys(keys=[make_admin_key_info(one) for one in found]))


@keys_router.delete("/admin-keys/{key}", response_model=AdminKeyInfo)
def delete_admin_key(request: OwnerDep, key: str) -> Response:
    """End a key at once; its name stays taken."""
    with request.editing() as edit:
        ended = revoke_admin_key(edit, key)
    return reply(make_admin_key_info(ended))


@me.get("/Me", response_model=Myself)
def look_at_myself(request: LookDep) -> Response:
    """Who is asking, and in which role."""
    told = Myself(
        id=request.administrator.name,
        userName=request.administrator.name,
        displayName=f"{request.administrator.name} ({request.administrator.role})",
        role=request.administrator.role,
    )
    return reply(told)


share_router = APIRouter(tags=["shares"])


@share_router.post("/shares", response_model=ShareInfo, openapi_extra=request_schema(CreateShare))
def create_share(request: ShareDep, wanted: Annotated[CreateShare, body(CreateShare)]) -> Response:
    """Make a share; its tables are added by an update."""
    fields = wanted.model_dump(include={"comment", "display_name", "properties", "owner"})
    with request.editing() as edit:
        made = create_in_shares(edit, wanted.name, **fields)
    return reply(make_share_info(made), revision=made.revision)


@share_router.get("/shares", response_model=Shares)
def list_all_shares(request: LookDep) -> Response:
    """List the shares, without what is in them."""
    with request.app_state.catalog.reading() as session:
        found, token = request.page("shares", lambda after, limit: states.list_shares(session, after, limit))
    return reply(Shares(shares=[make_share_info(one) for one in found], next_page_token=token))


@share_router.get("/shares/{share}", response_model=ShareInfo)
def look_at_share(
    request: LookDep, share: str, include_shared_data: Annotated[bool, Query()] = False
) -> Response:
    """A share, with its tables if they are asked for."""
    with request.app_state.catalog.reading() as session:
        found = states.get_share(session, share)
        told = make_share_info(
            found, states.list_objects(session, found.name) if include_shared_data else None
        )
    return reply(told, revision=found.revision)


@share_router.patch("/shares/{share}", response_model=ShareInfo, openapi_extra=request_schema(UpdateShare))
def alter_share(request: ShareDep, share: str, wanted: Annotated[UpdateShare, body(UpdateShare)]) -> Response:
    """Change a share, and add, alter and remove tables: all of it or nothing."""
    tables = [update.data_object for update in wanted.updates]
    writes_rule = any(table.rule or table.partitions for table in tables)
    request.prefetch_versions(share, [table.name for table in tables], writes_rule=writes_rule)
    with request.editing() as edit:
        changed = update_share(edit, share, wanted, request.revision)
        told = make_share_info(changed, states.list_objects(edit.session, changed.name))
    return reply(told, revision=changed.revision)


@share_router.delete("/shares/{share}")
def delete_share(request: ShareDep, share: str) -> Response:
    """Remove a share with its tables and the grants on it."""
    with request.editing() as edit:
        drop_share(edit, share, revision=request.revision)
    return reply(None)


permissions_router = APIRouter(tags=["permissions"])


@permissions_router.get("/shares/{share}/permissions", response_model=SharePermissions)
def list_permissions(request: LookDep, share: str) -> Response:
    """Who may read a share: recipients, and groups as `group:NAME`."""
    with request.app_state.catalog.reading() as session:
        found = states.get_share(session, share)
        granted = [make_privilege_assignment(grant) for grant in states.list_grants_on(session, share)]
    return reply(SharePermissions(privilege_assignments=granted), revision=found.revision)


@permissions_router.patch(
    "/shares/{share}/permissions",
    response_model=SharePermissions,
    openapi_extra=request_schema(UpdatePermissions),
)
def alter_permissions(
    request: ShareDep, share: str, wanted: Annotated[UpdatePermissions, body(UpdatePermissions)]
) -> Response:
    """Grant and revoke: all of it or nothing."""
    request.prefetch_versions(share, writes_rule=any(change.rule for change in wanted.changes))
    with request.editing() as edit:
        revision = change_permissions(edit, share, wanted.changes, request.revision)
        granted = [] if wanted.omit_permissions_list else states.list_grants_on(edit.session, share)
    told = [make_privilege_assignment(grant) for grant in granted]
    return reply(SharePermissions(privilege_assignments=told), revision=revision)


@permissions_router.get("/recipients/{recipient}/share-permissions", response_model=RecipientPermissions)
def list_share_permissions(request: LookDep, recipient: str) -> Response:
    """What a recipient may read, by itself or as a member of a group."""
    with request.app_state.catalog.reading() as session:
        granted = states.list_grants_to(session, recipient)
    return reply(RecipientPermissions(permissions_out=make_share_permissions(granted)))


followed_router = APIRouter(tags=["followed tables"])


@followed_router.post(
    "/followed-tables", response_model=FollowReport, openapi_extra=request_schema(FollowTables)
)
def follow_tables(request: OwnerDep, wanted: Annotated[FollowTables, body(FollowTables)]) -> Response:
    """Follow and share tables where they lie; the reply has a result for each, refusals among them."""
    following = _following(request.app_state)
    usual = FollowRequest(
        share=wanted.share,
        check_every_s=wanted.check_every_s,
        start_version=wanted.start_version,
        history=wanted.history,
    )
    given = [(table.location, table.name) for table in wanted.tables]
    requests = following.requests(given, usual, wanted.table_schema)
    results = [one.as_json() for one in following.follow_all(requests, request.administrator.name)]
    return reply(FollowReport.model_validate({"results": results}))


@followed_router.get("/followed-tables", response_model=FollowedTablesReply)
def list_followed_tables(request: LookDep) -> Response:
    """List the followed tables by name."""
    found = FollowedTables(request.app_state.catalog).list()
    return reply(FollowedTablesReply(tables=[make_followed_table_info(one) for one in found]))


@followed_router.delete("/followed-tables/{table}", response_model=FollowedTableInfo)
def unfollow_table(request: OwnerDep, table: str) -> Response:
    """Follow a table no more: what shares it has no versions any more; the table itself is not touched."""
    with request.editing() as edit:
        found = ledger.unfollow_table(edit, table)
    return reply(make_followed_table_info(found))


def _following(app_state: AppState) -> Following:
    serveability = TableServeability(app_state.iceberg_tables, app_state.signers, app_state.settings)
    return Following(
        app_state.catalog, app_state.settings, Stores(app_state.settings), app_state.versions, serveability
    )


impersonation_router = APIRouter(tags=["see as"])
# What a request is made of; the rest belongs to the application that got it.
FORWARDED_SCOPE = (
    "type",
    "asgi",
    "http_version",
    "method",
    "scheme",
    "query_string",
    "client",
    "server",
    "extensions",
)
# The administrator's own: they stay here.
ADMIN_HEADERS = frozenset({b"authorization", b"cookie", b"if-match", b"x-forwarded-for"})


class ImpersonatedResponse(Response):
    """The answer of another path of the server, passed on while it is made."""

    def __init__(self, app: ASGIApp, path: str, impersonation: Impersonation) -> None:
        super().__init__()
        self._app, self._path, self._seen = app, path, impersonation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the path does."""
        forwarded = {name: scope[name] for name in FORWARDED_SCOPE if name in scope}
        headers = [(name, value) for name, value in scope["headers"] if name not in ADMIN_HEADERS]
        place = {"path": self._path, "raw_path": quote(self._path).encode(), "root_path": ""}
        state = dict(scope.get("state", {}))
        await self._app(
            {**forwarded, **place, "headers": headers, "state": state, IMPERSONATION: self._seen},
            receive,
            send,
        )


@impersonation_router.get("/recipients/{recipient}/as/{path:path}")
def see_as(request: ShareDep, recipient: str, path: str) -> Response:
    """What the protocol's path behind `as/` answers the recipient."""
    return _impersonate(request, recipient, path)


@impersonation_router.post("/recipients/{recipient}/as/{path:path}")
def query_as(request: ShareDep, recipient: str, path: str) -> Response:
    """The same for queries, which come with URLs that open the recipient's files."""
    return _impersonate(request, recipient, path)


def _impersonate(request: AdminRequest, recipient: str, path: str) -> ImpersonatedResponse:
    try:
        impersonation = make_impersonation(request.app_state.catalog, recipient, request.administrator.name)
    except Unauthenticated as error:
        raise BadRequest("recipient", recipient, str(error)) from error
    endpoint = request.app_state.settings.endpoint.rstrip("/")
    return ImpersonatedResponse(request.http_request.app.state.server, f"{endpoint}/{path}", impersonation)
