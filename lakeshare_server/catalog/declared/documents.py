"""What may stand in a file of `lakeshare apply`: followed tables, shares with their tables, recipients, groups, grants.

Only the shape is judged here. The fields have the names that the admin API and SQL use. An object says everything
about itself: a field that is left out has its default, but `owner`, which then stays as it is. There is no field for a
token or a secret, and there will be none.
"""

import re
from datetime import UTC, datetime
from ipaddress import ip_network
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from lakeshare_server.catalog.followed import CHECK_EVERY_S, is_many
from lakeshare_server.catalog.models import MAX_LONG
from lakeshare_server.catalog.names import HELD_NAME, NAME_HINT

OF_CONTRACTS = frozenset({"table", "kind", "comment", "history"})
HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
SURROGATE = re.compile("[\ud800-\udfff]")
LONGEST_LABEL, LONGEST_LAKE_TABLE = 255, 512


def refusal(hint: str) -> ValueError:
    """A value that cannot be used, with the remedy as its message."""
    return ValueError(hint)


def _holdable(text: str) -> str:
    # The catalog keeps U+FFFD in their place, and each further apply would find a difference.
    if (not text.isascii() and SURROGATE.search(text)) or "\x00" in text:
        raise refusal("Leave out NUL and halves of surrogate pairs: no database keeps them.")
    return text


def _nameable(name: str) -> str:
    # A name that the catalog does not hold yet is judged by the plan.
    if not HELD_NAME.fullmatch(name):
        raise refusal(NAME_HINT)
    return name


def _path(path: str) -> str:
    schema, dot, table = path.partition(".")
    if not dot or not HELD_NAME.fullmatch(schema) or not HELD_NAME.fullmatch(table):
        raise refusal("Give schema.table as recipients read it, like sales.orders.")
    return path


def _location(location: str) -> str:
    if not HAS_SCHEME.match(location) and not location.startswith("/"):
        raise refusal(
            "Give an absolute path, a URL like s3://bucket/folder, or a table of a catalog, like "
            "iceberg:CATALOG/NAMESPACE.TABLE: files are applied in any folder."
        )
    return location


def _moment(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise refusal("Give a time with its zone, like 2027-01-01T00:00:00Z.") from None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise refusal("Give a time with its zone, like 2027-01-01T00:00:00Z.")
    return value.astimezone(UTC)


def _network(text: str) -> str:
    try:
        return str(ip_network(text, strict=True))
    except ValueError as error:
        raise refusal(f"Give an address or a network, like 203.0.113.0/24: {error}.") from None


def _tables(value: Any) -> Any:
    """A list of names, and a name alone, are short for tables about which nothing more is said."""
    if isinstance(value, list):
        return {name if isinstance(name, str) else repr(name): {} for name in value}
    if isinstance(value, dict):
        return {name: _table(said) for name, said in value.items()}
    return value


def _table(value: Any) -> Any:
    return {} if value is None else {"table": value} if isinstance(value, str) else value


def _followed(value: Any) -> Any:
    """A text alone is a location about which nothing more is said."""
    return {"location": value} if isinstance(value, str) else value


def _nothing_said(value: Any) -> Any:
    return {} if value is None else value


Text = Annotated[str, AfterValidator(_holdable)]
Name = Annotated[str, AfterValidator(_nameable)]
Label = Annotated[Text, Field(max_length=LONGEST_LABEL)]
TablePath = Annotated[str, AfterValidator(_path), Field(description="schema.table, as recipients read it")]
Moment = Annotated[datetime, BeforeValidator(_moment, json_schema_input_type=datetime)]
Network = Annotated[str, AfterValidator(_network)]
Number = Annotated[int, Field(ge=0, le=MAX_LONG)]
Revision = Annotated[
    int | None,
    Field(ge=1, description="Refuse to change anything of this when the catalog has another revision of it"),
]


class Part(BaseModel):
    """Any mapping of a file: nothing unknown, no silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FollowedPart(Part):
    """A table that is read where it lies; with a star for the table, all tables of a folder or a namespace."""

    location: Annotated[
        Text,
        Field(
            min_length=1,
            description="A folder, URL or Iceberg metadata file, iceberg:CATALOG/NAMESPACE.TABLE or "
            "nessie:CATALOG/NAMESPACE.TABLE@BRANCH; with * for the table where the name has it, too",
        ),
        AfterValidator(_location),
    ]
    check_every_s: Annotated[
        float,
        Field(ge=0, allow_inf_nan=False, description="Look for new versions at most this often, in seconds"),
    ] = CHECK_EVERY_S
    start_version: Annotated[Number | None, Field(description="The first version that anybody may read")] = (
        None
    )
    exclude: Annotated[
        list[Text], Field(description="Of a location with a star: names of tables there that are left out")
    ] = []

    @model_validator(mode="after")
    def _excludes_from_many(self) -> "FollowedPart":
        if self.exclude and not is_many(self.location):
            raise refusal("Give `exclude` for a location with * for the table only.")
        return self


class TablePart(Part):
    """A table or view of a share."""

    declared: Annotated[
        bool,
        Field(
            description="A contract declares it: only start_version, rule, publication and directory_access are said"
        ),
    ] = False
    table: Annotated[
        Text | None,
        Field(
            min_length=1,
            max_length=LONGEST_LAKE_TABLE,
            description="The lake's table; of the same name by default",
        ),
    ] = None
    kind: Literal["TABLE", "VIEW"] = "TABLE"
    comment: Text | None = None
    history: Annotated[bool, Field(description="Recipients may read earlier versions and changes")] = True
    start_version: Annotated[Number | None, Field(description="The first version that may be read")] = None
    rule: Annotated[Text | None, Field(description="Which partitions every recipient of the share reads")] = (
        None
    )
    publication: Annotated[Number | None, Field(description="The number served instead of the latest")] = None
    directory_access: Annotated[
        bool, Field(description="Recipients may get credentials for the table's whole folder")
    ] = False

    @model_validator(mode="after")
    def _says_no_more_than_may_be(self) -> "TablePart":
        if self.declared and (beyond := self.model_fields_set & OF_CONTRACTS):
            raise refusal(
                f"A contract declares the table, and so its {', '.join(sorted(beyond))}: leave that out."
            )
        return self


class SharePart(Part):
    """A share and its tables."""

    comment: Text | None = None
    display_name: Label | None = None
    owner: Annotated[Label | None, Field(description="Stays as it is when left out")] = None
    properties: dict[Text, Text] = {}
    tables: Annotated[
        dict[TablePath, TablePart],
        BeforeValidator(
            _tables, json_schema_input_type=dict[TablePath, TablePart | str | None] | list[TablePath]
        ),
        Field(
            description="By schema.table; a text is short for the lake's table, a list for names alone. schema.* is "
            "all tables that the files follow in a schema"
        ),
    ] = {}
    revision: Revision = None


class PolicyPart(Part):
    """Whose tokens of which issuer are the recipient's (OIDC federation)."""

    issuer: Annotated[Text, Field(min_length=1)]
    subject: Annotated[Text, Field(min_length=1)]
    subject_claim: Annotated[Label, Field(min_length=1)] = "sub"
    audiences: list[Text] = []
    comment: Text | None = None


class RecipientPart(Part):
    """Somebody a share can be granted to. It has no token until it is invited."""

    comment: Text | None = None
    owner: Annotated[Label | None, Field(description="Stays as it is when left out")] = None
    authentication: Literal["TOKEN", "OAUTH_CLIENT_CREDENTIALS", "OIDC_FEDERATION"] = "TOKEN"
    properties: Annotated[
        dict[Text, Text], Field(description="What current_recipient('…') of rules gives")
    ] = {}
    ip_allow: Annotated[
        list[Network] | None, Field(min_length=1, description="Addresses it may come from; any when left out")
    ] = None
    expires_at: Moment | None = None
    agreement: Annotated[Text | None, Field(description="What it has to accept when it is activated")] = None
    policies: dict[Name, PolicyPart] = {}
    revision: Revision = None

    @model_validator(mode="after")
    def _names_each_policy_once(self) -> "RecipientPart":
        if len({name.lower() for name in self.policies}) < len(self.policies):
            raise refusal("Two policies have one name; case makes no difference.")
        return self


class GroupPart(Part):
    """Recipients that are granted shares together."""

    comment: Text | None = None
    members: Annotated[list[Name], Field(description="Names of recipients, of files or of the catalog")] = []
    revision: Revision = None


class GrantPart(Part):
    """A recipient, or the members of a group, may read a share."""

    share: Name
    recipient: Name | None = None
    group: Name | None = None
    starts_at: Moment | None = None
    ends_at: Moment | None = None
    rule: Annotated[Text | None, Field(description="Which partitions are read under this grant")] = None

    @model_validator(mode="after")
    def _has_one_reader(self) -> "GrantPart":
        if (self.recipient is None) == (self.group is None):
            raise refusal("Name one recipient or one group.")
        return self


def _or_nothing(part: type[Part]) -> BeforeValidator:
    """A name with nothing behind it is an object about which nothing more is said."""
    return BeforeValidator(_nothing_said, json_schema_input_type=part | None)


FollowedParts = dict[
    TablePath,
    Annotated[FollowedPart, BeforeValidator(_followed, json_schema_input_type=FollowedPart | str)],
]
Shares = dict[Name, Annotated[SharePart, _or_nothing(SharePart)]]
RecipientParts = dict[Name, Annotated[RecipientPart, _or_nothing(RecipientPart)]]
Groups = dict[Name, Annotated[GroupPart, _or_nothing(GroupPart)]]


class Document(Part):
    """A file of `lakeshare apply`; several files are read as one."""

    version: Annotated[Literal[1], Field(description="Of this form of files")] = 1
    followed: Annotated[
        FollowedParts,
        Field(
            description="Followed tables by the lake's name, schema.table, or schema.* for many; a text is short for "
            "the location"
        ),
    ] = {}
    shares: Shares = {}
    recipients: RecipientParts = {}
    groups: Groups = {}
    grants: list[GrantPart] = []


# Which part a field holds, to name the fields that an unknown one may have been meant for.
PARTS: dict[tuple[str, ...], type[Part]] = {
    (): Document,
    ("followed", "*"): FollowedPart,
    ("shares", "*"): SharePart,
    ("shares", "*", "tables", "*"): TablePart,
    ("recipients", "*"): RecipientPart,
    ("recipients", "*", "policies", "*"): PolicyPart,
    ("groups", "*"): GroupPart,
    ("grants", "*"): GrantPart,
}
