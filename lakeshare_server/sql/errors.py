"""What can be wrong with SQL, and where in the text it is.

SqlError                 what, place, source    the text is not a statement: nothing of it was done
└── StatementRefused     cause, took, total     a statement that was understood and cannot be done
"""

from dataclasses import dataclass

from lakeshare_server.errors import LakeshareError, NotFound

LONGEST_LINE = 110


@dataclass(frozen=True)
class Place:
    """Where something stands in a text, counted from 1, and how many characters it takes."""

    line: int
    column: int
    length: int = 1


class SqlError(LakeshareError):
    """The text cannot be read as SQL; tells the place by line, column and a caret."""

    def __init__(self, what: str, place: Place, text: str, source: str | None = None) -> None:
        at = f"{place.line}:{place.column}"
        where = f"{source}:{at}" if source else f"line {place.line}, column {place.column}"
        super().__init__(f"{where}: {printable(what)}\n{pointed_at(text, place)}")
        self.what, self.place, self.source = what, place, source


class StatementRefused(SqlError):
    """A statement that was understood and cannot be done: why, and which of its script took effect."""

    def __init__(
        self, cause: LakeshareError, place: Place, text: str, source: str | None, took: int, total: int
    ) -> None:
        # The catalog speaks to recipients of what is not there, who are to ask somebody else.
        what = f"{cause.kind} {cause.name} does not exist." if isinstance(cause, NotFound) else str(cause)
        super().__init__(what, place, text, source)
        self.cause, self.took, self.total = cause, took, total

    @property
    def effect(self) -> str:
        """Which statements of the script took effect."""
        if self.took == 0:
            return "Nothing of it took effect."
        first = "The first statement" if self.took == 1 else f"The first {self.took} statements"
        return f"{first} of {self.total} took effect; this one and what follows did not."


def printable(text: str) -> str:
    """A text on one line that does nothing to a terminal, whatever a name or a comment has in it."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def pointed_at(text: str, place: Place) -> str:
    """The line of the text with a caret below what is meant; of long lines the part around it."""
    lines = text.split("\n")
    line = lines[place.line - 1].rstrip("\r") if place.line <= len(lines) else ""
    before = place.column - 1
    start = max(0, before - LONGEST_LINE // 2) if len(line) > LONGEST_LINE else 0
    # Each character stays one: an escape would move the caret away.
    shown = "".join(one if one.isprintable() else " " for one in line[start : start + LONGEST_LINE])
    room = max(1, len(shown) - (before - start))
    return f"  {shown}\n  {' ' * (before - start)}{'^' * min(max(1, place.length), room)}"
