"""The shapes of the admin API: those of the Databricks shares and recipients API, and what we add to them."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from lakeshare_server.errors import BadRequest

LAST_MS = 253_402_300_799_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Milliseconds = Annotated[int, Field(ge=0, le=LAST_MS, description="Milliseconds since 1970 in UTC.")]
AnyRequest = TypeVar("AnyRequest", bound="RequestBody")


class RequestBody(BaseModel):
    """A body that clients send. What we do not know is ignored: clients are newer than servers."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    def has(self, name: str) -> bool:
        """Whether the field was sent, if only to empty it."""
        return name in self.model_fields_set


class Reply(BaseModel):
    """A body that we send; what has no value is left out."""

    model_config = ConfigDict(populate_by_name=True)


def parse_body(model: type[AnyRequest], fields: Mapping[str, Any]) -> AnyRequest:
    """The body as the request means it.

    Raises:
        BadRequest: a field has a value that cannot be used; the first of them is named.
    """
    _require_whole_texts(fields)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        # Of a field that is missing, the "input" is the object around it.
        value = None if first["type"] == "missing" else first["input"]
        raise BadRequest(where or "body", value, f"{first['msg']}.") from error


def _require_whole_texts(fields: Mapping[str, Any]) -> None:
    # JSON can say half a surrogate pair, which is no character: no database keeps it, no answer can repeat it.
    waiting: list[tuple[str, Any]] = list(fields.items())
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(f"{where}.{key}", one) for key, one in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{where}.{number}", one) for number, one in enumerate(value)]
        for text in (where, value):
            if isinstance(text, str) and not _is_whole(text):
                name = where.encode("ascii", "backslashreplace").decode()
                raise BadRequest(name, text, "It has half a surrogate pair, which is no character.")


def _is_whole(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def in_ms(moment: datetime | None) -> int | None:
    """A time as the API tells it."""
    return None if moment is None else (moment - EPOCH) // timedelta(milliseconds=1)


def from_ms(milliseconds: int | None) -> datetime | None:
    """A time that the API was told; zero stands for none, as clients of protobuf send it."""
    return EPOCH + timedelta(milliseconds=milliseconds) if milliseconds else None


MAX_UPDATES = 100  # "The maximum number update data objects allowed is a 100."
MAX_ADDRESSES = 100
MAX_CHANGES = 1000
MAX_GRACE_S = 10 * 365 * 86_400

Authentication = Literal["TOKEN", "OAUTH_CLIENT_CREDENTIALS", "OIDC_FEDERATION"]


class CreateShare(RequestBody):
    """A share to make; its tables are added by an update."""

    name: str
    comment: str | None = None
    owner: str | None = Field(None, description="Whoever makes it, by default.")
    display_name: str | None = Field(None, description="lakeshare: the name that recipients are shown.")
    properties: dict[str, str] | None = Field(None, description="lakeshare: told to recipients.")


class PartitionValue(RequestBody):
    """A test of one partition column; without `value` and `recipient_property_key` it asks for null."""

    name: str
    op: Literal["EQUAL", "LIKE"] = "EQUAL"
    value: str | None = None
    recipient_property_key: str | None = None


class Partition(RequestBody):
    """Tests that must all be true."""

    values: list[PartitionValue] = Field(default_factory=list)


class DataObject(RequestBody):
    """A table or view in a share."""

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
    partitions: list[Partition] | None = Field(None, description="Any of these is true of what is read.")
    rule: str | None = Field(
        None, description="lakeshare: a predicate on partition columns instead of `partitions`."
    )
    publication: int | None = Field(
        None, ge=0, description="lakeshare: the publication that is served instead of the latest."
    )


class DataObjectUpdate(RequestBody):
    """One change of what is in a share."""

    action: Literal["ADD", "REMOVE", "UPDATE"]
    data_object: DataObject


class UpdateShare(RequestBody):
    """Changes of a share, all of them or none."""

    new_name: str | None = None
    comment: str | None = None
    owner: str | None = None
    display_name: str | None = None
    properties: dict[str, str] | None = None
    updates: list[DataObjectUpdate] = Field(default_factory=list, max_length=MAX_UPDATES)


class PermissionsChange(RequestBody):
    """What a recipient, or a group as `group:NAME`, is granted or loses."""

    principal: str = Field(validation_alias=AliasChoices("principal", "recipient_name"))
    add: list[Literal["SELECT"]] = Field(default_factory=list)
    remove: list[Literal["SELECT"]] = Field(default_factory=list)
    starts_at: Milliseconds | None = Field(None, description="lakeshare: when the grant begins.")
    ends_at: Milliseconds | None = Field(None, description="lakeshare: when the grant ends.")
    rule: str | None = Field(None, description="lakeshare: a predicate on partition columns.")


class UpdatePermissions(RequestBody):
    """Changes of who may read a share, all of them or none."""

    changes: list[PermissionsChange] = Field(default_factory=list, max_length=MAX_CHANGES)
    omit_permissions_list: bool = False


class IpAccessList(RequestBody):
    """Addresses that a recipient may come from; an empty list allows all."""

    allowed_ip_addresses: list[str] = Field(default_factory=list, max_length=MAX_ADDRESSES)


class Properties(RequestBody):
    """Properties of a recipient, for rules."""

    properties: dict[str, str] = Field(default_factory=dict)


class CreateRecipient(RequestBody):
    """A recipient to make; what it proves itself with comes by an activation link."""

    name: str
    authentication_type: Authentication = "TOKEN"
    comment: str | None = None
    owner: str | None = None
    expiration_time: Milliseconds | None = Field(None, description="When all access ends.")
    ip_access_list: IpAccessList | None = None
    properties_kvpairs: Properties | None = None
    agreement: str | None = Field(None, description="lakeshare: what is to be accepted at activation.")


class UpdateRecipient(RequestBody):
    """Changes of a recipient."""

    new_name: str | None = None
    comment: str | None = None
    owner: str | None = None
    expiration_time: Milliseconds | None = None
    ip_access_list: IpAccessList | None = None
    properties_kvpairs: Properties | None = None
    agreement: str | None = None


class RotateToken(RequestBody):
    """Asks for a new activation link; the tokens that are out may only end sooner."""

    existing_token_expire_in_seconds: int = Field(ge=0, le=MAX_GRACE_S)


class OidcPolicy(RequestBody):
    """Whose tokens, of which issuer."""

    issuer: str
    subject_claim: str
    subject: str
    audiences: list[str] = Field(default_factory=list)


class PutPolicy(RequestBody):
    """A federation policy."""

    name: str
    comment: str | None = None
    oidc_policy: OidcPolicy


class CreateGroup(RequestBody):
    """A group of recipients to make."""

    name: str
    comment: str | None = None
    members: list[str] = Field(default_factory=list)


class UpdateGroup(RequestBody):
    """Changes of a group."""

    new_name: str | None = None
    comment: str | None = None
    add_members: list[str] = Field(default_factory=list)
    remove_members: list[str] = Field(default_factory=list)


class CreateAdminKey(RequestBody):
    """An API key of an administrator to make."""

    name: str
    role: Annotated[Literal["owner", "steward", "auditor"], Field(description="What the key is for.")]
    expiration_time: Milliseconds | None = None


class TableLocation(RequestBody):
    """Where a table is."""

    location: str = Field(
        description="A folder, a URL, an Iceberg metadata file, or a table of a catalog; with a star for the table, "
        "all tables of a folder or a namespace."
    )
    name: str | None = Field(
        None, description="`schema.table` as recipients see it; as the location has it by default."
    )


class FollowTables(RequestBody):
    """Tables to follow and to share in one share."""

    tables: list[TableLocation] = Field(min_length=1, max_length=MAX_CHANGES)
    share: str = Field("lake", description="Made when it is not there.")
    table_schema: str | None = Field(
        None,
        alias="schema",
        description="The schema of the tables without a name; by default that of each location.",
    )
    check_every_s: float = Field(10.0, ge=0, description="New versions are looked for at most this often.")
    start_version: int = Field(0, ge=0, description="The oldest version that recipients may read.")
    history: bool = Field(True, description="Whether recipients may read earlier versions and changes.")
