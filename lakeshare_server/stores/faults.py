"""What a remote store's failure means for whoever asked: lasting, or passing.

The store's own words go nowhere: they can hold keys, signed URLs and tokens. Its status and error code are logged.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from lakeshare_server.errors import LakeshareError, StoreDenied, StoreMissing, Unavailable, Unserveable
from lakeshare_server.stores.locations import Place

logger = logging.getLogger(__name__)

# The URL in front of it holds no space, and the store's own text comes after it.
STATUS = re.compile(r"status code: (\d{3})")
CODE = re.compile(r"<Code>(\w{1,60})</Code>")
NO_KEYS = "credential provider"
WRONG_REGION = "Received redirect without LOCATION"
PASSING = {408, 412, 425, 429}
LATER = "Try again later."


@contextmanager
def faults_of(place: Place) -> Iterator[None]:
    """Every failure of the store inside becomes one of ours, about `place`.

    Raises:
        StoreMissing, StoreDenied, Unserveable: asking again changes nothing.
        Unavailable: it passes.
    """
    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        raise _ours(place, error) from None


def _ours(place: Place, error: BaseError | FileNotFoundError) -> LakeshareError:
    text = str(error)
    status, code = STATUS.search(text), CODE.search(text)
    said = " ".join(found[1] for found in (status, code) if found) or type(error).__name__
    # Looking for what is not there is normal: the next commit of a log, say. Whoever needs the object raises.
    level = logging.DEBUG if _is_missing(error, status) else logging.WARNING
    logger.log(level, "%s: the store answered %s", place.location, said)
    if NO_KEYS in text and isinstance(error, UnauthenticatedError):
        return Unavailable(
            f"no credentials for {place.root} could be had", "Look at the identity the server runs with."
        )
    for kinds, ours in _BY_KIND:
        if isinstance(error, kinds):
            return ours(place)
    if status is None and WRONG_REGION not in text:
        return _unavailable(place)
    return _by_status(place, int(status[1]) if status else 301)


def _is_missing(error: BaseError | FileNotFoundError, status: re.Match[str] | None) -> bool:
    return isinstance(error, FileNotFoundError) or (status is not None and status[1] == "404")


def _by_status(place: Place, status: int) -> LakeshareError:
    if status == 404:
        return StoreMissing(place.location)
    # A wrong region, a wrong host or a key the store does not know.
    if 300 <= status < 500 and status not in PASSING:
        return StoreDenied(place.location)
    return _unavailable(place)


def _unavailable(place: Place) -> LakeshareError:
    return Unavailable(f"{place.root} does not answer as it should", LATER)


_BY_KIND = (
    (FileNotFoundError, lambda place: StoreMissing(place.location)),
    ((PermissionDeniedError, UnauthenticatedError), lambda place: StoreDenied(place.location)),
    (PreconditionError, lambda place: Unavailable(f"{place.location} changed while it was read", LATER)),
    (
        InvalidPathError,
        lambda place: Unserveable(
            f"{place.location} cannot be listed: a key below it has an empty segment, one of dots or a control "
            "character.",
            "Move or remove the object.",
        ),
    ),
)
