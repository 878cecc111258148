"""The objects of the wire as pydantic models: strict types, camelCase aliases, null the same as missing.

Unknown fields are ignored. `parse` turns the first error of a model into the sentence of a failed expectation.
"""

import json
import re
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from lakeshare_conformance.case import DELTA, PARQUET, ExpectationFailed, Located

MAX_NAME = 255


def _require_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError("an absolute http or https URL")
    return value


def _parse_time(value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0)]
Url = Annotated[str, AfterValidator(_require_url)]
Short = Annotated[str, Field(max_length=MAX_NAME)]
Properties = Annotated[dict[Short, Annotated[str, Field(max_length=1000)]], Field(max_length=50)]
Modes = Annotated[list[Literal["url", "dir"]], Field(min_length=1)]
Time = Annotated[AwareDatetime, BeforeValidator(_parse_time)]


class Wire(BaseModel):
    """An object of the wire."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, alias_generator=to_camel)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: field for name, field in value.items() if field is not None}

    @property
    def fields(self) -> dict[str, Any]:
        """The fields under their names on the wire."""
        return self.model_dump(by_alias=True)


class Access(Wire):
    """What a profile file needs for a request."""

    endpoint: Name
    bearer_token: Name


class ProfileFile(Access):
    share_credentials_version: Literal[1]
    expiration_time: Time | None = None


class Error(Wire):
    error_code: Name
    message: str


class Page(Wire):
    items: list[dict[str, Any]] = []
    next_page_token: str = ""


class Share(Wire):
    name: Name
    id: Name | None = None
    display_name: Short | None = None
    comment: Annotated[str, Field(max_length=65_536)] | None = None
    properties: Properties | None = None


class Schema(Wire):
    name: Name
    share: Name


class TableName(Wire):
    share: Name
    schema_name: Name = Field(alias="schema")
    name: Name

    @property
    def key(self) -> str:
        """The full name in lower case: names are compared without case."""
        return f"{self.share}.{self.schema_name}.{self.name}".lower()


class ListedTable(TableName):
    id: Name | None = None
    share_id: Name | None = None
    location: Name | None = None
    auxiliary_locations: list[str] = []
    access_modes: Modes | None = None

    @model_validator(mode="after")
    def _require_location(self) -> Self:
        if "dir" in (self.access_modes or []) and self.location is None:
            raise ValueError("a location, since accessModes has dir")
        return self


class DescribedTable(TableName):
    """The result of OpenSharing's Get Table."""

    format: Annotated[
        Literal["delta", "iceberg", "delta,iceberg", "iceberg,delta"],
        BeforeValidator(lambda value: str(value).replace(" ", "")),
    ]
    id: str | None = None
    share_id: str | None = None


class Protocol(Wire):
    """The protocol line, or Delta's protocol action in delta format."""

    min_reader_version: Count
    min_writer_version: Count | None = None
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None

    @property
    def allows_change_data_feed(self) -> bool:
        version = self.min_writer_version
        return version in (4, 5, 6) or (version == 7 and "changeDataFeed" in (self.writer_features or []))


class FileFormat(Wire):
    provider: Literal["parquet"]


class Metadata(Wire):
    """The metaData line, or Delta's metaData action in delta format."""

    id: Name
    format: FileFormat
    schema_string: Name
    partition_columns: list[str]
    name: str | None = None
    description: str | None = None
    configuration: dict[str, str] = {}
    created_time: Count | None = None


class SharedMetadata(Wire):
    """The fields of a metaData line that Delta's action does not have; in both formats directly under metaData."""

    version: Count | None = None
    size: Count | None = None
    num_files: Count | None = None
    location: Name | None = None
    auxiliary_locations: list[str] = []


class Column(Wire):
    name: str
    type: Any
    metadata: dict[str, Any] = {}


class ColumnMapping(Wire):
    """The metadata of a mapped column."""

    id: int = Field(alias="delta.columnMapping.id")
    physical_name: Name = Field(alias="delta.columnMapping.physicalName")


class Struct(Wire):
    """The type in schemaString."""

    fields_: list[Column] = Field(alias="fields")


class DeletionVector(Wire):
    """A vector at a URL (`p`) or in the line itself (`i`)."""

    storage_type: Literal["p", "i"]
    path_or_inline_dv: Name
    size_in_bytes: Count
    cardinality: Count
    offset: Count = 0

    @model_validator(mode="after")
    def _require_url(self) -> Self:
        if self.storage_type == "p":
            _require_url(self.path_or_inline_dv)
        return self


class Statistics(Wire):
    num_records: Count | None = None
    min_values: dict[str, Any] = {}
    max_values: dict[str, Any] = {}
    null_count: dict[str, Any] = {}


class Action(Wire, Located):
    """A file of a response, the same in both formats; `version` and `timestamp` are -1 if the line has none.

    `where` is its line, `kind` Delta's name of the action.
    """

    where: str
    kind: Literal["add", "remove", "cdc"]
    id: Name
    url: Url
    size: Count
    partition_values: dict[str, str | None]
    version: Count = -1
    timestamp: Count = -1
    expiration_timestamp: Count | None = None
    deletion_vector_file_id: Name | None = None
    deletion_vector: DeletionVector | None = None
    modification_time: Count | None = None
    data_change: bool | None = None
    base_row_id: Count | None = None
    default_row_commit_version: Count | None = None
    stats_text: str | None = Field(None, alias="stats")

    @property
    def key(self) -> tuple[str, str]:
        """The identity of the action: the file and its deletion vector."""
        vector = self.deletion_vector
        return self.id, self.deletion_vector_file_id or (vector.model_dump_json() if vector else "")

    @cached_property
    def stats(self) -> Statistics | None:
        if self.stats_text is None:
            return None
        return parse_json(Statistics, self.stats_text, f"{self.where}, stats", "JSON")

    @property
    def rows(self) -> int | None:
        """The number of rows that the deletion vector leaves; None without statistics."""
        if self.stats is None or self.stats.num_records is None:
            return None
        return self.stats.num_records - (self.deletion_vector.cardinality if self.deletion_vector else 0)


class DeltaAction(Action):
    url: Url = Field(alias="path")


# The fields of a file that stand directly under the line's key in both formats.
OUTER_FIELDS = ("id", "version", "timestamp", "expirationTimestamp", "deletionVectorFileId")
ACTIONS = {PARQUET: Action, DELTA: DeltaAction}


class EndStreamAction(Wire):
    refresh_token: str = ""
    next_page_token: str = ""
    min_url_expiration_timestamp: Count | None = None
    error_message: str | None = None


class QueryStatus(Wire):
    query_id: Name
    status: Literal["pending"]


class AwsCredentials(Wire):
    access_key_id: Name
    secret_access_key: Name
    session_token: Name


class AzureCredentials(Wire):
    sas_token: Name


class GcpCredentials(Wire):
    oauth_token: Name


class Credentials(Wire):
    """Temporary credentials of a table's directory, of exactly one store."""

    location: Name
    expiration_time: Count
    aws_temp_credentials: AwsCredentials | None = None
    azure_user_delegation_sas: AzureCredentials | None = None
    gcp_oauth_token: GcpCredentials | None = None

    @model_validator(mode="after")
    def _require_one_store(self) -> Self:
        stores = (self.aws_temp_credentials, self.azure_user_delegation_sas, self.gcp_oauth_token)
        if sum(store is not None for store in stores) != 1:
            raise ValueError("one of awsTempCredentials, azureUserDelegationSas, gcpOauthToken")
        return self


class CredentialsResult(Wire):
    credentials: Credentials


Model = TypeVar("Model", bound=Wire)


def parse(model: type[Model], value: object, where: str, *, is_secret: bool = False) -> Model:
    """Validate an object, or raise ExpectationFailed; `is_secret` keeps its values out of the sentence."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
    path = ".".join(map(str, first["loc"]))
    actual = "another value" if is_secret else first["input"]
    if first["type"] == "missing":
        raise ExpectationFailed(where, f"the field {path}", actual)
    expected = re.sub(r"^(Value error, |\w+ should (be|have) )", "", first["msg"])
    raise ExpectationFailed(f"{where}, field {path}" if path else where, expected, actual)


def parse_json(model: type[Model], text: str, where: str, what: str) -> Model:
    """Validate a JSON text that is the value of a field, or raise ExpectationFailed."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExpectationFailed(where, what, text) from error
    return parse(model, value, where)
