"""The format of the files of `lakeshare apply`: pydantic models, and faults with their lines.

Fields have the names of the admin API. A field that is left out has its default, except `owner`, which then stays as it
is. Tokens and secrets have no fields.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from lakeshare_server.catalog.ledger import CHECK_EVERY_S, is_location_pattern
from lakeshare_server.catalog.models import MAX_LONG
from lakeshare_server.catalog.sharing import NAME_HINT, NAME_PATTERN, STORABLE_HINT, is_storable
from lakeshare_server.catalog.states import FederationPolicy
from lakeshare_server.errors import (
    BadRequest,
    CatalogConflict,
    DocumentError,
    LakeshareError,
    NotFound,
    Unavailable,
    Unserveable,
)
from lakeshare_server.text_fields import add_text_fields
from lakeshare_server.yaml_documents import Parsed, PathInDocument, explain_faults, format_path

OF_CONTRACTS = frozenset({"table", "kind", "comment", "history", "retire_date", "successor"})
HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
MAX_LABEL_CHARS, MAX_LAKE_TABLE_CHARS = 255, 512


def _storable(text: str) -> str:
    # The catalog replaces these characters by U+FFFD, and each further apply would find a difference.
    if not is_storable(text):
        raise ValueError(STORABLE_HINT)
    return text


def _name(name: str) -> str:
    # The plan checks names that are not in the catalog yet more strictly.
    if not NAME_PATTERN.fullmatch(name):
        raise ValueError(NAME_HINT)
    return name


def _path(path: str) -> str:
    schema, dot, table = path.partition(".")
    if not dot or not NAME_PATTERN.fullmatch(schema) or not NAME_PATTERN.fullmatch(table):
        raise ValueError("Give schema.table as recipients read it, like sales.orders.")
    return path


def _location(location: str) -> str:
    if not HAS_SCHEME.match(location) and not location.startswith("/"):
        raise ValueError(
            "Give an absolute path, a URL like s3://bucket/folder, or a table of a catalog, like "
            "iceberg:CATALOG/NAMESPACE.TABLE: files are applied in any folder."
        )
    return location


def _moment(value: Any) -> Any:
    if isinstance(value, str):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        with suppress(OverflowError):
            return value.astimezone(UTC)
    raise ValueError("Give a time with its zone, like 2027-01-01T00:00:00Z.")


def _network(text: str) -> str:
    try:
        return str(ip_network(text, strict=True))
    except ValueError as error:
        raise ValueError(f"Give an address or a network, like 203.0.113.0/24: {error}.") from None


def _tables(value: Any) -> Any:
    """Expands a list of tables' names, and names of the lake's tables as values."""
    if isinstance(value, list):
        return {name if isinstance(name, str) else repr(name): {} for name in value}
    if isinstance(value, dict):
        return {
            name: {} if table is None else {"table": table} if isinstance(table, str) else table
            for name, table in value.items()
        }
    return value


Text = Annotated[str, AfterValidator(_storable)]
Name = Annotated[str, AfterValidator(_name)]
Label = Annotated[Text, Field(max_length=MAX_LABEL_CHARS)]
TablePath = Annotated[str, AfterValidator(_path), Field(description="schema.table, as recipients read it")]
Moment = Annotated[datetime, BeforeValidator(_moment, json_schema_input_type=datetime)]
Network = Annotated[str, AfterValidator(_network)]
Number = Annotated[int, Field(ge=0, le=MAX_LONG)]
Limit = Annotated[int | None, Field(ge=1, le=MAX_LONG)]
Revision = Annotated[
    int | None,
    Field(ge=1, description="Refuse to change anything of this when the catalog has another revision of it"),
]


class Part(BaseModel):
    """Any mapping of a file: no unknown fields, no conversions."""

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
        if self.exclude and not is_location_pattern(self.location):
            raise ValueError("Give `exclude` for a location with * for the table only.")
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
            max_length=MAX_LAKE_TABLE_CHARS,
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
            raise ValueError(
                f"A contract declares the table, and so its {', '.join(sorted(beyond))}: leave that out."
            )
        return self


@add_text_fields("share")
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

    @classmethod
    def of(cls, policy: FederationPolicy) -> "PolicyPart":
        """The part that states a policy of the catalog."""
        fields = {name: getattr(policy, name) for name in cls.model_fields}
        return cls.model_construct(**{**fields, "audiences": list(policy.audiences)})


class LimitsPart(Part):
    """Limits of a recipient in place of those of the settings."""

    requests_per_minute: Annotated[Limit, Field(description="Requests in a minute")] = None
    urls_per_day: Annotated[Limit, Field(description="Files with URLs in a day (UTC)")] = None
    bytes_per_day: Annotated[Limit, Field(description="Bytes of these files in a day (UTC)")] = None


@add_text_fields("recipient")
class RecipientPart(Part):
    """A recipient of shares. It has no token until it is invited."""

    comment: Text | None = None
    owner: Annotated[Label | None, Field(description="Stays as it is when left out")] = None
    authentication: Literal["TOKEN", "OAUTH_CLIENT_CREDENTIALS", "OIDC_FEDERATION"] = "TOKEN"
    properties: Annotated[
        dict[Text, Text], Field(description="What current_recipient('…') of rules gives")
    ] = {}
    ip_allow: Annotated[
        list[Network] | None, Field(min_length=1, description="Addresses it may come from; any when left out")
    ] = None
    limits: Annotated[
        LimitsPart | None, Field(description="Stay as they are when left out; {} takes those of the settings")
    ] = None
    expires_at: Moment | None = None
    agreement: Annotated[Text | None, Field(description="What it has to accept when it is activated")] = None
    policies: dict[Name, PolicyPart] = {}
    revision: Revision = None

    @model_validator(mode="after")
    def _names_each_policy_once(self) -> "RecipientPart":
        if len({name.lower() for name in self.policies}) < len(self.policies):
            raise ValueError("Two policies have one name; case makes no difference.")
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
            raise ValueError("Name one recipient or one group.")
        return self


def _or_nothing(part: type[Part]) -> BeforeValidator:
    """Accepts a name without a value as an object with defaults."""
    return BeforeValidator(lambda value: {} if value is None else value, json_schema_input_type=part | None)


LocationAlone = BeforeValidator(
    lambda value: {"location": value} if isinstance(value, str) else value,
    json_schema_input_type=FollowedPart | str,
)
FollowedParts = dict[TablePath, Annotated[FollowedPart, LocationAlone]]


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
    shares: dict[Name, Annotated[SharePart, _or_nothing(SharePart)]] = {}
    recipients: dict[Name, Annotated[RecipientPart, _or_nothing(RecipientPart)]] = {}
    groups: dict[Name, Annotated[GroupPart, _or_nothing(GroupPart)]] = {}
    grants: list[GrantPart] = []


@dataclass(frozen=True)
class SourceFile:
    """A file that was read."""

    path: Path
    parsed: Parsed = field(repr=False)


@dataclass(frozen=True)
class Origin:
    """A position in a file; its line is found on first use."""

    file: SourceFile
    where: PathInDocument

    @cached_property
    def line(self) -> int:
        """The line, counted from 1."""
        return self.file.parsed.line(self.where)

    def __str__(self) -> str:
        return f"{self.file.path}:{self.line}"

    def fault(self, problem: str, hint: str) -> DocumentError:
        """The error of a fault at this position."""
        return DocumentError(self.file.path, format_path(self.where), problem, hint, line=self.line)


SECRETS = frozenset({"token", "tokens", "secret", "client_secret", "password", "bearer_token", "bearertoken"})
NO_SECRETS = "Secrets are never in files: `lakeshare recipient rotate` makes a token and writes the profile."


def list_faults(error: ValidationError, file: SourceFile) -> list[DocumentError]:
    """The faults that pydantic found, in the order of the file."""
    faults = []
    for where, problem, hint in explain_faults(error, Document, "docs/reference/apply.md"):
        name = str(where[-1]) if problem.startswith("unknown field") else ""
        if name.lower() in SECRETS:
            hint = NO_SECRETS
        elif name == "location" and where[0] == "shares":
            hint = "Where a table lies is said in `followed`, by the lake's name of the table."
        faults.append(Origin(file, where).fault(problem, hint))
    return sorted(faults, key=lambda fault: fault.line or 0)


def raise_all(faults: Sequence[DocumentError]) -> None:
    """Raises the first of the faults, if any, with the others in its `also`."""
    if faults:
        first, *others = faults
        raise DocumentError(first.path, first.field, first.problem, first.hint, others, line=first.line)


def explain_error(error: LakeshareError) -> tuple[str, str]:
    """An error's problem, without the full stop, and its remedy."""
    match error:
        case BadRequest():
            return f"{error.field}: {error.value!r} cannot be used", error.hint
        case NotFound():
            return f"there is no {error.kind.lower()} {error.name}", "Name another, or make it first."
        case CatalogConflict() | Unavailable():
            return error.what, error.fix
        case Unserveable():
            code = "" if error.code is None else f" [{error.code}]"
            return error.reason.rstrip("."), f"{error.fix}{code}"
    return str(error).rstrip("."), "Correct it, or let the server's settings give access to it."
