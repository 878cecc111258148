"""The published version of a contract, and which changes of it are refused: semantic versioning.

`lakeshare contract check`, runs and the publication of shares use these rules.
`lakeshare_pipelines.contracts.difference` has the classes of changes.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.contracts.difference import (
    VERSION,
    Change,
    compare_contracts,
    find_level,
    find_missing_version,
    has_new_major_version,
    next_version,
    parse_version,
)
from lakeshare_pipelines.contracts.document import find_line
from lakeshare_pipelines.contracts.loader import build_contract
from lakeshare_pipelines.errors import ContractError
from lakeshare_server.yaml_documents import YamlFault, parse

if TYPE_CHECKING:
    from lakeshare_server.catalog import Ledger

log = logging.getLogger(__name__)

GUIDE = "docs/how-to/evolve-a-contract.md"


@dataclass(frozen=True)
class Evolution:
    """The contract of the newest publication of a set, a later state of its file, and the changes between them."""

    published: SetContract
    contract: SetContract
    changes: tuple[Change, ...]

    @property
    def breaking(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.level == "breaking")

    @property
    def has_new_major_version(self) -> bool:
        """Whether breaking changes are allowed: any version follows a published one that is not made of numbers."""
        if VERSION.fullmatch(self.published.version) is None:
            return True
        return has_new_major_version(self.published, self.contract)

    @property
    def next_major(self) -> int:
        """The major version that breaking changes need, or the higher one that the contract has."""
        given = VERSION.fullmatch(self.contract.version)
        major = 0 if given is None else parse_version(self.contract)[0]
        if VERSION.fullmatch(self.published.version) is None:
            return major
        return max(major, parse_version(self.published)[0] + 1)


def find_evolution(ledger: "Ledger", contract: SetContract) -> Evolution | None:
    """Compares a contract with that of the set's newest publication.

    Returns None if they are the same, if nothing is published, or if there is no record of the published contract.
    """
    recorded = ledger.published_contract(contract.name)
    if recorded is None or recorded.digest == contract.digest or not contract.text:
        return None
    try:
        # Both as their files alone have them: contracts that are loaded together are connected with each other.
        published, given = (
            build_contract(parse(text), contract.path, None) for text in (recorded.text, contract.text)
        )
    except (ContractError, YamlFault) as error:
        log.warning(
            "changes of set %s are not checked: its published contract, version %s, was written for another "
            "lakeshare: %s",
            *(contract.name, recorded.version, error),
        )
        return None
    return Evolution(published, given, compare_contracts(published, given))


def require_allowed_changes(ledger: "Ledger", contract: SetContract) -> None:
    """Raises `ContractError` if a contract breaks what is published, without a new major version or a new table."""
    evolution = find_evolution(ledger, contract)
    if evolution is not None:
        raise_first(list_refusals(evolution))


def require_version(evolution: Evolution) -> None:
    """Raises `ContractError` for a refused change, and for a version that is too low for the other changes."""
    refusals = list_refusals(evolution)
    raise_first(refusals if refusals or evolution.breaking else list(_find_low_version(evolution)))


def raise_first(refusals: Sequence[ContractError]) -> None:
    """Raises the first refusal, if there is any, with the others in its `also`."""
    if refusals:
        first, *others = refusals
        raise ContractError(first.path, first.field, first.problem, first.hint, others, line=first.line)


def list_refusals(evolution: Evolution) -> list[ContractError]:
    """Lists the breaking changes that are refused, each with its remedy; raises `ContractError` for a version."""
    if not evolution.breaking:
        return []
    if not evolution.has_new_major_version:
        return [_refuse_without_version(evolution, change) for change in evolution.breaking]
    return [*_list_continued(evolution), *_list_lost(evolution)]


def _refuse_without_version(evolution: Evolution, change: Change) -> ContractError:
    old, new = evolution.published, evolution.contract
    hint = f"Undo the change, or give the contract version {next_version(old, 'breaking')}"
    if change.needs_new_table:
        hint += f" and the table another name: {_format_successor(evolution, change)}"
    elif _is_lost(evolution, change):
        hint += f" and the table a last day: {_format_retirement(change.where)}"
    problem = f"{change.what}, and {new.version} is no new major version of the published {old.version}"
    return _make_error(evolution, change.where, problem, f"{hint}. See {GUIDE}.")


def _list_continued(evolution: Evolution) -> Iterator[ContractError]:
    """Yields the changes of tables that go on under their published name, and cannot."""
    for change in evolution.breaking:
        if not change.needs_new_table or _find_table_name(evolution, change) is None:
            continue
        if evolution.contract.table(_find_table_name(evolution, change) or "").allow_schema_changes:
            continue
        hint = f"Give the new version another name: {_format_successor(evolution, change)}. See {GUIDE}."
        problem = f"{change.what}, and the table has the name of the published one, which its readers use"
        yield _make_error(evolution, change.where, problem, hint)


def _list_lost(evolution: Evolution) -> Iterator[ContractError]:
    """Yields the shared tables that the contract has no longer, and that would end at once."""
    for change in evolution.breaking:
        if _is_lost(evolution, change):
            problem = (
                "the table is published and shared, and the contract has neither the table nor its last day"
            )
            hint = (
                f"Add the day until which it stays shared: {_format_retirement(change.where)}. See {GUIDE}."
            )
            yield _make_error(evolution, "retire", f"{change.where}: {problem}", hint)
    today = datetime.now(UTC).date()
    published = {entry.table for entry in evolution.published.shares}
    known = {each.table for each in evolution.published.retirements}
    for each in evolution.contract.retirements:
        if each.table in published - known and each.is_over(today):
            problem = (
                f"{each.table}: the table is published and shared, and its last day, {each.date}, is over"
            )
            hint = "Give a day that recipients can still use, today or later (UTC)."
            yield _make_error(evolution, "retire", problem, hint)


def _is_lost(evolution: Evolution, change: Change) -> bool:
    names = {table.name for table in evolution.contract.tables}
    names |= {each.table for each in evolution.contract.retirements}
    is_shared = any(entry.table == change.where for entry in evolution.published.shares)
    return is_shared and change.where not in names


def _find_low_version(evolution: Evolution) -> Iterator[ContractError]:
    old, new = evolution.published, evolution.contract
    if VERSION.fullmatch(old.version) is None:
        return
    needed = find_missing_version(old, new, find_level(evolution.changes))
    if needed is not None:
        what = "; ".join(f"{change.where}: {change.what}" for change in evolution.changes)
        problem = f"{new.version} is too low for what changed since {old.version}, which is published"
        yield _make_error(
            evolution, "version", f"{problem}{': ' if what else ''}{what}", f"Give it {needed} or higher."
        )


def _find_table_name(evolution: Evolution, change: Change) -> str | None:
    """The table of the contract that a change is in."""
    names = [table.name for table in evolution.contract.tables]
    return next((name for name in names if f"{change.where}.".startswith(f"{name}.")), None)


def _format_successor(evolution: Evolution, change: Change) -> str:
    name = _find_table_name(evolution, change) or change.where
    successor = f"{re.sub(r'_v[0-9]+$', '', name)}_v{evolution.next_major}"
    short_name = successor.rpartition(".")[2]
    return f"physicalName: {successor}, with {_format_retirement(name, f', successor: {short_name}')}"


def _format_retirement(table: str, successor: str = "") -> str:
    return f"{{property: retire, value: [{{table: {table}, date: YYYY-MM-DD{successor}}}]}}"


def _make_error(evolution: Evolution, field: str, problem: str, hint: str) -> ContractError:
    contract = evolution.contract
    name = contract.name
    place: tuple[str, ...] = {"version": ("version",), "retire": ("customProperties", "retire")}.get(
        field, ("schema", *field.removeprefix(f"{name}.").split("."))
    )
    if len(place) > 2 and place[0] == "schema":
        place = (*place[:2], "properties", *place[2:])
    line = find_line(contract, *(("version",) if field == "set" else place))
    shown = f"set {name}" if field == "set" else f"set {name}: {field}"
    return ContractError(contract.path, shown, problem, hint, line=line)
