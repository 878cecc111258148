"""What recipients are told of a followed table that cannot be read: the reason without the places."""

import re
from collections.abc import Iterable

from lakeshare_server.errors import (
    BadRequest,
    LakeshareError,
    StoreError,
    TableFilesMissing,
    Unavailable,
    Unserveable,
)
from lakeshare_server.tables.reason_codes import ReasonCode

A_PLACE = re.compile(r"\S*[/\\]\S*")
# Where a sentence begins with one, a subject is left in its place.
A_SUBJECT = re.compile(r"(^|[.:;,] )\S*[/\\]\S*(?= \w)")
PROVIDER = "Provider: the server's log says more."


def for_recipients(error: LakeshareError, places: Iterable[str]) -> LakeshareError:
    """The same refusal in words that name no place of the table, its catalog or the server."""
    if isinstance(error, Unavailable):
        return Unavailable(
            "the table's store or catalog does not answer", "Try again in a moment.", error.retry_s
        )
    if isinstance(error, Unserveable) and error.code == ReasonCode.EQUALITY_DELETES:
        # Its own words name settings, which are the provider's to know.
        return Unserveable(ReasonCode.EQUALITY_DELETES.sentence, ReasonCode.EQUALITY_DELETES.fix, error.code)
    if isinstance(error, Unserveable):
        return Unserveable(_told(error.reason, places), _fix(error, places), error.code)
    if isinstance(error, TableFilesMissing):
        return TableFilesMissing("", _told(error.what, places))
    if isinstance(error, StoreError):
        return TableFilesMissing("", "a file of its metadata is gone, or not readable")
    if isinstance(error, BadRequest):
        return Unserveable("The table's place cannot be looked at.", PROVIDER)
    return Unserveable("The table's newest state cannot be numbered.", PROVIDER)


def _fix(error: Unserveable, places: Iterable[str]) -> str:
    return _told(error.fix, places) if error.code else PROVIDER


def _told(text: str, places: Iterable[str]) -> str:
    for place in sorted(places, key=len, reverse=True):
        text = re.sub(rf"(?<!\S){re.escape(place)}(?=[\s.,:;]|$)", "the table", text)
    text = A_SUBJECT.sub(r"\1a file of it", text)
    text = A_PLACE.sub("…", text)
    return text[:1].upper() + text[1:]
