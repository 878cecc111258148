"""The requests of the protocol, parsed. Unknown fields are ignored, unusable values are refused by name.

Texts of refusals begin as clients' tests expect them (protocol §1.7).
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

from lakeshare_server.errors import BadRequest, MalformedRequest, shorten_value
from lakeshare_server.tables.predicates import (
    DATE,
    EPOCH,
    EVERYTHING,
    MAX_DEPTH,
    MIRRORED,
    NUMBER,
    And,
    Compare,
    Comparison,
    Constant,
    IsNull,
    Not,
    Or,
    Predicate,
    Unknown,
    Value,
    all_of,
    float32,
    limit_parts,
    parse_whole,
)


def parse_json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; `{}` for an empty body. Raises MalformedRequest for anything else."""
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
    field: str, value: Any, *, low: int = 0, high: int = MAX_LONG, label: str | None = None
) -> int:
    """A whole number or its digits; `label` is the field's name in clients' tests. Raises BadRequest."""
    number = value
    if isinstance(value, str) and DIGITS.fullmatch(value):
        number = int(value)
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int):
        hint = f"{field} is not a valid number. Not a numeric value: {shorten_value(value)}."
        raise BadRequest(field, value, hint)
    if number < low and low == 0:
        raise BadRequest(field, value, f"{label or field} cannot be negative.")
    if number < low and low == 1:
        raise BadRequest(field, value, f"{label or field} must be positive.")
    if not low <= number <= high:
        raise BadRequest(field, value, f"Give a number from {low} to {high}.")
    return number


def optional_integer(fields: Mapping[str, Any], name: str, **limits: Any) -> int | None:
    value = fields.get(name)
    return None if value is None else parse_integer(name, value, **limits)


def optional_boolean(fields: Mapping[str, Any], name: str) -> bool:
    """A boolean or its text in any case, as Python's client sends it (protocol §0.11); False if it is absent."""
    value = fields.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise BadRequest(name, value, "Give true or false.")


def optional_text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise BadRequest(name, value, "Give a text.")


# fromisoformat takes more than the protocol does: dates alone, week dates, times without separators.
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|z|[+-]\d\d:?\d\d)")


def parse_milliseconds(field: str, text: object) -> int:
    """The milliseconds since 1970 of a time with its zone. Raises BadRequest for other texts."""
    # Clients' tests search for "Invalid startingTimestamp:", whatever the field is.
    hint = f"Invalid startingTimestamp: {shorten_value(text)}. Give a time in UTC, like 2022-01-01T00:00:00Z."
    if not isinstance(text, str) or not ISO.fullmatch(text):
        raise BadRequest(field, text, hint)
    try:
        moment = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text.replace("z", "Z")))
    except ValueError as error:
        raise BadRequest(field, text, hint) from error
    return (moment - EPOCH) // timedelta(milliseconds=1)


def format_iso(ms: int) -> str:
    """Milliseconds since 1970 in the protocol's format."""
    seconds, rest = divmod(ms, 1000)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{rest:03d}Z"


# Hints are best effort by the protocol (§1.14): a part that cannot be parsed becomes Unknown, never an error.
MAX_JSON_CHARS = 1_048_576
MAX_SHOWN_CHARS = 200
COMPARISONS: dict[str, Comparison] = {
    "equal": "=",
    "lessThan": "<",
    "lessThanOrEqual": "<=",
    "greaterThan": ">",
    "greaterThanOrEqual": ">=",
}
# As Java writes times; Python's parser accepts more.
INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:[0-9]{2})"
)
NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def parse_json_predicate(text: str) -> Predicate:
    if len(text) > MAX_JSON_CHARS:
        return Unknown(f"a predicate of more than {MAX_JSON_CHARS} characters")
    try:
        return _parse_node(json.loads(text), MAX_DEPTH)
    except (ValueError, RecursionError):
        return Unknown(text[:MAX_SHOWN_CHARS])


def _parse_node(node: Any, depth: int) -> Predicate:
    operation = node.get("op") if isinstance(node, dict) else None
    if not isinstance(operation, str):
        return Unknown("a node without an operation")
    children = node.get("children")
    parsed = None if depth == 0 else _parse_operation(operation, node, children, depth)
    if parsed is not None:
        return parsed
    # Short, because the whole node may be nested too deep to print.
    leaves = [leaf for leaf in children if isinstance(leaf, dict)] if isinstance(children, list) else [node]
    names = [str(leaf.get("name", leaf.get("value", leaf.get("op")))) for leaf in leaves]
    return Unknown(f"{operation}({', '.join(names)})"[:MAX_SHOWN_CHARS])


def _parse_operation(operation: str, node: dict[str, Any], children: Any, depth: int) -> Predicate | None:
    if operation == "literal":
        value = _literal(node)
        return Constant(value) if isinstance(value, bool) else None
    if operation == "column":
        column = _parse_column(node) if node.get("valueType") == "bool" else None
        return None if column is None else Compare(column, "=", True, "bool")
    if not isinstance(children, list) or not children:
        return None
    if operation in ("and", "or"):
        operands = tuple(_parse_node(child, depth - 1) for child in children)
        return And(operands) if operation == "and" else Or(operands)
    if operation == "not" and len(children) == 1:
        return Not(_parse_node(children[0], depth - 1))
    if operation == "isNull" and len(children) == 1:
        return _is_null(children[0])
    if operation in COMPARISONS and len(children) == 2 and not _is_collated(node):
        operator = COMPARISONS[operation]
        return _compare(operator, children) or _compare(MIRRORED[operator], children[::-1])
    return None


def _is_collated(node: dict[str, Any]) -> bool:
    """Whether texts compare by a collation, which Spark sends as the comparison's context."""
    context = node.get("exprCtx")
    return context is not None and context != {} and context != {"collationIdentifier": None}


def _is_null(child: Any) -> Predicate | None:
    if _is_literal(child):
        # Spark writes a null of type string as the text "null", so this may be a null.
        return None if _literal(child) in (None, "null") else Constant(False)
    column = _parse_column(child)
    return None if column is None else IsNull(column, _value_type(child))


def _compare(operator: Comparison, children: Sequence[Any]) -> Predicate | None:
    column, value = _parse_column(children[0]), _literal(children[1])
    if column is None or value is None or children[0].get("valueType") != children[1].get("valueType"):
        return None
    return Compare(column, operator, value, children[1]["valueType"])


def _parse_column(node: Any) -> str | None:
    if not isinstance(node, dict) or node.get("op") != "column" or _value_type(node) is None:
        return None
    name = node.get("name")
    return name if isinstance(name, str) else None


def _value_type(node: dict[str, Any]) -> str | None:
    kind = node.get("valueType")
    return kind if isinstance(kind, str) and kind in _PARSERS else None


def _is_literal(node: Any) -> bool:
    return isinstance(node, dict) and node.get("op") == "literal"


def _literal(node: Any) -> Value | None:
    kind = _value_type(node) if _is_literal(node) else None
    if kind is None or not isinstance(node.get("value"), str):
        return None
    try:
        return _PARSERS[kind](node["value"])
    except ValueError:
        return None


_PARSERS: dict[str, Callable[[str], Value | None]] = {
    "bool": lambda text: {"true": True, "false": False}.get(text.lower()),
    "int": partial(parse_whole, bits=32),
    "long": partial(parse_whole, bits=64),
    "string": str,
    "date": lambda text: date.fromisoformat(text) if DATE.fullmatch(text) else None,
    "float": lambda text: float32(text) if NUMBER.fullmatch(text) else NON_FINITE.get(text),
    "double": lambda text: float(text) if NUMBER.fullmatch(text) else NON_FINITE.get(text),
    "timestamp": lambda text: datetime.fromisoformat(text) if INSTANT.fullmatch(text) else None,
}


MAX_HINTS = 1000
MAX_PARTS = 2000
POINTS = ("version", "timestamp", "startingVersion")
# Fields that must not change between pages.
SAME_ON_EVERY_PAGE = (
    *POINTS,
    "endingVersion",
    "predicateHints",
    "jsonPredicateHints",
    "limitHint",
    "includeHistoricalProtocol",
)

# The fields that `parse_query` reads, except the key of an async query.
FIELDS = frozenset({*SAME_ON_EVERY_PAGE, "maxFiles", "pageToken", "includeRefreshToken", "refreshToken"})


@dataclass(frozen=True)
class TimePoint:
    ms: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Paging:
    """The requested page; `max_files` None means no limit."""

    max_files: int | None = None
    page_token: str | None = None

    @property
    def is_requested(self) -> bool:
        return self.max_files is not None or self.page_token is not None


@dataclass(frozen=True, kw_only=True)
class QueryRequest:
    """A table query; without version, timestamp and starting version, of the latest snapshot."""

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
        return self.version is None and self.timestamp is None and self.starting_version is None

    @property
    def is_pinned(self) -> bool:
        return self.refresh_token is not None or self.paging.page_token is not None

    @property
    def wants_end_stream_action(self) -> bool:
        """Whether the client reads a closing line; others fail on it (protocol §0.1)."""
        return self.paging.is_requested or self.include_refresh_token or self.refresh_token is not None


def parse_query(fields: Mapping[str, Any]) -> QueryRequest:
    """The query in a body. Raises BadRequest for a field with an unusable value."""
    given = [name for name in POINTS if fields.get(name) is not None]
    if len(given) > 1:
        hint = f"Please only provide one of: {','.join(POINTS)}."
        raise BadRequest(",".join(given), [fields[name] for name in given], hint)
    request = QueryRequest(
        version=optional_integer(fields, "version", label="table version"),
        timestamp=optional_time(fields, "timestamp"),
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
    _require_consistent(request)
    return request


def _require_consistent(request: QueryRequest) -> None:
    start, end = request.starting_version, request.ending_version
    if end is not None and start is None:
        raise BadRequest("endingVersion", end, "It goes with startingVersion; give both.")
    if end is not None and start is not None and start > end:
        hint = f"startingVersion({start}) must be smaller than or equal to endingVersion({end})."
        raise BadRequest("startingVersion", start, hint)
    for name, is_given in (
        ("includeRefreshToken", request.include_refresh_token),
        ("refreshToken", request.refresh_token is not None),
    ):
        if is_given and not request.is_latest:
            raise BadRequest(name, "given", f"{name} cannot be used when querying a specific version.")
        if is_given and request.paging.page_token is not None:
            raise BadRequest(name, "given", f"{name} must be used in the first page request.")


def parse_paging(fields: Mapping[str, Any]) -> Paging:
    return Paging(
        max_files=optional_integer(fields, "maxFiles", low=1, high=MAX_INT),
        page_token=optional_text(fields, "pageToken") or None,
    )


def _predicate(fields: Mapping[str, Any]) -> Predicate:
    predicates = []
    hints = fields.get("predicateHints")
    if hints:
        if not isinstance(hints, list) or not all(isinstance(hint, str) for hint in hints):
            raise BadRequest("predicateHints", hints, "Give a list of SQL texts.")
        if len(hints) > MAX_HINTS:
            raise BadRequest("predicateHints", f"{len(hints)} texts", f"Give at most {MAX_HINTS}.")
        # The SQL parser is large and slow to import, and few clients still send SQL.
        from lakeshare_server.protocol.sql_predicate import parse_sql_predicates

        predicates.append(parse_sql_predicates(hints))
    json_hints = fields.get("jsonPredicateHints")
    if json_hints is not None:
        if not isinstance(json_hints, str):
            raise BadRequest("jsonPredicateHints", json_hints, "Give the predicate as JSON inside a string.")
        predicates.append(parse_json_predicate(json_hints))
    # Evaluating a predicate must not cost more than reading the files that it excludes.
    return limit_parts(all_of(predicates), MAX_PARTS)


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
    starting_version: int | None
    starting_timestamp: TimePoint | None
    ending_version: int | None
    ending_timestamp: TimePoint | None
    include_historical_metadata: bool
    include_historical_protocol: bool
    paging: Paging
    parameters: Mapping[str, str]

    @property
    def wants_end_stream_action(self) -> bool:
        """Whether the client reads a closing line."""
        return self.paging.is_requested


def parse_changes(query: Mapping[str, str]) -> ChangesRequest:
    """The request in a query string. Raises BadRequest for a missing or repeated bound or an unusable value."""
    starts = [name for name in ("startingVersion", "startingTimestamp") if name in query]
    ends = [name for name in ("endingVersion", "endingTimestamp") if name in query]
    if not starts:
        hint = "No startingVersion or startingTimestamp provided for CDF read. Give one."
        raise BadRequest("startingVersion", None, hint)
    for side, given in (("starting", starts), ("ending", ends)):
        if len(given) > 1:
            hint = f"Multiple {side} arguments provided for CDF read. Give one."
            raise BadRequest(",".join(given), "both", hint)
    return ChangesRequest(
        starting_version=optional_integer(query, "startingVersion"),
        starting_timestamp=optional_time(query, "startingTimestamp"),
        ending_version=optional_integer(query, "endingVersion"),
        ending_timestamp=optional_time(query, "endingTimestamp"),
        include_historical_metadata=optional_boolean(query, "includeHistoricalMetadata"),
        include_historical_protocol=optional_boolean(query, "includeHistoricalProtocol"),
        paging=parse_paging(query),
        parameters={
            "call": "changes",
            **{name: query[name] for name in SAME_CHANGES_ON_EVERY_PAGE if name in query},
        },
    )


def optional_time(fields: Mapping[str, Any], name: str) -> TimePoint | None:
    text = fields.get(name)
    return None if text is None else TimePoint(parse_milliseconds(name, text), text)


SINGLE = re.compile(r"\s*bytes\s*=\s*(\d{0,64})\s*-\s*(\d{0,64})\s*", re.IGNORECASE | re.ASCII)
TAGS = re.compile(r'(?:W/)?("[^"]*")')


@dataclass(frozen=True)
class ByteRange:
    start: int
    length: int
    is_partial: bool


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """The requested bytes of a file of `size`; None if none of them exists."""
    match = SINGLE.fullmatch(header or "")
    if match is None or not (match[1] or match[2]):
        return ByteRange(0, size, False)
    if not match[1]:
        length = min(int(match[2]), size)
        return ByteRange(size - length, length, True) if length else None
    start = int(match[1])
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    if match[2] and int(match[2]) < start:
        return ByteRange(0, size, False)
    return ByteRange(start, last - start + 1, True) if start < size else None


def matches_etag(header: str, etag: str) -> bool:
    """Whether a list of entity tags, or `*`, has this one, by weak comparison (RFC 9110 §8.8.3.2)."""
    return header.strip() == "*" or etag in TAGS.findall(header)
