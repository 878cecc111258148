"""What a change data feed request asks for (protocol §1.8)."""

from collections.abc import Mapping
from dataclasses import dataclass

from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.parameters import optional_number, optional_truth
from lakeshare_server.protocol.requests import Paging, TimePoint, paging_of
from lakeshare_server.protocol.timestamps import milliseconds

SAME_ON_EVERY_PAGE = (
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
        starting_version=optional_number(query, "startingVersion"),
        starting_timestamp=_time(query, "startingTimestamp"),
        ending_version=optional_number(query, "endingVersion"),
        ending_timestamp=_time(query, "endingTimestamp"),
        include_historical_metadata=optional_truth(query, "includeHistoricalMetadata"),
        include_historical_protocol=optional_truth(query, "includeHistoricalProtocol"),
        paging=paging_of(query),
        # A page of the feed is no page of a query that spells its parameters the same way.
        parameters={"call": "changes", **{name: query[name] for name in SAME_ON_EVERY_PAGE if name in query}},
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
    return None if text is None else TimePoint(milliseconds(name, text), text)
