"""What administrators' clients are told."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from pydantic import Field

from lakeshare_server.catalog.ledger import FollowedTable
from lakeshare_server.catalog.sharing.credentials import AdminKey
from lakeshare_server.catalog.sharing.states import (
    FederationPolicy,
    Grant,
    Group,
    LinkState,
    RecipientState,
    Share,
    SharedObject,
    TokenState,
)
from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.admin_requests import Partition, PartitionValue, Reply, in_ms

Privileges = list[str]


class PartitionValueInfo(Reply):
    """A test of one partition column."""

    name: str
    op: str
    value: str | None = None
    recipient_property_key: str | None = None


class PartitionInfo(Reply):
    """Tests that must all be true."""

    values: list[PartitionValueInfo]


class SharedDataObject(Reply):
    """A table or view in a share."""

    name: str
    data_object_type: str
    shared_as: str
    comment: str | None = None
    added_at: int | None = None
    added_by: str | None = None
    cdf_enabled: bool
    history_data_sharing_status: str
    start_version: int | None = None
    partitions: list[PartitionInfo] | None = None
    status: str = "ACTIVE"
    id: str
    rule: str | None = Field(None, description="lakeshare: the rule, where it is more than partitions.")
    publication: int | None = None
    declared: bool = Field(description="lakeshare: whether a contract declares it.")


class ShareInfo(Reply):
    """A share, with its tables if they were asked for."""

    name: str
    id: str
    comment: str | None = None
    owner: str | None = None
    created_at: int | None = None
    created_by: str | None = None
    updated_at: int | None = None
    updated_by: str | None = None
    display_name: str | None = None
    properties: dict[str, str] | None = None
    revision: int = Field(description="lakeshare: counts the edits; the ETag.")
    declared: bool = Field(description="lakeshare: whether a contract declares it.")
    objects: list[SharedDataObject] | None = None


class Shares(Reply):
    """A page of shares."""

    shares: list[ShareInfo]
    next_page_token: str | None = None


class PrivilegeAssignment(Reply):
    """What a recipient, or a group as `group:NAME`, may do."""

    principal: str
    privileges: Privileges
    starts_at: int | None = None
    ends_at: int | None = None
    rule: str | None = None


class SharePermissions(Reply):
    """Who may read a share."""

    privilege_assignments: list[PrivilegeAssignment] = Field(default_factory=list)
    next_page_token: str | None = None


class ShareToPrivileges(Reply):
    """What a recipient may do with a share."""

    share_name: str
    privilege_assignments: list[PrivilegeAssignment]


class RecipientPermissions(Reply):
    """What a recipient may read."""

    permissions_out: list[ShareToPrivileges] = Field(default_factory=list)
    next_page_token: str | None = None


class RecipientTokenInfo(Reply):
    """A token, or a link that will give one; never a secret but the link, once."""

    id: str
    created_at: int | None = None
    created_by: str | None = None
    expiration_time: int | None = None
    activation_url: str | None = Field(None, description="Told once, when the link is made.")
    last_used_at: int | None = None


class IpAccessListInfo(Reply):
    """Addresses that a recipient may come from."""

    allowed_ip_addresses: list[str]


class PropertiesInfo(Reply):
    """Properties of a recipient."""

    properties: dict[str, str]


class RecipientInfo(Reply):
    """A recipient."""

    name: str
    id: str
    authentication_type: str
    activated: bool
    activation_url: str | None = Field(None, description="Told once, when the link is made.")
    comment: str | None = None
    owner: str | None = None
    created_at: int | None = None
    created_by: str | None = None
    updated_at: int | None = None
    updated_by: str | None = None
    expiration_time: int | None = None
    ip_access_list: IpAccessListInfo | None = None
    properties_kvpairs: PropertiesInfo | None = None
    tokens: list[RecipientTokenInfo] | None = None
    state: str = Field(description="lakeshare: invited, activated, rotating, expired or revoked.")
    agreement: str | None = None
    groups: list[str] | None = None
    revision: int = Field(description="lakeshare: counts the edits; the ETag.")


class Recipients(Reply):
    """A page of recipients."""

    recipients: list[RecipientInfo]
    next_page_token: str | None = None


class OidcPolicyInfo(Reply):
    """Whose tokens, of which issuer."""

    issuer: str
    subject_claim: str
    subject: str
    audiences: list[str]


class FederationPolicyInfo(Reply):
    """A federation policy."""

    name: str
    id: str
    comment: str | None = None
    oidc_policy: OidcPolicyInfo
    create_time: str | None = None
    update_time: str | None = None


class FederationPolicies(Reply):
    """A recipient's federation policies."""

    policies: list[FederationPolicyInfo]
    next_page_token: str | None = None


class GroupInfo(Reply):
    """A group of recipients."""

    name: str
    id: str
    comment: str | None = None
    members: list[str]
    created_at: int | None = None
    created_by: str | None = None
    updated_at: int | None = None
    updated_by: str | None = None
    revision: int


class Groups(Reply):
    """A page of groups."""

    groups: list[GroupInfo]
    next_page_token: str | None = None


class AdminKeyInfo(Reply):
    """An API key of an administrator."""

    name: str
    id: str
    role: str
    created_at: int | None = None
    created_by: str | None = None
    expiration_time: int | None = None
    revoked_at: int | None = None
    key: str | None = Field(None, description="Told once, when it is made.")


class AdminKeys(Reply):
    """All keys of administrators, revoked ones too."""

    keys: list[AdminKeyInfo]


class ActivationInfo(Reply):
    """What an activation link is good for; asking does not use it up."""

    recipient: str
    expires_at: int | None = None
    agreement: str | None = None
    shares: list[str]


class ErrorReply(Reply):
    """An error, as clients of the Databricks API read it."""

    error_code: str
    message: str


class Myself(Reply):
    """Who is asking; spelt as SCIM spells it."""

    id: str
    userName: str
    displayName: str
    active: bool = True
    role: str


class FollowedTableInfo(Reply):
    """A table that is followed where it lies."""

    table: str
    location: str
    format: str
    check_every_s: float
    start_version: int
    created_at: int | None = None


class FollowedTablesReply(Reply):
    """All followed tables."""

    tables: list[FollowedTableInfo]


class FollowResult(Reply):
    """What came of following a table; `clients` are the ids of those that can read it."""

    result: str = Field(description="followed, unreadable (no known client can read it), or refused.")
    table: str
    location: str
    version: int | None = None
    clients: list[str] = Field(default_factory=list)
    remark: str


class FollowReport(Reply):
    """A result for each table."""

    results: list[FollowResult]


PROPERTY = re.compile(r"[^\s'\"`\\]{1,255}")
TEXT = r"'(?:[^']|'')*'"
COLUMN = r"`(?:[^`]|``)+`"
OF_RECIPIENT = rf"current_recipient\(({TEXT})\)"
# What `rule_of` writes, and nothing else.
TEST = re.compile(
    rf"(?P<name>{COLUMN}) (?:(?P<null>IS NULL)|(?P<op>=|LIKE) (?:(?P<value>{TEXT})|{OF_RECIPIENT}))"
)
FIELD = "partitions.values"
OPS = {"EQUAL": "=", "LIKE": "LIKE"}


def parse_partitions(partitions: Sequence[Partition]) -> str | None:
    """The rule that any of the partitions holds; None when there are none.

    Raises:
        BadRequest: a partition tests nothing, or a test has no meaning.
    """
    for number, partition in enumerate(partitions):
        if not partition.values:
            raise BadRequest(f"partitions.{number}.values", [], "Give at least one test, or no partition.")
    groups = [" AND ".join(_test(value) for value in partition.values) for partition in partitions]
    return " OR ".join(f"({group})" for group in groups) or None


def format_partitions(rule: str | None) -> list[PartitionInfo] | None:
    """The partitions that a rule stands for; None when it says something that partitions cannot."""
    if rule is None:
        return []
    found: list[PartitionInfo] = []
    position = 0
    while position < len(rule):
        position = _skipped(rule, position, " OR (" if found else "(")
        values, position = _tests(rule, position)
        if position < 0:
            return None
        found.append(PartitionInfo(values=values))
    return found


def _tests(rule: str, position: int) -> tuple[list[PartitionValueInfo], int]:
    values: list[PartitionValueInfo] = []
    while position >= 0:
        test = TEST.match(rule, position)
        if test is None:
            return values, -1
        values.append(_partition_value(test))
        if rule.startswith(")", test.end()):
            return values, test.end() + 1
        position = _skipped(rule, test.end(), " AND ")
    return values, -1


def _skipped(rule: str, position: int, word: str) -> int:
    return position + len(word) if position >= 0 and rule.startswith(word, position) else -1


def _partition_value(test: re.Match[str]) -> PartitionValueInfo:
    name = test["name"][1:-1].replace("``", "`")
    value, key = test["value"], test[5]
    return PartitionValueInfo(
        name=name,
        op="LIKE" if test["op"] == "LIKE" else "EQUAL",
        value=None if value is None else value[1:-1].replace("''", "'"),
        recipient_property_key=None if key is None else key[1:-1].replace("''", "'"),
    )


def _test(test: PartitionValue) -> str:
    if not test.name:
        raise BadRequest(f"{FIELD}.name", test.name, "Name a partition column.")
    column = "`" + test.name.replace("`", "``") + "`"
    if test.recipient_property_key is not None:
        return f"{column} = current_recipient('{_property(test)}')"
    if test.value is None:
        if test.op != "EQUAL":
            raise BadRequest(f"{FIELD}.op", test.op, "Null is tested by EQUAL.")
        return f"{column} IS NULL"
    if "\\" in test.value:
        raise BadRequest(f"{FIELD}.value", test.value, "Rules have no backslashes; share a filtered view.")
    if test.op == "LIKE" and {"%", "_"} & set(test.value.removesuffix("%")):
        raise BadRequest(f"{FIELD}.value", test.value, "LIKE takes the beginning of a text, like EU%.")
    return f"{column} {OPS[test.op]} '" + test.value.replace("'", "''") + "'"


def _property(test: PartitionValue) -> str:
    key = test.recipient_property_key or ""
    if test.value is not None:
        raise BadRequest(f"{FIELD}.value", test.value, "Give it or recipient_property_key, not both.")
    if test.op != "EQUAL":
        raise BadRequest(f"{FIELD}.op", test.op, "A property is compared by EQUAL.")
    if not PROPERTY.fullmatch(key):
        hint = "Give the key of a recipient's property, without space or quote."
        raise BadRequest(f"{FIELD}.recipient_property_key", key, hint)
    return key


SELECT = "SELECT"
GROUP = "group:"


def make_share_info(share: Share, objects: Iterable[SharedObject] | None = None) -> ShareInfo:
    """A share, with its tables if they were asked for."""
    return ShareInfo(
        name=share.name,
        id=share.id,
        comment=share.comment,
        owner=share.owner,
        created_at=in_ms(share.created_at),
        created_by=share.created_by,
        updated_at=in_ms(share.updated_at),
        updated_by=share.updated_by,
        display_name=share.display_name,
        properties=dict(share.properties) or None,
        revision=share.revision,
        declared=share.declared,
        objects=None if objects is None else [make_object_info(one) for one in objects],
    )


def make_object_info(shared: SharedObject) -> SharedDataObject:
    """A shared table; its rule is told as partitions where they can say it."""
    partitions = format_partitions(shared.rule)
    return SharedDataObject(
        name=shared.table,
        data_object_type=shared.kind,
        shared_as=f"{shared.schema}.{shared.name}",
        comment=shared.comment,
        added_at=in_ms(shared.added_at),
        added_by=shared.added_by,
        cdf_enabled=shared.history,
        history_data_sharing_status="ENABLED" if shared.history else "DISABLED",
        start_version=shared.start_version,
        partitions=partitions or None,
        id=shared.id,
        rule=shared.rule if partitions is None else None,
        publication=shared.publication,
        declared=shared.declared,
    )


def make_privilege_assignment(grant: Grant) -> PrivilegeAssignment:
    """A grant, as an assignment of the one privilege there is."""
    return PrivilegeAssignment(
        principal=grant.recipient or f"{GROUP}{grant.group}",
        privileges=[SELECT],
        starts_at=in_ms(grant.starts_at),
        ends_at=in_ms(grant.ends_at),
        rule=grant.rule,
    )


def make_share_permissions(grants: Iterable[Grant]) -> list[ShareToPrivileges]:
    """What a recipient may read, share by share."""
    by_share: dict[str, list[PrivilegeAssignment]] = {}
    for grant in grants:
        by_share.setdefault(grant.share, []).append(make_privilege_assignment(grant))
    return [
        ShareToPrivileges(share_name=share, privilege_assignments=assignments)
        for share, assignments in by_share.items()
    ]


def make_recipient_info(
    recipient: RecipientState, activation_urls: Mapping[str, str] | None = None
) -> RecipientInfo:
    """A recipient; `activation_urls`, by the ids of links, are those that were made just now."""
    urls = activation_urls or {}
    return RecipientInfo(
        name=recipient.name,
        id=recipient.id,
        authentication_type=recipient.authentication,
        activated=recipient.activated_at is not None,
        activation_url=next(iter(urls.values()), None),
        comment=recipient.comment,
        owner=recipient.owner,
        created_at=in_ms(recipient.created_at),
        created_by=recipient.created_by,
        updated_at=in_ms(recipient.updated_at),
        updated_by=recipient.updated_by,
        expiration_time=in_ms(recipient.expires_at),
        ip_access_list=IpAccessListInfo(allowed_ip_addresses=list(recipient.ip_allow))
        if recipient.ip_allow
        else None,
        properties_kvpairs=PropertiesInfo(properties=dict(recipient.properties))
        if recipient.properties
        else None,
        tokens=_tokens(recipient, urls) or None,
        state=recipient.state,
        agreement=recipient.agreement,
        groups=list(recipient.groups) or None,
        revision=recipient.revision,
    )


def _tokens(recipient: RecipientState, urls: Mapping[str, str]) -> list[RecipientTokenInfo]:
    """The tokens that open something, and the links that will give one."""
    now = datetime.now(UTC)
    valid = [_token(token, recipient) for token in recipient.tokens if token.is_valid(now)]
    return valid + [_link(link, recipient, urls) for link in recipient.links if link.is_open(now)]


def _token(token: TokenState, recipient: RecipientState) -> RecipientTokenInfo:
    return RecipientTokenInfo(
        id=token.id,
        created_at=in_ms(token.created_at),
        created_by=token.created_by,
        expiration_time=_first(token.expires_at, recipient.expires_at),
        last_used_at=in_ms(token.last_used_at),
    )


def _link(link: LinkState, recipient: RecipientState, urls: Mapping[str, str]) -> RecipientTokenInfo:
    return RecipientTokenInfo(
        id=link.id,
        created_at=in_ms(link.created_at),
        created_by=link.created_by,
        expiration_time=_first(link.token_expires_at, recipient.expires_at),
        activation_url=urls.get(link.id),
    )


def _first(*ends: datetime | None) -> int | None:
    return in_ms(min((end for end in ends if end is not None), default=None))


def make_policy_info(policy: FederationPolicy) -> FederationPolicyInfo:
    """A federation policy; its times are texts, as the API of policies has them."""
    return FederationPolicyInfo(
        name=policy.name,
        id=policy.id,
        comment=policy.comment,
        oidc_policy=OidcPolicyInfo(
            issuer=policy.issuer,
            subject_claim=policy.subject_claim,
            subject=policy.subject,
            audiences=list(policy.audiences),
        ),
        create_time=_text(policy.created_at),
        update_time=_text(policy.updated_at or policy.created_at),
    )


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def make_group_info(group: Group) -> GroupInfo:
    """A group of recipients."""
    return GroupInfo(
        name=group.name,
        id=group.id,
        comment=group.comment,
        members=list(group.members),
        created_at=in_ms(group.created_at),
        created_by=group.created_by,
        updated_at=in_ms(group.updated_at),
        updated_by=group.updated_by,
        revision=group.revision,
    )


def make_admin_key_info(key: AdminKey, secret: str | None = None) -> AdminKeyInfo:
    """An administrator's key; `secret` is the key itself, when it was made just now."""
    return AdminKeyInfo(
        name=key.name,
        id=key.id,
        role=key.role,
        created_at=in_ms(key.created_at),
        created_by=key.created_by,
        expiration_time=in_ms(key.expires_at),
        revoked_at=in_ms(key.revoked_at),
        key=secret,
    )


def make_followed_table_info(followed: FollowedTable) -> FollowedTableInfo:
    """A followed table as the API tells it."""
    return FollowedTableInfo(
        table=followed.table,
        location=followed.location,
        format="delta" if followed.iceberg is None else "iceberg",
        check_every_s=followed.check_every_s,
        start_version=followed.start_version,
        created_at=in_ms(followed.created_at),
    )
