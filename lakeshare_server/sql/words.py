"""The values in a statement: names, texts, numbers, times and spans of time, out of the way they are written."""

import re
from datetime import UTC, datetime, timedelta

# No zone is UTC; a day alone is its first moment.
MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?))?\s*(Z|[+-]\d\d:?\d\d)?", re.I
)
SPAN = re.compile(r"(\d{1,9})\s*(second|minute|hour|day|week)s?", re.I)
PLAIN = re.compile(r"[^\W\d]\w*")
# Keywords where a name could stand, here or in a predicate.
QUOTED = frozenset((
    "IF", "TABLE", "VIEW", "MATERIALIZED", "MODEL", "SCHEMA", "CURRENT_RECIPIENT", "DATE", "TIMESTAMP", "SELECT",
    "AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "BETWEEN", "TRUE", "FALSE", "CASE", "CAST", "EXISTS",
))  # fmt: skip
BETWEEN_SPANS = re.compile(r"[\s,]*")


def plain_name(written: str) -> str:
    """A name without its back-quotes."""
    return written[1:-1].replace("``", "`") if written.startswith("`") else written


def plain_text(written: str) -> str:
    """A text without its quotes; a quote inside is doubled, a backslash is a backslash."""
    quote = written[0]
    return written[1:-1].replace(quote * 2, quote)


def quoted_text(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def quoted_name(name: str) -> str:
    """A name as SQL writes it, in back-quotes where it needs them."""
    is_plain = PLAIN.fullmatch(name) and name.upper() not in QUOTED
    return name if is_plain else "`" + name.replace("`", "``") + "`"


def moment(text: str) -> datetime:
    """The moment a text names.

    Raises:
        ValueError: it names none.
    """
    found = MOMENT.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    day, time, zone = found.groups()
    at = datetime.fromisoformat(f"{day}T{time or '00:00'}{(zone or 'Z').upper()}")
    try:
        return at.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(text) from error


def span(text: str) -> timedelta:
    """The span of time a text names, like `24 hours` or `1 day 12 hours`.

    Raises:
        ValueError: it names none.
    """
    parts = SPAN.findall(text)
    if not parts or not BETWEEN_SPANS.fullmatch(SPAN.sub("", text)):
        raise ValueError(text)
    try:
        return sum((timedelta(**{f"{unit.lower()}s": int(count)}) for count, unit in parts), timedelta())
    except OverflowError as error:
        raise ValueError(text) from error
