"""The body of a table query, as it was meant. Unknown fields are ignored, unusable values named.

Time travel by timestamp and changes by version window are refused in so many words until they are served.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakeshare_server.errors import BadRequest, MalformedRequest, Unserveable
from lakeshare_server.protocol.json_predicate import parse_json_predicate
from lakeshare_server.protocol.parameters import MAX_INT, truth, whole_number
from lakeshare_server.tables.predicate import EVERYTHING, Predicate, all_of, parts_of

MAX_HINTS = 1000
MAX_PARTS = 2000
NOT_SERVED = {
    "timestamp": "Ask for a version; `version` without a timestamp is the latest.",
    "startingTimestamp": "Ask without it for the latest version.",
    "startingVersion": "Ask for a snapshot with `version`.",
    "endingVersion": "Ask for a snapshot with `version`.",
    "pageToken": "Ask without maxFiles: the answer comes in one piece.",
    "refreshToken": "Repeat the query, with `version` to get the same files.",
}


@dataclass(frozen=True)
class QueryRequest:
    """What a client asks of a table; `version` None is the latest."""

    version: int | None = None
    predicate: Predicate = EVERYTHING
    limit: int | None = None
    wants_end_stream_action: bool = False


def parse_query(body: bytes) -> QueryRequest:
    """The request in a body; an empty body asks for everything.

    Raises:
        MalformedRequest: the body is not a JSON object.
        BadRequest: a field has a value that cannot be used.
        Unserveable: it asks for something that is not served.
    """
    fields = _json_object(body)
    refuse_not_served(fields)
    return QueryRequest(
        version=_optional_number(fields, "version"),
        predicate=_predicate(fields),
        limit=_optional_number(fields, "limitHint", high=MAX_INT),
        # Clients that ask for pages or refreshing read the last line; others would stumble over it.
        wants_end_stream_action=_optional_number(fields, "maxFiles", low=1, high=MAX_INT) is not None
        or _optional_truth(fields, "includeRefreshToken"),
    )


def refuse_not_served(fields: Mapping[str, Any]) -> None:
    """Refuse what this server does not serve yet, instead of answering something else.

    Raises:
        Unserveable: names the parameter and what to do instead.
    """
    for name, fix in NOT_SERVED.items():
        if fields.get(name) is not None:
            raise Unserveable(f"{name} is not supported by this server yet.", fix)


def _json_object(body: bytes) -> dict[str, Any]:
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


def _predicate(fields: Mapping[str, Any]) -> Predicate:
    predicates = []
    hints = fields.get("predicateHints")
    if hints is not None:
        # The SQL parser takes 30 MB and a moment to load: few clients still send SQL.
        from lakeshare_server.protocol.sql_predicate import parse_sql_predicates

        predicates.append(parse_sql_predicates(_texts(hints)))
    json_hints = fields.get("jsonPredicateHints")
    if json_hints is not None:
        if not isinstance(json_hints, str):
            raise BadRequest("jsonPredicateHints", json_hints, "Give the predicate as JSON inside a string.")
        predicates.append(parse_json_predicate(json_hints))
    predicate = all_of(predicates)
    # A predicate may cost no more than reading the files it could leave out.
    return predicate if parts_of(predicate) <= MAX_PARTS else EVERYTHING


def _texts(hints: Any) -> list[str]:
    if not isinstance(hints, list) or not all(isinstance(hint, str) for hint in hints):
        raise BadRequest("predicateHints", hints, "Give a list of SQL texts.")
    if len(hints) > MAX_HINTS:
        raise BadRequest("predicateHints", f"{len(hints)} texts", f"Give at most {MAX_HINTS}.")
    return hints


def _optional_number(fields: Mapping[str, Any], name: str, **limits: int) -> int | None:
    value = fields.get(name)
    return None if value is None else whole_number(name, value, **limits)


def _optional_truth(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    return False if value is None else truth(name, value)
