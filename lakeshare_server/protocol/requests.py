"""What a table query asks for, as it was meant. Unknown fields are ignored, unusable values named.

The words of the refusals begin as clients' tests expect them (protocol §1.7).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.json_predicate import parse_json_predicate
from lakeshare_server.protocol.parameters import MAX_INT, optional_number, optional_text, optional_truth
from lakeshare_server.protocol.timestamps import milliseconds
from lakeshare_server.tables.predicate import EVERYTHING, Predicate, affordable, all_of

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


def query_of(fields: Mapping[str, Any]) -> QueryRequest:
    """The request in a body's fields.

    Raises:
        BadRequest: a field has a value that cannot be used.
    """
    _require_one_point(fields)
    timestamp = fields.get("timestamp")
    request = QueryRequest(
        version=optional_number(fields, "version", said="table version"),
        timestamp=None if timestamp is None else TimePoint(milliseconds("timestamp", timestamp), timestamp),
        starting_version=optional_number(fields, "startingVersion"),
        ending_version=optional_number(fields, "endingVersion"),
        predicate=_predicate(fields),
        limit=optional_number(fields, "limitHint", high=MAX_INT),
        paging=paging_of(fields),
        include_refresh_token=optional_truth(fields, "includeRefreshToken"),
        refresh_token=optional_text(fields, "refreshToken"),
        include_historical_protocol=optional_truth(fields, "includeHistoricalProtocol"),
        idempotency_key=optional_text(fields, "idempotencyKey") or optional_text(fields, "idempotency_key"),
        parameters={name: fields[name] for name in SAME_ON_EVERY_PAGE if fields.get(name) is not None},
    )
    _require_window(request)
    _require_refresh_alone(request)
    return request


def paging_of(fields: Mapping[str, Any]) -> Paging:
    """`maxFiles` and `pageToken`.

    Raises:
        BadRequest: a value cannot be used.
    """
    return Paging(
        max_files=optional_number(fields, "maxFiles", low=1, high=MAX_INT),
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
    return affordable(all_of(predicates), MAX_PARTS)


def _texts(hints: Any) -> list[str]:
    if not isinstance(hints, list) or not all(isinstance(hint, str) for hint in hints):
        raise BadRequest("predicateHints", hints, "Give a list of SQL texts.")
    if len(hints) > MAX_HINTS:
        raise BadRequest("predicateHints", f"{len(hints)} texts", f"Give at most {MAX_HINTS}.")
    return hints
