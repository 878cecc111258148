"""What administrators' clients are told."""

from pydantic import Field

from lakeshare_server.protocol.admin.fields import Reply

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
