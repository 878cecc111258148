"""Bodies of the admin API: those of the Databricks shares and recipients API, with lakeshare's own additions."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
)

from lakeshare_server.catalog.audit import Kind
from lakeshare_server.catalog.models import MAX_LONG
from lakeshare_server.catalog.states import Grant, LinkState, RecipientState, TokenState
from lakeshare_server.catalog.webhooks import DeliveryState
from lakeshare_server.errors import BadRequest
from lakeshare_server.text_fields import add_text_fields

LAST_MS = 253_402_300_799_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def in_ms(moment: datetime | None) -> int | None:
    """Milliseconds since 1970 in UTC, as the API writes times."""
    return None if moment is None else (moment - EPOCH) // timedelta(milliseconds=1)


def from_ms(milliseconds: int | None) -> datetime | None:
    return EPOCH + timedelta(milliseconds=milliseconds) if milliseconds else None


Milliseconds = Annotated[int, Field(ge=0, le=LAST_MS, description="Milliseconds since 1970 in UTC.")]
Expiration = Annotated[Milliseconds | None, PlainSerializer(from_ms), Field(serialization_alias="expires_at")]
Moment = Annotated[int | None, BeforeValidator(in_ms)]
# The Databricks API of policies has times as texts.
MomentText = Annotated[
    str | None,
    BeforeValidator(lambda moment: moment and moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")),
]
OrNone = BeforeValidator(lambda value: value or None)
AnyRequest = TypeVar("AnyRequest", bound="RequestBody")


class RequestBody(BaseModel):
    """A body that clients send. Unknown fields are ignored: clients may be newer than the server."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    def has(self, name: str) -> bool:
        return name in self.model_fields_set

    def fields(self, **options: Any) -> dict[str, Any]:
        """The fields that were sent, as the catalog's operations take them; null empties a field."""
        return self.model_dump(exclude_unset=True, by_alias=True, **options)


class Reply(BaseModel):
    """A body that the server sends, without the fields that have no value."""

    model_config = ConfigDict(from_attributes=True)


def parse_body(model: type[AnyRequest], fields: Mapping[str, Any]) -> AnyRequest:
    """Validates a body. Raises BadRequest that names the first field with an unusable value."""
    _require_whole_texts(fields)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        # For a missing field, pydantic's "input" is the object around it.
        value = None if first["type"] == "missing" else first["input"]
        # Pydantic's own text names the class.
        hint = "Give an object." if first["type"] == "model_type" else f"{first['msg']}."
        raise BadRequest(field or "body", value, hint) from error


def _require_whole_texts(fields: Mapping[str, Any]) -> None:
    # JSON can escape half a surrogate pair, which no database stores and no response can repeat.
    pending: list[tuple[str, Any]] = list(fields.items())
    while pending:
        path, value = pending.pop()
        if isinstance(value, Mapping):
            pending += [(f"{path}.{key}", child) for key, child in value.items()]
        elif isinstance(value, list):
            pending += [(f"{path}.{number}", child) for number, child in enumerate(value)]
        for text in (path, value):
            if isinstance(text, str) and not text.isascii() and re.search("[\ud800-\udfff]", text):
                name = path.encode("ascii", "backslashreplace").decode()
                raise BadRequest(name, text, "It has half a surrogate pair, which is no character.")


MAX_UPDATES = 100  # "The maximum number update data objects allowed is a 100."
MAX_ADDRESSES = 100
MAX_CHANGES = 1000
MAX_GRACE_S = 10 * 365 * 86_400
MAX_EVENTS = 1000
MAX_SECRET_GRACE_S = 30 * 86_400

Authentication = Literal["TOKEN", "OAUTH_CLIENT_CREDENTIALS", "OIDC_FEDERATION"]


@add_text_fields("share")
class CreateShare(RequestBody):
    name: str
    comment: str | None = None
    owner: str | None = Field(None, description="The creator by default.")
    properties: dict[str, str] | None = Field(None, description="lakeshare: shown to recipients.")


class PartitionValue(RequestBody):
    """A test of one partition column; without `value` and `recipient_property_key` it tests for null."""

    name: str
    op: Literal["EQUAL", "LIKE"] = "EQUAL"
    value: str | None = None
    recipient_property_key: str | None = None


class Partition(RequestBody):
    values: list[PartitionValue] = Field(default_factory=list)


class DataObject(RequestBody):
    name: str = Field(description="The table of the lake, like `lake.flights`.")
    data_object_type: Literal["TABLE", "VIEW"] | None = Field(
        None, validation_alias=AliasChoices("data_object_type", "type")
    )
    shared_as: str | None = Field(
        None, description="`schema.table` as recipients see it; the last two parts of the name by default."
    )
    comment: str | None = None
    cdf_enabled: bool | None = Field(None, description="The older spelling of history_data_sharing_status.")
    history_data_sharing_status: Literal["ENABLED", "DISABLED"] | None = Field(
        None, description="Whether recipients may read earlier versions and changes. DISABLED by default."
    )
    start_version: int | None = Field(None, ge=0, description="The oldest version that recipients may read.")
    partitions: list[Partition] | None = Field(
        None, description="Recipients read rows that match any of these."
    )
    rule: str | None = Field(
        None, description="lakeshare: a predicate on partition columns instead of `partitions`."
    )
    publication: int | None = Field(
        None, ge=0, description="lakeshare: the publication to serve instead of the latest."
    )


class DataObjectUpdate(RequestBody):
    action: Literal["ADD", "REMOVE", "UPDATE"]
    data_object: DataObject


@add_text_fields("share")
class UpdateShare(RequestBody):
    new_name: str | None = None
    comment: str | None = None
    owner: str | None = None
    properties: dict[str, str] | None = None
    updates: list[DataObjectUpdate] = Field(default_factory=list, max_length=MAX_UPDATES)


class PermissionsChange(RequestBody):
    """Privileges to grant to and revoke from a recipient, or a group as `group:NAME`."""

    principal: str = Field(validation_alias=AliasChoices("principal", "recipient_name"))
    add: list[Literal["SELECT"]] = Field(default_factory=list)
    remove: list[Literal["SELECT"]] = Field(default_factory=list)
    starts_at: Milliseconds | None = Field(None, description="lakeshare: when the grant begins.")
    ends_at: Milliseconds | None = Field(None, description="lakeshare: when the grant ends.")
    rule: str | None = Field(None, description="lakeshare: a predicate on partition columns.")


class UpdatePermissions(RequestBody):
    changes: list[PermissionsChange] = Field(default_factory=list, max_length=MAX_CHANGES)
    omit_permissions_list: bool = False


class IpAccessList(RequestBody):
    """Addresses from which a recipient may connect; an empty list allows all."""

    allowed_ip_addresses: list[str] = Field(default_factory=list, max_length=MAX_ADDRESSES)


class Properties(RequestBody):
    properties: dict[str, str] = Field(default_factory=dict)


Addresses = Annotated[
    IpAccessList | None,
    PlainSerializer(lambda sent: sent and sent.allowed_ip_addresses),
    Field(serialization_alias="ip_allow"),
]
PropertiesSent = Annotated[
    Properties | None,
    PlainSerializer(lambda sent: sent and sent.properties),
    Field(serialization_alias="properties"),
]


@add_text_fields("recipient")
class RecipientBody(RequestBody):
    comment: str | None = None
    owner: str | None = None
    ip_access_list: Addresses = None
    properties_kvpairs: PropertiesSent = None
    limits: dict[str, Annotated[int, Field(strict=True)]] | None = Field(
        None, description="lakeshare: limits in place of those of the settings, by name; replaces all."
    )


class CreateRecipient(RecipientBody):
    name: str
    authentication_type: Authentication = Field("TOKEN", serialization_alias="authentication")
    expiration_time: Expiration = Field(None, description="When all access ends.")


class UpdateRecipient(RecipientBody):
    new_name: str | None = None
    expiration_time: Expiration = None


class RotateToken(RequestBody):
    """Requests a new activation link; existing tokens may only expire earlier."""

    existing_token_expire_in_seconds: int = Field(ge=0, le=MAX_GRACE_S)


class OidcPolicy(RequestBody):
    issuer: str
    subject_claim: str
    subject: str
    audiences: list[str] = Field(default_factory=list)


class PutPolicy(RequestBody):
    name: str
    comment: str | None = None
    oidc_policy: OidcPolicy


class CreateWebhook(RequestBody):
    url: str = Field(description="https, of a host with a public address unless a setting allows others.")
    share: str | None = Field(None, description="Events of this share only; of all granted ones by default.")
    comment: str | None = None


class RotateSecret(RequestBody):
    existing_secret_expire_in_seconds: int = Field(
        86_400,
        ge=0,
        le=MAX_SECRET_GRACE_S,
        description="How long events are signed with the old secret, too.",
    )


class ResendDeliveries(RequestBody):
    event_ids: list[str] = Field([], max_length=MAX_CHANGES, description="All dead letters by default.")


class DeliveriesQuery(BaseModel):
    state: DeliveryState | None = None
    max_results: int = Field(100, ge=1, le=MAX_EVENTS)


class WebhookInfo(Reply):
    id: str
    recipient: str
    share: str | None = None
    url: str
    comment: str | None = None
    secret: str | None = Field(None, description="Returned once, when it is made.")
    created_at: Moment = None
    created_by: str | None = None
    previous_secret_until: Moment = None
    paused_until: Moment = Field(None, description="Nothing is sent before; set while the consumer is down.")
    delivered_at: Moment = Field(None, description="The last success.")
    last_error: str | None = None
    pending: int = 0
    dead: int = 0


class Webhooks(Reply):
    webhooks: list[WebhookInfo]


class DeliveryInfo(Reply):
    event_id: str = Field(description="The header webhook-id: the same in each attempt.")
    type: str
    state: str = Field(
        description="pending, delivered, dead, or withdrawn: the table may not be read any more."
    )
    attempts: int
    created_at: Moment = None
    next_attempt_at: Moment = None
    expires_at: Moment = None
    finished_at: Moment = None
    last_status: int | None = None
    last_error: str | None = None
    event: Annotated[dict[str, Any], BeforeValidator(json.loads)] = Field(validation_alias="body")


class Deliveries(Reply):
    deliveries: list[DeliveryInfo]


class QueuedEvent(Reply):
    event_id: str


class ResentDeliveries(Reply):
    resent: int


class CreateGroup(RequestBody):
    name: str
    comment: str | None = None
    members: list[str] = Field(default_factory=list)


class UpdateGroup(RequestBody):
    new_name: Annotated[str | None, OrNone] = None
    comment: str | None = None
    add_members: list[str] = Field(default_factory=list, serialization_alias="add")
    remove_members: list[str] = Field(default_factory=list, serialization_alias="remove")


class CreateAdminKey(RequestBody):
    name: str
    role: Annotated[Literal["owner", "steward", "auditor"], Field(description="The key's permissions.")]
    expiration_time: Expiration = None


class TableLocation(RequestBody):
    location: str = Field(
        description="A folder, a URL, an Iceberg metadata file, or a table of a catalog; `*` as the table name "
        "selects all tables of a folder or a namespace."
    )
    name: str | None = Field(
        None, description="`schema.table` as recipients see it; taken from the location by default."
    )


class FollowTables(RequestBody):
    tables: list[TableLocation] = Field(min_length=1, max_length=MAX_CHANGES)
    share: str = Field("lake", description="Created if it does not exist.")
    table_schema: str | None = Field(
        None,
        alias="schema",
        description="The schema of tables without a name; taken from each location by default.",
    )
    check_every_s: float = Field(10.0, ge=0, description="Seconds between checks for new versions.")
    start_version: int = Field(0, ge=0, description="The oldest version that recipients may read.")
    history: bool = Field(True, description="Whether recipients may read earlier versions and changes.")


def _in_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


Instant = Annotated[datetime, AfterValidator(_in_utc)]


class AuditQuery(BaseModel):
    """Conditions on audit events, all of which must hold; the newest events come first."""

    recipient: str | None = None
    principal: str | None = Field(None, description="An administrator.")
    action: str | None = Field(None, description="A call or change, like query_table or alter_share.")
    object_name: str | None = Field(None, alias="object", description="A share or table, and what is in it.")
    kind: Kind | None = None
    request_id: str | None = Field(None, alias="request", description="The x-request-id of a response.")
    ip: str | None = None
    refused: bool = Field(False, description="Only refused and failed requests.")
    since: Instant | None = Field(None, description="From this time on, in ISO 8601; UTC without a zone.")
    until: Instant | None = Field(None, description="Before this time.")
    before: int | None = Field(None, ge=1, le=MAX_LONG, description="Before the event of this number.")
    max_results: int = Field(100, ge=1, le=MAX_EVENTS)


class UsageQuery(BaseModel):
    """Days in UTC, both included; the last 30 by default."""

    since: date | None = None
    until: date | None = None
    recipient: str | None = None
    table: str | None = Field(None, description="SHARE.SCHEMA.TABLE")
    by: list[Literal["day", "recipient", "table", "version"]] = Field(
        ["recipient", "table"], description="Groups; repeat for more."
    )


class PartitionValueInfo(Reply):
    name: str
    op: str
    value: str | None = None
    recipient_property_key: str | None = None


class PartitionInfo(Reply):
    values: list[PartitionValueInfo]


class SharedDataObject(Reply):
    name: str = Field(validation_alias="table")
    data_object_type: str = Field(validation_alias="kind")
    shared_as: str = Field(validation_alias="alias")
    comment: str | None = None
    added_at: Moment = None
    added_by: str | None = None
    cdf_enabled: bool = Field(validation_alias="history")
    history_data_sharing_status: Annotated[
        str, BeforeValidator(lambda history: "ENABLED" if history else "DISABLED")
    ] = Field(validation_alias=AliasChoices("history"))
    start_version: int | None = None
    partitions: Annotated[
        list[PartitionInfo] | None, BeforeValidator(lambda rule: format_partitions(rule) or None)
    ] = Field(None, validation_alias=AliasChoices("rule"))
    status: str = "ACTIVE"
    id: str
    rule: Annotated[
        str | None, BeforeValidator(lambda rule: rule if format_partitions(rule) is None else None)
    ] = Field(None, description="lakeshare: the rule, if `partitions` cannot express it.")
    publication: int | None = None
    declared: bool = Field(description="lakeshare: whether a contract declares it.")
    notice: str | None = Field(
        None, description="lakeshare: what recipients have to know, such as the end of the table."
    )


@add_text_fields("share")
class ShareInfo(Reply):
    name: str
    id: str
    comment: str | None = None
    owner: str | None = None
    created_at: Moment = None
    created_by: str | None = None
    updated_at: Moment = None
    updated_by: str | None = None
    properties: Annotated[dict[str, str] | None, OrNone] = None
    revision: int = Field(description="lakeshare: counts the edits; the ETag.")
    declared: bool = Field(description="lakeshare: whether a contract declares it.")
    objects: list[SharedDataObject] | None = None


class Shares(Reply):
    shares: list[ShareInfo]
    next_page_token: str | None = None


class PrivilegeAssignment(Reply):
    """The privileges of a recipient, or of a group as `group:NAME`."""

    principal: str
    privileges: list[str]
    starts_at: Moment = None
    ends_at: Moment = None
    rule: str | None = None


class SharePermissions(Reply):
    privilege_assignments: list[PrivilegeAssignment] = Field(default_factory=list)
    next_page_token: str | None = None


class ShareToPrivileges(Reply):
    share_name: str
    privilege_assignments: list[PrivilegeAssignment]


class RecipientPermissions(Reply):
    permissions_out: list[ShareToPrivileges] = Field(default_factory=list)
    next_page_token: str | None = None


class RecipientTokenInfo(Reply):
    """A token, or an activation link; the link's URL is returned once, tokens never."""

    id: str
    created_at: int | None = None
    created_by: str | None = None
    expiration_time: int | None = None
    activation_url: str | None = Field(None, description="Returned once, when the link is created.")
    last_used_at: int | None = None


class IpAccessListInfo(Reply):
    allowed_ip_addresses: list[str]


class PropertiesInfo(Reply):
    properties: dict[str, str]


@add_text_fields("recipient")
class RecipientInfo(Reply):
    name: str
    id: str
    authentication_type: str = Field(validation_alias="authentication")
    activated: Annotated[bool, BeforeValidator(lambda at: at is not None)] = Field(
        validation_alias="activated_at"
    )
    activation_url: str | None = Field(None, description="Returned once, when the link is created.")
    comment: str | None = None
    owner: str | None = None
    created_at: Moment = None
    created_by: str | None = None
    updated_at: Moment = None
    updated_by: str | None = None
    expiration_time: Moment = Field(None, validation_alias="expires_at")
    ip_access_list: Annotated[
        IpAccessListInfo | None,
        BeforeValidator(lambda networks: {"allowed_ip_addresses": networks} if networks else None),
    ] = Field(None, validation_alias="ip_allow")
    properties_kvpairs: Annotated[
        PropertiesInfo | None,
        BeforeValidator(lambda properties: {"properties": properties} if properties else None),
    ] = Field(None, validation_alias="properties")
    tokens: list[RecipientTokenInfo] | None = Field(None, validation_alias="valid_tokens")
    state: str = Field(description="lakeshare: invited, activated, rotating, expired or revoked.")
    groups: Annotated[list[str] | None, OrNone] = None
    limits: Annotated[dict[str, int] | None, OrNone] = None
    revision: int = Field(description="lakeshare: counts the edits; the ETag.")


class Recipients(Reply):
    recipients: list[RecipientInfo]
    next_page_token: str | None = None


class OidcPolicyInfo(Reply):
    issuer: str
    subject_claim: str
    subject: str
    audiences: list[str]


class FederationPolicyInfo(Reply):
    name: str
    id: str
    comment: str | None = None
    oidc_policy: OidcPolicyInfo = Field(validation_alias="claims")
    create_time: MomentText = Field(None, validation_alias="created_at")
    update_time: MomentText = Field(None, validation_alias="edited_at")


class FederationPolicies(Reply):
    policies: list[FederationPolicyInfo]
    next_page_token: str | None = None


class GroupInfo(Reply):
    name: str
    id: str
    comment: str | None = None
    members: list[str]
    created_at: Moment = None
    created_by: str | None = None
    updated_at: Moment = None
    updated_by: str | None = None
    revision: int


class Groups(Reply):
    groups: list[GroupInfo]
    next_page_token: str | None = None


class AdminKeyInfo(Reply):
    name: str
    id: str
    role: str
    created_at: Moment = None
    created_by: str | None = None
    expiration_time: Moment = Field(None, validation_alias="expires_at")
    revoked_at: Moment = None
    key: str | None = Field(None, description="Returned once, when the key is created.")


class AdminKeys(Reply):
    keys: list[AdminKeyInfo]


class ActivationInfo(Reply):
    recipient: str
    expires_at: int | None = None
    agreement: str | None = None
    shares: list[str]


class ErrorReply(Reply):
    error_code: str
    message: str


class AuditEventInfo(Reply):
    """A request and its result, the end of a streamed response, or a change with the object before and after."""

    number: int = Field(description="In the chain.")
    at: str
    kind: Kind
    recipient: str | None = None
    principal: str | None = None
    action: str
    object_name: str | None = None
    status: int
    error_code: str | None = None
    version: int | None = None
    files: int | None = None
    size_bytes: int | None = None
    rows: int | None = None
    request_id: str
    ip: str | None = None
    user_agent: str | None = None
    elapsed_ms: int
    details: dict[str, Any] | None = None
    previous_hash: str | None = None
    hash: str | None = None


class AuditEvents(Reply):
    """Events, the newest first."""

    events: list[AuditEventInfo]
    next_before: int | None = Field(None, description="`before` of the next page; left out on the last one.")


class UsageInfo(Reply):
    """Counts of a group; files and bytes are those of signed URLs, versions the distinct ones that were read."""

    day: date | None = None
    recipient: str | None = None
    table: str | None = None
    version: int | None = None
    requests: int
    queries: int
    files: int
    size_bytes: int
    refused: int
    versions: int


class UsageReply(Reply):
    """Usage by the groups of the query, most queries first."""

    usage: list[UsageInfo]


class Myself(Reply):
    """The calling administrator, in the field names of SCIM."""

    id: str
    userName: str
    displayName: str
    active: bool = True
    role: str


class FollowedTableInfo(Reply):
    table: str
    location: str
    format: str
    check_every_s: float
    start_version: int
    created_at: Moment = None


class FollowedTablesReply(Reply):
    """All followed tables."""

    tables: list[FollowedTableInfo]


class FollowResult(Reply):
    result: str = Field(description="followed, unreadable (no known client can read the table), or refused.")
    table: str
    location: str
    version: int | None = None
    clients: list[str] = Field(default_factory=list)
    remark: str


class FollowReport(Reply):
    results: list[FollowResult]


PROPERTY = re.compile(r"[^\s'\"`\\]{1,255}")
TEXT, COLUMN = r"'(?:[^']|'')*+'", r"`(?:[^`]|``)++`"
# The rules that `parse_partitions` writes: possessive quantifiers keep the match linear.
VALUE = rf"(?:IS NULL|(?:=|LIKE) (?:{TEXT}|current_recipient\({TEXT}\)))"
PARTITION = rf"\({COLUMN} {VALUE}(?: AND {COLUMN} {VALUE})*+\)"
PARTITION_RULE = re.compile(rf"{PARTITION}(?: OR {PARTITION})*+")
TEST = re.compile(
    rf"(?P<name>{COLUMN}) (?:IS NULL|(?P<op>=|LIKE) (?:(?P<value>{TEXT})|current_recipient\((?P<key>{TEXT})\)))"
)
FIELD = "partitions.values"


def parse_partitions(partitions: Sequence[Partition]) -> str | None:
    """The rule that is true where any partition matches, None without partitions. Raises BadRequest."""
    for number, partition in enumerate(partitions):
        if not partition.values:
            raise BadRequest(f"partitions.{number}.values", [], "Give at least one test, or no partition.")
    groups = [" AND ".join(_format_test(value) for value in partition.values) for partition in partitions]
    return " OR ".join(f"({group})" for group in groups) or None


def format_partitions(rule: str | None) -> list[PartitionInfo] | None:
    """The partitions that a rule stands for; None if partitions cannot express the rule."""
    if rule is None:
        return []
    if not PARTITION_RULE.fullmatch(rule):
        return None
    return [
        PartitionInfo(values=[_parse_test(test) for test in TEST.finditer(partition[0])])
        for partition in re.finditer(PARTITION, rule)
    ]


def _parse_test(test: re.Match[str]) -> PartitionValueInfo:
    value, key = test["value"], test["key"]
    return PartitionValueInfo(
        name=test["name"][1:-1].replace("``", "`"),
        op="LIKE" if test["op"] == "LIKE" else "EQUAL",
        value=None if value is None else value[1:-1].replace("''", "'"),
        recipient_property_key=None if key is None else key[1:-1].replace("''", "'"),
    )


def _format_test(test: PartitionValue) -> str:
    if not test.name:
        raise BadRequest(f"{FIELD}.name", test.name, "Name a partition column.")
    column = "`" + test.name.replace("`", "``") + "`"
    if test.recipient_property_key is not None:
        key = test.recipient_property_key
        if test.value is not None:
            raise BadRequest(f"{FIELD}.value", test.value, "Give it or recipient_property_key, not both.")
        if test.op != "EQUAL":
            raise BadRequest(f"{FIELD}.op", test.op, "A property is compared by EQUAL.")
        if not PROPERTY.fullmatch(key):
            hint = "Give the key of a recipient's property, without space or quote."
            raise BadRequest(f"{FIELD}.recipient_property_key", key, hint)
        return f"{column} = current_recipient('{key}')"
    if test.value is None:
        if test.op != "EQUAL":
            raise BadRequest(f"{FIELD}.op", test.op, "Null is tested by EQUAL.")
        return f"{column} IS NULL"
    if "\\" in test.value:
        raise BadRequest(f"{FIELD}.value", test.value, "Rules have no backslashes; share a filtered view.")
    if test.op == "LIKE" and {"%", "_"} & set(test.value.removesuffix("%")):
        raise BadRequest(f"{FIELD}.value", test.value, "LIKE takes the beginning of a text, like EU%.")
    return f"{column} {'LIKE' if test.op == 'LIKE' else '='} '" + test.value.replace("'", "''") + "'"


def share_permissions(grants: Iterable[Grant]) -> list[dict[str, Any]]:
    """The grants by share, as `RecipientPermissions` has them."""
    by_share: dict[str, list[Grant]] = {}
    for grant in grants:
        by_share.setdefault(grant.share, []).append(grant)
    return [{"share_name": share, "privilege_assignments": own} for share, own in by_share.items()]


def make_recipient_info(recipient: RecipientState, new_link: tuple[str, str] | None = None) -> RecipientInfo:
    """A recipient with its valid tokens and open links; `new_link` is the id and URL of a link just created."""
    now = datetime.now(UTC)
    link_id, activation_url = new_link or (None, None)
    info = RecipientInfo.model_validate(recipient)
    info.activation_url = activation_url
    tokens = [token for token in recipient.tokens if token.is_valid(now)]
    infos = [_make_token_info(token, token.expires_at, recipient) for token in tokens]
    for link in recipient.links:
        if link.is_open(now):
            infos.append(_make_token_info(link, link.token_expires_at, recipient))
            infos[-1].activation_url = activation_url if link.id == link_id else None
    info.tokens = infos or None
    return info


def _make_token_info(
    token: TokenState | LinkState, expires_at: datetime | None, recipient: RecipientState
) -> RecipientTokenInfo:
    ends = [end for end in (expires_at, recipient.expires_at) if end is not None]
    return RecipientTokenInfo(
        id=token.id,
        created_at=in_ms(token.created_at),
        created_by=token.created_by,
        expiration_time=in_ms(min(ends, default=None)),
        last_used_at=in_ms(token.last_used_at) if isinstance(token, TokenState) else None,
    )
