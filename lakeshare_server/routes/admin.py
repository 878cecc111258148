"""The admin API: an application of its own below `/api`, with its own errors and OpenAPI document."""

import base64
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.resources import files
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints
from urllib.parse import quote

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from pydantic.json_schema import models_json_schema
from sqlalchemy.orm import Session
from starlette.types import ASGIApp, Receive, Scope, Send

from lakeshare_server import errors
from lakeshare_server.access.authentication import Administrator, Permission, make_profile
from lakeshare_server.access.rate_limit import require_allowed
from lakeshare_server.access.rules import require_decidable_rules
from lakeshare_server.catalog import FollowedTables, audit, credentials, ledger, sharing, states, webhooks
from lakeshare_server.catalog.sharing import Edit, editing
from lakeshare_server.catalog.states import FederationPolicy
from lakeshare_server.protocol import admin as bodies
from lakeshare_server.protocol.admin import RequestBody
from lakeshare_server.protocol.requests import parse_integer, parse_json_object
from lakeshare_server.protocol.tokens import Keyed, PageRequest
from lakeshare_server.provider.following import (
    Following,
    FollowRequest,
    change_permissions,
    prefetch_versions,
    update_share,
)
from lakeshare_server.provider.serveability import TableServeability
from lakeshare_server.routes.context import (
    IMPERSONATION,
    AppState,
    AppStateDep,
    AuditRecord,
    Impersonation,
    client_address,
    make_impersonation,
    read_bounded_body,
)
from lakeshare_server.routes.errors import RESPONSES, Headers, ProtocolErrors, add_error_responses
from lakeshare_server.routes.responses import JSON_TYPE, encode_json, json_response
from lakeshare_server.storage import Stores

PREFIX = "/api"
DATABRICKS = "/2.1/unity-catalog"
OPENSHARING = "/2.1/opensharing"
DESCRIPTION = (
    "Shares, recipients and grants of lakeshare. The paths below `/api/2.1/unity-catalog`, `/api/2.0/data-sharing` "
    "and `/api/2.0/preview` are those of Databricks, so that its SDKs work with this server; "
    "`/api/2.1/opensharing/provider` has the same calls under the paths of OpenSharing, and those that only lakeshare "
    "has. Send an administrator's key as `Authorization: Bearer`. Responses have an ETag; a change with that ETag as "
    "If-Match is refused if the object was changed since."
)
TAG = re.compile(r'(?:W/)?"([0-9]{1,18})"')
NAMES = ("share", "recipient", "webhook", "group", "policy", "key", "table")
# Replies have personal data, and links that are returned once.
NOT_KEPT = {"Cache-Control": "no-store"}
MAX_CODE_CHARS = 200
MAX_NAME_CHARS = 255
USAGE_DAYS = 30
STYLE = (files("lakeshare_server.routes") / "admin_document.css").read_text()
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; "
    f"style-src 'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

_log = logging.getLogger(__name__)
_templates = Environment(
    loader=PackageLoader("lakeshare_server.routes", ""), autoescape=True, trim_blocks=True
)

AnyBody = TypeVar("AnyBody", bound=RequestBody)
Entry = TypeVar("Entry", bound=Keyed)
# An object of the catalog, or a mapping: the fields of a route's response model are read from it.
Content = Any


@dataclass(frozen=True)
class AdminRequest:
    """A request of an authenticated administrator whose role permits it."""

    http_request: Request
    app_state: AppState
    administrator: Administrator

    @contextmanager
    def editing(self) -> Iterator[Edit]:
        """One transaction in the administrator's name. Raises BadRequest if partitions cannot decide a new rule."""
        audit_record: AuditRecord = self.http_request.state.audit_record
        with editing(
            self.app_state.catalog, self.administrator.name, request_id=audit_record.request_id
        ) as edit:
            yield edit
            require_decidable_rules(edit, self.app_state.versions)

    @property
    def revision(self) -> int | None:
        """The revision in If-Match; None without the header or with `*`. Raises BadRequest for other values."""
        etag = self.http_request.headers.get("if-match")
        if etag is None or etag.strip() == "*":
            return None
        tag = TAG.fullmatch(etag.strip())
        if tag is None:
            raise errors.BadRequest("If-Match", etag, 'Give the ETag of what you have looked at, like "7".')
        return int(tag[1])

    def page(
        self, listing: str, read: Callable[[int, int | None], Sequence[Entry]]
    ) -> tuple[Sequence[Entry], str | None]:
        """The requested page, by default all entries; `read(after, limit)` returns entries. Raises BadRequest."""
        query, pager = self.http_request.query_params, self.app_state.pager
        max_results, token = query.get("max_results"), query.get("page_token") or None
        if max_results is None and token is None:
            return read(0, None), None
        size = min(parse_integer("max_results", max_results or 0), pager.page_size) or pager.page_size
        try:
            return pager.page(
                self.administrator.name, f"admin/{listing}", PageRequest(str(size), token), read
            )
        except errors.BadRequest as error:
            hint = "Pass on the next_page_token of the page before, unchanged."
            raise errors.BadRequest("page_token", token, hint) from error


def _require_permission(permission: Permission) -> Callable[[Request], AdminRequest]:
    def authenticate(http_request: Request) -> AdminRequest:
        app_state: AppState = http_request.app.state.app_state
        audit_record: AuditRecord = http_request.state.audit_record
        audit_record.action = http_request.scope["endpoint"].__name__
        names = [http_request.path_params[name] for name in NAMES if name in http_request.path_params]
        audit_record.object_name = ".".join(names) or None
        administrator = app_state.admin_authenticator.authenticate(
            http_request.headers.get("authorization"), client_address(http_request)
        )
        audit_record.principal = administrator.name
        administrator.require(permission)
        return AdminRequest(http_request, app_state, administrator)

    return authenticate


LookDep = Annotated[AdminRequest, Depends(_require_permission(Permission.LOOK))]
ShareDep = Annotated[AdminRequest, Depends(_require_permission(Permission.SHARE))]
OwnerDep = Annotated[AdminRequest, Depends(_require_permission(Permission.ADMINISTER))]


class AdminReply(JSONResponse):
    """The JSON of a reply; its ETag is the revision of the object."""

    def __init__(self, content: Any, status_code: int = 200, **options: Any) -> None:
        revision = content.get("revision")
        etag = {} if revision is None else {"ETag": f'"{revision}"'}
        super().__init__(content, status_code, {"Content-Type": JSON_TYPE} | NOT_KEPT | etag, **options)

    def render(self, content: Any) -> bytes:
        return encode_json(content)


class AdminRoute(APIRoute):
    """A route that sends fields with a value only, and whose parameter `given` is the model of its body.

    The body is read after the administrator, the first parameter, is authenticated.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        model = get_type_hints(endpoint).get("given")
        if model is not None:
            endpoint.__annotations__["given"] = Annotated[model, Depends(_body_reader(model))]
            schema = {"$ref": f"#/components/schemas/{model.__name__}"}
            body = {"required": True, "content": {"application/json": {"schema": schema}}}
            options["openapi_extra"] = {"requestBody": body}
        options |= {"response_model_exclude_none": True, "response_class": AdminReply}
        super().__init__(path, endpoint, **options)


def _body_reader(model: type[AnyBody]) -> Callable[[Request], Awaitable[AnyBody]]:
    async def read(http_request: Request) -> AnyBody:
        settings = http_request.app.state.app_state.settings
        content = await read_bounded_body(http_request, settings.max_body_bytes, settings.slow_client_s)
        return bodies.parse_body(model, parse_json_object(content))

    return read


router = APIRouter(tags=["recipients"], route_class=AdminRoute)
# Calls that the Databricks API does not have.
own = APIRouter(tags=["recipients"], route_class=AdminRoute)


@router.post("/recipients", response_model=bodies.RecipientInfo)
def create_recipient(request: ShareDep, given: bodies.CreateRecipient) -> Content:
    """Create a recipient. Only this reply has its activation link; OIDC federation needs no link."""
    with request.editing() as edit:
        recipient = sharing.create_recipient(edit, **given.fields())
        if recipient.authentication == "OIDC_FEDERATION":
            return bodies.make_recipient_info(recipient)
        return _invite(request, edit, recipient.name, recipient.expires_at)


@router.get("/recipients", response_model=bodies.Recipients)
def list_recipients(request: LookDep) -> Content:
    """List the recipients, including revoked ones."""
    with request.app_state.catalog.reading() as session:
        page, token = request.page("recipients", partial(states.list_recipients, session))
    return {"recipients": map(bodies.make_recipient_info, page), "next_page_token": token}


@router.get("/recipients/{recipient}", response_model=bodies.RecipientInfo)
def look_at_recipient(request: LookDep, recipient: str) -> Content:
    """Get a recipient with its tokens and links, without secrets."""
    with request.app_state.catalog.reading() as session:
        return bodies.make_recipient_info(states.get_recipient(session, recipient))


@router.patch("/recipients/{recipient}", response_model=bodies.RecipientInfo)
def alter_recipient(request: ShareDep, recipient: str, given: bodies.UpdateRecipient) -> Content:
    """Change a recipient; its tokens and grants stay."""
    with request.editing() as edit:
        changed = sharing.alter_recipient(edit, recipient, **given.fields(), revision=request.revision)
    return bodies.make_recipient_info(changed)


@router.delete("/recipients/{recipient}", response_model=None)
def delete_recipient(request: ShareDep, recipient: str) -> Content:
    """Delete a recipient with its tokens and grants."""
    with request.editing() as edit:
        sharing.drop_recipient(edit, recipient, revision=request.revision)
    return {}


@router.post("/recipients/{recipient}/rotate-token", response_model=bodies.RecipientInfo)
def rotate_token(request: ShareDep, recipient: str, given: bodies.RotateToken) -> Content:
    """Shorten the life of existing tokens and return a new activation link, in this reply only."""
    grace = timedelta(seconds=given.existing_token_expire_in_seconds)
    with request.editing() as edit:
        state = credentials.shorten_tokens(edit, recipient, existing_expire_in=grace)
        return _invite(request, edit, state.name, state.expires_at)


@own.post("/recipients/{recipient}/revoke", response_model=bodies.RecipientInfo)
def revoke_recipient(request: ShareDep, recipient: str) -> Content:
    """End all access of a recipient permanently; its name and its audit events stay."""
    with request.editing() as edit:
        revoked = sharing.revoke_recipient(edit, recipient, revision=request.revision)
    return bodies.make_recipient_info(revoked)


@own.delete("/recipients/{recipient}/tokens/{token}", response_model=bodies.RecipientInfo)
def revoke_token(request: ShareDep, recipient: str, token: str) -> Content:
    """Revoke a token of a recipient immediately."""
    with request.editing() as edit:
        changed = credentials.revoke_token(edit, recipient, token)
    return bodies.make_recipient_info(changed)


def _invite(request: AdminRequest, edit: Edit, name: str, token_expires_at: datetime | None) -> Content:
    link, code = credentials.create_link(edit, name, token_expires_at=token_expires_at)
    recipient = states.get_recipient(edit.session, name)
    return bodies.make_recipient_info(recipient, (link.id, request.app_state.settings.activation_url(code)))


activation_router = APIRouter(tags=["activation"], route_class=AdminRoute)


def code_in(http_request: Request, activation_url: str) -> str:
    audit_record: AuditRecord = http_request.state.audit_record
    audit_record.action = http_request.scope["endpoint"].__name__
    code = activation_url.rstrip("/").rpartition("/")[2]
    if len(code) > MAX_CODE_CHARS:
        raise errors.BadRequest("activation_url", code, "Give the link, or the code at its end.")
    return code


CodeDep = Annotated[str, Depends(code_in)]


@activation_router.get(
    "/data_sharing_activation_info/{activation_url:path}", response_model=bodies.ActivationInfo
)
def look_at_activation(http_request: Request, code: CodeDep, app_state: AppStateDep) -> Content:
    """Describe an activation link without using it up."""
    link, recipient = credentials.find_link(app_state.catalog, code)
    require_allowed(recipient.name, recipient.ip_allow, client_address(http_request))
    with app_state.catalog.reading() as session:
        shares = sorted({grant.share for grant in states.list_grants(session, recipient=recipient.name)})
    return {
        "recipient": recipient.name,
        "expires_at": bodies.in_ms(link.expires_at),
        "agreement": recipient.agreement,
        "shares": shares,
    }


@activation_router.get("/data_sharing_activation/{activation_url:path}")
def redeem_activation(
    http_request: Request,
    code: CodeDep,
    app_state: AppStateDep,
    accepts_agreement: Annotated[bool, Query()] = False,
) -> Response:
    """Return the recipient's profile, once; `accepts_agreement` accepts its agreement, if there is one."""
    _, recipient = credentials.find_link(app_state.catalog, code)
    address = client_address(http_request)
    require_allowed(recipient.name, recipient.ip_allow, address)
    with editing(app_state.catalog, f"recipient:{recipient.name}"[:MAX_NAME_CHARS]) as edit:
        recipient, secret = credentials.redeem_link(
            edit, code, from_address=address, accepts_agreement=accepts_agreement
        )
    audit_record: AuditRecord = http_request.state.audit_record
    audit_record.recipient = recipient.name
    return json_response(make_profile(recipient, secret, app_state.settings), headers=NOT_KEPT)


policies_router = APIRouter(
    tags=["federation policies"], prefix="/recipients/{recipient}/federation-policies", route_class=AdminRoute
)


@policies_router.post("", response_model=bodies.FederationPolicyInfo)
def create_policy(request: ShareDep, recipient: str, given: bodies.PutPolicy) -> Content:
    """Add a federation policy to a recipient of OIDC federation."""
    with request.editing() as edit:
        if _find_policy(edit.session, recipient, given.name) is not None:
            raise errors.NameTaken(f"{recipient} has a policy {given.name} already", "Choose another name.")
        return credentials.put_policy(edit, recipient, _policy(given))


@policies_router.get("", response_model=bodies.FederationPolicies)
def list_policies(request: LookDep, recipient: str) -> Content:
    """List a recipient's policies."""
    with request.app_state.catalog.reading() as session:
        return {"policies": states.get_recipient(session, recipient).policies}


@policies_router.get("/{policy}", response_model=bodies.FederationPolicyInfo)
def look_at_policy(request: LookDep, recipient: str, policy: str) -> Content:
    """Get a policy of a recipient."""
    with request.app_state.catalog.reading() as session:
        federation_policy = _find_policy(session, recipient, policy)
    if federation_policy is None:
        raise errors.NotFound("Federation policy", policy)
    return federation_policy


@policies_router.patch("/{policy}", response_model=bodies.FederationPolicyInfo)
def alter_policy(request: ShareDep, recipient: str, policy: str, given: bodies.PutPolicy) -> Content:
    """Replace a policy."""
    if given.name.lower() != policy.lower():
        raise errors.BadRequest("name", given.name, f"The policy is {policy}; policies keep their names.")
    with request.editing() as edit:
        if _find_policy(edit.session, recipient, policy) is None:
            raise errors.NotFound("Federation policy", policy)
        return credentials.put_policy(edit, recipient, _policy(given))


@policies_router.delete("/{policy}", response_model=None)
def delete_policy(request: ShareDep, recipient: str, policy: str) -> Content:
    """Remove a policy from a recipient."""
    with request.editing() as edit:
        credentials.drop_policy(edit, recipient, policy)
    return {}


def _find_policy(session: Session, recipient: str, name: str) -> FederationPolicy | None:
    policies = states.get_recipient(session, recipient).policies
    return next((policy for policy in policies if policy.name.lower() == name.lower()), None)


def _policy(given: bodies.PutPolicy) -> FederationPolicy:
    fields = given.oidc_policy.model_dump()
    return FederationPolicy(
        **{**fields, "audiences": tuple(fields["audiences"])}, name=given.name, comment=given.comment
    )


webhooks_router = APIRouter(
    tags=["webhooks"], prefix="/recipients/{recipient}/webhooks", route_class=AdminRoute
)


@webhooks_router.post("", response_model=bodies.WebhookInfo)
def create_webhook(request: ShareDep, recipient: str, given: bodies.CreateWebhook) -> Content:
    """Add a webhook to a recipient; only this reply has its secret."""
    registry = request.app_state.webhooks
    # Before the transaction, because the host is looked up.
    registry.require_url(given.url)
    with request.editing() as edit:
        webhook, secret = registry.add(edit, recipient, **given.fields())
    return {**vars(webhook), "secret": secret}


@webhooks_router.get("", response_model=bodies.Webhooks)
def list_webhooks(request: LookDep, recipient: str) -> Content:
    """List a recipient's webhooks with the numbers of their pending and dead deliveries, without secrets."""
    with request.app_state.catalog.reading() as session:
        return {"webhooks": webhooks.list_webhooks(session, recipient)}


@webhooks_router.delete("/{webhook}", response_model=None)
def delete_webhook(request: ShareDep, recipient: str, webhook: str) -> Content:
    """Remove a webhook with its deliveries."""
    with request.editing() as edit:
        webhooks.remove_webhook(edit, webhook, recipient)
    return {}


@webhooks_router.post("/{webhook}/rotate-secret", response_model=bodies.WebhookInfo)
def rotate_webhook_secret(
    request: ShareDep, recipient: str, webhook: str, given: bodies.RotateSecret
) -> Content:
    """Give a webhook a new secret, in this reply only; events are also signed with the old one for a grace time."""
    grace = timedelta(seconds=given.existing_secret_expire_in_seconds)
    with request.editing() as edit:
        changed, secret = request.app_state.webhooks.rotate(edit, webhook, grace, recipient)
    return {**vars(changed), "secret": secret}


@webhooks_router.post("/{webhook}/test", response_model=bodies.QueuedEvent)
def test_webhook(request: ShareDep, recipient: str, webhook: str) -> Content:
    """Queue a test event; its delivery shows the result."""
    with request.editing() as edit:
        return {"event_id": request.app_state.webhooks.test(edit, webhook, recipient)}


@webhooks_router.get("/{webhook}/deliveries", response_model=bodies.Deliveries)
def list_webhook_deliveries(
    request: LookDep, recipient: str, webhook: str, query: Annotated[bodies.DeliveriesQuery, Query()]
) -> Content:
    """List the newest deliveries of a webhook; with `state=dead`, its dead letters."""
    with request.app_state.catalog.reading() as session:
        state = webhooks.get_webhook(session, webhook, recipient)
        return {"deliveries": webhooks.list_deliveries(session, state, query.state, query.max_results)}


@webhooks_router.post("/{webhook}/resend", response_model=bodies.ResentDeliveries)
def resend_webhook_deliveries(
    request: ShareDep, recipient: str, webhook: str, given: bodies.ResendDeliveries
) -> Content:
    """Send dead letters again: those named, or all."""
    retry_for = request.app_state.webhooks.retry_for
    with request.editing() as edit:
        return {"resent": webhooks.resend_deliveries(edit, webhook, given.event_ids, retry_for, recipient)}


groups_router = APIRouter(tags=["groups"], route_class=AdminRoute)


@groups_router.post("/groups", response_model=bodies.GroupInfo)
def create_group(request: ShareDep, given: bodies.CreateGroup) -> Content:
    """Create a group of recipients."""
    with request.editing() as edit:
        return sharing.create_group(edit, **given.fields())


@groups_router.get("/groups", response_model=bodies.Groups)
def list_groups(request: LookDep) -> Content:
    """List the groups with their members."""
    with request.app_state.catalog.reading() as session:
        return {"groups": states.list_groups(session)}


@groups_router.get("/groups/{group}", response_model=bodies.GroupInfo)
def look_at_group(request: LookDep, group: str) -> Content:
    """Get a group with its members."""
    with request.app_state.catalog.reading() as session:
        return states.get_group(session, group)


@groups_router.patch("/groups/{group}", response_model=bodies.GroupInfo)
def alter_group(request: ShareDep, group: str, given: bodies.UpdateGroup) -> Content:
    """Change a group's name, comment or members."""
    with request.editing() as edit:
        return sharing.alter_group(edit, group, **given.fields(), revision=request.revision)


@groups_router.delete("/groups/{group}", response_model=None)
def delete_group(request: ShareDep, group: str) -> Content:
    """Delete a group with its grants; its members keep their own."""
    with request.editing() as edit:
        sharing.drop_group(edit, group, revision=request.revision)
    return {}


keys_router = APIRouter(tags=["administrators"], route_class=AdminRoute)
# Databricks clients check their key with this call.
me = APIRouter(tags=["administrators"], route_class=AdminRoute)


@keys_router.post("/admin-keys", response_model=bodies.AdminKeyInfo)
def create_admin_key(request: OwnerDep, given: bodies.CreateAdminKey) -> Content:
    """Create a key; only this reply has it."""
    with request.editing() as edit:
        key, secret = credentials.add_admin_key(edit, **given.fields())
    return {**vars(key), "key": secret}


@keys_router.get("/admin-keys", response_model=bodies.AdminKeys)
def list_admin_keys(request: OwnerDep) -> Content:
    """List all keys, including revoked ones."""
    with request.app_state.catalog.reading() as session:
        return {"keys": credentials.read_admin_keys(session)}


@keys_router.delete("/admin-keys/{key}", response_model=bodies.AdminKeyInfo)
def delete_admin_key(request: OwnerDep, key: str) -> Content:
    """Revoke a key immediately; its name stays taken."""
    with request.editing() as edit:
        return credentials.revoke_admin_key(edit, key)


@me.get("/Me", response_model=bodies.Myself)
def look_at_myself(request: LookDep) -> Content:
    """Get the calling administrator and its role."""
    name, role = request.administrator.name, request.administrator.role
    return {"id": name, "userName": name, "displayName": f"{name} ({role})", "role": role}


share_router = APIRouter(tags=["shares"], route_class=AdminRoute)


@share_router.post("/shares", response_model=bodies.ShareInfo)
def create_share(request: ShareDep, given: bodies.CreateShare) -> Content:
    """Create a share; tables are added by an update."""
    with request.editing() as edit:
        return sharing.create_share(edit, **given.fields())


@share_router.get("/shares", response_model=bodies.Shares)
def list_all_shares(request: LookDep) -> Content:
    """List the shares without their tables."""
    with request.app_state.catalog.reading() as session:
        page, token = request.page("shares", partial(states.list_shares, session))
    return {"shares": page, "next_page_token": token}


@share_router.get("/shares/{share}", response_model=bodies.ShareInfo)
def look_at_share(
    request: LookDep, share: str, include_shared_data: Annotated[bool, Query()] = False
) -> Content:
    """Get a share; with `include_shared_data`, also its tables."""
    with request.app_state.catalog.reading() as session:
        share_state = states.get_share(session, share)
        objects = states.list_objects(session, share_state.name) if include_shared_data else None
    return {**vars(share_state), "objects": objects}


@share_router.patch("/shares/{share}", response_model=bodies.ShareInfo)
def alter_share(request: ShareDep, share: str, given: bodies.UpdateShare) -> Content:
    """Change a share, and add, alter and remove tables, in one transaction."""
    tables = [update.data_object for update in given.updates]
    writes_rule = any(table.rule or table.partitions for table in tables)
    app_state, names = request.app_state, [table.name for table in tables]
    # Before the transaction, because the versions of followed tables are read from their stores.
    prefetch_versions(app_state.catalog, app_state.versions, share, names, writes_rule=writes_rule)
    with request.editing() as edit:
        changed = update_share(edit, share, given, request.revision)
        return {**vars(changed), "objects": states.list_objects(edit.session, changed.name)}


@share_router.delete("/shares/{share}", response_model=None)
def delete_share(request: ShareDep, share: str) -> Content:
    """Delete a share with its tables and grants."""
    with request.editing() as edit:
        sharing.drop_share(edit, share, revision=request.revision)
    return {}


permissions_router = APIRouter(tags=["permissions"], route_class=AdminRoute)


@permissions_router.get("/shares/{share}/permissions", response_model=bodies.SharePermissions)
def list_permissions(request: LookDep, share: str, response: Response) -> Content:
    """List who may read a share: recipients, and groups as `group:NAME`."""
    with request.app_state.catalog.reading() as session:
        revision = states.get_share(session, share).revision
        return _permissions(response, revision, states.list_grants(session, share=share))


@permissions_router.patch("/shares/{share}/permissions", response_model=bodies.SharePermissions)
def alter_permissions(
    request: ShareDep, share: str, given: bodies.UpdatePermissions, response: Response
) -> Content:
    """Grant and revoke privileges in one transaction."""
    app_state, writes_rule = request.app_state, any(change.rule for change in given.changes)
    prefetch_versions(app_state.catalog, app_state.versions, share, (), writes_rule=writes_rule)
    with request.editing() as edit:
        revision = change_permissions(edit, share, given.changes, request.revision)
        granted = [] if given.omit_permissions_list else states.list_grants(edit.session, share=share)
    return _permissions(response, revision, granted)


def _permissions(response: Response, revision: int, granted: Sequence[states.Grant]) -> Content:
    response.headers["ETag"] = f'"{revision}"'
    return {"privilege_assignments": granted}


@permissions_router.get(
    "/recipients/{recipient}/share-permissions", response_model=bodies.RecipientPermissions
)
def list_share_permissions(request: LookDep, recipient: str) -> Content:
    """List the grants of a recipient, its own and those of its groups."""
    with request.app_state.catalog.reading() as session:
        granted = states.list_grants(session, recipient=recipient)
    return {"permissions_out": bodies.share_permissions(granted)}


followed_router = APIRouter(tags=["followed tables"], route_class=AdminRoute)


@followed_router.post("/followed-tables", response_model=bodies.FollowReport)
def follow_tables(request: OwnerDep, given: bodies.FollowTables) -> Content:
    """Follow and share tables at their locations; the reply has a result for each, including refusals."""
    app_state = request.app_state
    settings, versions = app_state.settings, app_state.versions
    serveability = TableServeability(app_state.iceberg_tables, app_state.signers, settings)
    following = Following(app_state.catalog, settings, Stores(settings), versions, serveability)
    defaults = FollowRequest(**given.model_dump(exclude={"tables", "table_schema"}))
    locations = [(table.location, table.name) for table in given.tables]
    requests = following.requests(locations, defaults, given.table_schema)
    outcomes = following.follow_all(requests, request.administrator.name)
    return {"results": [outcome.as_json() for outcome in outcomes]}


@followed_router.get("/followed-tables", response_model=bodies.FollowedTablesReply)
def list_followed_tables(request: LookDep) -> Content:
    """List the followed tables by name."""
    return {"tables": FollowedTables(request.app_state.catalog).list()}


@followed_router.delete("/followed-tables/{table}", response_model=bodies.FollowedTableInfo)
def unfollow_table(request: OwnerDep, table: str) -> Content:
    """Stop following a table: its shared tables have no versions any more. The table itself is not changed."""
    with request.editing() as edit:
        return ledger.unfollow_table(edit, table)


audit_router = APIRouter(tags=["audit"], route_class=AdminRoute)


@audit_router.get("/audit-events", response_model=bodies.AuditEvents)
def list_audit_events(request: LookDep, query: Annotated[bodies.AuditQuery, Query()]) -> Content:
    """Search the audit log. Events of the last second may be missing."""
    conditions = query.model_dump(exclude={"max_results"})
    found = audit.search(request.app_state.catalog, audit.Search(**conditions), query.max_results + 1)[::-1]
    page = found[: query.max_results]
    next_before = page[-1].number if len(found) > len(page) else None
    return {"events": [event.as_json() for event in page], "next_before": next_before}


@audit_router.get("/usage", response_model=bodies.UsageReply)
def count_usage(request: LookDep, query: Annotated[bodies.UsageQuery, Query()]) -> Content:
    """Count the requests of recipients by day, recipient, table or version."""
    until = query.until or datetime.now(UTC).date()
    since = query.since or until - timedelta(days=USAGE_DAYS - 1)
    if since > until:
        raise errors.BadRequest(
            "since", since.isoformat(), f"Give a day up to {until.isoformat()}, the last one."
        )
    usages = audit.read_usage(request.app_state.catalog, since, until, query.recipient, query.table)
    return {"usage": audit.group_usage(usages, list(dict.fromkeys(query.by)))}


impersonation_router = APIRouter(tags=["see as"], route_class=AdminRoute)
# The parts of a scope that describe the request; the rest belongs to the admin application.
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

ADMIN_HEADERS = frozenset({b"authorization", b"cookie", b"if-match", b"x-forwarded-for"})


class ImpersonatedResponse(Response):
    """The response of another path of the server, streamed."""

    def __init__(self, app: ASGIApp, path: str, impersonation: Impersonation) -> None:
        super().__init__()
        self._app, self._path, self._impersonation = app, path, impersonation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        forwarded = {name: scope[name] for name in FORWARDED_SCOPE if name in scope}
        headers = [(name, value) for name, value in scope["headers"] if name not in ADMIN_HEADERS]
        location = {"path": self._path, "raw_path": quote(self._path).encode(), "root_path": ""}
        state = dict(scope.get("state", {}))
        await self._app(
            {**forwarded, **location, "headers": headers, "state": state, IMPERSONATION: self._impersonation},
            receive,
            send,
        )


@impersonation_router.get("/recipients/{recipient}/as/{path:path}")
def see_as(request: ShareDep, recipient: str, path: str) -> Response:
    """Return what the recipient gets from the protocol's path after `as/`."""
    return _impersonate(request, recipient, path)


@impersonation_router.post("/recipients/{recipient}/as/{path:path}")
def query_as(request: ShareDep, recipient: str, path: str) -> Response:
    """Return what the recipient gets for a query, with URLs that open its files."""
    return _impersonate(request, recipient, path)


def _impersonate(request: AdminRequest, recipient: str, path: str) -> ImpersonatedResponse:
    try:
        impersonation = make_impersonation(request.app_state.catalog, recipient, request.administrator.name)
    except errors.Unauthenticated as error:
        raise errors.BadRequest("recipient", recipient, str(error)) from error
    endpoint = request.app_state.settings.endpoint.rstrip("/")
    return ImpersonatedResponse(request.http_request.app.state.server, f"{endpoint}/{path}", impersonation)


well_known = APIRouter()


@well_known.get("/.well-known/databricks-config")
async def databricks_config() -> Response:
    """The first call of Databricks SDKs: there is no issuer to log in at."""
    return json_response({"oidc_endpoint": ""})


class AdminErrors(ProtocolErrors):
    """Errors in the format of the Databricks API; messages are those for the provider."""

    responses = RESPONSES | {
        errors.CatalogConflict: (409, "RESOURCE_CONFLICT"),
        errors.NameTaken: (409, "RESOURCE_ALREADY_EXISTS"),
        errors.EditedMeanwhile: (412, "ABORTED"),
    }
    routing_codes: ClassVar = {404: "ENDPOINT_NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}
    default_routing_code = "BAD_REQUEST"
    unknown_path = "is not part of the API; /api/docs lists what is."

    def respond(
        self, request: Request, status: int, code: str, message: str, headers: Headers, missing: str | None
    ) -> Response:
        return json_response({"error_code": code, "message": message}, status, headers)

    def message(self, request: Request, status: int, error: errors.LakeshareError) -> str:
        if status >= 500:
            _log.error("%s %s: %s", request.method, request.url.path, error)
        return error.for_provider()

    def invalid_request(self, request: Request, error: Exception) -> Response:
        first = error.errors()[0] if isinstance(error, RequestValidationError) else {}
        field = ".".join(str(part) for part in first.get("loc", ())[1:])
        return self.lakeshare_error(
            request, errors.BadRequest(field, first.get("input"), f"{first.get('msg')}.")
        )


class AdminApi(FastAPI):
    """The admin API; its OpenAPI document also has the bodies that routes read themselves."""

    _document: dict[str, Any] | None = None

    def openapi(self) -> dict[str, Any]:
        if self._document is None:
            document = super().openapi()
            models = [
                model
                for model in vars(bodies).values()
                if isinstance(model, type)
                and issubclass(model, RequestBody)
                and model is not bodies.RecipientBody
            ]
            _, schemas = models_json_schema(
                [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
            )
            components = document.setdefault("components", {})
            components["schemas"] = {**components.get("schemas", {}), **schemas["$defs"]}
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"key": []}]
            for path, item in document["paths"].items():
                if "/public/" in path:
                    for operation in item.values():
                        operation["security"] = []
            self._document = document
        return self._document


def admin_api(app_state: AppState, server: FastAPI) -> FastAPI:
    app = AdminApi(
        title="lakeshare admin API",
        description=DESCRIPTION,
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        servers=[{"url": PREFIX}],
        root_path_in_servers=False,
        responses={"default": {"model": bodies.ErrorReply, "description": "An error."}},
    )
    app.state.app_state, app.state.server = app_state, server
    add_error_responses(app, AdminErrors())
    of_both = (share_router, permissions_router, router)
    for part in of_both:
        app.include_router(part, prefix=DATABRICKS)
    app.include_router(policies_router, prefix="/2.0/data-sharing")
    app.include_router(me, prefix="/2.0/preview/scim/v2")
    app.include_router(activation_router, prefix=f"{DATABRICKS}/public")
    for part in (
        *of_both, policies_router, webhooks_router, groups_router, keys_router, own, followed_router,
        audit_router, impersonation_router,
    ):  # fmt: skip
        app.include_router(part, prefix=f"{OPENSHARING}/provider")
    app.include_router(activation_router, prefix=f"{OPENSHARING}/public")

    # The framework's own page needs scripts of a public CDN, which the Content-Security-Policy forbids.
    @app.get("/docs", include_in_schema=False)
    def show_document() -> Response:
        page = _templates.get_template("admin_document.html.jinja")
        text = page.render(document=app.openapi(), style=Markup(STYLE))  # noqa: S704 - a constant
        return Response(text, headers=PAGE_HEADERS, media_type="text/html; charset=utf-8")

    return app
