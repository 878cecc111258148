"""Requests to the model server, and refusals of them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


class Refused(Exception):
    """An error as the protocol shapes it."""

    def __init__(self, status: int, message: str, code: str = "INVALID_PARAMETER_VALUE") -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Request:
    """What a client asked; `path` is raw, below the endpoint, header names are in lower case."""

    method: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def capabilities(self) -> dict[str, set[str]]:
        pairs = (
            part.partition("=")
            for part in self.headers.get("delta-sharing-capabilities", "").lower().split(";")
        )
        return {key.strip(): {one.strip() for one in values.split(",")} for key, _, values in pairs}

    @property
    def fields(self) -> dict[str, Any]:
        """The object in the body."""
        if not self.body.strip():
            return {}
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            raise Refused(400, "the body is not JSON", "MALFORMED_REQUEST") from None
        if not isinstance(found, dict):
            raise Refused(400, "the body is not an object", "MALFORMED_REQUEST")
        return found


@dataclass
class Reply:
    """What the server answers; changed by defects before it is sent."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Ask:
    """A query's body, or the parameters of changes, as they were meant."""

    version: int | None = None
    at_ms: int | None = None
    start: int | None = None
    end: int | None = None
    limit: int | None = None
    max_files: int | None = None
    page_token: str | None = None
    refresh_token: str | None = None
    wants_refresh: bool = False
    wants_protocols: bool = False
    wants_metadata: bool = False
    sql: tuple[str, ...] = ()
    json_hint: str | None = None
    key: str | None = None

    @property
    def fingerprint(self) -> str:
        """What must be the same for all pages of an answer."""
        parts = (self.version, self.at_ms, self.start, self.end, self.limit, self.sql, self.json_hint)
        return repr(parts)


def read_ask(fields: Mapping[str, Any]) -> Ask:
    """The fields of a query, validated."""
    given = [name for name in ("version", "timestamp", "startingVersion") if fields.get(name) is not None]
    if len(given) > 1:
        raise Refused(400, "Please only provide one of: version,timestamp,startingVersion")
    ask = Ask(
        version=number(fields, "version", "table version"),
        at_ms=time_ms(fields, "timestamp"),
        start=number(fields, "startingVersion"),
        end=number(fields, "endingVersion"),
        limit=number(fields, "limitHint", high=2**31 - 1),
        max_files=number(fields, "maxFiles"),
        page_token=text(fields, "pageToken"),
        refresh_token=text(fields, "refreshToken"),
        wants_refresh=truth(fields, "includeRefreshToken"),
        wants_protocols=truth(fields, "includeHistoricalProtocol"),
        wants_metadata=truth(fields, "includeHistoricalMetadata"),
        sql=_hints(fields),
        json_hint=text(fields, "jsonPredicateHints"),
        key=text(fields, "idempotencyKey") or text(fields, "idempotency_key"),
    )
    if ask.max_files == 0:
        raise Refused(400, "maxFiles must be positive")
    if ask.page_token and (ask.wants_refresh or ask.refresh_token):
        raise Refused(400, "includeRefreshToken must be used in the first page request")
    if given and (ask.wants_refresh or ask.refresh_token):
        raise Refused(400, "includeRefreshToken cannot be used when querying a specific version")
    return ask


def number(
    fields: Mapping[str, Any], name: str, called: str | None = None, high: int = 2**63 - 1
) -> int | None:
    """A whole number from 0."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,19}", str(value)):
        raise Refused(400, f"{name} is not a valid number: {str(value)[:50]}")
    if int(value) < 0:
        raise Refused(400, f"{called or name} cannot be negative")
    if int(value) > high:
        raise Refused(400, f"{name} is too large")
    return int(value)


def time_ms(fields: Mapping[str, Any], name: str) -> int | None:
    """A time in ISO-8601."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, str) and TIME.fullmatch(value):
        try:
            return int(datetime.fromisoformat(value).timestamp() * 1000)
        except (ValueError, OverflowError):
            pass
    raise Refused(400, f"Invalid startingTimestamp: {str(value)[:50]}")


def text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(400, f"{name} is no text")
    return value


def truth(fields: Mapping[str, Any], name: str) -> bool:
    value = str(fields.get(name, "false")).lower()
    if value not in ("true", "false"):
        raise Refused(400, f"{name} is true or false")
    return value == "true"


def _hints(fields: Mapping[str, Any]) -> tuple[str, ...]:
    hints = fields.get("predicateHints") or []
    if not isinstance(hints, list) or not all(isinstance(hint, str) for hint in hints):
        raise Refused(400, "predicateHints is a list of texts")
    return tuple(hints)
