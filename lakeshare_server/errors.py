"""The errors of the server as data; the routes turn each into a response.

LakeshareError
├── NotFound            kind, name           → 404 RESOURCE_DOES_NOT_EXIST
├── NoEvidence          table, why, fix      → 404 RESOURCE_DOES_NOT_EXIST
├── BadRequest          field, value, hint   → 400 INVALID_PARAMETER_VALUE
├── MalformedRequest    what, hint           → 400 MALFORMED_REQUEST
├── Unserveable         reason, fix, code    → 400 UNSUPPORTED_OPERATION
├── LinkEnded           why, at, by          → 410 RESOURCE_DOES_NOT_EXIST
├── Unauthenticated                          → 401 UNAUTHENTICATED
├── Denied                                   → 403 PERMISSION_DENIED
├── TooManyRequests     what, retry_s        → 429 REQUEST_LIMIT_EXCEEDED
├── Unavailable         what, fix, retry_s   → 503 TEMPORARILY_UNAVAILABLE
├── StoreError          location             → 400 RESOURCE_DOES_NOT_EXIST, as the reference server answers
│   ├── StoreMissing
│   ├── StoreDenied
│   └── TableFilesMissing    what
├── CatalogConflict     what, fix            → 409 RESOURCE_CONFLICT, to administrators only
│   ├── NameTaken                            → 409 RESOURCE_ALREADY_EXISTS
│   └── EditedMeanwhile                      → 412 ABORTED
├── EvidenceRefused                          a download is not what a provider signed (`lakeshare verify`)
└── DocumentError       path, line, field, problem, hint, also    a file of `lakeshare apply` or a contract
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

MAX_SHOWN_CHARS = 200
# What parsers, and the libraries of vendors, raise for a response of another form than theirs.
ODD_ANSWER = (AttributeError, KeyError, TypeError, ValueError)


def shorten_value(value: object) -> str:
    """A value for a message, cut to a maximum length."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


def suggest(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Returns a hint that names the closest known word, else `otherwise` or all known words."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    return otherwise or f"Known are: {', '.join(known)}."


# An absolute path, a URI, a location in a catalog, or a setting: messages for recipients have none of these.
_LOCATION = re.compile(
    r"""(?<![\w.])(?:
        (?:iceberg|nessie):[^\s'",;()]+
        | [A-Za-z][A-Za-z0-9+.-]*:/[^\s'",;()]*
        | LAKESHARE_\w+(?:=[^\s'",;()]*)?
        | (?<=['"])/[^'"]*
        | (?<![^\s'"(=,:])/[^\s'",;()]*
    )""",
    re.VERBOSE,
)
ASK_PROVIDER = "Provider: the server's log says more"


def without_places(text: str, places: Iterable[str] = ()) -> str:
    """A text without locations and settings of the provider; `places` are further locations to remove."""
    for place in sorted(filter(None, places), key=len, reverse=True):
        text = re.sub(rf"{re.escape(place)}[^\s'\",;()]*", _shorten_location, text)
    return _LOCATION.sub(_shorten_location, text)


def _shorten_location(match: re.Match[str]) -> str:
    # Keeps the end of the sentence.
    return "…" + match[0][len(match[0].rstrip(".:")) :]


class LakeshareError(Exception):
    """Base of every error that lakeshare raises; its text is for people, and may name locations and settings."""

    def for_recipient(self) -> str:
        """The text for a recipient, without locations and settings of the provider."""
        return str(self)

    def for_provider(self) -> str:
        """The text for commands and the admin API."""
        return str(self)


class NotFound(LakeshareError):
    """Unknown, or not granted: both have the same text."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"{kind} '{name}' does not exist, please contact your share provider for further information."
        )
        self.kind, self.name = kind, name

    def for_provider(self) -> str:
        return f"{self.kind} '{shorten_value(self.name)}' does not exist."


class NoEvidence(LakeshareError):
    """A version that has no signed evidence; `fix` is for recipients, too."""

    def __init__(self, version: str, why: str, fix: str) -> None:
        super().__init__(f"{version} has no signed evidence: {why}. {fix}")
        self.version, self.why, self.fix = version, why, fix


class EvidenceRefused(LakeshareError):
    """What a recipient has downloaded is not what its provider signed, or that cannot be shown."""


class BadRequest(LakeshareError):
    """A parameter has a value that cannot be used."""

    def __init__(self, field: str, value: object, hint: str) -> None:
        super().__init__(f"{field}: {shorten_value(repr(value))} cannot be used. {hint}")
        self.field, self.value, self.hint = field, value, hint


class MalformedRequest(LakeshareError):
    """A body or token that cannot be parsed."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(f"{what}. {hint}")
        self.what, self.hint = what, hint


class Unserveable(LakeshareError):
    """The table exists, but cannot be served correctly to this client; `code` is the reason for programs.

    `places` are locations in the texts that are not plain paths or URIs.
    """

    def __init__(self, reason: str, fix: str, code: str | None = None, places: Iterable[str] = ()) -> None:
        super().__init__(f"{reason} {fix}" if code is None else f"{reason} {fix} [{code}]")
        self.reason, self.fix, self.code, self.places = reason, fix, code, tuple(places)

    def for_recipient(self) -> str:
        reason, fix = (without_places(text, self.places) for text in (self.reason, self.fix))
        message = f"{reason} {fix if fix == self.fix else f'{ASK_PROVIDER}.'}"
        return message if self.code is None else f"{message} [{self.code}]"


class Unauthenticated(LakeshareError):
    """No token, an unknown token or an expired one."""


class LinkEnded(LakeshareError):
    """An activation link that existed: used, expired, or replaced."""

    def __init__(self, why: str, at: datetime, used_from: str | None = None) -> None:
        where = f" from {used_from}" if used_from else ""
        verb = "has" if why == "expired" else "was"
        when = f"on {at:%Y-%m-%d at %H:%M} UTC"
        super().__init__(f"The link {verb} {why} {when}{where}. Ask your provider for a new one.")
        self.why, self.at, self.used_from = why, at, used_from


class Denied(LakeshareError):
    """Known, but not allowed, as a signed URL that is expired or altered."""


class TooManyRequests(LakeshareError):
    """A rate limit of a recipient or an address."""

    def __init__(self, what: str, retry_s: int) -> None:
        super().__init__(f"{what}. Try again in {retry_s} seconds.")
        self.what, self.retry_s = what, retry_s


class Unavailable(LakeshareError):
    """A temporary failure; try again, after `retry_s` seconds if that is known."""

    def __init__(self, what: str, fix: str, retry_s: int | None = None) -> None:
        super().__init__(f"{what}. {fix}")
        self.what, self.fix, self.retry_s = what, fix, retry_s

    def for_recipient(self) -> str:
        what, fix = without_places(self.what), without_places(self.fix)
        return f"{what}. {fix if fix == self.fix else 'Try again in a moment.'}"


class StoreError(LakeshareError):
    """A permanent error of a store about one object. The text names the object, and does not quote the store.

    `code` is the store's own name of the error, None if it gives none.
    """

    code: str | None = None

    def __init__(self, location: str, what: str) -> None:
        super().__init__(what)
        self.location = location


class StoreMissing(StoreError):
    """The object does not exist."""

    def __init__(self, location: str, fix: str = "") -> None:
        super().__init__(location, f"{location} is not in its store. {fix}".rstrip())

    def for_recipient(self) -> str:
        return f"A file of the table is not in its store. {ASK_PROVIDER}."


class StoreDenied(StoreError):
    """The store does not allow the server to read the object, or the `request` to write or delete it."""

    def __init__(self, location: str, request: str = "hand out") -> None:
        super().__init__(location, f"The store refuses to {request} {location}.")

    def for_recipient(self) -> str:
        return f"The store refuses to hand out a file of the table. {ASK_PROVIDER}."


class TableFilesMissing(StoreError):
    """A table's own metadata lacks a file, or has an incomplete one."""

    def __init__(self, location: str, what: str) -> None:
        # The tests of clients search for "table files missing".
        super().__init__(location, f"The table at {location} cannot be read, table files missing: {what}.")
        self.what = what

    def for_recipient(self) -> str:
        text = f"The table cannot be read, table files missing: {self.what}."
        return without_places(text, [self.location])


class CatalogConflict(LakeshareError):
    """A catalog write that contradicts the catalog."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}. {fix}")
        self.what, self.fix = what, fix


class NameTaken(CatalogConflict):
    """The name is taken."""


class EditedMeanwhile(CatalogConflict):
    """Another user has edited the object since it was read."""


class DocumentError(LakeshareError):
    """A YAML file that cannot be used; `line` is None where it is not at hand, `also` are the further errors."""

    def __init__(
        self,
        path: Path | str,
        field: str,
        problem: str,
        hint: str,
        also: Sequence["DocumentError"] = (),
        *,
        line: int | None = None,
    ) -> None:
        place = path if line is None else f"{path}:{line}"
        super().__init__("\n".join([f"{place}: {field}: {problem}. {hint}", *map(str, also)]))
        self.path, self.line, self.field, self.problem, self.hint = path, line, field, problem, hint
        self.also = tuple(also)
