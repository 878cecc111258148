"""Times in requests: ISO 8601 with a zone, as milliseconds since 1970."""

import re
from datetime import UTC, datetime, timedelta

from lakeshare_server.errors import BadRequest, shown

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# fromisoformat takes more than the protocol does: dates alone, week dates, times without separators.
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|z|[+-]\d\d:?\d\d)")


def milliseconds(field: str, text: object) -> int:
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
    hint = f"Invalid startingTimestamp: {shown(text)}. Give a time in UTC, like 2022-01-01T00:00:00Z."
    return BadRequest(field, text, hint)


def iso(ms: int) -> str:
    """Milliseconds since 1970 as the protocol writes times."""
    seconds, rest = divmod(ms, 1000)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{rest:03d}Z"
