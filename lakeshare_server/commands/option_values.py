"""Values of options that several commands take: times, properties, paths of tables."""

from collections.abc import Sequence
from datetime import datetime

from lakeshare_server.errors import BadRequest


def moment(option: str, text: str | None) -> datetime | None:
    """A time with its zone, as ISO 8601 writes it.

    Raises:
        BadRequest: it is none, or has no zone.
    """
    if text is None:
        return None
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        given = None
    if given is None or given.tzinfo is None:
        raise BadRequest(option, text, "Give a time with its zone, like 2027-01-01T00:00:00Z.")
    return given


def properties(option: str, pairs: Sequence[str]) -> dict[str, str]:
    """`key=value` texts by their keys.

    Raises:
        BadRequest: a text has no `=`.
    """
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise BadRequest(option, pair, "Give key=value, like region=EU.")
        found[key] = value
    return found


def table_path(option: str, text: str) -> tuple[str, str]:
    """The schema and the name in `schema.table`.

    Raises:
        BadRequest: it is something else.
    """
    schema, dot, name = text.partition(".")
    if not dot or not schema or not name or "." in name:
        raise BadRequest(option, text, "Give schema.table, like sales.orders.")
    return schema, name


def shared_path(option: str, text: str) -> tuple[str, str, str]:
    """The share, the schema and the name in `share.schema.table`.

    Raises:
        BadRequest: it is something else.
    """
    names = text.split(".")
    if len(names) != 3 or not all(names):
        raise BadRequest(option, text, "Give share.schema.table, like partners.sales.orders.")
    return names[0], names[1], names[2]
