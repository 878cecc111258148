"""What is wrong with a file of `lakeshare apply`, in words: where, what, and what to do about it."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from lakeshare_server.catalog.declared.documents import PARTS, Part
from lakeshare_server.catalog.declared.origin import Origin, SourceFile
from lakeshare_server.errors import (
    BadRequest,
    CatalogConflict,
    DocumentError,
    LakeshareError,
    NotFound,
    Unavailable,
    Unserveable,
    shown,
)

SECRETS = frozenset({"token", "tokens", "secret", "client_secret", "password", "bearer_token", "bearertoken"})
NO_SECRETS = "Secrets are never in files: `lakeshare recipient rotate` makes a token and writes the profile."


def faults_of(error: ValidationError, file: SourceFile) -> list[DocumentError]:
    """Everything pydantic found, in the order of the file."""
    found = []
    for fault in error.errors():
        where = tuple(step for step in fault["loc"] if step != "[key]")
        problem, hint = _explained(fault, where)
        found.append(Origin(file, where).fault(problem, hint))
    return sorted(found, key=lambda one: one.line)


def raise_all(found: Sequence[DocumentError]) -> None:
    """Raise what was found, if anything was.

    Raises:
        DocumentError: the first; the others are in its `also`.
    """
    if found:
        first, *others = found
        raise DocumentError(first.path, first.line, first.field, first.problem, first.hint, also=others)


def problem_of(error: LakeshareError) -> str:
    """What happened, without the remedy and the full stop."""
    match error:
        case BadRequest():
            return f"{error.field}: {error.value!r} cannot be used"
        case NotFound():
            return f"there is no {error.kind.lower()} {error.name}"
        case CatalogConflict() | Unavailable():
            return error.what
        case Unserveable():
            return error.reason.rstrip(".")
    return str(error).rstrip(".")


def remedy_of(error: LakeshareError) -> str:
    """What to do about it."""
    match error:
        case BadRequest():
            return error.hint
        case NotFound():
            return "Name another, or make it first."
        case CatalogConflict() | Unavailable():
            return error.fix
        case Unserveable():
            return error.fix if error.code is None else f"{error.fix} [{error.code}]"
    return "Correct it, or let the server's settings give access to it."


def _explained(fault: Mapping[str, Any], where: tuple[str | int, ...]) -> tuple[str, str]:
    kind, value = fault["type"], fault["input"]
    seen = (
        shown(repr(value))
        if isinstance(value, str | int | float | bool | None)
        else f"a {type(value).__name__}"
    )
    if kind == "extra_forbidden":
        return f"unknown field {where[-1]!r}", _meant(str(where[-1]), where[:-1])
    if kind == "missing":
        return "is missing", "Add it."
    if kind == "value_error":
        return f"{seen} cannot be used", str(fault["ctx"]["error"])
    if kind == "literal_error":
        return f"{seen} cannot be used", f"Use {fault['ctx']['expected']}."
    if kind == "string_type":
        return f"{seen} cannot be used", "Write it in quotes: YAML takes it for something else than text."
    return f"{seen} cannot be used", f"{fault['msg']}."


def _meant(name: str, holder: tuple[str | int, ...]) -> str:
    if name.lower() in SECRETS:
        return NO_SECRETS
    if name == "location" and holder[:1] == ("shares",):
        return "Where a table lies is said in `followed`, by the lake's name of the table."
    part = _part(holder)
    known = sorted(part.model_fields) if part else []
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(known)}."


def _part(holder: tuple[str | int, ...]) -> type[Part] | None:
    for pattern, part in PARTS.items():
        if len(pattern) == len(holder) and all(
            wanted in ("*", step) for wanted, step in zip(pattern, holder, strict=True)
        ):
            return part
    return None
