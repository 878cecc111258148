"""The tables in docs/reference/backup.md; `python -m tests.builders.backup_reference` makes them anew."""

import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lakeshare_pipelines.backup.config import (
    Backup,
    Batch,
    Bounds,
    ListingSource,
    Lock,
    Prices,
    Retention,
    Scrub,
)
from lakeshare_pipelines.backup.stores import StoreAddress

PAGE = Path("docs/reference/backup.md")
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
PARTS: dict[type[BaseModel], str] = {
    Backup: "A backup",
    StoreAddress: "A store",
    ListingSource: "listing",
    Retention: "retention",
    Scrub: "scrub",
    Lock: "lock",
    Batch: "batch",
    Bounds: "bounds",
    Prices: "prices",
}
"""Every part of the YAML, and its heading."""
_KINDS = {str: "text", int: "number", float: "number", bool: "`true`, `false`"}


def with_tables(page: str) -> str:
    """The page with its tables made anew.

    Raises:
        ValueError: the page has no place for them.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN} and {END}")
    return "\n".join((before + BEGIN, *_tables(), END + after))


def _tables() -> Iterator[str]:
    for part, heading in PARTS.items():
        named = heading if part in (Backup, StoreAddress) else f"`{heading}`"
        said = (part.__doc__ or "").partition("\n\n")[0]
        yield from ("", f"## {named}", "", said, "", "| field | | default | |", "|---|---|---|---|")
        for name, field in part.model_fields.items():
            # The name of a backup is the key it stands under.
            if (part, name) != (Backup, "name"):
                yield f"| `{name}` | {_kind(field.annotation)} | {_default(field)} | {_cell(_said(field))} |"
    yield ""


def _kind(annotation: object) -> str:
    """What can be given, by the type of a field."""
    arguments = [one for one in typing.get_args(annotation) if one is not types.NoneType]
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(f"`{one}`" for one in arguments)
    if typing.get_origin(annotation) is typing.Annotated:
        return _kind(arguments[0])
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return _kind(arguments[0])
    if typing.get_origin(annotation) is not None:
        return "mapping"
    if isinstance(annotation, type) and annotation in PARTS:
        heading = PARTS[annotation].lower()
        return f"[{heading}](#{heading.replace(' ', '-')})"
    return _KINDS.get(annotation, "date") if isinstance(annotation, type) else "text"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    return (
        "" if default is None or isinstance(default, BaseModel) or default == {} else f"`{_spelt(default)}`"
    )


def _spelt(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def _said(field: FieldInfo) -> str:
    return field.description or ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
