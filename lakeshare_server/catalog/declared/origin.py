"""Where in which file something was said."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from lakeshare_server.catalog.declared.yaml_lines import Parsed
from lakeshare_server.errors import DocumentError

Place = tuple[str | int, ...]


@dataclass(frozen=True)
class SourceFile:
    """A file that was read."""

    path: Path
    parsed: Parsed = field(repr=False)


@dataclass(frozen=True)
class Origin:
    """A place in a file. Its line is looked for when somebody asks."""

    file: SourceFile
    where: Place

    @cached_property
    def line(self) -> int:
        """The line, counted from 1."""
        return self.file.parsed.line(self.where)

    def __str__(self) -> str:
        return f"{self.file.path}:{self.line}"

    def fault(self, problem: str, hint: str) -> DocumentError:
        """An error that names this place."""
        return DocumentError(self.file.path, self.line, dotted(self.where), problem, hint)


def dotted(where: Sequence[str | int]) -> str:
    """`shares.partners.tables["sales.orders"].rule`."""
    text = ""
    for step in where:
        if isinstance(step, int):
            text += f"[{step}]"
        elif "." in step:
            text += f'["{step}"]'
        else:
            text += f".{step}" if text else step
    return text or "the file"
