"""JSON bodies of requests: an object, or nothing."""

import json
from typing import Any

from lakeshare_server.errors import MalformedRequest


def json_object(body: bytes) -> dict[str, Any]:
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
