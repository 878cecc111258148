"""How names and texts are written in Snowflake's SQL, so that none of them can be taken for anything else."""

import re
from dataclasses import dataclass

from lakeshare_server.errors import BadRequest

PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")
EXACT = re.compile(r'"(?:[^"]|"")*"')
LONGEST = 255


@dataclass(frozen=True)
class TableName:
    """A table of Snowflake's; without database and schema it is in those of the session."""

    name: str
    schema: str | None = None
    database: str | None = None

    def __post_init__(self) -> None:
        if self.database is not None and self.schema is None:
            raise BadRequest("schema", None, f"Give the schema of the database {self.database}, too.")

    @property
    def sql(self) -> str:
        """The name in a statement."""
        parts = (("database", self.database), ("schema", self.schema), ("name", self.name))
        return ".".join(identifier(field, part) for field, part in parts if part is not None)


def identifier(field: str, name: str) -> str:
    """A name as a quoted identifier; one that needs no quotes is in upper case, as Snowflake takes it without them.

    A name that comes in double quotes is meant to the letter. `field` is what an error calls it.

    Raises:
        BadRequest: it is empty, too long, or has characters that cannot be printed.
    """
    return _quoted(_meant(field, name))


def named_in_text(field: str, name: str) -> str:
    """The same name where Snowflake wants it as a text: of a volume, or of an integration."""
    meant = _meant(field, name)
    return literal(meant if PLAIN.fullmatch(meant) and meant == meant.upper() else _quoted(meant))


def literal(text: str) -> str:
    """A text in single quotes; backslashes, too, begin an escape in Snowflake."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _meant(field: str, name: str) -> str:
    folded = name.upper() if PLAIN.fullmatch(name) else name
    meant = name[1:-1].replace('""', '"') if EXACT.fullmatch(name) else folded
    if not meant or len(meant) > LONGEST or not meant.isprintable():
        raise BadRequest(field, name, f"Give 1 to {LONGEST} characters that can be printed.")
    return meant


def _quoted(meant: str) -> str:
    return '"' + meant.replace('"', '""') + '"'
