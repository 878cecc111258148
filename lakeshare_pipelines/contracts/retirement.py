"""Tables of earlier versions that stay shared until a date, as a contract has them in its property `retire`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from lakeshare_pipelines.contracts.document import Faults
from lakeshare_pipelines.contracts.model import Retirement, SetContract
from lakeshare_server.errors import suggest


def build_retirements(
    contract: SetContract, names: Mapping[str, str], faults: Faults
) -> tuple[Retirement, ...]:
    """Returns the retirements of a set with full names of tables; `names` are those of the set's tables."""
    place = faults.at("customProperties", "retire")
    found = []
    for entry in contract.retirements:
        name = entry.table if "." in entry.table else f"{contract.name}.{entry.table}"
        if name in names.values():
            hint = "Give the new version of the table another physicalName, or remove the entry."
            place.add(f"{name} is retired and a table of the set", hint)
        successor = entry.successor
        if successor is not None and successor not in names:
            hint = suggest(successor, names, "Name a table of the set, or leave the successor out.")
            place.add(f"the set has no table {successor!r} to read instead of {name}", hint)
        found.append(replace(entry, table=name, successor=names.get(successor or "")))
    for name, count in Counter(each.table for each in found).items():
        if count > 1:
            place.add(f"{name} is given {count} times", "Keep one of them.")
    return tuple(found)


def suggest_successor(table: str, contracts: Iterable[SetContract]) -> str | None:
    """Returns what to read instead of a retired table of one of the contracts; None for other tables."""
    for contract in contracts:
        for each in contract.retirements:
            if each.table == table:
                instead = f"Read {each.successor} instead" if each.successor else "Nothing takes its place"
                return f"Set {contract.name} {contract.version} retires it. {instead}."
    return None
