"""What is wrong with a contract: collected while it is read, raised together as one ContractError."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from lakeshare_pipelines.contracts.document import PARTS, CustomProperty, Part
from lakeshare_pipelines.errors import ContractError

Location = Sequence[str | int]
AnyPart = TypeVar("AnyPart", bound=Part)


@dataclass
class Faults:
    """All faults of one file, in the order they were found."""

    path: Path
    found: list[ContractError] = field(default_factory=list)

    def add(self, where: Location | str, problem: str, hint: str) -> None:
        """Note one fault; `where` is the place inside the file."""
        place = where if isinstance(where, str) else dotted(where)
        self.found.append(ContractError(self.path, place, problem, hint))

    def add_invalid(self, error: ValidationError, at: Location = (), part: type[Part] = PARTS[""]) -> None:
        """Note everything pydantic found below `at`."""
        for fault in error.errors():
            where = [*at, *(step for step in fault["loc"] if step != "[key]")]
            problem, hint = _explain(fault, fault["loc"], part)
            self.add(where, problem, hint)

    def require_none(self) -> None:
        """Raise what was found.

        Raises:
            ContractError: for the first fault; the others are in its `also`.
        """
        if self.found:
            first, *others = self.found
            raise ContractError(first.path, first.field, first.problem, first.hint, also=others)


def dotted(where: Location) -> str:
    """`schema[0].properties[3].logicalType`."""
    text = ""
    for step in where:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text or "the file"


def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """A hint that names the closest known word, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    return otherwise or f"Known are: {', '.join(known)}."


def read_extras(
    part: type[AnyPart], properties: Sequence[CustomProperty], at: Location, faults: Faults
) -> AnyPart:
    """The customProperties of one element as their model; a dotted name belongs to another tool and is left alone."""
    values: dict[str, Any] = {}
    places: dict[str, Location] = {}
    known = [field.alias or name for name, field in part.model_fields.items()]
    for index, entry in enumerate(properties):
        where = [*at, "customProperties", index]
        if "." in entry.property:
            continue
        if entry.property not in known:
            faults.add(
                [*where, "property"],
                f"unknown property {entry.property!r}",
                did_you_mean(entry.property, known),
            )
        elif entry.property in values:
            faults.add([*where, "property"], f"{entry.property!r} is given twice", "Keep one of them.")
        else:
            values[entry.property], places[entry.property] = entry.value, [*where, "value"]
    return _validated(part, values, places, faults)


def _validated(
    part: type[AnyPart], values: Mapping[str, Any], places: Mapping[str, Location], faults: Faults
) -> AnyPart:
    try:
        return part.model_validate(values)
    except ValidationError as error:
        for fault in error.errors():
            name, *rest = fault["loc"]
            problem, hint = _explain(fault, fault["loc"], part)
            faults.add([*places[str(name)], *rest], problem, hint)
        return part.model_validate({})


def _explain(fault: Mapping[str, Any], loc: Location, part: type[Part]) -> tuple[str, str]:
    kind = fault["type"]
    if kind == "extra_forbidden":
        holder = next((step for step in reversed(loc[:-1]) if isinstance(step, str)), "")
        known = [entry.alias or name for name, entry in PARTS.get(holder, part).model_fields.items()]
        return f"unknown field {loc[-1]!r}", did_you_mean(str(loc[-1]), known)
    if kind == "missing":
        return "is missing", "Add it; docs/reference/contract.md lists every field."
    value = fault["input"]
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    if kind == "literal_error":
        expected = str(fault["ctx"]["expected"])
        words = [word.strip("' ") for word in expected.replace(" or ", ",").split(",")]
        return f"cannot be {shown}", did_you_mean(str(value), words, f"Use {expected}.")
    return f"cannot be {shown}", f"{fault['msg']}."
