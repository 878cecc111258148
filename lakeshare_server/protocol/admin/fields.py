"""What the fields of the admin API have in common: times in milliseconds, unknown fields ignored, bad values named."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lakeshare_server.errors import BadRequest

# The year 9999: what Python's times, and those of both databases, end with.
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


def parsed(model: type[AnyRequest], fields: Mapping[str, Any]) -> AnyRequest:
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
