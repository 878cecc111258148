"""An event of the audit log: what it says, and the one spelling of it that its hash is made of."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.catalog.models.base import AnyText

# A request is written before its reply begins, its end once a streamed reply is over, a change with what it changes.
Kind = Literal["request", "end", "change"]
LONGEST_TEXT = 4000
LARGEST = 1 << 53
GENESIS = "0" * 64


@dataclass(frozen=True, kw_only=True)
class AuditEvent:
    """A request and what became of it, or a change by an administrator.

    `recipient` is whoever reads, `principal` whoever administers. `size_bytes` and `rows` are those of the
    files that were signed or sent, as far as they are known.
    """

    at: datetime
    action: str
    request_id: str
    kind: Kind = "request"
    recipient: str | None = None
    principal: str | None = None
    object_name: str | None = None
    status: int = 200
    error_code: str | None = None
    version: int | None = None
    files: int | None = None
    size_bytes: int | None = None
    rows: int | None = None
    ip: str | None = None
    user_agent: str | None = None
    elapsed_ms: int = 0
    details: Mapping[str, Any] | None = None


NAMES = tuple(field.name for field in fields(AuditEvent))
COLUMNS = {name: AuditRow.__table__.c[name].type for name in NAMES}
LENGTHS = {
    name: getattr(column, "length", None) or LONGEST_TEXT
    for name, column in COLUMNS.items()
    if isinstance(column, AnyText)
}


@dataclass(frozen=True)
class Written:
    """An event as every database gives it back: by column, and as the canonical JSON that its hash covers."""

    values: dict[str, Any]
    text: bytes

    @property
    def event(self) -> AuditEvent:
        """The event itself."""
        return AuditEvent(**self.values)


def written(event: AuditEvent) -> Written:
    """Write an event: texts cut to their columns, what not every database takes replaced."""
    # `asdict` copies deeply, at thirty times the price.
    values = vars(event).copy()
    for name, length in LENGTHS.items():
        text = values[name]
        if text is not None and (len(text) > length or not text.isascii() or "\x00" in text):
            values[name] = _text(text, length)
    values["at"] = event.at.astimezone(UTC)
    if event.details is not None:
        values["details"] = plain(event.details)
    return Written(values, canonical(values))


def read_back(text: bytes) -> Written:
    """The event that this canonical JSON says.

    Raises:
        ValueError: it says none.
    """
    said = orjson.loads(text)
    if not isinstance(said, dict) or not set(said) <= set(NAMES) or not said.keys() >= {"at", "action"}:
        raise ValueError("not an event of the audit log")
    values = {name: said.get(name) for name in NAMES}
    values["at"] = datetime.fromisoformat(said["at"])
    return Written(values, text)


def canonical(values: Mapping[str, Any]) -> bytes:
    """What an event's hash covers: JSON with its keys sorted, no spaces, and no null.

    So a column that is added later changes the hash of no event from before it.
    """
    said = {name: value for name in NAMES if (value := values[name]) is not None}
    said["at"] = instant(values["at"])
    return orjson.dumps(said, option=orjson.OPT_SORT_KEYS)


def chained(previous_hash: str, text: bytes) -> str:
    """The hash of an event: SHA-256 of the hash before it, a line feed, and its canonical JSON."""
    return hashlib.sha256(b"%b\n%b" % (previous_hash.encode(), text)).hexdigest()


def instant(moment: datetime) -> str:
    """A moment as the log spells it: UTC, always with microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def plain(value: Any) -> Any:
    """What JSON and every database take, of any value: texts without NUL, numbers within 53 bits."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, LONGEST_TEXT)
    if isinstance(value, int):
        return value if abs(value) < LARGEST else str(value)
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, Mapping):
        return {_text(str(name), LONGEST_TEXT): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [
            plain(one) for one in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)
        ]
    # Floats are spelt differently by different libraries, and would be hashed differently.
    return _text(str(value), LONGEST_TEXT)


def _text(value: str, length: int) -> str:
    if not value.isascii() or "\x00" in value:
        value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\x00", "\ufffd")
    return value[:length]
