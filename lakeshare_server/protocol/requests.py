"""What a table query asks for, as it was meant. Unknown fields are ignored, unusable values named.

The words of the refusals begin as clients' tests expect them (protocol §1.7).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from lakeshare_server.errors import BadRequest, MalformedRequest, shorten_value
from lakeshare_server.protocol.json_predicate import parse_json_predicate
from lakeshare_server.tables.predicates import EVERYTHING, Predicate, all_of, limit_parts


def parse_json_object(body: bytes) -> dict[str, Any]:
    """The object in a body; an empty body is an empty object.

    Raises:
        MalformedRequest: it is something else.
    """
    if not body.strip():
        return {}
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(
            f"the body is not JSON ({error})", "Send a JSON object, {} to ask for all."
        ) from error
    if not isinstance(fields, dict):
        raise MalformedRequest("the body is not a JSON object", "Send an object, {} to ask for all.")
    return fields


DIGITS = re.compile(r"-?[0-9]{1,19}")
MAX_LONG = (1 << 63) - 1
MAX_INT = (1 << 31) - 1


def parse_integer(
    field: str, value: Any, *, low: int = 0, high: int = MAX_LONG, said: str | None = None
) -> int:
    """A whole number, written as a number or as digits; `said` is how clients' tests know the field.

    Raises:
        BadRequest: it is not one, or out of range.
    """
    number = value
    if isinstance(value, str) and DIGITS.fullmatch(value):
        number = int(value)
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int):
        hint = f"{field} is not a valid number. Not a numeric value: {shorten_value(value)}."
        raise BadRequest(field, value, hint)
    if number < low and low == 0:
        raise BadRequest(field, value, f"{said or field} cannot be negative.")
    if number < low and low == 1:
        raise BadRequest(field, value, f"{said or field} must be positive.")
    if not low <= number <= high:
        raise BadRequest(field, value, f"Give a number from {low} to {high}.")
    return number


def optional_integer(fields: Mapping[str, Any], name: str, **limits: Any) -> int | None:
    """The whole number under a name, None when it is not given."""
    value = fields.get(name)
    return None if value is None else parse_integer(name, value, **limits)


def parse_boolean(field: str, value: Any) -> bool:
    """True or false, as a boolean or as text in any case (Python's client sends `True`, protocol §0.11).

    Raises:
        BadRequest: it is neither.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise BadRequest(field, value, "Give true or false.")


def optional_boolean(fields: Mapping[str, Any], name: str) -> bool:
    """The truth under a name, False when it is not given."""
    value = fields.get(name)
    return False if value is None else parse_boolean(name, value)


def optional_text(fields: Mapping[str, Any], name: str) -> str | None:
    """The text under a name, None when it is not given.

    Raises:
        BadRequest: it is something else.
    """
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise BadRequest(name, value, "Give a text.")


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# fromisoformat takes more than the protocol does: dates alone, week dates, times without separators.
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|z|[+-]\d\d:?\d\d)")


def parse_milliseconds(field: str, text: object) -> int:
    """The moment a text names, cut to milliseconds.

    Raises:
        BadRequest: it is not a time with its zone.
    """
    if not isinstance(text, str) or not ISO.fullmatch(text):
        raise _no_time(field, text)
    try:
        moment = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text.replace("z", "Z")))
    except ValueError as error:
        raise _no_time(field, text) from error
    return (moment - EPOCH) // timedelta(milliseconds=1)


def _no_time(field: str, text: object) -> BadRequest:
    # "Invalid startingTimestamp:" is what clients' tests look for, whichever field it was.
    hint = f"Invalid startingTimestamp: {shorten_value(text)}. Give a time in UTC, like 2022-01-01T00:00:00Z."
    return BadRequest(field, text, hint)


def format_iso(ms: int) -> str:
    """Milliseconds since 1970 as the protocol writes times."""
    seconds, rest = divmod(ms, 1000)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{rest:03d}Z"


MAX_HINTS = 1000
MAX_PARTS = 2000
POINTS = ("version", "timestamp", "startingVersion")
# What must be the same in the request for the next page.
SAME_ON_EVERY_PAGE = (
    *POINTS,
    "endingVersion",
    "predicateHints",
    "jsonPredicateHints",
    "limitHint",
    "includeHistoricalProtocol",
)

# All that `query_of` looks at, but for the key of an async query.
FIELDS = frozenset({*SAME_ON_EVERY_PAGE, "maxFiles", "pageToken", "includeRefreshToken", "refreshToken"})


@dataclass(frozen=True)
class TimePoint:
    """A time that was asked for, with its text for the answer."""

    ms: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Paging:
    """How much of an answer is wanted; `max_files` None is all of it."""

    max_files: int | None = None
    page_token: str | None = None

    @property
    def is_asked(self) -> bool:
        """Whether the client reads pages."""
        return self.max_files is not None or self.page_token is not None


@dataclass(frozen=True, kw_only=True)
class QueryRequest:
    """What a client asks of a table; without version, timestamp and starting version it is the latest snapshot."""

    version: int | None = None
    timestamp: TimePoint | None = None
    starting_version: int | None = None
    ending_version: int | None = None
    predicate: Predicate = EVERYTHING
    limit: int | None = None
    paging: Paging = Paging()
    include_refresh_token: bool = False
    refresh_token: str | None = None
    include_historical_protocol: bool = False
    idempotency_key: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_latest(self) -> bool:
        """Whether the newest snapshot is asked for."""
        return self.version is None and self.timestamp is None and self.starting_version is None

    @property
    def goes_on(self) -> bool:
        """Whether a token of ours says which version is meant."""
        return self.refresh_token is not None or self.paging.page_token is not None

    @property
    def wants_end_stream_action(self) -> bool:
        """Whether the client reads a closing line; others would stumble over it (protocol §0.1)."""
        return self.paging.is_asked or self.include_refresh_token or self.refresh_token is not None


def parse_query(fields: Mapping[str, Any]) -> QueryRequest:
    """The request in a body's fields.

    Raises:
        BadRequest: a field has a value that cannot be used.
    """
    _require_one_point(fields)
    timestamp = fields.get("timestamp")
    request = QueryRequest(
        version=optional_integer(fields, "version", said="table version"),
        timestamp=None
        if timestamp is None
        else TimePoint(parse_milliseconds("timestamp", timestamp), timestamp),
        starting_version=optional_integer(fields, "startingVersion"),
        ending_version=optional_integer(fields, "endingVersion"),
        predicate=_predicate(fields),
        limit=optional_integer(fields, "limitHint", high=MAX_INT),
        paging=parse_paging(fields),
        include_refresh_token=optional_boolean(fields, "includeRefreshToken"),
        refresh_token=optional_text(fields, "refreshToken"),
        include_historical_protocol=optional_boolean(fields, "includeHistoricalProtocol"),
        idempotency_key=optional_text(fields, "idempotencyKey") or optional_text(fields, "idempotency_key"),
        parameters={name: fields[name] for name in SAME_ON_EVERY_PAGE if fields.get(name) is not None},
    )
    _require_window(request)
    _require_refresh_alone(request)
    return request


def parse_paging(fields: Mapping[str, Any]) -> Paging:
    """`maxFiles` and `pageToken`.

    Raises:
        BadRequest: a value cannot be used.
    """
    return Paging(
        max_files=optional_integer(fields, "maxFiles", low=1, high=MAX_INT),
        page_token=optional_text(fields, "pageToken") or None,
    )


def _require_one_point(fields: Mapping[str, Any]) -> None:
    given = [name for name in POINTS if fields.get(name) is not None]
    if len(given) > 1:
        raise BadRequest(
            ",".join(given),
            [fields[name] for name in given],
            f"Please only provide one of: {','.join(POINTS)}.",
        )


def _require_window(request: QueryRequest) -> None:
    start, end = request.starting_version, request.ending_version
    if end is None:
        return
    if start is None:
        raise BadRequest("endingVersion", end, "It goes with startingVersion; give both.")
    if start > end:
        raise BadRequest(
            "startingVersion",
            start,
            f"startingVersion({start}) must be smaller than or equal to endingVersion({end}).",
        )


def _require_refresh_alone(request: QueryRequest) -> None:
    for name, given in (
        ("includeRefreshToken", request.include_refresh_token),
        ("refreshToken", request.refresh_token is not None),
    ):
        if given and not request.is_latest:
            raise BadRequest(name, "given", f"{name} cannot be used when querying a specific version.")
        if given and request.paging.page_token is not None:
            raise BadRequest(name, "given", f"{name} must be used in the first page request.")


def _predicate(fields: Mapping[str, Any]) -> Predicate:
    predicates = []
    hints = fields.get("predicateHints")
    if hints:
        # The SQL parser takes 30 MB and a moment to load: few clients still send SQL.
        from lakeshare_server.protocol.sql_predicate import parse_sql_predicates

        predicates.append(parse_sql_predicates(_texts(hints)))
    json_hints = fields.get("jsonPredicateHints")
    if json_hints is not None:
        if not isinstance(json_hints, str):
            raise BadRequest("jsonPredicateHints", json_hints, "Give the predicate as JSON inside a string.")
        predicates.append(parse_json_predicate(json_hints))
    # A predicate may cost no more than reading the files it could leave out.
    return limit_parts(all_of(predicates), MAX_PARTS)


def _texts(hints: Any) -> list[str]:
    if not isinstance(hints, list) or not all(isinstance(hint, str) for hint in hints):
        raise BadRequest("predicateHints", hints, "Give a list of SQL texts.")
    if len(hints) > MAX_HINTS:
        raise BadRequest("predicateHints", f"{len(hints)} texts", f"Give at most {MAX_HINTS}.")
    return hints


SAME_CHANGES_ON_EVERY_PAGE = (
    "startingVersion",
    "startingTimestamp",
    "endingVersion",
    "endingTimestamp",
    "includeHistoricalMetadata",
    "includeHistoricalProtocol",
)


@dataclass(frozen=True, kw_only=True)
class ChangesRequest:
    """A range of versions; of the two ways to say where it starts exactly one is given."""

    starting_version: int | None
    starting_timestamp: TimePoint | None
    ending_version: int | None
    ending_timestamp: TimePoint | None
    include_historical_metadata: bool
    include_historical_protocol: bool
    paging: Paging
    parameters: Mapping[str, str]


def parse_changes(query: Mapping[str, str]) -> ChangesRequest:
    """The request in a query string.

    Raises:
        BadRequest: a bound is missing, given twice, or has a value that cannot be used.
    """
    _require_bounds(query)
    return ChangesRequest(
        starting_version=optional_integer(query, "startingVersion"),
        starting_timestamp=_time(query, "startingTimestamp"),
        ending_version=optional_integer(query, "endingVersion"),
        ending_timestamp=_time(query, "endingTimestamp"),
        include_historical_metadata=optional_boolean(query, "includeHistoricalMetadata"),
        include_historical_protocol=optional_boolean(query, "includeHistoricalProtocol"),
        paging=parse_paging(query),
        # A page of the feed is no page of a query that spells its parameters the same way.
        parameters={
            "call": "changes",
            **{name: query[name] for name in SAME_CHANGES_ON_EVERY_PAGE if name in query},
        },
    )


def _require_bounds(query: Mapping[str, str]) -> None:
    starts = [name for name in ("startingVersion", "startingTimestamp") if name in query]
    ends = [name for name in ("endingVersion", "endingTimestamp") if name in query]
    if not starts:
        raise BadRequest(
            "startingVersion",
            None,
            "No startingVersion or startingTimestamp provided for CDF read. Give one.",
        )
    if len(starts) > 1:
        raise BadRequest(
            ",".join(starts), "both", "Multiple starting arguments provided for CDF read. Give one."
        )
    if len(ends) > 1:
        raise BadRequest(",".join(ends), "both", "Multiple ending arguments provided for CDF read. Give one.")


def _time(query: Mapping[str, str], name: str) -> TimePoint | None:
    text = query.get(name)
    return None if text is None else TimePoint(parse_milliseconds(name, text), text)


SINGLE = re.compile(r"\s*bytes\s*=\s*(\d{0,64})\s*-\s*(\d{0,64})\s*", re.IGNORECASE | re.ASCII)
TAGS = re.compile(r'(?:W/)?("[^"]*")')


@dataclass(frozen=True)
class ByteRange:
    """Which bytes to send."""

    start: int
    length: int
    is_partial: bool


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """The bytes asked for of a file of `size`; None when none of them exists."""
    found = SINGLE.fullmatch(header or "")
    if found is None or not (found[1] or found[2]):
        return ByteRange(0, size, False)
    if not found[1]:
        length = min(int(found[2]), size)
        return ByteRange(size - length, length, True) if length else None
    start = int(found[1])
    last = min(int(found[2]), size - 1) if found[2] else size - 1
    if found[2] and int(found[2]) < start:
        return ByteRange(0, size, False)
    return ByteRange(start, last - start + 1, True) if start < size else None


def matches_etag(header: str, etag: str) -> bool:
    """Whether a list of entity tags, or `*`, has this one; as weak tags are compared (RFC 9110 §8.8.3.2)."""
    return header.strip() == "*" or etag in TAGS.findall(header)
